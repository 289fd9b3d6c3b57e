#include "agent/steps.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "base/log_sinks.h"

namespace tierkeep {
namespace {

using ::testing::Contains;

TEST(Steps, PointsAreReadStrictly) {
  EXPECT_THAT(AllSteps(), Contains("node.PlaceLink"));
  EXPECT_THAT(AllSteps(), Contains("coordinator.WriteRendezvous"));
  const auto first = ParseCrashPoint("node.Send");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->step, "node.Send");
  EXPECT_EQ(first->count, 1u);
  EXPECT_EQ(ParseCrashPoint("coordinator.Send:12")->count, 12u);
  for (const char* bad :
       {"", "Send", "node.", "node.Nothing", "node.Send:", "node.Send:0", "node.Send:x"}) {
    EXPECT_FALSE(ParseCrashPoint(bad).ok()) << bad;
  }
}

TEST(StepsDeathTest, EndsBeforeTheStepThatWasNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](const char* point, int times) {
    Steps steps(Logger(), *ParseCrashPoint(point));
    for (int i = 0; i < times; ++i) {
      steps.Announce(NodeAction::Any(NodeAction::Disconnect{}));
      steps.Announce(CoordinatorAction::Any(CoordinatorAction::ReadRendezvous{}));
    }
  };
  run("node.Disconnect:3", 2);
  run("node.Send", 2);
  EXPECT_EXIT(run("node.Disconnect:3", 3), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(run("coordinator.ReadRendezvous", 1), ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace tierkeep
