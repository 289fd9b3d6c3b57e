// One node machine by itself: what it tells, and whom it looks for, once its attempt is over.
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "core/holdings.h"
#include "core/node.h"
#include "core/node_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

class NodeHolder : public MemberTest {
 protected:
  void Step(const NodeEvent::Any& event) override {
    given_up_.clear();
    joined_.reset();
    located_.clear();
    for (const auto& action : machine_->Step(now_, event)) {
      if (const auto* pull = std::get_if<NodeAction::Pull>(&action)) pull_ = pull->task;
      if (const auto* verify = std::get_if<NodeAction::Verify>(&action)) verify_ = verify->task;
      if (const auto* set = std::get_if<NodeAction::SetTimer>(&action)) timers_.insert(set->timer);
      if (const auto* off = std::get_if<NodeAction::CancelTimer>(&action)) {
        timers_.erase(off->timer);
      }
      if (const auto* locate = std::get_if<NodeAction::LocateCoordinator>(&action)) {
        located_.insert(locate->job);
      }
      if (const auto* persist = std::get_if<NodeAction::PersistState>(&action)) {
        state_ = DecodeNodeState(persist->bytes.value()).value();
      }
      if (const auto* gone = std::get_if<NodeAction::DeleteShards>(&action)) {
        given_up_.insert(gone->digests.begin(), gone->digests.end());
        discarded_.insert(gone->staged.begin(), gone->staged.end());
      }
      const auto* send = std::get_if<NodeAction::Send>(&action);
      if (send != nullptr && send->message.has_join()) joined_ = send->message.join();
    }
  }

  void FireTimers() {
    std::set<std::string> located;
    for (const TimerId timer : std::exchange(timers_, {})) {
      Step(NodeEvent::TimerFired{timer});
      located.merge(located_);
    }
    located_ = std::move(located);
  }

  void Start(NodeEvent::Started started = {}) {
    timers_.clear();
    Step(started);
  }

  void Begin(NodeEvent::Started started = {}) {
    Start(std::move(started));
    Step(SeenConfig(MemberConfig()));
    Step(NodeEvent::VolumeCleaned{});
    Connect();
  }

  void Restore() { SayRestore(record_, shard_); }

  void Refuse() {
    control::Envelope message;
    message.mutable_rejected()->set_reason("no");
    message.mutable_rejected()->set_fatal(true);
    Say(std::move(message));
  }

  void EndRun() {
    control::Envelope message;
    *message.mutable_run_ended()->mutable_run() = ToProto(kRun);
    message.mutable_run_ended()->set_reason("node n0 has a new replicator.yaml");
    Say(std::move(message));
  }

  static std::unique_ptr<NodeMachine> Machine(uint64_t boot) {
    return std::make_unique<NodeMachine>(NodeOptions{
        .node_name = "n1", .agent = TestId(1), .boot = TestId(boot), .data_host = "n1"});
  }

  static control::GenerationRecord Record(const SaveKey& save) {
    control::GenerationRecord record;
    record.set_job("job");
    *record.mutable_save() = ToProto(save);
    *record.mutable_world() = ToProto(kMemberWorld);
    record.set_save_number(1);
    record.set_committed(true);
    for (Rank rank = 0; rank < 2; ++rank) {
      *record.add_shards() = MakeShard({.save = save, .rank = rank, .world = kMemberWorld});
    }
    return record;
  }

  const control::GenerationRecord record_ = Record({TestRun(6), 40, 1});
  const control::ShardInfo shard_ = record_.shards(1);  // this node's
  std::unique_ptr<NodeMachine> machine_ = Machine(2);
  Instant now_{1000s};
  std::optional<TaskId> pull_;           // the last one
  std::optional<TaskId> verify_;         // the last one
  std::set<TimerId> timers_;             // that run
  std::set<Blake3> given_up_;            // by the last event
  std::set<std::string> discarded_;      // staged ones, so far
  std::set<std::string> located_;        // jobs, by the last event
  std::optional<control::Join> joined_;  // by the last event
  control::NodeState state_;             // as persisted last
};

// Nothing was here when its attempt failed. Nobody would hear of the copy, nor have it deleted,
// before the agent's next start.
TEST_F(NodeHolder, APullThatEndsAfterItsAttemptHasFailedIsServedAllTheSame) {
  Begin();
  Restore();
  ASSERT_TRUE(pull_.has_value());
  Refuse();
  FireTimers();
  EXPECT_EQ(located_.count("job"), 0U) << "there is nothing to tell of";
  Step(NodeEvent::Pulled{.task = *pull_, .digest = DigestOf(shard_), .status = OkStatus()});
  FireTimers();
  EXPECT_EQ(located_.count("job"), 1U);
}

