// Kills one agent at every point of a job's life: before each of its actions in turn. Whatever the
// point, nothing that was committed is lost and the job goes on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/cluster_testutil.h"

namespace tierkeep {
namespace {

struct Case {
  size_t victim;
  bool wipe;
  uint32_t whole_view_max = kWholeViewMax;  // 0: as in a large job, each knows its own part
  uint32_t partitions = 0;                  // two nodes each
};

// Runs a job that starts, saves, restarts and saves again, with one kill on the way. Returns
// whether the kill took place.
bool RunWithKill(const Case& c, uint64_t actions) {
  const uint32_t nodes = c.partitions > 0 ? 2 * c.partitions : 3;
  TestCluster cluster({.seed = actions + 1,
                       .hosts = nodes,
                       .world = {.nodes = nodes, .data_parallelism = c.partitions},
                       .whole_view_max = c.whole_view_max});
  SCOPED_TRACE(fmt::format("host {} killed before action {}, {}", c.victim, actions,
                           c.wipe ? "RAM wiped" : "RAM kept"));
  bool killed = false;
  const auto revive = [&] {
    if (cluster.Up(c.victim)) return;
    killed = true;
    // The others go on for a moment.
    cluster.Run(50ms);
    if (c.wipe) {
      cluster.WipeRam(c.victim);
      cluster.StartAgent(c.victim);
      cluster.StartJob();  // the pod is gone with its volume: the job starts again
    } else {
      cluster.StartAgent(c.victim);
    }
  };
  const auto until = [&](const auto& done) {
    for (int i = 0; i < 3; ++i) {
      if (cluster.RunUntil([&] { return done() || !cluster.Up(c.victim); }, 120s) && done() &&
          cluster.Up(c.victim)) {
        return true;
      }
      revive();
    }
    return cluster.RunUntil(done, 120s);
  };
  const auto released = [&] { return cluster.AllReleased(); };
  cluster.KillAfter(c.victim, actions);
  cluster.StartJob();
  EXPECT_TRUE(until(released)) << LogOf(cluster);
  uint64_t committed = 0;
  for (const Step step : {10, 20, 30, 40}) {
    cluster.SaveAll(step);
    const auto done = [&] { return cluster.AllCommitted(step); };
    if (step == 10 || step == 30) {
      // With a kill in the middle a save may be dropped; the next one must make it.
      if (until([&] { return done() || (killed && cluster.AllReleased()); }) && done()) {
        committed = step;
      }
      continue;
    }
    if (!until([&] { return done() || (c.wipe && killed && cluster.AllReleased()); })) {
      ADD_FAILURE() << "step " << step << " is not committed\n" << LogOf(cluster);
      return killed;
    }
    if (done()) committed = step;
    cluster.StartJob();
    EXPECT_TRUE(until(released)) << LogOf(cluster);
    for (size_t i = 0; i < nodes; ++i) {
      EXPECT_GE(cluster.client(i).step.value_or(0), committed) << LogOf(cluster);
      EXPECT_EQ(cluster.client(i).step, cluster.client(0).step) << LogOf(cluster);
    }
  }
  EXPECT_TRUE(cluster.RunUntil([&] {
    for (const auto& digest : cluster.NewestDigests()) {
      if (cluster.CopiesOf(digest) < (c.partitions > 0 ? 1 : 2)) return false;
    }
    return !cluster.NewestDigests().empty();
  })) << LogOf(cluster);
  EXPECT_TRUE(cluster.ok()) << LogOf(cluster);
  return killed;
}

void Sweep(const Case& c) {
  for (uint64_t actions = 0; actions < 2000; ++actions) {
    if (!RunWithKill(c, actions)) {
      EXPECT_GT(actions, 60U);
      return;
    }
    if (testing::Test::HasFailure()) return;
  }
  FAIL() << "the victim never survived";
}

TEST(Crash, OfAMemberAtAnyPoint) { Sweep({.victim = 1, .wipe = false}); }
TEST(Crash, B1_OfTheCoordinatorAtAnyPoint) { Sweep({.victim = 0, .wipe = false}); }
TEST(Crash, WithItsRamAtAnyPoint) { Sweep({.victim = 2, .wipe = true}); }
TEST(Crash, OfTheCoordinatorWithItsRamAtAnyPoint) { Sweep({.victim = 0, .wipe = true}); }

TEST(Crash, OfAMemberOfALargeJob) { Sweep({.victim = 1, .wipe = false, .whole_view_max = 0}); }
TEST(Crash, OfALargeJobsCoordinator) { Sweep({.victim = 0, .wipe = false, .whole_view_max = 0}); }
TEST(Crash, WithItsRamInALargeJob) { Sweep({.victim = 2, .wipe = true, .whole_view_max = 0}); }
TEST(Crash, OfALargeJobsCoordinatorWithItsRam) {
  Sweep({.victim = 0, .wipe = true, .whole_view_max = 0});
}
TEST(Crash, OfAReplicaOfALargeJob) {
  Sweep({.victim = 1, .wipe = false, .whole_view_max = 0, .partitions = 2});
}
TEST(Crash, OfAReplicaWithItsRamInALargeJob) {
  Sweep({.victim = 2, .wipe = true, .whole_view_max = 0, .partitions = 2});
}

}  // namespace
}  // namespace tierkeep
