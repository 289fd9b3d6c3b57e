// One node machine by itself: pulls whose end comes at a bad moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "core/holdings.h"
#include "core/node.h"
#include "core/node_testutil.h"
#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

const SaveKey kSave = {TestRun(7), 10, 1};

// Rank 1 of two, whose job was released without a checkpoint and which is asked to keep rank 0's
// shard of kSave.
class NodePull : public MemberTest {
 protected:
  void SetUp() override {
    BeginRun();
    Keep(1);
    ASSERT_TRUE(pull_.has_value());
  }

  void Keep(uint64_t order) {
    SayKeep(order);
    SeeMemory();
  }

  void SeeMemory() { Step(NodeEvent::MemorySeen{{.total_bytes = 1 << 30, .free_bytes = 1 << 30}}); }

  void SayKeep(uint64_t order) {
    control::Envelope message;
    message.mutable_keep()->set_order(order);
    auto* wanted = message.mutable_keep()->add_wanted();
    *wanted->mutable_shard() = shard_;
    wanted->add_nodes("n0");
    Say(std::move(message));
  }

  void Pulled(TaskId task) {
    Step(NodeEvent::Pulled{.task = task, .digest = DigestOf(shard_), .status = OkStatus()});
  }

  void Step(const NodeEvent::Any& event) override {
    deletes_ = 0;
    asked_for_room_ = false;
    timers_.clear();
    for (const auto& action : machine_.Step(Instant(1000s), event)) {
      if (const auto* pull = std::get_if<NodeAction::Pull>(&action)) pull_ = pull->task;
      if (const auto* set = std::get_if<NodeAction::SetTimer>(&action)) timers_.insert(set->timer);
      if (std::holds_alternative<NodeAction::ReadMemory>(action)) asked_for_room_ = true;
      const auto* gone = std::get_if<NodeAction::DeleteShards>(&action);
      if (gone == nullptr) continue;
      deletes_ += std::count(gone->digests.begin(), gone->digests.end(), DigestOf(shard_));
    }
  }

  control::ShardInfo shard_ = MakeShard({.save = kSave, .world = kMemberWorld});
  NodeMachine machine_{
      {.node_name = "n1", .agent = TestId(1), .boot = TestId(2), .data_host = "n1"}};
  std::optional<TaskId> pull_;   // the last one
  int64_t deletes_ = 0;          // of the shard, by the last event
  std::set<TimerId> timers_;     // set by the last event
  bool asked_for_room_ = false;  // by the last event
};

// The deletion found nothing yet: left behind, the copy would stay for good.
TEST_F(NodePull, ADroppedPullThatSucceedsAllTheSameIsDeleted) {
  Drop(kSave);
  EXPECT_EQ(deletes_, 1);
  Pulled(*pull_);
  EXPECT_EQ(deletes_, 1);
}

TEST_F(NodePull, ADroppedPullIsNotDeletedOnceItsShardIsWantedAgain) {
  const TaskId first = *pull_;
  Drop(kSave);
  Keep(2);
  ASSERT_NE(*pull_, first);
  Pulled(first);
  EXPECT_EQ(deletes_, 0);
  Pulled(*pull_);
  EXPECT_EQ(deletes_, 0);
}

// A copy that waits for room outlives the connection over which it was asked for, but nobody looks
// for room without an order.
TEST_F(NodePull, ACopyThatWaitsIsLookedAtAgainWhenItIsAskedForOverANewConnection) {
  Pulled(*pull_);
  shard_ = MakeShard({.save = {kRun, 20, 1}, .ordinal = 2, .world = kMemberWorld});
  pull_.reset();
  SayKeep(2);
  Step(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "gone")});
  for (const TimerId timer : std::set(timers_)) Step(NodeEvent::TimerFired{timer});
  SeeMemory();
  ASSERT_FALSE(pull_.has_value()) << "nobody wants it now";
  Connect(/*continued=*/true);
  SayKeep(1);
  ASSERT_TRUE(asked_for_room_);
  SeeMemory();
  EXPECT_TRUE(pull_.has_value());
}

// Of a large job the node records a part: the one entry that it knows is not the other rank's,
// whose ordinals are its own.
TEST_F(NodePull, APartOfACommitTellsNothingOfOtherRanks) {
  Pulled(*pull_);
  control::GenerationRecord record;
  record.set_job("job");
  *record.mutable_save() = ToProto(kSave);
  record.set_save_number(1);
  *record.mutable_world() = ToProto(kMemberWorld);
  record.set_committed(true);
  *record.add_shards() = shard_;
  *record.add_shards() =
      MakeShard({.save = kSave, .rank = 1, .ordinal = 50, .world = kMemberWorld});
  control::Envelope message;
  *message.mutable_commit()->mutable_generation() = RecordCutter(record).Part({1});
  message.mutable_commit()->add_keep(shard_.digest());
  Say(std::move(message));
  shard_ = MakeShard({.save = {kRun, 20, 1}, .ordinal = 2, .world = kMemberWorld});
  SayKeep(2);
  EXPECT_TRUE(asked_for_room_);
}

}  // namespace
}  // namespace tierkeep