TEST_F(NodeHolder, APullThatEndsAfterItsRunIsToldOf) {
  BeginRun();
  control::Envelope message;
  message.mutable_keep()->set_order(1);
  auto* wanted = message.mutable_keep()->add_wanted();
  *wanted->mutable_shard() = record_.shards(0);
  wanted->add_nodes("n0");
  Say(std::move(message));
  Step(NodeEvent::MemorySeen{{.total_bytes = 1 << 30, .free_bytes = 1 << 30}});
  ASSERT_TRUE(pull_.has_value());
  EndRun();
  ASSERT_TRUE(joined_.has_value());
  EXPECT_EQ(joined_->inventory().shards_size(), 0);
  const Blake3 digest = DigestOf(record_.shards(0));
  Step(NodeEvent::Pulled{.task = *pull_, .digest = digest, .status = OkStatus()});
  ASSERT_TRUE(joined_.has_value());
  EXPECT_TRUE(joined_->holder());
  ASSERT_EQ(joined_->inventory().shards_size(), 1);
  EXPECT_EQ(DigestOf(joined_->inventory().shards(0)), digest);
}

// One that is away for good must not keep the node from another that waits for it.
TEST_F(NodeHolder, AJobWhoseCoordinatorIsAwayKeepsNoOtherWaiting) {
  NodeEvent::Started started;
  *started.inventory.add_shards() = shard_;
  *started.inventory.add_shards() =
      MakeShard({.save = {TestRun(6), 40, 1}, .world = kMemberWorld}, "away");
  Start(std::move(started));
  for (const char* job : {"away", "job", "away"}) {
    FireTimers();
    ASSERT_EQ(located_, (std::set<std::string>{job}));
    control::RendezvousRecord record;
    record.set_job(job);
    record.mutable_coordinator()->set_host("n0");
    Step(NodeEvent::CoordinatorLocated{record});
    Step(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "connection broke")});
  }
  // One that was here may have given way to another one, which waits for what is here.
  FireTimers();
  control::RendezvousRecord record;
  record.set_job("job");
  record.mutable_coordinator()->set_host("n0");
  Step(NodeEvent::CoordinatorLocated{record});
  Step(NodeEvent::CoordinatorConnected{});
  Step(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "the peer is gone")});
  FireTimers();
  EXPECT_EQ(located_, std::set<std::string>{"job"});
}

// As a holder it had been told of the run that went on without it. Taken for a member's, that would
// make it resume the run later, in the place of the rank's own node.
TEST_F(NodeHolder, AHoldersWordOfARunPutsNobodyInIt) {
  Begin();
  EndRun();
  ASSERT_TRUE(joined_.has_value());
  EXPECT_FALSE(joined_->has_in_run());
  control::Envelope message;
  *message.mutable_run_start()->mutable_run() = ToProto(TestRun(8));
  message.mutable_run_start()->set_epoch(kEpoch + 1);
  message.mutable_run_start()->set_continued(true);
  message.set_job("job");
  message.set_sender("n0");
  *message.mutable_run() = message.run_start().run();
  message.set_epoch(kEpoch + 1);
  Step(NodeEvent::Received{std::move(message)});
  EXPECT_EQ(machine_->status().phase, "joining");
  EXPECT_TRUE(state_.run().nonce().empty());
}

// Its process may train on, whatever becomes of the run: who coordinates the job next must know.
TEST_F(NodeHolder, ANodeThatWasReleasedTellsOfItsSeat) {
  BeginRun();
  now_ += 7s;
  EndRun();
  ASSERT_TRUE(joined_.has_value());
  ASSERT_TRUE(joined_->has_seat());
  EXPECT_EQ(joined_->seat().rank(), 1U);
  EXPECT_EQ(joined_->seat().attempt().agent(), TestId(1).Raw());
  EXPECT_EQ(joined_->seat().attempt_age_ms(), 7000U);
}

TEST_F(NodeHolder, ANodeThatWasNotReleasedHasNoSeat) {
  Begin();
  EndRun();
  ASSERT_TRUE(joined_.has_value());
  EXPECT_FALSE(joined_->has_seat());
}

