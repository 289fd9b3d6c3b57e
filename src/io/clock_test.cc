#include "io/clock.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace tierkeep {
namespace {

TEST(SystemClockTest, MonotonicTimeNeverGoesBack) {
  SystemClock clock;
  Instant last = clock.Now();
  EXPECT_GT(last.time_since_epoch(), Duration::zero());
  for (int i = 0; i < 10000; ++i) {
    const Instant now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SystemClockTest, WallTimeIsOfThisAge) {
  // 2024-01-01; the machine that builds this is younger.
  EXPECT_GT(WallMillis(SystemClock().WallNow()), 1704067200000u);
}

TEST(SystemRandomTest, FillsEveryByteAndDiffers) {
  SystemRandom random;
  std::array<uint64_t, 4> bits{};
  std::array<uint64_t, 4> seen{};
  std::set<std::array<uint64_t, 4>> all;
  for (int i = 0; i < 64; ++i) {
    random.Fill(bits.data(), sizeof(bits));
    for (size_t j = 0; j < bits.size(); ++j) seen[j] |= bits[j];
    all.insert(bits);
  }
  EXPECT_EQ(all.size(), 64u);
  for (const uint64_t word : seen) EXPECT_EQ(word, ~uint64_t{0});  // fails once in 2^56 runs
}

TEST(SystemRandomTest, NothingIsTouchedBeyondTheEnd) {
  SystemRandom random;
  std::array<char, 4> bytes{'a', 'b', 'c', 'd'};
  random.Fill(bytes.data(), 0);
  random.Fill(bytes.data() + 1, 2);
  EXPECT_EQ(bytes[0], 'a');
  EXPECT_EQ(bytes[3], 'd');
}

}  // namespace
}  // namespace tierkeep
