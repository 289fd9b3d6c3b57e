// Agents that come back to a new coordinator out of runs that it doesn't know.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <variant>
#include <vector>

#include "core/coordinator.h"
#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

control::Envelope JoinOf(uint64_t agent, Rank rank, const RunId& run, bool released) {
  control::Envelope message = MakeJoin(agent, rank, /*nodes=*/2);
  control::Join& join = *message.mutable_join();
  *join.mutable_in_run() = ToProto(run);
  join.set_released(released);
  if (released) {
    join.mutable_restored()->set_decision(1);
    join.mutable_restored()->set_none(true);
  }
  return message;
}

// A coordinator after a restart, of a job of two nodes.
class CoordinatorResumed : public testing::Test {
 protected:
  void Start(const control::RendezvousRecord& record, const RunId& resumes = {}) {
    machine_ = std::make_unique<CoordinatorMachine>(
        CoordinatorOptions{.settings = MakeJoin(1, 0, 2).join().settings(),
                           .node_name = "n1",
                           .control_host = "n1",
                           .control_port = 1,
                           .boot = TestId(3),
                           .run_nonce = TestId(4),
                           .resumes = resumes});
    Step(CoordinatorEvent::Started{WallTime(1s)});
    Step(CoordinatorEvent::RendezvousRead{record, "1"});
  }
  // As another coordinator left it.
  static control::RendezvousRecord RecordOf(const RunId& run) {
    control::RendezvousRecord record;
    record.set_job("job");
    record.set_node("n9");
    record.set_epoch(5);
    *record.mutable_run() = ToProto(run);
    return record;
  }
  void Step(const CoordinatorEvent::Any& event) {
    for (const auto& action : machine_->Step(Instant(1000s), event)) {
      if (const auto* send = std::get_if<CoordinatorAction::Send>(&action)) {
        const control::Envelope& message = send->message;
        if (message.has_run_start()) epoch_ = message.run_start().epoch();
        if (message.has_run_ended()) ended_.insert(send->to);
        if (message.has_restore()) restores_.push_back(message.restore().choice().decision());
      } else if (const auto* write = std::get_if<CoordinatorAction::WriteRendezvous>(&action)) {
        written_.push_back(FromProto(write->record.run()));
        Step(CoordinatorEvent::RendezvousWritten{"2"});
      } else if (std::get_if<CoordinatorAction::StandDown>(&action) != nullptr) {
        down_ = true;
      }
    }
  }

  std::unique_ptr<CoordinatorMachine> machine_;
  Epoch epoch_ = 0;
  std::set<ConnectionId> ended_;
  std::vector<uint64_t> restores_;  // decisions that members were sent
  std::vector<RunId> written_;
  bool down_ = false;
};

// Its coordinator died before anybody was released: nothing is decided yet, and nodes of the run
// before may have what the rendezvous names.
TEST_F(CoordinatorResumed, ARunThatNobodyWasReleasedInWaitsForWhatTheRendezvousNames) {
  control::RendezvousRecord record = RecordOf(TestRun(20));
  control::GenerationMark& mark = *record.mutable_newest();
  *mark.mutable_run() = ToProto(TestRun(10));
  *mark.mutable_world() = MakeJoin(1, 0, 2).join().settings().world();
  mark.set_save_number(3);
  mark.set_step(30);
  mark.add_nodes("n7");
  Start(record);
  for (const Rank rank : {0, 1}) {
    Step(CoordinatorEvent::Received{rank, JoinOf(rank + 1, rank, TestRun(20), false)});
  }
  EXPECT_NE(epoch_, 0U);
  EXPECT_TRUE(restores_.empty());
  ASSERT_TRUE(machine_->status().has_waiting());
  EXPECT_EQ(machine_->status().waiting().nodes(0), "n7");
}

// Each of the two would wait for the other's members for ever.
TEST_F(CoordinatorResumed, ItGivesWayToAMemberThatCoordinatesItself) {
  Start(RecordOf(TestRun(20)));
  for (const Rank rank : {0, 1}) {
    Step(CoordinatorEvent::Received{rank, JoinOf(rank + 1, rank, TestRun(20), true)});
  }
  control::RendezvousRecord record = RecordOf(TestRun(20));
  record.set_node("n2");
  record.set_epoch(epoch_ + 1);
  Step(CoordinatorEvent::RendezvousRead{record, "9"});
  EXPECT_FALSE(down_) << "it is still here";
  Step(CoordinatorEvent::Disconnected{1});
  record.set_node("n7");
  Step(CoordinatorEvent::RendezvousRead{record, "9"});
  EXPECT_FALSE(down_) << "that one has no part in the run";
  record.set_node("n2");
  Step(CoordinatorEvent::RendezvousRead{record, "9"});
  EXPECT_TRUE(down_);
  EXPECT_TRUE(ended_.empty()) << "the run may go on there";
}

