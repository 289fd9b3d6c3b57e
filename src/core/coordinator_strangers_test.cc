// Nodes that want ranks which others have, too.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/coordinator.h"
#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr uint32_t kNodes = 2;

// Coordinates a job of two nodes; all that matters of a node is its rank and its yaml's age.
class Strangers : public testing::Test {
 protected:
  void SetUp() override {
    Start(1s);
    Come({.first = 1, .age = 10s});
    ASSERT_EQ(begun_, 1U);
  }

  // Also anew: it knows nothing then.
  void Start(Duration wall) {
    machine_ = std::make_unique<CoordinatorMachine>(options_);
    begun_ = epoch_ = 0;
    Step(CoordinatorEvent::Started{WallTime(wall)});
    Step(CoordinatorEvent::RendezvousRead{std::nullopt, ""});
  }

  struct Set {
    ConnectionId first = 0;  // of rank 0; the agent's number too
    std::chrono::milliseconds age{};
  };
  void Come(Set set) {
    for (Rank rank = 0; rank < kNodes; ++rank) {
      control::Envelope message = MakeJoin(set.first + rank, rank, kNodes);
      message.mutable_join()->set_attempt_age_ms(static_cast<uint64_t>(set.age.count()));
      Step(CoordinatorEvent::Received{set.first + rank, std::move(message)});
    }
  }

  void Step(const CoordinatorEvent::Any& event) {
    for (const auto& action : machine_->Step(Instant(1000s), event)) {
      if (const auto* send = std::get_if<CoordinatorAction::Send>(&action)) {
        if (send->message.has_rejected()) refused_.insert(send->to);
        if (send->message.has_release()) released_.insert(send->to);
        if (!send->message.has_run_start() || send->message.run_start().epoch() == epoch_) continue;
        epoch_ = send->message.run_start().epoch();
        run_ = send->message.run_start().run();
        ++begun_;
      } else if (std::get_if<CoordinatorAction::WriteRendezvous>(&action) != nullptr) {
        Step(CoordinatorEvent::RendezvousWritten{std::to_string(++version_)});
      }
    }
  }

  const CoordinatorOptions options_{.settings = MakeJoin(1, 0, kNodes).join().settings(),
                                    .node_name = "n1",
                                    .control_host = "n1",
                                    .control_port = 1,
                                    .boot = TestId(3),
                                    .run_nonce = TestId(4)};
  std::unique_ptr<CoordinatorMachine> machine_;
  uint64_t version_ = 0;
  Epoch epoch_ = 0;
  control::RunId run_;
  uint64_t begun_ = 0;  // runs
  std::set<ConnectionId> refused_;
  std::set<ConnectionId> released_;
};

TEST_F(Strangers, AYoungerWholeSetEndsTheRun) {
  Come({.first = 11, .age = 1s});
  EXPECT_EQ(begun_, 2U);
}

// Else each of two sets would end the other's run again and again.
TEST_F(Strangers, AnOlderWholeSetDoesNot) {
  Come({.first = 11, .age = 20s});
  EXPECT_EQ(begun_, 1U);
  Come({.first = 21, .age = 1s});
  EXPECT_EQ(begun_, 2U);
}

// What was restarted doesn't know how old its yaml is: as if it were new, the set that the job is
// on by now waited in vain.
TEST_F(Strangers, AYoungerWholeSetEndsTheRunOfRestartedAgents) {
  Start(60s);
  for (Rank rank = 0; rank < kNodes; ++rank) {
    control::Envelope message = MakeJoin(1 + rank, rank, kNodes);
    *message.mutable_join()->mutable_in_run() = ToProto(TestRun(7));
    message.mutable_join()->set_agent_boot(TestId(200 + rank).Raw());
    Step(CoordinatorEvent::Received{1 + rank, std::move(message)});
  }
  ASSERT_EQ(begun_, 1U);
  Come({.first = 11, .age = 10s});
  EXPECT_EQ(begun_, 2U);
}

