#include "core/save_match.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr Duration kOvertakenMax = 5s;
constexpr WorldShape kWorld{.framework = Framework::kOrbax, .nodes = 2};
const RunId kRun = TestRun(10);

SaveKey Key(Step step) { return {kRun, step, 1}; }

control::SaveStaged Report(const SaveKey& save, Rank rank, uint64_t ordinal) {
  control::SaveStaged staged;
  *staged.mutable_save() = ToProto(save);
  staged.set_ordinal(ordinal);
  *staged.add_shards() =
      MakeShard({.save = save, .rank = rank, .ordinal = ordinal, .world = kWorld});
  return staged;
}

class SaveMatch : public testing::Test {
 protected:
  std::vector<Step> Stage(Rank rank, Step step, uint64_t ordinal) {
    return StepsOf(matcher_.Staged(rank, Report(Key(step), rank, ordinal), now_));
  }
  static std::vector<Step> StepsOf(const SaveMatcher::Drops& drops) {
    std::vector<Step> steps;
    for (const auto& drop : drops) steps.push_back(drop.save.step);
    return steps;
  }
  std::optional<Step> active() const {
    return matcher_.active() ? std::optional(matcher_.active()->step) : std::nullopt;
  }
  SaveMatcher matcher_{2, kOvertakenMax};
  Instant now_{};
};

using Steps = std::vector<Step>;

TEST_F(SaveMatch, IsCompleteWhenEveryNodeHasIt) {
  EXPECT_EQ(Stage(0, 5, 1), Steps());
  EXPECT_EQ(active(), std::nullopt);
  EXPECT_EQ(Stage(0, 5, 1), Steps());
  EXPECT_EQ(active(), std::nullopt);
  EXPECT_EQ(Stage(1, 5, 1), Steps());
  EXPECT_EQ(active(), 5U);
  EXPECT_EQ(matcher_.ActiveShards().size(), 2U);
}

TEST_F(SaveMatch, WhileANodeIsAwayOnlyTheOldestAndTheNewestWait) {
  EXPECT_EQ(Stage(0, 5, 1), Steps());
  EXPECT_EQ(Stage(0, 6, 2), Steps());
  EXPECT_EQ(Stage(0, 7, 3), Steps{6});
  EXPECT_EQ(Stage(0, 8, 4), Steps{7});
  // Slow: it completes the oldest, and then the newest.
  EXPECT_EQ(Stage(1, 5, 1), Steps());
  EXPECT_EQ(active(), 5U);
  EXPECT_EQ(Stage(0, 9, 5), Steps());
  EXPECT_EQ(Stage(0, 10, 6), Steps{9});
}

TEST_F(SaveMatch, WhatSomeNodeSkippedGoesWhenANewerOneIsComplete) {
  Stage(0, 5, 1);
  Stage(0, 6, 2);
  EXPECT_EQ(Stage(1, 6, 1), Steps{5});
  EXPECT_EQ(active(), 6U);
  EXPECT_TRUE(matcher_.IsPast(1, Key(5), 9));
}

// On volumes of three checkpoints neither could write another one beside what waits in vain.
TEST_F(SaveMatch, WhatSomeNodeSkippedGoesOnceThoseWhoHaveItHaveALaterOne) {
  EXPECT_EQ(Stage(0, 5, 1), Steps());
  EXPECT_EQ(Stage(0, 6, 2), Steps());
  EXPECT_EQ(Stage(1, 8, 1), Steps{5}) << "6 is the newest that rank 0 has";
  EXPECT_EQ(Stage(1, 9, 2), Steps());
  EXPECT_EQ(Stage(0, 10, 3), (Steps{6, 8})) << "9 is the newest that rank 1 has";
  EXPECT_EQ(Stage(1, 11, 3), Steps{9});
  EXPECT_EQ(Stage(0, 11, 4), Steps{10});
  EXPECT_EQ(active(), 11U);
}

TEST_F(SaveMatch, WhatIsReportedAfterAnothersLaterSavesIsSkippedToo) {
  EXPECT_EQ(Stage(1, 8, 1), Steps());
  EXPECT_EQ(Stage(0, 5, 1), Steps());
  EXPECT_EQ(Stage(0, 6, 2), Steps{5});
}

// After a job went back to it. The third node is merely slower.
TEST_F(SaveMatch, AnEarlierStepThatIsSavedLaterIsWaitedFor) {
  SaveMatcher matcher(3, kOvertakenMax);
  const auto stage = [&](Rank rank, Step step, uint64_t ordinal) {
    return StepsOf(matcher.Staged(rank, Report(Key(step), rank, ordinal), now_));
  };
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(stage(rank, 10, 1), Steps());
    EXPECT_EQ(stage(rank, 5, 2), Steps());
  }
  EXPECT_EQ(stage(2, 10, 1), Steps());
  EXPECT_EQ(stage(2, 5, 2), Steps{10});
  EXPECT_EQ(matcher.active()->step, 5U);
}

TEST_F(SaveMatch, AHigherStepIsNotANewerSave) {
  Stage(0, 900, 1);
  Stage(0, 100, 2);
  EXPECT_EQ(Stage(1, 100, 1), Steps{900});
  EXPECT_EQ(active(), 100U);
}

