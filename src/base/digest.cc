#include "base/digest.h"

#include <isa-l/crc.h>
#include <llvm-c/blake3.h>
#include <xxhash.h>
#if defined(__x86_64__)
// Last of the three: it redirects XXH3_* to variants chosen at run time by the processor's vector
// extensions, so that a generic x86-64 build still hashes at AVX2 or AVX-512 speed.
#include <xxh_x86dispatch.h>
#endif

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tierkeep {
namespace {

Xxh128 Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Xxh128 out;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), out.bytes.begin());
  return out;
}

}  // namespace

std::string ToHex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(bytes.size() * 2, '\0');
  char* out = hex.data();
  for (const std::byte b : bytes) {
    *out++ = kDigits[std::to_integer<unsigned>(b) >> 4];
    *out++ = kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return hex;
}

Xxh128 ComputeXxh128(ByteSpan data) { return Canonical(XXH3_128bits(data.data(), data.size())); }

Blake3 ComputeBlake3(ByteSpan data) {
  Blake3Hasher hasher;
  hasher.Update(data);
  return hasher.Finish();
}

uint32_t ComputeCrc32c(ByteSpan data, uint32_t crc) {
  // ISA-L takes and gives the raw register; the complements are ours. Its length is an int.
  constexpr size_t kPieceMax = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!data.empty()) {
    const size_t n = std::min(data.size(), kPieceMax);
    // The pointer isn't const in ISA-L's declaration, but it only reads.
    auto* bytes = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(data.data()));
    state = crc32_iscsi(bytes, static_cast<int>(n), state);
    data = data.subspan(n);
  }
  return ~state;
}

// The state is allocated by the library, whose version at run time decides on its size and layout.
struct Xxh128Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh); }
};

Xxh128Hasher::Xxh128Hasher() : state_(std::make_unique<State>()) {
  TK_CHECK_MSG(state_->xxh != nullptr, "out of memory");
  Reset();
}
Xxh128Hasher::~Xxh128Hasher() = default;
Xxh128Hasher::Xxh128Hasher(Xxh128Hasher&&) noexcept = default;
Xxh128Hasher& Xxh128Hasher::operator=(Xxh128Hasher&&) noexcept = default;

void Xxh128Hasher::Reset() { TK_CHECK(XXH3_128bits_reset(state_->xxh) == XXH_OK); }

void Xxh128Hasher::Update(ByteSpan data) {
  if (data.empty()) return;  // an empty span may hold a null pointer, which the library refuses
  TK_CHECK(XXH3_128bits_update(state_->xxh, data.data(), data.size()) == XXH_OK);
}

Xxh128 Xxh128Hasher::Finish() const { return Canonical(XXH3_128bits_digest(state_->xxh)); }

struct Blake3Hasher::State {
  llvm_blake3_hasher blake3;
};

Blake3Hasher::Blake3Hasher() : state_(std::make_unique<State>()) {
  llvm_blake3_hasher_init(&state_->blake3);
}
Blake3Hasher::~Blake3Hasher() = default;
Blake3Hasher::Blake3Hasher(Blake3Hasher&&) noexcept = default;
Blake3Hasher& Blake3Hasher::operator=(Blake3Hasher&&) noexcept = default;

void Blake3Hasher::Update(ByteSpan data) {
  llvm_blake3_hasher_update(&state_->blake3, data.data(), data.size());
}

Blake3 Blake3Hasher::Finish() const {
  Blake3 out;
  llvm_blake3_hasher_finalize(&state_->blake3, out.bytes.data(), out.bytes.size());
  return out;
}

}  // namespace tierkeep
