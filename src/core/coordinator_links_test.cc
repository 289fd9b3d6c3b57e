// Agents that dial anew: what an older connection still brings has no effect.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <variant>

#include "core/coordinator.h"
#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

struct Link {
  uint64_t life = 1;
  uint64_t number = 1;
  uint64_t boot = 0;  // tells apart lives of one number
};

control::Envelope JoinOver(uint64_t agent, Rank rank, const Link& link) {
  control::Envelope message = MakeJoin(agent, rank, /*nodes=*/2);
  control::Join& join = *message.mutable_join();
  join.set_agent_boot(TestId(1000 * agent + 10 * link.life + link.boot).Raw());
  join.mutable_link()->set_agent(join.attempt().agent());
  join.mutable_link()->set_life(link.life);
  join.mutable_link()->set_number(link.number);
  return message;
}

// A coordinator of two nodes: agent 1 has rank 0 on connection 1, agent 2 rank 1 on connection 2.
class CoordinatorLinks : public testing::Test {
 protected:
  void SetUp() override {
    machine_ = std::make_unique<CoordinatorMachine>(
        CoordinatorOptions{.settings = MakeJoin(1, 0, 2).join().settings(),
                           .node_name = "n9",
                           .control_host = "n9",
                           .control_port = 1,
                           .boot = TestId(3),
                           .run_nonce = TestId(4)});
    Step(CoordinatorEvent::Started{WallTime(1s)});
    Step(CoordinatorEvent::RendezvousRead{std::nullopt, ""});
  }
  void Step(const CoordinatorEvent::Any& event) {
    for (const auto& action : machine_->Step(Instant(1000s), event)) {
      if (const auto* send = std::get_if<CoordinatorAction::Send>(&action)) {
        const control::Envelope& message = send->message;
        if (message.has_run_start()) {
          started_.insert(send->to);
          run_ = message.run();
          epoch_ = message.epoch();
        }
        if (message.has_release()) released_.insert(send->to);
        ++sent_;
      } else if (const auto* close = std::get_if<CoordinatorAction::CloseConnection>(&action)) {
        closed_.insert(close->connection);
      } else if (std::get_if<CoordinatorAction::WriteRendezvous>(&action) != nullptr) {
        Step(CoordinatorEvent::RendezvousWritten{std::to_string(++version_)});
      }
    }
  }
  void Receive(ConnectionId from, control::Envelope message) {
    Step(CoordinatorEvent::Received{from, std::move(message)});
  }
  void Prepared(ConnectionId from) {
    control::Envelope message;
    message.set_job("job");
    *message.mutable_run() = run_;
    message.set_epoch(epoch_);
    message.mutable_restore_prepared()->set_decision(1);
    message.mutable_restore_prepared()->set_ok(true);
    Receive(from, std::move(message));
  }
  void BeginRun() {
    Receive(1, JoinOver(1, 0, {}));
    Receive(2, JoinOver(2, 1, {.life = 4, .number = 7}));
    ASSERT_EQ(started_, (std::set<ConnectionId>{1, 2}));
  }
  // Nothing is said, and `connection` alone is closed.
  void ExpectIgnored(ConnectionId connection, const Link& link) {
    closed_.clear();
    sent_ = 0;
    const uint64_t dropped = machine_->dropped_messages();
    Receive(connection, JoinOver(2, 1, link));
    EXPECT_EQ(sent_, 0U);
    EXPECT_EQ(closed_, std::set<ConnectionId>{connection});
    EXPECT_EQ(machine_->dropped_messages(), dropped + 1);
  }

  std::unique_ptr<CoordinatorMachine> machine_;
  std::set<ConnectionId> started_, released_, closed_;
  uint64_t sent_ = 0;
  uint64_t version_ = 0;
  control::RunId run_;
  Epoch epoch_ = 0;
};

TEST_F(CoordinatorLinks, AJoinThatAnOlderConnectionBringsLateHasNoEffect) {
  BeginRun();
  Receive(3, JoinOver(2, 1, {.life = 4, .number = 9}));
  EXPECT_EQ(closed_, std::set<ConnectionId>{2});
  ExpectIgnored(4, {.life = 4, .number = 8});
  ExpectIgnored(5, {.life = 3, .number = 20});  // the agent has died since
  // The newer connection is the member's still.
  Prepared(1);
  Prepared(3);
  EXPECT_EQ(released_, (std::set<ConnectionId>{1, 3}));
}

TEST_F(CoordinatorLinks, WhatElseAnOlderConnectionBringsLateHasNoEffect) {
  BeginRun();
  Receive(3, JoinOver(2, 1, {.life = 5}));
  Prepared(1);
  Prepared(2);
  EXPECT_TRUE(released_.empty());
  control::Envelope leaving;
  leaving.set_job("job");
  leaving.mutable_leaving();
  Receive(2, leaving);
  Step(CoordinatorEvent::Disconnected{2});
  Prepared(3);
  EXPECT_EQ(released_, (std::set<ConnectionId>{1, 3}));
}

TEST_F(CoordinatorLinks, AnOlderConnectionHasNoEffectWhileAllAreGathered) {
  Receive(3, JoinOver(2, 1, {.life = 4, .number = 9}));
  ExpectIgnored(2, {.life = 4, .number = 8});
  Receive(1, JoinOver(1, 0, {}));
  EXPECT_EQ(started_, (std::set<ConnectionId>{1, 3}));
}

// Its attempt is over, and the coordinator doesn't know yet that the older connection is dead: else
// what it holds would be known only when that is found out, and only if it joins again.
TEST_F(CoordinatorLinks, AHolderIsHeardWhoseOlderConnectionIsAMembers) {
  BeginRun();
  control::Envelope message = JoinOver(2, 1, {.life = 4, .number = 8});
  message.mutable_join()->set_holder(true);
  message.mutable_join()->clear_attempt();
  started_.clear();
  Receive(3, std::move(message));
  EXPECT_EQ(closed_, std::set<ConnectionId>{2});
  EXPECT_TRUE(started_.contains(3));
}

// Over one connection an agent joins again when a run has ended; and a start that could not write
// down its number gives it to the next one.
TEST_F(CoordinatorLinks, WhatIsNotKnownToBeOlderCounts) {
  BeginRun();
  started_.clear();
  Receive(2, JoinOver(2, 1, {.life = 4, .number = 7}));
  EXPECT_EQ(started_, std::set<ConnectionId>{2});
  EXPECT_TRUE(closed_.empty());
  Receive(3, JoinOver(2, 1, {.life = 4, .number = 1, .boot = 1}));
  EXPECT_TRUE(started_.contains(3));
  control::Envelope of_an_earlier_version = MakeJoin(2, 1, 2);
  Receive(4, std::move(of_an_earlier_version));
  EXPECT_TRUE(started_.contains(4));
}

}  // namespace
}  // namespace tierkeep