// Whoever isn't released yet gets what the others run from, or nothing.
TEST_F(CoordinatorResumed, WhatSomeWereReleasedFromHoldsWhenAnotherCanNotPrepareIt) {
  Start(RecordOf(TestRun(20)));
  control::Envelope released = JoinOf(1, 0, TestRun(20), true);
  control::RestoreChoice& choice = *released.mutable_join()->mutable_restored();
  choice.set_none(false);
  control::GenerationRecord& generation = *choice.mutable_generation();
  generation.set_job("job");
  const WorldShape world = FromProto(released.join().settings().world());
  const SaveKey save{TestRun(10), 30, 1};
  *generation.mutable_save() = ToProto(save);
  generation.set_save_number(3);
  *generation.mutable_world() = ToProto(world);
  for (const Rank rank : {0, 1}) {
    *generation.add_shards() = MakeShard({.save = save, .rank = rank, .world = world});
  }
  *released.mutable_join()->mutable_inventory()->mutable_shards() = generation.shards();
  Step(CoordinatorEvent::Received{1, released});
  Step(CoordinatorEvent::Received{2, JoinOf(2, 1, TestRun(20), false)});
  ASSERT_EQ(restores_, std::vector<uint64_t>{1});
  control::Envelope answer;
  answer.set_job("job");
  answer.set_sender("n2");
  answer.set_epoch(epoch_);
  *answer.mutable_run() = ToProto(TestRun(20));
  answer.mutable_restore_prepared()->set_decision(1);
  answer.mutable_restore_prepared()->add_bad_sources("n1");
  Step(CoordinatorEvent::Received{2, answer});
  EXPECT_EQ(restores_, (std::vector<uint64_t>{1, 1}));
}

// It read the rendezvous as it had been long ago.
TEST_F(CoordinatorResumed, ANewerRunIsLeftToItsCoordinator) {
  Start(RecordOf(TestRun(20)), /*resumes=*/TestRun(10));
  EXPECT_TRUE(down_);
  EXPECT_TRUE(written_.empty());
}

TEST_F(CoordinatorResumed, ARunDoesNotGoOnAfterANewerOneHasBegun) {
  Start(RecordOf(TestRun(20)));
  for (const Rank rank : {0, 1}) {
    Step(CoordinatorEvent::Received{rank, JoinOf(rank + 1, rank, TestRun(10), true)});
  }
  EXPECT_EQ(ended_, (std::set<ConnectionId>{0, 1}));
  EXPECT_EQ(std::count(written_.begin(), written_.end(), TestRun(10)), 0);
}

// A node that slept through its run's end claims a rank of the newer run: without a word to it the
// newer run, whose members are all here, would wait for ever.
TEST_F(CoordinatorResumed, ANodeOfAnOlderRunDoesNotKeepTheNewerOneWaiting) {
  const RunId older = TestRun(10);
  const RunId newer = TestRun(20);
  for (const bool older_first : {true, false}) {
    SCOPED_TRACE(older_first);
    ended_.clear();
    epoch_ = 0;
    const control::Envelope stray = JoinOf(1, 0, older, /*released=*/true);
    Start(RecordOf(newer));
    if (older_first) Step(CoordinatorEvent::Received{1, stray});
    Step(CoordinatorEvent::Received{2, JoinOf(2, 0, newer, false)});
    if (!older_first) Step(CoordinatorEvent::Received{1, stray});
    Step(CoordinatorEvent::Received{3, JoinOf(3, 1, newer, false)});
    EXPECT_EQ(ended_, std::set<ConnectionId>{1});
    EXPECT_NE(epoch_, 0U) << "it goes on";
  }
}

// Its members are gone, and another gathers the same run: it would refuse the ranks of the next
// attempt, as those of members that may come back, for ever.
TEST_F(CoordinatorResumed, ADesertedRunIsLeftToTheNewerCoordinator) {
  Start(RecordOf(TestRun(20)));
  for (const Rank rank : {0, 1}) {
    Step(CoordinatorEvent::Received{rank + 1, JoinOf(rank + 1, rank, TestRun(20), true)});
  }
  ASSERT_NE(epoch_, 0U);
  control::RendezvousRecord newer = RecordOf(TestRun(20));
  newer.set_epoch(epoch_ + 1);
  Step(CoordinatorEvent::Disconnected{1});
  Step(CoordinatorEvent::RendezvousRead{newer, "3"});
  EXPECT_FALSE(down_) << "a member is still here";
  Step(CoordinatorEvent::Disconnected{2});
  Step(CoordinatorEvent::RendezvousRead{newer, "3"});
  EXPECT_TRUE(down_);
}

}  // namespace
}  // namespace tierkeep
