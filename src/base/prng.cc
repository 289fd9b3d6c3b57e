#include "base/prng.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace tierkeep {
namespace {

uint64_t RotateLeft(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

}  // namespace

// Seeding by splitmix64 and the generator itself: https://prng.di.unimi.it/ (public domain).
Prng::Prng(uint64_t seed) {
  for (uint64_t& word : s_) {
    seed += 0x9e3779b97f4a7c15;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
}

uint64_t Prng::Next() {
  const uint64_t result = RotateLeft(s_[1] * 5, 7) * 9;
  const uint64_t t = s_[1] << 17;
  s_[2] ^= s_[0];
  s_[3] ^= s_[1];
  s_[1] ^= s_[2];
  s_[0] ^= s_[3];
  s_[2] ^= t;
  s_[3] = RotateLeft(s_[3], 45);
  return result;
}

// Lemire's multiply-and-shift (https://arxiv.org/abs/1805.10941): the few low products that would
// favour small results are drawn again, so every result is equally likely.
uint64_t Prng::Below(uint64_t bound) {
  TK_CHECK(bound > 0);
  using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(Next()) * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = -bound % bound;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<Wide>(Next()) * bound;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

std::string Prng::Bytes(size_t n) {
  std::string bytes(n, '\0');
  Prng state = *this;  // which nothing written through a char* can alias: it stays in registers
  for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
    uint64_t word = state.Next();
    // The same bytes on every machine.
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), n - at));
  }
  *this = state;
  return bytes;
}

}  // namespace tierkeep
