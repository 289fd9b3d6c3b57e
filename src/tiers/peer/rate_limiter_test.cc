#include "tiers/peer/rate_limiter.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

TEST(RateLimiter, WithoutLimitNothingWaits) {
  RateLimiter limiter(0);
  const Instant now{5s};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(limiter.Book(1 << 30, now), now);
  EXPECT_EQ(limiter.PieceBytes(1 << 30), 1u << 30);
}

TEST(RateLimiter, BookingsAreSpacedByTheirCost) {
  RateLimiter limiter(1000);
  const Instant start{5s};
  EXPECT_EQ(limiter.Book(500, start), start);
  EXPECT_EQ(limiter.Book(2000, start), start + 500ms);
  EXPECT_EQ(limiter.Book(1, start), start + 2500ms);
}

TEST(RateLimiter, IdleTimeIsNotSavedUp) {
  RateLimiter limiter(1000);
  EXPECT_EQ(limiter.Book(1000, Instant{1s}), Instant{1s});
  EXPECT_EQ(limiter.Book(1000, Instant{100s}), Instant{100s});
  EXPECT_EQ(limiter.Book(1000, Instant{100s}), Instant{101s});
}

TEST(RateLimiter, PiecesAreSmallButNotTiny) {
  EXPECT_EQ(RateLimiter(1000).PieceBytes(1 << 20), 16u << 10);
  EXPECT_EQ(RateLimiter(100u << 20).PieceBytes(64u << 20), (100u << 20) / 50);
  EXPECT_EQ(RateLimiter(100u << 20).PieceBytes(7), 7u);
}

}  // namespace
}  // namespace tierkeep
