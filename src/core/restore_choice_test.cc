#include "core/restore_choice.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "core/core_testutil.h"
#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// A cluster in which each rank r runs on node "n<r>".
class Cluster {
 public:
  explicit Cluster(WorldShape world) : world_(world), inventories_(world.nodes) {}

  TestShard Shard(const SaveKey& save, Rank rank, uint64_t ordinal) const {
    return {.save = save, .rank = rank, .ordinal = ordinal, .world = world_};
  }
  void Give(size_t node, const control::ShardInfo& shard) {
    *inventories_[node].add_shards() = shard;
  }
  // Every rank has its own shard of that save.
  void Save(const SaveKey& save, uint64_t ordinal) {
    for (Rank r = 0; r < world_.nodes; ++r) Give(r, MakeShard(Shard(save, r, ordinal)));
  }
  control::GenerationRecord Record(const SaveKey& save, uint64_t ordinal, uint64_t number) const {
    control::GenerationRecord record;
    record.set_job("job");
    *record.mutable_save() = ToProto(save);
    record.set_save_number(number);
    *record.mutable_world() = ToProto(world_);
    record.set_committed(true);
    for (Rank r = 0; r < world_.nodes; ++r) {
      *record.add_shards() = MakeShard(Shard(save, r, ordinal));
    }
    return record;
  }
  void Commit(const SaveKey& save, uint64_t ordinal, uint64_t number) {
    for (auto& inventory : inventories_) {
      *inventory.add_generations() = Record(save, ordinal, number);
    }
  }
  // What the rendezvous names as committed.
  void Mark(const SaveKey& save, uint64_t number) {
    recorded_.emplace();
    *recorded_->mutable_run() = ToProto(save.run);
    recorded_->set_save_number(number);
    recorded_->set_step(save.step);
    *recorded_->mutable_world() = ToProto(world_);
  }
  control::Inventory& at(size_t node) { return inventories_[node]; }
  void Wipe(size_t node) { inventories_[node].Clear(); }
  void Branch(const RunId& run, const control::GenerationRecord& restored) {
    branches_.push_back({run, restored});
  }
  void Fail(const std::string& receiver, const std::string& source, const Blake3& shard,
            int times) {
    failures_[{receiver, source, shard}] = times;
  }

  RestoreAnswer Choose() const {
    Holdings holdings;
    RestoreQuestion question{.job = "job", .world = world_, .branches = branches_};
    for (size_t i = 0; i < inventories_.size(); ++i) {
      holdings.SetNode("n" + std::to_string(i), "job", inventories_[i]);
    }
    for (Rank r = 0; r < world_.nodes; ++r) question.nodes.push_back("n" + std::to_string(r));
    question.holdings = &holdings;
    question.failures = &failures_;
    question.recorded = recorded_;
    return ChooseRestore(question);
  }
  // The chosen save, or an empty one.
  SaveKey Chosen() const {
    const RestoreAnswer answer = Choose();
    if (answer.kind != RestoreAnswer::Kind::kGeneration) return {};
    return FromProto(answer.generation.save());
  }

 private:
  WorldShape world_;
  std::vector<control::Inventory> inventories_;
  std::vector<tierkeep::Branch> branches_;
  SourceFailures failures_;
  std::optional<control::GenerationMark> recorded_;
};

constexpr WorldShape kTwo{.framework = Framework::kOrbax, .nodes = 2};
constexpr WorldShape kSquare{.framework = Framework::kOrbax, .nodes = 4, .data_parallelism = 2};
const RunId kRun = TestRun(10);
const RunId kNext = TestRun(20);

TEST(RestoreChoice, NothingThereIsNoneAndNotLost) {
  const RestoreAnswer answer = Cluster(kTwo).Choose();
  EXPECT_EQ(answer.kind, RestoreAnswer::Kind::kNone);
  EXPECT_FALSE(answer.lost);
  EXPECT_EQ(answer.reason, "no checkpoint exists in the cluster");
}

