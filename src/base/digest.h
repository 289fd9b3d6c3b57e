// Checksums and digests.
//
// XXH3-128 finds corruption of a chunk; BLAKE3-256 names things (a manifest, a logical state);
// CRC32C is what OCDBT and object stores use. Which one stands where: docs/formats.md.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tierkeep {

using ByteSpan = std::span<const std::byte>;
using MutableByteSpan = std::span<std::byte>;

inline ByteSpan AsBytes(std::string_view s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

std::string ToHex(ByteSpan bytes);

// N bytes with an order; `Tag` keeps the kinds apart.
template <typename Tag, size_t N>
struct FixedBytes {
  std::array<uint8_t, N> bytes{};

  static constexpr size_t kSize = N;
  auto operator<=>(const FixedBytes&) const = default;
  bool IsZero() const { return *this == FixedBytes{}; }
  // Lower-case hex, 2 * N digits.
  std::string Hex() const { return ToHex(std::as_bytes(std::span(bytes))); }
  // Exactly 2 * N lower-case hex digits, else nullopt.
  static std::optional<FixedBytes> FromHex(std::string_view hex) {
    if (hex.size() != 2 * N) return std::nullopt;
    FixedBytes out;
    for (size_t i = 0; i < hex.size(); ++i) {
      const char c = hex[i];
      const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
      if (v < 0) return std::nullopt;
      out.bytes[i / 2] = static_cast<uint8_t>(out.bytes[i / 2] << 4 | v);
    }
    return out;
  }
  // Exactly N raw bytes, else nullopt.
  static std::optional<FixedBytes> FromBytes(std::string_view raw) {
    if (raw.size() != N) return std::nullopt;
    FixedBytes out;
    for (size_t i = 0; i < N; ++i) out.bytes[i] = static_cast<uint8_t>(raw[i]);
    return out;
  }
  std::string Raw() const { return {reinterpret_cast<const char*>(bytes.data()), N}; }
};

struct Xxh128Tag;
using Xxh128 = FixedBytes<Xxh128Tag, 16>;  // canonical (big-endian) form
struct Blake3Tag;
using Blake3 = FixedBytes<Blake3Tag, 32>;

Xxh128 ComputeXxh128(ByteSpan data);
Blake3 ComputeBlake3(ByteSpan data);
inline Blake3 ComputeBlake3(std::string_view data) { return ComputeBlake3(AsBytes(data)); }
// Castagnoli, initial and final complement; CRC-32C("123456789") = 0xE3069283. `crc` continues.
uint32_t ComputeCrc32c(ByteSpan data, uint32_t crc = 0);

// Incremental forms. One thread at a time; movable.
class Xxh128Hasher {
 public:
  Xxh128Hasher();
  ~Xxh128Hasher();
  Xxh128Hasher(Xxh128Hasher&&) noexcept;
  Xxh128Hasher& operator=(Xxh128Hasher&&) noexcept;
  void Reset();
  void Update(ByteSpan data);
  Xxh128 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class Blake3Hasher {
 public:
  Blake3Hasher();
  ~Blake3Hasher();
  Blake3Hasher(Blake3Hasher&&) noexcept;
  Blake3Hasher& operator=(Blake3Hasher&&) noexcept;
  void Update(ByteSpan data);
  void Update(std::string_view data) { Update(AsBytes(data)); }
  Blake3 Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tierkeep
