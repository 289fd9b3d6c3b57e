// A restore whose only sources can't be heard.
#include <gtest/gtest.h>

#include <set>
#include <variant>
#include <vector>

#include "core/coordinator.h"
#include "core/core_testutil.h"
#include "core/holdings.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

const SaveKey kSave{TestRun(7), 10, 1};

// Coordinates a job of two nodes, n1 and n2. All copies are with n2; n1 has lost its own.
class SilentSource : public testing::Test {
 protected:
  void SetUp() override {
    Step(CoordinatorEvent::Started{WallTime(1s)});
    Step(CoordinatorEvent::RendezvousRead{std::nullopt, ""});
    Step(CoordinatorEvent::Received{1, MakeJoin(1, 0, 2)});
    Step(CoordinatorEvent::Received{2, WithCopies(MakeJoin(2, 1, 2))});
    ASSERT_EQ(asked_, 1);
  }

  static control::Envelope WithCopies(control::Envelope message) {
    const WorldShape world = FromProto(message.join().settings().world());
    for (const Rank rank : {0, 1}) {
      *message.mutable_join()->mutable_inventory()->add_shards() =
          MakeShard({.save = kSave, .rank = rank, .world = world});
    }
    return message;
  }

  void Step(const CoordinatorEvent::Any& event) {
    for (const auto& action : machine_.Step(now_, event)) {
      if (const auto* send = std::get_if<CoordinatorAction::Send>(&action)) {
        if (send->message.has_run_start()) {
          epoch_ = send->message.run_start().epoch();
          run_ = send->message.run_start().run();
        }
        if (!send->message.has_restore() || send->to != 1) continue;
        choice_ = send->message.restore().choice();
        ++asked_;
      } else if (const auto* timer = std::get_if<CoordinatorAction::SetTimer>(&action)) {
        timers_.insert(timer->timer);
      } else if (std::get_if<CoordinatorAction::WriteRendezvous>(&action) != nullptr) {
        Step(CoordinatorEvent::RendezvousWritten{"1"});
      }
    }
  }

  // n1 tries to get its part as often as it is asked to, and fails.
  void FailToPull(int times) {
    for (int i = 0; i < times; ++i) {
      control::Envelope message = MakeJoin(1, 0, 2);
      message.set_epoch(epoch_);
      *message.mutable_run() = run_;
      auto* prepared = message.mutable_restore_prepared();
      prepared->set_decision(choice_.decision());
      prepared->set_error("no source could serve");
      prepared->add_bad_sources("n2");
      Step(CoordinatorEvent::Received{1, std::move(message)});
      for (const TimerId timer : std::set<TimerId>(timers_)) {
        if (timer == kRetryTimer) Step(CoordinatorEvent::TimerFired{timer});
      }
    }
  }

  static constexpr TimerId kRetryTimer = 7;
  Instant now_{1000s};
  CoordinatorMachine machine_{CoordinatorOptions{.settings = MakeJoin(1, 0, 2).join().settings(),
                                                 .node_name = "n1",
                                                 .control_host = "n1",
                                                 .control_port = 1,
                                                 .boot = TestId(3),
                                                 .run_nonce = TestId(4)}};
  Epoch epoch_ = 0;
  control::RunId run_;
  control::RestoreChoice choice_;  // as n1 was told last
  int asked_ = 0;
  std::set<TimerId> timers_;
};

// An agent that only starts again has the last copy: that isn't given up, but asked for once more.
TEST_F(SilentSource, ThatIsAwayIsAskedAgainWhenItIsBack) {
  Step(CoordinatorEvent::Disconnected{2});
  FailToPull(20);
  EXPECT_EQ(asked_, 1);
  control::Envelope back = WithCopies(MakeJoin(2, 1, 2));
  *back.mutable_join()->mutable_in_run() = run_;
  Step(CoordinatorEvent::Received{3, std::move(back)});
  Step(CoordinatorEvent::TimerFired{kRetryTimer});
  EXPECT_EQ(asked_, 2);
  EXPECT_FALSE(choice_.none());
  EXPECT_EQ(FromProto(choice_.generation().save()), kSave);
}

// So it is where its host is suspended, before its connection is found dead.
TEST_F(SilentSource, ThatIsOnlyNotHeardIsNotGivenUp) {
  now_ += 15s;
  FailToPull(20);
  EXPECT_EQ(asked_, 1);
  control::Envelope ping = MakeJoin(2, 1, 2);
  ping.mutable_ping()->set_answer(true);
  Step(CoordinatorEvent::Received{2, std::move(ping)});
  Step(CoordinatorEvent::TimerFired{kRetryTimer});
  EXPECT_EQ(asked_, 2);
  EXPECT_FALSE(choice_.none());
}

// One that answers and serves nothing is cut off from that node: the job must go on somehow.
TEST_F(SilentSource, ThatIsHeardAndServesNothingIsGivenUp) {
  FailToPull(20);
  EXPECT_TRUE(choice_.none());
}

}  // namespace
}  // namespace tierkeep
