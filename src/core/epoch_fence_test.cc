// What an earlier epoch said must change nothing, whatever kind of message it is.
#include <gtest/gtest.h>

#include <variant>

#include "core/coordinator.h"
#include "core/core_testutil.h"
#include "core/node.h"
#include "core/node_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr ConnectionId kMember = 1;

CoordinatorEvent::Received FromMember(control::Envelope message) {
  message.set_job("job");
  message.set_sender("n0");
  return {kMember, std::move(message)};
}

control::Envelope JoinOfTheOnlyMember() {
  JobConfig config;
  config.job = "job";
  config.world = {Framework::kPytorchDistributed, 1, 1, 0};
  control::Envelope message;
  control::Join& join = *message.mutable_join();
  *join.mutable_attempt() = ToProto(AttemptId{TestId(1), TestId(2), 1});
  join.set_node("n0");
  *join.mutable_settings() = SettingsOf(config);
  return message;
}

class EpochFence : public testing::Test {
 protected:
  void SetUp() override {
    Step(CoordinatorEvent::Started{WallTime(1s)});
    Step(CoordinatorEvent::RendezvousRead{std::nullopt, ""});
    Step(CoordinatorEvent::RendezvousWritten{"1"});
    Step(FromMember(JoinOfTheOnlyMember()));
    Step(CoordinatorEvent::RendezvousWritten{"2"});
    ASSERT_EQ(machine_.status().state(), "restoring");
    ASSERT_GT(epoch_, 1U);
  }

  CoordinatorActions Step(const CoordinatorEvent::Any& event) {
    CoordinatorActions actions = machine_.Step(Instant(1000s), event);
    for (const auto& action : actions) {
      const auto* send = std::get_if<CoordinatorAction::Send>(&action);
      if (send != nullptr && send->message.has_run_start()) {
        epoch_ = send->message.run_start().epoch();
      }
    }
    return actions;
  }

  CoordinatorActions Leave(Epoch epoch) {
    control::Envelope message;
    message.set_epoch(epoch);
    message.mutable_leaving()->set_reason("the agent stops");
    return Step(FromMember(std::move(message)));
  }

  CoordinatorMachine machine_{{.settings = JoinOfTheOnlyMember().join().settings(),
                               .node_name = "n0",
                               .control_host = "n0",
                               .control_port = 1,
                               .boot = TestId(3),
                               .run_nonce = TestId(4)}};
  Epoch epoch_ = 0;
};

TEST_F(EpochFence, AnOldGoodbyeDoesNotTakeAMemberAway) {
  EXPECT_TRUE(Leave(epoch_ - 1).empty());
  EXPECT_EQ(machine_.status().missing_ranks_size(), 0);
  Leave(epoch_);
  EXPECT_EQ(machine_.status().missing_ranks_size(), 1);
}

TEST_F(EpochFence, AnOldOrderIsNotSpread) {
  control::Envelope message;
  control::RestoreOrder& order = *message.mutable_restore_orders()->add_orders();
  order.set_job("job");
  order.set_skip_step(10);
  order.set_after(7);
  message.set_epoch(epoch_ - 1);
  EXPECT_TRUE(Step(FromMember(message)).empty());
  message.set_epoch(epoch_);
  EXPECT_FALSE(Step(FromMember(message)).empty());
}

// A host that was replaced has lost all that it knew of epochs. What came over this link tells.
TEST(EpochFenceOfANode, OneThatKnowsNothingGoesByWhatItHasHeard) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  const auto step = [&](const NodeEvent::Any& event) {
    return machine.Step(Instant(1000s), event);
  };
  step(NodeEvent::Started{});
  step(SeenConfig(MemberConfig()));
  step(NodeEvent::VolumeCleaned{});
  control::RendezvousRecord record;
  record.set_job("job");
  record.mutable_coordinator()->set_host("n0");
  step(NodeEvent::CoordinatorLocated{record});
  step(NodeEvent::CoordinatorConnected{});
  const auto say = [&](Epoch epoch, control::Envelope message) {
    message.set_job("job");
    message.set_epoch(epoch);
    *message.mutable_run() = ToProto(TestRun(epoch));
    return step(NodeEvent::Received{std::move(message)});
  };
  control::Envelope status;
  status.mutable_job_status()->set_state("running");
  say(5, status);
  const auto start = [&](Epoch epoch) {
    control::Envelope message;
    *message.mutable_run_start()->mutable_run() = ToProto(TestRun(epoch));
    message.mutable_run_start()->set_epoch(epoch);
    AddMembers(message.mutable_run_start());
    say(epoch, std::move(message));
    return FromProto(machine.state().run());
  };
  EXPECT_TRUE(start(4).none());
  EXPECT_EQ(start(5), TestRun(5));
}

}  // namespace
}  // namespace tierkeep
