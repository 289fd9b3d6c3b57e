#include "format/record.h"

#include <gtest/gtest.h>

#include "base/digest.h"
#include "format/format_testutil.h"

namespace tierkeep {
namespace {

TEST(Record, GoldenBytes) {
  // The digest as the xxhash package of Python gives it.
  EXPECT_EQ(ToHex(AsBytes(EncodeRecord(RecordKind::kGeneration, "abc"))),
            "544b52310200000003616263"
            "31d2f9f21fa45a65def80af8bb4a367f");
}

TEST(Record, ReadsBack) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 200; ++i) {
    const std::string payload = prng.Bytes(prng.Below(300));
    const auto kind = static_cast<RecordKind>(1 + prng.Below(5));
    const auto decoded = DecodeRecord(kind, EncodeRecord(kind, payload));
    ASSERT_TRUE(decoded.ok()) << decoded.error().message();
    ASSERT_EQ(*decoded, payload);
  }
}

TEST(Record, AnotherKindIsRefused) {
  const auto decoded =
      DecodeRecord(RecordKind::kNodeState, EncodeRecord(RecordKind::kStoreId, "x"));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code(), Code::kDataLoss);
  EXPECT_EQ(decoded.error().message(), "record: kind 4 where 1 was expected");
}

TEST(Record, EveryFlippedBitTruncationAndExtensionIsRefused) {
  const std::string good = EncodeRecord(RecordKind::kShardState, "some payload");
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    const auto decoded = DecodeRecord(RecordKind::kShardState, bad);
    ASSERT_FALSE(decoded.ok()) << "bit " << bit;
    ASSERT_EQ(decoded.error().code(), Code::kDataLoss);
  }
  for (size_t length = 0; length < good.size(); ++length) {
    ASSERT_FALSE(DecodeRecord(RecordKind::kShardState, good.substr(0, length)).ok());
  }
  EXPECT_FALSE(DecodeRecord(RecordKind::kShardState, good + "x").ok());
  EXPECT_FALSE(DecodeRecord(RecordKind::kShardState, good + good).ok());
}

}  // namespace
}  // namespace tierkeep