// The rank's member was released and trains on. Beside the stray node the others would go on from
// something else.
TEST_F(Strangers, AnOlderYamlDoesNotGetTheRankOfAMemberWhoseRunHasEnded) {
  for (const ConnectionId member : {1, 2}) {
    control::Envelope prepared = MakeJoin(member, 0, kNodes);
    prepared.set_epoch(epoch_);
    *prepared.mutable_run() = run_;
    prepared.mutable_restore_prepared()->set_decision(1);
    prepared.mutable_restore_prepared()->set_ok(true);
    Step(CoordinatorEvent::Received{member, std::move(prepared)});
  }
  ASSERT_EQ(released_.size(), 2U);
  control::Envelope stray = MakeJoin(11, 0, kNodes);
  stray.mutable_join()->set_attempt_age_ms(20'000);
  control::Envelope again = MakeJoin(2, 1, kNodes);
  again.mutable_join()->mutable_attempt()->set_counter(2);
  for (const bool before : {true, false}) {
    refused_.clear();
    if (before) Step(CoordinatorEvent::Received{11, stray});
    EXPECT_TRUE(refused_.empty());
    if (before) Step(CoordinatorEvent::Received{2, again});
    if (!before) Step(CoordinatorEvent::Received{12, stray});
    EXPECT_EQ(refused_, std::set<ConnectionId>{before ? 11U : 12U});
  }
  EXPECT_EQ(begun_, 1U);
  // Who comes anew gets it.
  Step(CoordinatorEvent::Received{21, MakeJoin(21, 0, kNodes)});
  EXPECT_EQ(begun_, 2U);
}

// The same after another coordinator's run: the node itself tells that it was released.
TEST_F(Strangers, AnOlderYamlDoesNotGetTheRankOfANodeThatTellsOfItsSeat) {
  control::Envelope seated = MakeJoin(31, 0, kNodes);
  seated.mutable_join()->set_holder(true);
  seated.mutable_join()->mutable_seat()->set_rank(0);
  *seated.mutable_join()->mutable_seat()->mutable_attempt() = seated.join().attempt();
  seated.mutable_join()->mutable_seat()->set_attempt_age_ms(5'000);
  control::Envelope stray = MakeJoin(11, 0, kNodes);
  stray.mutable_join()->set_attempt_age_ms(20'000);
  const control::Envelope other = MakeJoin(12, 1, kNodes);
  for (const size_t seat_comes : {0U, 1U, 2U}) {
    SCOPED_TRACE(seat_comes);
    refused_.clear();
    Start(1s);
    std::vector<std::pair<ConnectionId, control::Envelope>> order = {{11, stray}, {12, other}};
    order.insert(order.begin() + static_cast<ptrdiff_t>(seat_comes), {31, seated});
    for (const auto& [from, message] : order) Step(CoordinatorEvent::Received{from, message});
    if (seat_comes == 2) {
      // The run has begun, but nobody is released: it is over, and all that come are looked at.
      EXPECT_EQ(begun_, 1U);
      for (const auto& [from, message] : {order[0], order[1]}) {
        Step(CoordinatorEvent::Received{from, message});
      }
    }
    EXPECT_EQ(refused_, std::set<ConnectionId>{11});
    EXPECT_EQ(begun_, seat_comes == 2 ? 1U : 0U);
    // The job's next start gets it.
    const uint64_t before = begun_;
    Step(CoordinatorEvent::Received{31, MakeJoin(31, 0, kNodes)});
    EXPECT_EQ(begun_, before + 1);
  }
  EXPECT_TRUE(released_.empty());
}

// After a restart of the coordinator. Rank 0 of the older run must not take the place of the newer
// one's, who would never be heard of again.
TEST_F(Strangers, OfTwoRunsTheNewerOneGoesOnAfterARestart) {
  Start(1s);
  const auto resume = [this](ConnectionId agent, Rank rank, uint64_t run) {
    control::Envelope message = MakeJoin(agent, rank, kNodes);
    *message.mutable_join()->mutable_in_run() = ToProto(TestRun(run));
    message.mutable_join()->set_released(run == 7);
    Step(CoordinatorEvent::Received{agent, std::move(message)});
  };
  resume(1, 0, 8);
  resume(11, 0, 7);
  resume(2, 1, 8);
  EXPECT_EQ(begun_, 1U);
}

}  // namespace
}  // namespace tierkeep
