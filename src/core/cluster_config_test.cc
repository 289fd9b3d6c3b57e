// What clients do with replicator.yaml and with saves that can't be used, on a simulated clock.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cluster_testutil.h"

namespace tierkeep {
namespace {

constexpr Duration kPatience = 60s;

Result<ParsedConfig> Unfinished() { return Error(Code::kAborted, "it is being written"); }
Result<ParsedConfig> Unreadable() { return Error(Code::kUnavailable, "it can't be read"); }

TEST(ClusterConfig, B13AYamlIsWaitedForWhileItIsWritten) {
  for (const auto& not_yet : {Unfinished(), Unreadable()}) {
    TestCluster cluster({.hosts = 1, .world = {.nodes = 1}});
    cluster.SendYaml(0, not_yet);
    cluster.Run(50s);
    EXPECT_TRUE(cluster.YamlStands(0));
    EXPECT_TRUE(cluster.client(0).failed.empty());
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    // The wait begins anew with the next one.
    cluster.SendYaml(0, not_yet);
    cluster.Run(50s);
    EXPECT_TRUE(cluster.client(0).failed.empty());
  }
}

TEST(ClusterConfig, AYamlThatIsNeverFinishedIsRefused) {
  for (const auto& not_yet : {Unfinished(), Unreadable()}) {
    TestCluster cluster({.hosts = 1, .world = {.nodes = 1}});
    cluster.SendYaml(0, not_yet);
    cluster.Run(65s);
    ASSERT_EQ(cluster.client(0).failed.size(), 1U);
    EXPECT_NE(cluster.client(0).failed[0].find(not_yet.error().message()), std::string::npos);
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  }
}

// A job may write its yaml over and over, as fast as it likes: how often the service begins anew
// depends on time alone.
TEST(ClusterConfig, D11AYamlThatNeverStandsStillCostsLittle) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Prng draw(seed);
    TestCluster cluster({.seed = seed, .hosts = 1, .world = {.nodes = 1}});
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    cluster.SaveAll(10);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
    const std::string before = LogOf(cluster);
    const Instant end = cluster.now() + 60s;
    while (cluster.now() < end) {
      switch (draw.Below(5)) {
        case 0:
          cluster.SendYaml(0, std::nullopt);
          break;
        case 1:
          cluster.SendYaml(0, Unfinished());
          break;
        case 2:
          cluster.SendYaml(0, Error(Code::kInvalidArgument, "no such key"));
          break;
        case 3:
          cluster.TakeYaml(0);
          break;
        default:
          cluster.StartJob();
      }
      cluster.Run(draw.Below(20000) * 1us);
    }
    const std::string log = LogOf(cluster);
    EXPECT_LT(
        std::count(log.begin(), log.end(), '\n') - std::count(before.begin(), before.end(), '\n'),
        60 * 12)
        << "a dozen lines a second at most";
    // What was saved is there all the same.
    cluster.Run(5s);
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    EXPECT_EQ(cluster.client(0).step, 10U);
  }
}

TEST(ClusterConfig, WhatCanNotBeReadDoesNotEndARun) {
  TestCluster cluster({.hosts = 2});
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  cluster.SendYaml(1, Unreadable());
  cluster.Run(150s);
  EXPECT_TRUE(cluster.client(1).failed.empty());
  EXPECT_EQ(cluster.client(1).errors.size(), 2U) << "said once a minute";
  EXPECT_EQ(cluster.status(1).phase, "running");
}