// Those that recorded the commits in between are away: theirs is not a number to give again.
TEST(RestoreChoice, ASaveThatWasNeverCommittedIsNumberedBehindWhatTheRendezvousNames) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  cluster.Save({kRun, 20, 1}, 4);
  cluster.Mark({kRun, 15, 1}, 3);
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
  EXPECT_EQ(answer.generation.save().step(), 20U);
  EXPECT_EQ(answer.generation.save_number(), 4U);
}

TEST(RestoreChoice, TakesACompleteSaveThatWasNeverCommitted) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  cluster.Save({kRun, 10, 1}, 2);
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
  EXPECT_EQ(answer.generation.save().step(), 10U);
  EXPECT_EQ(answer.generation.save_number(), 2U);
  EXPECT_FALSE(answer.generation.committed());
  EXPECT_EQ(answer.generation.shards_size(), 2);
}

TEST(RestoreChoice, SkipsASaveThatOneNodeLacks) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  cluster.Give(0, MakeShard(cluster.Shard({kRun, 10, 1}, 0, 2)));
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

TEST(RestoreChoice, C8_RollingBackWinsOverAHigherStep) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 900, 1}, 9);
  cluster.Commit({kRun, 900, 1}, 9, 9);
  cluster.Save({kNext, 100, 1}, 1);
  EXPECT_EQ(cluster.Chosen().step, 100U);
  // Also within one run: the same or a lower step, saved later.
  cluster.Save({kNext, 50, 1}, 2);
  EXPECT_EQ(cluster.Chosen().step, 50U);
}

TEST(RestoreChoice, ABranchsRootWinsOverWhatItsRunSavedLater) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 100, 1}, 1);
  cluster.Commit({kRun, 100, 1}, 1, 1);
  cluster.Save({kRun, 900, 1}, 9);
  EXPECT_EQ(cluster.Chosen().step, 900U);
  cluster.Branch(kNext, cluster.Record({kRun, 100, 1}, 1, 1));
  EXPECT_EQ(cluster.Chosen().step, 100U);
}

TEST(RestoreChoice, RestoresFromACopyOnThePeer) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  for (Rank r = 0; r < 2; ++r) cluster.Give(1, MakeShard(cluster.Shard({kRun, 5, 1}, r, 1)));
  cluster.Wipe(0);
  EXPECT_EQ(cluster.Chosen().step, 5U);
  const Blake3 shard = DigestOf(MakeShard(cluster.Shard({kRun, 5, 1}, 0, 1)));
  cluster.Fail("n0", "n1", shard, kSourceFailuresMax - 1);
  EXPECT_EQ(cluster.Chosen().step, 5U);
  cluster.Fail("n0", "n1", shard, kSourceFailuresMax);
  const RestoreAnswer cut_off = cluster.Choose();
  EXPECT_EQ(cut_off.kind, RestoreAnswer::Kind::kNone);
  EXPECT_TRUE(cut_off.lost);
}

TEST(RestoreChoice, ABadCopyOfANewerCheckpointSaysNothingOfAnOlderOne) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  cluster.Save({kRun, 6, 1}, 2);
  cluster.Wipe(0);
  for (const auto& [step, ordinal] : {std::pair(5, 1), std::pair(6, 2)}) {
    cluster.Give(1, MakeShard(cluster.Shard({kRun, static_cast<Step>(step), 1}, 0, ordinal)));
  }
  EXPECT_EQ(cluster.Chosen().step, 6U);
  cluster.Fail("n0", "n1", DigestOf(MakeShard(cluster.Shard({kRun, 6, 1}, 0, 2))),
               kSourceFailuresMax);
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

TEST(RestoreChoice, SaysWhatWasLostAndThatAHolderMayHaveIt) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  cluster.Wipe(0);
  const RestoreAnswer answer = cluster.Choose();
  EXPECT_EQ(answer.kind, RestoreAnswer::Kind::kNone);
  EXPECT_TRUE(answer.lost);
  EXPECT_TRUE(answer.better_may_exist);
  EXPECT_NE(answer.reason.find("rank 0"), std::string::npos) << answer.reason;
}

