// Restarts of a job that meet a bad source or a process that doesn't belong.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cluster_testutil.h"

namespace tierkeep {
namespace {

constexpr Duration kPatience = 60s;

// Bytes flipped on the way more than once say nothing of the copy there.
TEST(ClusterRestart, TheLastSourceIsTriedAgainBeforeItsCheckpointIsGivenUp) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.KillAgent(0);
  cluster.LoseHost(0);
  cluster.StartAgent(0);
  cluster.CutData(1, 0);
  cluster.StartJob();
  const auto failures = [&] {
    return std::count_if(cluster.log().begin(), cluster.log().end(), [](const std::string& line) {
      return line.find("could not prepare checkpoint 10") != std::string::npos;
    });
  };
  ASSERT_RUNS_UNTIL(cluster, failures() >= 3);
  cluster.MendData();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
}

// A stray process waits for a rank; when the job restarts, its first node must not begin with it.
TEST(ClusterRestart, AStrayProcessDoesNotTakeTheRankOfANodeThatRestarts) {
  TestCluster cluster({.hosts = 3});
  for (size_t i = 0; i < 2; ++i) cluster.StartClient(i, static_cast<Rank>(i));
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released && cluster.client(1).released);
  cluster.StartClient(2, 1);
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("node n2 wants rank 1"));
  cluster.StartClient(0, 0);
  cluster.Run(2s);
  cluster.StartClient(1, 1);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released && cluster.client(1).released);
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(2).failed.empty());
  // Where that node doesn't come, the other one takes its rank.
  cluster.StartClient(2, 1);
  cluster.StartClient(0, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released && cluster.client(2).released);
}

}  // namespace
}  // namespace tierkeep
