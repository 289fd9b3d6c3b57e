// Agents that come back to a new coordinator out of runs that it doesn't know.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <variant>

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

// A node that slept through its run's end claims a rank of the newer run: without a word to it the
// newer run, whose members are all here, would wait for ever.
TEST(CoordinatorResumed, ANodeOfAnOlderRunDoesNotKeepTheNewerOneWaiting) {
  const RunId older = TestRun(10);
  const RunId newer = TestRun(20);
  for (const bool older_first : {true, false}) {
    SCOPED_TRACE(older_first);
    const control::Envelope stray = JoinOf(1, 0, older, /*released=*/true);
    CoordinatorMachine machine({.settings = stray.join().settings(),
                                .node_name = "n2",
                                .control_host = "n2",
                                .control_port = 1,
                                .boot = TestId(3),
                                .run_nonce = TestId(4)});
    std::set<ConnectionId> started;
    std::set<ConnectionId> ended;
    uint64_t version = 0;
    const std::function<void(const CoordinatorEvent::Any&)> step = [&](const auto& event) {
      for (const auto& action : machine.Step(Instant(1000s), event)) {
        if (const auto* send = std::get_if<CoordinatorAction::Send>(&action)) {
          if (send->message.has_run_start()) started.insert(send->to);
          if (send->message.has_run_ended()) ended.insert(send->to);
        } else if (std::get_if<CoordinatorAction::WriteRendezvous>(&action) != nullptr) {
          step(CoordinatorEvent::RendezvousWritten{std::to_string(++version)});
        }
      }
    };
    step(CoordinatorEvent::Started{WallTime(1s)});
    step(CoordinatorEvent::RendezvousRead{std::nullopt, ""});
    if (older_first) step(CoordinatorEvent::Received{1, stray});
    step(CoordinatorEvent::Received{2, JoinOf(2, 0, newer, false)});
    if (!older_first) step(CoordinatorEvent::Received{1, stray});
    step(CoordinatorEvent::Received{3, JoinOf(3, 1, newer, false)});
    EXPECT_EQ(ended, std::set<ConnectionId>{1});
    EXPECT_TRUE(started.count(2) == 1 && started.count(3) == 1);
  }
}

}  // namespace
}  // namespace tierkeep