TEST(RestoreChoice, C1_OtherWorldShapesDoNotCount) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  for (auto* inventory : {&cluster.at(0), &cluster.at(1)}) {
    for (auto& shard : *inventory->mutable_shards()) shard.mutable_world()->set_nodes(8);
  }
  EXPECT_EQ(cluster.Choose().kind, RestoreAnswer::Kind::kNone);
}

TEST(RestoreChoice, B5_StepZeroIsRealForOrbaxOnly) {
  for (const Framework framework : {Framework::kOrbax, Framework::kPytorchDistributed}) {
    Cluster cluster({.framework = framework, .nodes = 2});
    cluster.Save({kRun, 0, 1}, 1);
    EXPECT_EQ(cluster.Choose().kind == RestoreAnswer::Kind::kGeneration,
              framework == Framework::kOrbax);
  }
}

TEST(RestoreChoice, C5_RefusesRunsOfOneSequenceNumber) {
  Cluster cluster(kTwo);
  cluster.Save({TestRun(30, 1), 7, 1}, 1);
  cluster.Save({TestRun(30, 2), 8, 1}, 1);
  cluster.Save({kRun, 5, 1}, 1);
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
  EXPECT_EQ(answer.generation.save().step(), 5U);
  EXPECT_EQ(answer.problems.size(), 1U);
}

// ---- data parallelism ----

void GiveReplicas(Cluster* cluster, const SaveKey& save, uint64_t ordinal, Rank odd = 99,
                  bool committed = false) {
  control::GenerationRecord record = cluster->Record(save, ordinal, 1);
  for (Rank r = 0; r < 4; ++r) {
    TestShard shard = cluster->Shard(save, r, ordinal);
    shard.logical = r == odd ? 77 : 1 + r % 2;
    *record.mutable_shards(static_cast<int>(r)) = MakeShard(shard);
    cluster->Give(r, MakeShard(shard));
  }
  for (Rank r = 0; committed && r < 4; ++r) *cluster->at(r).add_generations() = record;
}

TEST(RestoreChoice, C6_AnEqualReplicaStandsIn) {
  Cluster cluster(kSquare);
  GiveReplicas(&cluster, {kRun, 5, 1}, 1, /*odd=*/99, /*committed=*/true);
  cluster.Wipe(0);
  cluster.Wipe(3);
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
  const std::vector<uint32_t> expected{2, 1, 2, 1};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer.generation.shards(i).rank(), expected[i]);
  cluster.Wipe(2);
  EXPECT_EQ(cluster.Choose().kind, RestoreAnswer::Kind::kNone);
}

// What was lost may have had other values, and then ranks 1 and 2 are of two different states.
TEST(RestoreChoice, RowsAreNotMixedWhereNoRecordTellsThatTheyAreEqual) {
  Cluster cluster(kSquare);
  GiveReplicas(&cluster, {kRun, 5, 1}, 1, /*odd=*/99, /*committed=*/true);
  GiveReplicas(&cluster, {kRun, 10, 1}, 2);
  const auto lose = [&](Rank lost) {
    auto& shards = *cluster.at(lost).mutable_shards();
    shards.erase(std::remove_if(shards.begin(), shards.end(),
                                [](const auto& shard) { return shard.save().step() == 10; }),
                 shards.end());
  };
  lose(0);
  // The second row is whole. What a rank has itself is as good where it is known to be equal.
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.generation.save().step(), 10U);
  const std::vector<uint32_t> expected{2, 1, 2, 3};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(answer.generation.shards(i).rank(), expected[i]);
  lose(3);
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

TEST(RestoreChoice, DisagreeingReplicasGiveOnePartitionToAll) {
  Cluster cluster(kSquare);
  GiveReplicas(&cluster, {kRun, 5, 1}, 1, /*odd=*/1);
  const RestoreAnswer answer = cluster.Choose();
  ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
  ASSERT_EQ(answer.problems.size(), 1U);
  for (int i = 0; i < 4; ++i) EXPECT_LT(answer.generation.shards(i).rank(), 2U);
  // A lost node breaks the first partition; the second is whole.
  cluster.Wipe(0);
  const RestoreAnswer second = cluster.Choose();
  ASSERT_EQ(second.kind, RestoreAnswer::Kind::kGeneration);
  for (int i = 0; i < 4; ++i) EXPECT_GE(second.generation.shards(i).rank(), 2U);
}

