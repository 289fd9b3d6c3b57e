#include "core/memory_budget.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

constexpr uint64_t kMiB = 1u << 20;

TEST(MemoryBudget, TwoGenerationsAndWithCopiesTheNextSave) {
  EXPECT_EQ(BytesNeeded({.own = 10, .kept = 0}), 20U);
  EXPECT_EQ(BytesNeeded({.own = 10, .kept = 10}), 50U);
  EXPECT_EQ(BytesNeeded({.own = 10, .kept = 20}), 70U);
  EXPECT_EQ(BytesNeeded({.own = 1, .kept = 9}), 21U);
  EXPECT_EQ(LimitNeeded({.own = 10, .kept = 20}), 40U);
}

TEST(MemoryBudget, AdviceIsATwentiethMoreInWholeMiB) {
  EXPECT_EQ(AdvisedBytes(0), 0U);
  EXPECT_EQ(AdvisedBytes(1), kMiB);
  EXPECT_EQ(AdvisedBytes(100 * kMiB), 105 * kMiB);
  EXPECT_EQ(AdvisedBytes(10 * kMiB), 11 * kMiB);
}

TEST(MemoryBudget, FitsBothTheVolumeAndTheControlGroup) {
  const GenerationBytes one{.own = 10, .kept = 10};
  EXPECT_TRUE(Fits(one, {.total_bytes = 50}));
  EXPECT_FALSE(Fits(one, {.total_bytes = 49}));
  EXPECT_TRUE(Fits(one, {.total_bytes = 50, .limit_bytes = 20}));
  EXPECT_FALSE(Fits(one, {.total_bytes = 50, .limit_bytes = 19}));
  EXPECT_FALSE(Fits(one, {.total_bytes = 50, .problem = "EIO"}));
}

TEST(MemoryBudget, APullLeavesRoomForTheNextSave) {
  const MemoryRoom room{.total_bytes = 50, .free_bytes = 20};
  EXPECT_EQ(ShortBytes(room, {.bytes = 10, .reserve_bytes = 10}), 0U);
  EXPECT_EQ(ShortBytes(room, {.bytes = 11, .reserve_bytes = 10}), 1U);
  EXPECT_EQ(ShortBytes(room, {.bytes = 10, .under_way_bytes = 5, .reserve_bytes = 10}), 5U);
  EXPECT_EQ(ShortBytes(room, {.bytes = 20}), 0U);
}

TEST(MemoryBudget, TheControlGroupPaysForPullsAlone) {
  const MemoryRoom room{
      .total_bytes = 50, .free_bytes = 40, .limit_bytes = 30, .limit_free_bytes = 12};
  EXPECT_EQ(ShortBytes(room, {.bytes = 12, .reserve_bytes = 20}), 0U);
  EXPECT_EQ(ShortBytes(room, {.bytes = 14, .reserve_bytes = 20}), 2U);
  EXPECT_EQ(ShortBytes(room, {.bytes = 14, .reserve_bytes = 30}), 4U);
}

TEST(MemoryBudget, WhatIsNotKnownIsNotFree) {
  EXPECT_EQ(ShortBytes({.total_bytes = 50, .free_bytes = 50, .problem = "EIO"},
                       {.bytes = 10, .reserve_bytes = 5}),
            15U);
}

}  // namespace
}  // namespace tierkeep
