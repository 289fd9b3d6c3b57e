#include "base/digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "base/prng.h"

namespace tierkeep {
namespace {

// A fresh seed each run, printed when a test fails: SCOPED_TRACE(Seed...).
uint64_t FreshSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// Cuts `data` into pieces of random length, some of them empty.
std::vector<std::string_view> RandomPieces(std::string_view data, Prng& prng) {
  std::vector<std::string_view> pieces;
  const uint64_t piece_max = 1 + prng.Below(5000);
  while (!data.empty()) {
    const size_t n = std::min<size_t>(data.size(), prng.Below(piece_max + 1));
    pieces.push_back(data.substr(0, n));
    data.remove_prefix(n);
  }
  return pieces;
}

// The buffer that the xxHash project's own self-test hashes (tests of xxhsum, `XSUM_sanityCheck`).
std::string XxhSanityBuffer(size_t n) {
  std::string buffer;
  uint64_t generator = 2654435761u;
  for (size_t i = 0; i < n; ++i) {
    buffer += static_cast<char>(generator >> 56);
    generator *= 11400714785074694797u;
  }
  return buffer;
}

// The input of the BLAKE3 project's test_vectors.json.
std::string Blake3Input(size_t n) {
  std::string input;
  for (size_t i = 0; i < n; ++i) input += static_cast<char>(i % 251);
  return input;
}

TEST(Xxh128, MatchesThePublishedVectors) {
  const std::pair<size_t, const char*> vectors[] = {
      {0, "99aa06d3014798d86001c324468d497f"},    {1, "a6cd5e9392000f6ac44bdff4074eecdb"},
      {6, "082afe0b8162d12a3e7039bdda43cfc6"},    {12, "6e3efd8fc7802b18061a192713f69ad9"},
      {24, "0ce966e4678d37611e7044d28b1b901d"},   {48, "a002ac4e5478227ef942219aed80f67b"},
      {81, "4952f58181ab00425e8bafb9f95fb803"},   {222, "337e09641b948717f1aebd597cec6b3a"},
      {403, "1b6de21e332dd73dcdeb804d65c6dea4"},  {512, "18d2d110dcc9bca1617e49599013cb6b"},
      {2048, "f736557fd47073a5dd59e2c3a5f038e0"}, {2367, "e89c0f6ff369b427cb37aeb9e5d361ed"},
  };
  for (const auto& [n, hex] : vectors) {
    EXPECT_EQ(ComputeXxh128(AsBytes(XxhSanityBuffer(n))).Hex(), hex) << n << " bytes";
  }
}

TEST(Blake3, MatchesThePublishedVectors) {
  const std::pair<size_t, const char*> vectors[] = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
      {31744, "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
      {102400, "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
  };
  for (const auto& [n, hex] : vectors) {
    EXPECT_EQ(ComputeBlake3(Blake3Input(n)).Hex(), hex) << n << " bytes";
  }
}

TEST(Crc32c, MatchesThePublishedVectors) {
  EXPECT_EQ(ComputeCrc32c(AsBytes("123456789")), 0xE3069283u);
  EXPECT_EQ(ComputeCrc32c({}), 0u);
  // RFC 3720, appendix B.4.
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::string descending(ascending.rbegin(), ascending.rend());
  EXPECT_EQ(ComputeCrc32c(AsBytes(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(ComputeCrc32c(AsBytes(std::string(32, '\xff'))), 0x62A8AB43u);
  EXPECT_EQ(ComputeCrc32c(AsBytes(ascending)), 0x46DD794Eu);
  EXPECT_EQ(ComputeCrc32c(AsBytes(descending)), 0x113FDB5Cu);
}

TEST(Digests, PiecesGiveTheSameAsTheWhole) {
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  Xxh128Hasher reused;
  for (int round = 0; round < 60; ++round) {
    const std::string data = prng.Bytes(prng.Below(round < 30 ? 600 : 60000));
    Blake3Hasher blake3;
    reused.Reset();
    uint32_t crc = 0;
    for (const std::string_view piece : RandomPieces(data, prng)) {
      reused.Update(AsBytes(piece));
      blake3.Update(piece);
      crc = ComputeCrc32c(AsBytes(piece), crc);
    }
    ASSERT_EQ(reused.Finish().Hex(), ComputeXxh128(AsBytes(data)).Hex()) << data.size();
    ASSERT_EQ(blake3.Finish().Hex(), ComputeBlake3(data).Hex()) << data.size();
    ASSERT_EQ(crc, ComputeCrc32c(AsBytes(data))) << data.size();
  }
}

TEST(Digests, EveryFlippedBitShows) {
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  std::string data = prng.Bytes(4096);
  const Xxh128 xxh = ComputeXxh128(AsBytes(data));
  const Blake3 blake3 = ComputeBlake3(data);
  const uint32_t crc = ComputeCrc32c(AsBytes(data));
  for (int i = 0; i < 200; ++i) {
    const uint64_t bit = prng.Below(data.size() * 8);
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
    ASSERT_NE(ComputeXxh128(AsBytes(data)), xxh) << bit;
    ASSERT_NE(ComputeBlake3(data), blake3) << bit;
    ASSERT_NE(ComputeCrc32c(AsBytes(data)), crc) << bit;
    data[bit / 8] = static_cast<char>(data[bit / 8] ^ 1 << bit % 8);
  }
}

TEST(Digests, FinishLeavesTheHasherUsableAndMovesKeepIt) {
  Xxh128Hasher xxh;
  Blake3Hasher blake3;
  xxh.Update(AsBytes("ab"));
  blake3.Update("ab");
  EXPECT_EQ(xxh.Finish(), ComputeXxh128(AsBytes("ab")));
  EXPECT_EQ(blake3.Finish(), ComputeBlake3("ab"));
  Xxh128Hasher xxh_moved = std::move(xxh);
  Blake3Hasher blake3_moved = std::move(blake3);
  xxh_moved.Update(AsBytes("c"));
  blake3_moved.Update("c");
  EXPECT_EQ(xxh_moved.Finish(), ComputeXxh128(AsBytes("abc")));
  EXPECT_EQ(blake3_moved.Finish(), ComputeBlake3("abc"));
}

TEST(FixedBytes, HexAndRawRoundTrip) {
  const Blake3 digest = ComputeBlake3("x");
  EXPECT_EQ(Blake3::FromHex(digest.Hex()), digest);
  EXPECT_EQ(Blake3::FromBytes(digest.Raw()), digest);
  EXPECT_FALSE(digest.IsZero());
  EXPECT_TRUE(Blake3{}.IsZero());
}

TEST(FixedBytes, OnlyLowerCaseHexOfTheRightLengthIsTaken) {
  const std::string good = "00112233445566778899aabbccddeeff";
  EXPECT_TRUE(Xxh128::FromHex(good));
  EXPECT_FALSE(Xxh128::FromHex("00112233445566778899AABBCCDDEEFF"));
  EXPECT_FALSE(Xxh128::FromHex(good + "0"));
  EXPECT_FALSE(Xxh128::FromHex(good.substr(1)));
  EXPECT_FALSE(Xxh128::FromHex("g" + good.substr(1)));
  EXPECT_FALSE(Xxh128::FromHex(good.substr(1) + " "));
  EXPECT_FALSE(Xxh128::FromBytes("short"));
}

TEST(FixedBytes, OrderIsThatOfTheHexTexts) {
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 100; ++i) {
    const Xxh128 a = *Xxh128::FromBytes(prng.Bytes(16));
    const Xxh128 b = *Xxh128::FromBytes(prng.Bytes(16));
    ASSERT_EQ(a < b, a.Hex() < b.Hex());
  }
}

}  // namespace
}  // namespace tierkeep
