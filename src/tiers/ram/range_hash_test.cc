#include "tiers/ram/range_hash.h"

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

class RangeHashTest : public testing::Test {
 protected:
  TempDir temp_{"/dev/shm"};
  WorkerPool pool_{2};
};

TEST_F(RangeHashTest, GivesEachRangesDigest) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(fmt::format("TIERKEEP_TEST_SEED={}", seed));
  Prng prng(seed);
  std::vector<std::string> paths{"a", "b", "c"};
  std::vector<std::string> contents{prng.Bytes(3 << 20), prng.Bytes(1), prng.Bytes(700'000)};
  for (size_t i = 0; i < paths.size(); ++i) PutFile(temp_.Path("root/" + paths[i]), contents[i]);
  std::vector<HashRange> ranges;
  std::vector<Xxh128> expected;
  for (int i = 0; i < 2000; ++i) {
    const size_t file = prng.Below(paths.size());
    const uint64_t offset = prng.Below(contents[file].size());
    const uint64_t bytes = prng.Below(contents[file].size() - offset + 1);
    ranges.push_back({&paths[file], offset, bytes, {}});
    expected.push_back(
        ComputeXxh128(AsBytes(std::string_view(contents[file]).substr(offset, bytes))));
  }
  for (WorkerPool* pool : {&pool_, static_cast<WorkerPool*>(nullptr)}) {
    for (HashRange& range : ranges) range.digest = {};
    ASSERT_TRUE(HashRanges(temp_.dir(), "root", pool, ranges, nullptr).ok());
    for (size_t i = 0; i < ranges.size(); ++i) EXPECT_EQ(ranges[i].digest, expected[i]) << i;
  }
}

TEST_F(RangeHashTest, AFileCutShortIsDataLossAndAMissingOneNotFound) {
  PutFile(temp_.Path("a"), std::string(1000, 'x'));
  const std::string a = "a";
  const std::string none = "none";
  std::vector<HashRange> beyond{{&a, 500, 501, {}}};
  EXPECT_EQ(HashRanges(temp_.dir(), "", &pool_, beyond, nullptr).error().code(), Code::kDataLoss);
  std::vector<HashRange> missing{{&none, 0, 1, {}}};
  EXPECT_EQ(HashRanges(temp_.dir(), "", &pool_, missing, nullptr).error().code(), Code::kNotFound);
}

TEST_F(RangeHashTest, StopsWhenCancelled) {
  PutFile(temp_.Path("a"), "x");
  const std::string a = "a";
  const std::atomic<bool> cancelled{true};
  std::vector<HashRange> ranges{{&a, 0, 1, {}}};
  EXPECT_EQ(HashRanges(temp_.dir(), "", &pool_, ranges, &cancelled).error().code(),
            Code::kCancelled);
}

}  // namespace
}  // namespace tierkeep
