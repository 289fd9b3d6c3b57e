#include "base/prng.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace tierkeep {
namespace {

TEST(Prng, GivesTheReferenceSequence) {
  // xoshiro256** seeded from splitmix64(0), as the authors' C programs print it.
  Prng prng(0);
  EXPECT_EQ(prng.Next(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(prng.Next(), 0xbf6e1f784956452au);
  EXPECT_EQ(prng.Next(), 0x1a5f849d4933e6e0u);
  EXPECT_EQ(prng.Next(), 0x6aa594f1262d2d2cu);
}

TEST(Prng, SameSeedSameNumbersOtherSeedOthers) {
  Prng a(42);
  Prng b(42);
  Prng c(43);
  int equal_to_c = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t x = a.Next();
    ASSERT_EQ(x, b.Next());
    equal_to_c += x == c.Next();
  }
  EXPECT_EQ(equal_to_c, 0);
}

TEST(Prng, BelowStaysInBoundsAndReachesEveryValueEvenly) {
  Prng prng(7);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) {
    const uint64_t x = prng.Below(6);
    ASSERT_LT(x, 6u);
    ++counts[x];
  }
  // The seed is fixed, so this can't flake; 5 standard deviations of a fair die are 456.
  for (const int count : counts) EXPECT_NEAR(count, 10000, 456);
  EXPECT_EQ(prng.Below(1), 0u);
  // With this bound nearly half of all draws must be rejected.
  const uint64_t bound = (uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) EXPECT_LT(prng.Below(bound), bound);
}

TEST(Prng, ChanceOfNothingAndOfCertainty) {
  Prng prng(1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(prng.Chance(0, 5));
    EXPECT_TRUE(prng.Chance(5, 5));
  }
}

TEST(Prng, BytesAreThePrefixOfLongerOnes) {
  const std::string longer = Prng(3).Bytes(1000);
  for (const size_t n : {0, 1, 7, 8, 9, 999}) EXPECT_EQ(Prng(3).Bytes(n), longer.substr(0, n));
  EXPECT_GT(std::set<char>(longer.begin(), longer.end()).size(), 240u);
}

}  // namespace
}  // namespace tierkeep