TEST(ClusterConfig, AYamlTakenAwayIsNoStartAnyMore) {
  for (const size_t restarted : {0, 1}) {
    TestCluster cluster({.hosts = 2});
    const size_t other = 1 - restarted;
    cluster.StartClient(restarted, static_cast<Rank>(restarted));
    cluster.Run(3s);
    ASSERT_TRUE(cluster.YamlStands(restarted));
    cluster.TakeYaml(restarted);
    cluster.Run(1s);
    EXPECT_EQ(cluster.status(restarted).phase, "idle");
    // The other one isn't released together with a client that is gone.
    cluster.StartClient(other, static_cast<Rank>(other));
    cluster.Run(30s);
    EXPECT_FALSE(cluster.client(other).released) << LogOf(cluster);
    // Minutes late, but well within what clients wait.
    cluster.Run(180s);
    cluster.StartClient(restarted, static_cast<Rank>(restarted));
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    EXPECT_TRUE(cluster.client(other).failed.empty());
    cluster.SaveAll(5);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(5));
  }
}

// The platform starts the process anew: with the yaml of the one before it nobody is to start,
// though it may be seen once more before it goes.
TEST(ClusterConfig, AYamlOfAnEarlierProcessIsNoStart) {
  TestCluster cluster({.hosts = 2});
  cluster.ChangeJaxInit(0, "one");
  cluster.StartClient(0, 0);
  cluster.Run(10ms);
  cluster.ChangeJaxInit(0, "two");
  cluster.SeeYamlAgain(0);
  cluster.Run(1s);
  EXPECT_FALSE(cluster.YamlStands(0));
  cluster.StartClient(1, 1);
  cluster.Run(30s);
  EXPECT_FALSE(cluster.client(1).released);
  cluster.StartClient(0, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
}

TEST(ClusterConfig, ANewYamlAtAnyMomentKeepsWhatIsThere) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Prng draw(seed);
    TestCluster cluster({.seed = seed, .hosts = 2, .delay_max = 5ms});
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    cluster.SaveAll(10);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
    for (size_t i = 0; i < 2; ++i) cluster.KillAgent(i);
    cluster.SaveAll(20);
    for (size_t i = 0; i < 2; ++i) cluster.StartAgent(i);
    cluster.StartJob();
    if (draw.Chance(1, 2)) cluster.Run(draw.Below(12000) * 1us);
    for (size_t i = 0; i < 2; ++i) {
      if (draw.Chance(2, 3)) cluster.TakeYaml(i);
    }
    cluster.Run(draw.Below(20000) * 1us);
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    for (size_t i = 0; i < 2; ++i) ASSERT_EQ(cluster.client(i).step, 20U) << LogOf(cluster);
  }
}

// The last node comes after minutes: inside each client's own limit, everybody is released; the
// yaml is gone by then where nothing tells that the client has restarted.
TEST(ClusterConfig, ANodeMayBeMinutesLate) {
  for (const Framework framework : {Framework::kOrbax, Framework::kPytorchDistributed}) {
    TestCluster cluster({.hosts = 3, .world = {.framework = framework, .nodes = 3}});
    cluster.StartClient(0, 0);
    cluster.StartClient(2, 2);
    cluster.Run(240s);
    EXPECT_TRUE(cluster.client(0).failed.empty());
    EXPECT_FALSE(cluster.client(2).released);
    cluster.StartClient(1, 1);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    cluster.SaveAll(1);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(1));
    EXPECT_TRUE(cluster.client(0).errors.empty());
  }
}

TEST(ClusterConfig, Step0IsARealStepForOrbax) {
  TestCluster cluster({.hosts = 2});
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  cluster.SaveAll(0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(0));
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, std::optional<Step>(0)) << LogOf(cluster);
}

// Its commit would have cost the older generation, and couldn't be restored itself.
TEST(ClusterConfig, Step0TakesNoPlaceForPyTorch) {
  TestCluster cluster(
      {.hosts = 2, .world = {.framework = Framework::kPytorchDistributed, .nodes = 2}});
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  cluster.SaveAll(10);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
  cluster.SaveAll(0);
  cluster.Run(5s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(cluster.SavesInVolume(i), 0U);
    ASSERT_EQ(cluster.client(i).errors.size(), 1U);
    EXPECT_NE(cluster.client(i).errors[0].find("step 0"), std::string::npos);
  }
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U);
}

}  // namespace
}  // namespace tierkeep