// ---- unreadable ----

TEST(RestoreChoice, UnreadableIsNeverEmpty) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.at(1).add_unreadable()->set_detail("shards: I/O error");
  const RestoreAnswer answer = cluster.Choose();
  EXPECT_EQ(answer.kind, RestoreAnswer::Kind::kBlocked);
  EXPECT_NE(answer.reason.find("node n1"), std::string::npos);
}

TEST(RestoreChoice, AGoodCopyElsewhereResolvesAnUnreadableOne) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  const control::ShardInfo lost = MakeShard(cluster.Shard({kRun, 5, 1}, 0, 1));
  cluster.Wipe(0);
  auto* item = cluster.at(0).add_unreadable();
  item->set_digest(lost.digest());
  item->set_detail("manifest");
  EXPECT_EQ(cluster.Choose().kind, RestoreAnswer::Kind::kBlocked);
  cluster.Give(1, lost);
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

TEST(RestoreChoice, ADamagedCopyIsALostOne) {
  Cluster cluster(kTwo);
  cluster.Save({kRun, 5, 1}, 1);
  cluster.Commit({kRun, 5, 1}, 1, 1);
  auto* item = cluster.at(0).add_unreadable();
  item->set_digest(std::string(Blake3::kSize, 'x'));
  item->set_detail("its manifest");
  EXPECT_EQ(cluster.Choose().kind, RestoreAnswer::Kind::kBlocked);
  item->set_damaged(true);
  const RestoreAnswer older = cluster.Choose();
  ASSERT_EQ(older.kind, RestoreAnswer::Kind::kGeneration);
  EXPECT_EQ(older.generation.save().step(), 5U);
  ASSERT_EQ(older.problems.size(), 1U);
  EXPECT_NE(older.problems[0].find("node n0, RAM tier: its manifest"), std::string::npos);
  EXPECT_TRUE(older.better_may_exist);  // holders that aren't here may have another copy
  // The only copy of what was committed: what a lost node's would be.
  const control::ShardInfo lost = MakeShard(cluster.Shard({kRun, 5, 1}, 0, 1));
  cluster.at(0).clear_shards();
  item = cluster.at(0).mutable_unreadable(0);
  item->set_digest(lost.digest());
  const RestoreAnswer none = cluster.Choose();
  EXPECT_EQ(none.kind, RestoreAnswer::Kind::kNone);
  EXPECT_TRUE(none.lost);
  EXPECT_NE(none.reason.find("no copy of rank 0 worker 0 is left"), std::string::npos);
  // Known for what it is, and held elsewhere: nothing to complain about.
  cluster.Give(1, lost);
  EXPECT_TRUE(cluster.Choose().problems.empty());
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

TEST(RestoreChoice, UnreadableRecordsMatterOnlyWhenTheyMayBeNewest) {
  Cluster cluster(kTwo);
  cluster.Save({kNext, 5, 1}, 1);
  cluster.Commit({kNext, 5, 1}, 1, 4);
  auto* item = cluster.at(0).add_unreadable();
  *item->mutable_run() = ToProto(kNext);
  item->set_save_number(3);
  EXPECT_EQ(cluster.Chosen().step, 5U);
  item->set_save_number(5);
  EXPECT_EQ(cluster.Choose().kind, RestoreAnswer::Kind::kBlocked);
  *item->mutable_run() = ToProto(kRun);
  EXPECT_EQ(cluster.Chosen().step, 5U);
}

// Whatever is chosen is complete for the job, and no newer complete save was passed over.
TEST(RestoreChoice, PicksTheNewestCompleteSave) {
  EXPECT_TRUE(rc::check("newest complete", [] {
    const auto nodes = *rc::gen::inRange<uint32_t>(1, 5);
    const WorldShape world{.framework = Framework::kOrbax, .nodes = nodes};
    Cluster cluster(world);
    SaveKey newest;
    std::pair<uint64_t, uint64_t> best{0, 0};
    const auto saves = *rc::gen::inRange<uint64_t>(0, 8);
    for (uint64_t i = 0; i < saves; ++i) {
      const auto sequence = *rc::gen::inRange<uint64_t>(1, 4);
      const SaveKey save{TestRun(sequence), *rc::gen::inRange<uint64_t>(0, 5),
                         static_cast<uint32_t>(i + 1)};
      bool complete = true;
      for (Rank r = 0; r < nodes; ++r) {
        const auto place = *rc::gen::inRange<uint32_t>(0, nodes + 1);
        if (place == nodes) {
          complete = false;
          continue;
        }
        control::ShardInfo shard = MakeShard(cluster.Shard(save, r, i + 1));
        shard.set_suspect(*rc::gen::arbitrary<bool>());
        cluster.Give(place, shard);
      }
      if (complete && std::pair{sequence, i + 1} > best) {
        best = {sequence, i + 1};
        newest = save;
      }
    }
    RC_ASSERT(cluster.Chosen() == newest);
  }));
}

// ---- records in parts --------------------------------------------------------------------------

constexpr WorldShape kFour{.framework = Framework::kOrbax, .nodes = 4};

// Node i has recorded slots i and i - 1 of a committed save, and keeps their shards.
void CommitInParts(Cluster* c, const SaveKey& save, uint64_t number, Rank nodes = 4) {
  const control::GenerationRecord record = c->Record(save, number, number);
  const RecordCutter cutter(record);
  for (Rank r = 0; r < nodes; ++r) {
    const std::set<uint32_t> slots = {r, (r + nodes - 1) % nodes};
    *c->at(r).add_generations() = cutter.Part(slots);
    for (const uint32_t slot : slots) c->Give(r, *EntryAt(record, slot));
  }
}

TEST(RestoreInParts, AreOneGeneration) {
  Cluster c(kFour);
  CommitInParts(&c, SaveKey{kRun, 10, 1}, 1);
  CommitInParts(&c, SaveKey{kRun, 20, 1}, 2);
  c.Wipe(2);  // its entries and shards are on node 3 and node 1 has nothing to do with them
  const RestoreAnswer answer = c.Choose();
  EXPECT_EQ(answer.generation.save().step(), 20u);
  EXPECT_TRUE(answer.generation.committed());
  EXPECT_EQ(answer.generation.save_number(), 2u);
  ASSERT_EQ(answer.generation.shards_size(), 4);
  EXPECT_TRUE(IsWhole(answer.generation));
  EXPECT_TRUE(answer.generation.slots().empty());
}

TEST(RestoreInParts, AnUnknownEntryIsAShardWithoutAHolder) {
  Cluster c(kFour);
  c.Save(SaveKey{kRun, 10, 1}, 1);
  CommitInParts(&c, SaveKey{kRun, 20, 1}, 2);
  c.Wipe(2);
  c.Wipe(3);  // slot 2 was known and held on these two only
  const RestoreAnswer answer = c.Choose();
  EXPECT_TRUE(answer.better_may_exist);
  EXPECT_NE(answer.reason.find("nobody here knows which shard of rank 2"), std::string::npos)
      << answer.reason;
  EXPECT_NE(answer.generation.save().step(), 20u);
}

TEST(RestoreInParts, OneThatKnowsOfTheCommitIsEnoughWhereAllShardsAre) {
  Cluster c(kFour);
  c.Save(SaveKey{kRun, 20, 1}, 2);
  const control::GenerationRecord record = c.Record(SaveKey{kRun, 20, 1}, 2, 2);
  *c.at(1).add_generations() = RecordCutter(record).Part({0, 1});
  const RestoreAnswer answer = c.Choose();
  EXPECT_EQ(answer.generation.save_number(), 2u);
  EXPECT_TRUE(answer.generation.committed());
  EXPECT_EQ(answer.generation.shards_size(), 4);
}

// A shard of the same save that isn't the one recorded proves nothing.
TEST(RestoreInParts, WhatTheRecordDisprovesIsNotTaken) {
  Cluster c(kFour);
  const SaveKey save = SaveKey{kRun, 20, 1};
  const control::GenerationRecord record = c.Record(save, 2, 2);
  for (Rank r = 0; r < 4; ++r) {
    TestShard shard = c.Shard(save, r, 2);
    if (r == 3) shard.content = 99;
    c.Give(r, MakeShard(shard));
  }
  *c.at(1).add_generations() = RecordCutter(record).Part({0, 1, 2});
  const RestoreAnswer answer = c.Choose();
  EXPECT_NE(answer.kind, RestoreAnswer::Kind::kGeneration);
  EXPECT_TRUE(answer.better_may_exist);
}

TEST(RestoreInParts, ContradictionsAreToldAndNeverMixed) {
  Cluster c(kFour);
  CommitInParts(&c, SaveKey{kRun, 20, 1}, 2);
  // Node 3's record of slot 3 is another one's.
  control::GenerationRecord* lie = c.at(3).mutable_generations(0);
  TestShard other = c.Shard(SaveKey{kRun, 20, 1}, 3, 2);
  other.content = 99;
  *lie->mutable_shards(1) = MakeShard(other);
  c.Give(3, MakeShard(other));
  const RestoreAnswer answer = c.Choose();
  const std::string problems = answer.problems.empty() ? "" : answer.problems.front();
  EXPECT_NE(problems.find("recorded in two ways"), std::string::npos) << problems;
  EXPECT_NE(answer.kind, RestoreAnswer::Kind::kGeneration);
}

TEST(RestoreInParts, AnEqualReplicaStandsInForOneThatNobodyKnows) {
  const WorldShape world{.framework = Framework::kOrbax, .nodes = 4, .data_parallelism = 2};
  for (const bool equal : {true, false}) {
    Cluster c(world);
    const SaveKey save = SaveKey{kRun, 20, 1};
    control::GenerationRecord record = c.Record(save, 2, 2);
    for (Rank r = 0; r < 4; ++r) {
      TestShard shard = c.Shard(save, r, 2);
      shard.logical = 1 + r % 2;
      if (!equal && r == 3) shard.logical = 77;
      *record.mutable_shards(static_cast<int>(r)) = MakeShard(shard);
      if (r != 3) c.Give(r, record.shards(static_cast<int>(r)));
    }
    for (Rank r = 0; r < 3; ++r) *c.at(r).add_generations() = RecordCutter(record).Part({r});
    const RestoreAnswer answer = c.Choose();
    // Either rank 1's shard, which is equal, or, as one consistent row, row 0 for all, which rank 2
    // has itself: never rank 3's place filled by a guess.
    ASSERT_EQ(answer.kind, RestoreAnswer::Kind::kGeneration);
    EXPECT_EQ(answer.generation.shards(3).digest(), record.shards(1).digest());
    EXPECT_EQ(answer.generation.shards(2).digest(), record.shards(2).digest());
  }
}

TEST(RestoreInParts, AnUnreadablePartStopsWhatItMayHaveCompleted) {
  Cluster c(kFour);
  c.Save(SaveKey{kRun, 10, 1}, 1);
  CommitInParts(&c, SaveKey{kRun, 20, 1}, 2);
  c.Wipe(2);
  c.at(3).clear_generations();
  for (auto& shard : *c.at(3).mutable_shards()) {
    if (shard.rank() == 2) shard.set_rank(3);  // no shard of slot 2 is left to be recognised
  }
  control::Unreadable item;
  *item.mutable_run() = ToProto(kRun);
  item.set_save_number(2);
  item.set_detail("its record");
  *c.at(3).add_unreadable() = item;
  EXPECT_EQ(c.Choose().kind, RestoreAnswer::Kind::kBlocked);
}

}  // namespace
}  // namespace tierkeep
