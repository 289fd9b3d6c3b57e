// One node machine by itself: what gives way where its volume has no room for the job.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/holdings.h"
#include "core/node.h"
#include "core/node_testutil.h"
#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr uint64_t kSaveBytes = 1000;

class NodeRoom : public MemberTest {
 protected:
  void Step(const NodeEvent::Any& event) override {
    given_up_.clear();
    for (const auto& action : machine_.Step(Instant(1000s), event)) {
      if (const auto* pull = std::get_if<NodeAction::Pull>(&action)) pulls_.push_back(pull->task);
      if (const auto* sent = std::get_if<NodeAction::Send>(&action)) sent_ = sent->message;
      const auto* gone = std::get_if<NodeAction::DeleteShards>(&action);
      if (gone == nullptr || gone->digests.empty()) continue;
      given_up_.insert(gone->digests.begin(), gone->digests.end());
      deletion_ = gone->task;
    }
  }

  // Begins with these in its store.
  void Begin(const std::vector<control::ShardInfo>& shards,
             const std::vector<control::GenerationRecord>& records = {},
             const std::vector<control::Unreadable>& unreadable = {}) {
    NodeEvent::Started started;
    for (const auto& item : unreadable) *started.inventory.add_unreadable() = item;
    for (const auto& shard : shards) *started.inventory.add_shards() = shard;
    for (const auto& record : records) *started.inventory.add_generations() = record;
    Step(started);
    Step(SeenConfig(MemberConfig()));
    Step(NodeEvent::VolumeCleaned{});
    Connect();
  }

  // From a save of an earlier run; this node's shard has to be pulled.
  void Restore() {
    control::GenerationRecord record;
    *record.mutable_save() = ToProto(restored_);
    *record.mutable_world() = ToProto(kMemberWorld);
    record.set_job("job");
    record.set_save_number(1);
    for (Rank rank = 0; rank < 2; ++rank) *record.add_shards() = ShardOf(restored_, rank);
    SayRestore(record, ShardOf(restored_, 1));
  }

  void NoRoom() {
    Step(NodeEvent::Pulled{.task = pulls_.back(),
                           .digest = DigestOf(ShardOf(restored_, 1)),
                           .status = Error(Code::kResourceExhausted, "no room for a shard")});
  }

  void See(uint64_t free_bytes) {
    Step(NodeEvent::MemorySeen{{.total_bytes = 1 << 20, .free_bytes = free_bytes}});
  }

  static control::ShardInfo ShardOf(const SaveKey& save, Rank rank,
                                    const std::string& job = "job") {
    return MakeShard({.save = save, .rank = rank, .world = kMemberWorld, .bytes = kSaveBytes}, job);
  }
  static Blake3 DigestOfOther(const SaveKey& save) { return DigestOf(ShardOf(save, 1, "other")); }

  // Of job "other", with the shard that this node has of it.
  static control::GenerationRecord RecordOfOther(const SaveKey& save) {
    control::GenerationRecord record;
    record.set_job("other");
    *record.mutable_save() = ToProto(save);
    *record.mutable_world() = ToProto(kMemberWorld);
    record.set_save_number(1);
    record.set_committed(true);
    for (Rank rank = 0; rank < 2; ++rank) *record.add_shards() = ShardOf(save, rank, "other");
    return record;
  }

  const SaveKey restored_{TestRun(6), 40, 1};
  const SaveKey committed_{TestRun(3), 10, 1};    // of another job
  const SaveKey uncommitted_{TestRun(3), 20, 1};  // of another job
  NodeMachine machine_{
      {.node_name = "n1", .agent = TestId(1), .boot = TestId(2), .data_host = "n1"}};
  std::set<Blake3> given_up_;  // by the last event
  TaskId deletion_ = 0;
  std::vector<TaskId> pulls_;
  control::Envelope sent_;
};

TEST_F(NodeRoom, WhatAnotherJobLeftGoesForTheNextSaveUncommittedOnesFirst) {
  Begin({ShardOf(committed_, 1, "other"), ShardOf(uncommitted_, 1, "other")},
        {RecordOfOther(committed_)});
  ReleaseWithNothing();
  See(kSaveBytes / 2);
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOfOther(uncommitted_)});
  // Until that is done nothing more goes for it.
  See(kSaveBytes / 2);
  EXPECT_TRUE(given_up_.empty());
  Step(NodeEvent::Deleted{deletion_});
  See(kSaveBytes / 2);
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOfOther(committed_)});
}