// Restarted on the same host it knows how old the job's start is; else it would look younger than
// those that are.
TEST_F(NodeHolder, AnAgentThatWasRestartedTellsOfItsSeatAsOldAsItIs) {
  BeginRun();
  NodeEvent::Started again;
  again.state = state_;
  again.config = MemberConfig();
  again.links_stand = true;
  now_ += 7s;
  for (const bool host_began_anew : {false, true}) {
    SCOPED_TRACE(host_began_anew);
    if (host_began_anew) now_ = Instant(1s);
    machine_ = Machine(host_began_anew ? 4 : 3);
    Start(again);
    Connect(/*continued=*/true);
    EndRun();
    ASSERT_TRUE(joined_.has_value());
    EXPECT_TRUE(joined_->holder());
    EXPECT_EQ(joined_->has_seat(), !host_began_anew);
    EXPECT_EQ(joined_->seat().attempt_age_ms(), host_began_anew ? 0U : 7000U);
  }
}

TEST_F(NodeHolder, AnAgentThatWasRestartedTellsHowOldItsClaimIs) {
  Begin();
  NodeEvent::Started again;
  again.state = state_;
  again.config = MemberConfig();
  now_ += 7s;
  machine_ = Machine(3);
  Start(again);
  control::RendezvousRecord record;
  record.set_job("job");
  record.mutable_coordinator()->set_host("n0");
  Step(NodeEvent::CoordinatorLocated{record});
  Step(NodeEvent::CoordinatorConnected{});
  ASSERT_TRUE(joined_.has_value());
  EXPECT_FALSE(joined_->holder());
  EXPECT_EQ(joined_->attempt_age_ms(), 7000U);
}

// Bad copies take room until somebody says that they are obsolete.
TEST_F(NodeHolder, ACopyThatWasFoundBadIsToldOfOnceItsAttemptHasFailed) {
  NodeEvent::Started started;
  *started.inventory.add_shards() = shard_;
  Begin(std::move(started));
  Restore();
  ASSERT_TRUE(verify_.has_value());
  Step(NodeEvent::Verified{.task = *verify_, .digest = DigestOf(shard_), .problem = "bad"});
  Refuse();
  FireTimers();
  EXPECT_EQ(located_.count("job"), 1U);
}

TEST_F(NodeHolder, ACopyThatCantBeReadIsToldOfToTheJobOfTheRecordsBesideIt) {
  NodeEvent::Started started;
  auto* item = started.inventory.add_unreadable();
  item->set_digest(shard_.digest());
  item->set_detail("its manifest isn't the one that it is named by");
  item->set_damaged(true);
  Start(started);
  FireTimers();
  EXPECT_TRUE(located_.empty()) << "nobody knows whose it is";
  *started.inventory.add_generations() = record_;
  machine_ = Machine(3);
  Start(std::move(started));
  FireTimers();
  EXPECT_EQ(located_.count("job"), 1U);
}

// Nobody would ever say that it may go. What another try may read, and what a record's job may ask
// for, stays.
TEST_F(NodeHolder, ADamagedCopyOfWhichNothingTellsTheJobIsGivenUp) {
  NodeEvent::Started started;
  control::Unreadable* item = started.inventory.add_unreadable();
  item->set_digest(shard_.digest());
  item->set_detail("shards: no manifest");
  Start(started);
  EXPECT_TRUE(given_up_.empty());
  item->set_damaged(true);
  machine_ = Machine(2);
  Start(started);
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOf(shard_)});
  *started.inventory.add_generations() = record_;
  machine_ = Machine(2);
  Start(started);
  EXPECT_TRUE(given_up_.empty());
}

// Taken from the volume, and not hashed, in the last run that this node was in: nobody takes it up.
TEST_F(NodeHolder, WhatWasTakenOfAJobThatWentOnGoesWithItsCopies) {
  NodeEvent::Started started;
  *started.inventory.add_shards() = shard_;
  *started.state.mutable_last_run() = ToProto(TestRun(6));
  started.state.mutable_last_restored()->set_decision(1);
  *started.state.mutable_last_restored()->mutable_generation() = record_;
  started.staged = {"taken"};
  Start(started);
  FireTimers();
  ASSERT_EQ(located_, std::set<std::string>{"job"});
  Connect();
  EXPECT_TRUE(discarded_.empty());
  control::Envelope message;
  *message.mutable_commit()->mutable_generation() = Record({kRun, 50, 1});
  message.mutable_commit()->mutable_generation()->set_committed(true);
  Say(std::move(message));
  EXPECT_EQ(given_up_, std::set<Blake3>{DigestOf(shard_)});
  EXPECT_EQ(discarded_, std::set<std::string>{"taken"});
}

}  // namespace
}  // namespace tierkeep
