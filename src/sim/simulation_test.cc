#include "sim/simulation.h"

#include <gtest/gtest.h>

#include "sim/scenarios.h"

namespace tierkeep::sim {
namespace {

SimulationResult RunOnce(uint64_t seed) {
  SimulationOptions options;
  options.seed = seed;
  options.trace = true;
  return RunSeed(options);
}

TEST(SimulationTest, TheSameSeedGivesTheSameEvents) {
  const SimulationResult first = RunOnce(7);
  const SimulationResult second = RunOnce(7);
  EXPECT_EQ(first.failure, "");
  EXPECT_EQ(first.hash, second.hash);
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_NE(first.hash, RunOnce(8).hash);
}

TEST(SimulationTest, GoingRoundInCirclesFails) {
  World world(1, false);
  std::function<void()> again = [&] { world.At(world.now(), again); };
  world.After(1s, again);
  EXPECT_FALSE(world.RunUntil(world.now() + 2s, [] { return false; }));
  EXPECT_EQ(world.checker(), Checker::kCircles) << world.failure();
}

TEST(SimulationTest, SchedulesKeepTheirPromises) {
  for (uint64_t seed = 1000; seed < 1020; ++seed) {
    const SimulationResult result = RunOnce(seed);
    ASSERT_EQ(result.failure, "") << "tierkeep-sim --seed " << seed << " --trace";
  }
}

TEST(SimulationTest, ScenariosKeepTheirPromises) {
  for (const Scenario& scenario : Scenarios()) {
    EXPECT_EQ(RunScenario(scenario, false, false).failure, "") << scenario.name;
  }
}

}  // namespace
}  // namespace tierkeep::sim