TEST_F(NodeRoom, WhereTheNextSaveFitsAnotherJobsCopiesStay) {
  Begin({ShardOf(committed_, 1, "other"), ShardOf(uncommitted_, 1, "other")},
        {RecordOfOther(committed_)});
  See(0);
  EXPECT_TRUE(given_up_.empty()) << "before this job runs";
  ReleaseWithNothing();
  See(2 * kSaveBytes);
  EXPECT_TRUE(given_up_.empty());
}

// As after an order to skip all there is: on a volume of two checkpoints the job could never save.
TEST_F(NodeRoom, SavesOfTheJobThatWerePassedOverGoForTheNextSaveUnlessCommitted) {
  control::GenerationRecord record = RecordOfOther(committed_);
  record.set_job("job");
  record.clear_shards();
  for (Rank rank = 0; rank < 2; ++rank) *record.add_shards() = ShardOf(committed_, rank);
  Begin({ShardOf(committed_, 1), ShardOf(uncommitted_, 1)}, {record});
  ReleaseWithNothing();
  See(2 * kSaveBytes);
  EXPECT_TRUE(given_up_.empty()) << "there is room";
  See(kSaveBytes / 2);
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOf(ShardOf(uncommitted_, 1))});
  Step(NodeEvent::Deleted{deletion_});
  See(0);
  EXPECT_TRUE(given_up_.empty()) << "what was committed stays until the next commit";
}

// Its shards would be taken for those of a save that was never committed.
TEST_F(NodeRoom, WhatARecordThatCannotBeReadMayHaveCommittedStays) {
  control::Unreadable record;
  *record.mutable_run() = ToProto(committed_.run);
  record.set_save_number(1);
  const SaveKey elsewhere{TestRun(2), 5, 1};
  Begin({ShardOf(committed_, 1), ShardOf(elsewhere, 1)}, {}, {record});
  ReleaseWithNothing();
  See(0);
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOf(ShardOf(elsewhere, 1))});
  Step(NodeEvent::Deleted{deletion_});
  See(0);
  EXPECT_TRUE(given_up_.empty());
}

TEST_F(NodeRoom, WhereRecordsCannotBeListedNothingCountsAsNeverCommitted) {
  control::Unreadable listing;
  listing.set_detail("generations: I/O error");
  listing.set_hides_records(true);
  Begin({ShardOf(committed_, 1)}, {}, {listing});
  ReleaseWithNothing();
  See(0);
  EXPECT_TRUE(given_up_.empty());
}

TEST_F(NodeRoom, WhatAnotherJobLeftGoesForARestore) {
  Begin({ShardOf(committed_, 1, "other")}, {RecordOfOther(committed_)});
  Restore();
  ASSERT_EQ(pulls_.size(), 1U);
  NoRoom();
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOfOther(committed_)});
  Step(NodeEvent::Deleted{deletion_});
  EXPECT_EQ(pulls_.size(), 2U) << "tried again";
}

// Nothing more can go without the coordinator, who knows what others have.
TEST_F(NodeRoom, ARestoreWithoutRoomSaysHowMuchItTakes) {
  const SaveKey older{TestRun(5), 30, 1};
  control::GenerationRecord record = RecordOfOther(older);
  record.set_job("job");
  record.clear_shards();
  for (Rank rank = 0; rank < 2; ++rank) *record.add_shards() = ShardOf(older, rank);
  const control::ShardInfo misplaced = ShardOf(restored_, 0);
  Begin({ShardOf(older, 0), misplaced}, {record});
  Restore();
  NoRoom();
  EXPECT_TRUE(given_up_.empty());
  ASSERT_TRUE(sent_.has_restore_prepared());
  EXPECT_FALSE(sent_.restore_prepared().ok());
  EXPECT_EQ(sent_.restore_prepared().short_bytes(), kSaveBytes + kTestManifestBytes);
  // What it is told to give back goes first; then the same decision is tried again.
  control::Envelope message;
  message.mutable_give_back()->add_digests(DigestOf(ShardOf(older, 0)).Raw());
  message.mutable_give_back()->set_reason("others have it");
  Say(std::move(message));
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOf(ShardOf(older, 0))});
  Restore();
  ASSERT_EQ(pulls_.size(), 2U);
  NoRoom();
  EXPECT_EQ(pulls_.size(), 2U) << "waits for the deletion";
  Step(NodeEvent::Deleted{deletion_});
  EXPECT_EQ(pulls_.size(), 3U);
}

}  // namespace
}  // namespace tierkeep