TEST_F(SaveMatch, ANewerIncompleteSaveStays) {
  Stage(0, 5, 1);
  Stage(0, 6, 2);
  EXPECT_EQ(Stage(1, 5, 1), Steps());
  EXPECT_EQ(active(), 5U);
  matcher_.ActiveCommitted();
  EXPECT_EQ(Stage(1, 6, 2), Steps());
  EXPECT_EQ(active(), 6U);
}

TEST_F(SaveMatch, OfABurstTheNewestStays) {
  for (Step step = 5; step < 50; ++step) {
    Stage(0, step, step);
    EXPECT_EQ(Stage(1, step, step), step == 5 ? Steps() : Steps{step - 1});
    EXPECT_EQ(active(), step);
    now_ += kOvertakenMax / 50;
  }
}

TEST_F(SaveMatch, OneIsSeenThroughWhenSavesComeTooFastForTooLong) {
  Stage(0, 5, 1);
  Stage(1, 5, 1);
  now_ += 10 * kOvertakenMax;  // slow, but nothing was overtaken
  Stage(0, 6, 2);
  EXPECT_EQ(Stage(1, 6, 2), Steps{5});
  EXPECT_EQ(active(), 6U);
  now_ += kOvertakenMax;
  Stage(0, 7, 3);
  EXPECT_EQ(Stage(1, 7, 3), Steps{7});
  EXPECT_EQ(active(), 6U);
  matcher_.ActiveCommitted();
  Stage(0, 8, 4);
  Stage(1, 8, 4);
  now_ += kOvertakenMax;
  Stage(0, 9, 5);
  EXPECT_EQ(Stage(1, 9, 5), Steps{8});
}

TEST_F(SaveMatch, AStalledSaveGivesWayAtOnce) {
  Stage(0, 5, 1);
  Stage(1, 5, 1);
  Stage(0, 6, 2);
  Stage(1, 6, 2);
  now_ += kOvertakenMax;
  matcher_.ActiveStalled();
  Stage(0, 7, 3);
  EXPECT_EQ(Stage(1, 7, 3), Steps{6});
  EXPECT_EQ(active(), 7U);
}

TEST_F(SaveMatch, AFailedSaveIsDroppedByAll) {
  Stage(0, 5, 1);
  EXPECT_EQ(StepsOf(matcher_.Failed(1, Key(5), "no space")), Steps{5});
  EXPECT_TRUE(matcher_.IsPast(0, Key(5), 1));
  EXPECT_EQ(StepsOf(matcher_.Failed(0, Key(5), "no space")), Steps());
}

TEST_F(SaveMatch, ARankThatLostASaveTakesItFromAll) {
  Stage(0, 5, 1);
  Stage(1, 4, 1);
  EXPECT_EQ(StepsOf(matcher_.Rejoined(0, {})), Steps{5});
  EXPECT_EQ(StepsOf(matcher_.Rejoined(1, {Key(4)})), Steps());
}

TEST_F(SaveMatch, LateReportsAreKnownAsSuch) {
  Stage(0, 5, 3);
  Stage(1, 5, 3);
  matcher_.ActiveCommitted();
  EXPECT_TRUE(matcher_.IsPast(0, Key(5), 3));
  EXPECT_TRUE(matcher_.IsPast(0, Key(4), 2));
  EXPECT_FALSE(matcher_.IsPast(0, Key(6), 4));
}

// Nodes report saves in any interleaving, skip some, and commits come at any time: what gets active
// is complete and never older than what was committed, and nothing stays forever.
TEST(SaveMatchProperty, OnlyMovesForward) {
  EXPECT_TRUE(rc::check("forward", [] {
    const auto nodes = *rc::gen::inRange<uint32_t>(1, 5);
    SaveMatcher matcher(nodes, kOvertakenMax);
    std::vector<uint64_t> next_step(nodes, 0);
    std::vector<uint64_t> ordinal(nodes, 0);
    std::map<Step, std::set<Rank>> reported;
    std::set<Step> dropped;
    std::optional<Step> committed;
    const auto apply = [&](const SaveMatcher::Drops& drops) {
      for (const auto& drop : drops) {
        RC_ASSERT(dropped.insert(drop.save.step).second);
        RC_ASSERT(committed != drop.save.step);
      }
    };
    Instant now{};
    for (int i = 0; i < 200; ++i) {
      now += *rc::gen::inRange(0, 1000) * 1ms;
      const auto rank = *rc::gen::inRange<uint32_t>(0, nodes);
      const Step step = ++next_step[rank];
      if (*rc::gen::inRange(0, 6) == 0) continue;  // skipped here
      ++ordinal[rank];
      if (*rc::gen::inRange(0, 12) == 0) {
        apply(matcher.Failed(rank, Key(step), "x"));
        continue;
      }
      if (matcher.IsPast(rank, Key(step), ordinal[rank])) continue;
      reported[step].insert(rank);
      apply(matcher.Staged(rank, Report(Key(step), rank, ordinal[rank]), now));
      if (!matcher.active()) continue;
      const Step active = matcher.active()->step;
      RC_ASSERT(reported[active].size() == nodes);
      RC_ASSERT(dropped.count(active) == 0U);
      RC_ASSERT(!committed || active > *committed);
      if (*rc::gen::inRange(0, 3) == 0) {
        committed = active;
        matcher.ActiveCommitted();
      }
    }
  }));
}

}  // namespace
}  // namespace tierkeep
