// Restarts of a job that meet a bad source or a process that doesn't belong.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cluster_testutil.h"

namespace tierkeep {
namespace {

// Bytes flipped on the way more than once say nothing of the copy there.
TEST(ClusterRestart, TheLastSourceIsTriedAgainBeforeItsCheckpointIsGivenUp) {
  TestCluster cluster({.hosts = 2});
  cluster.StartJob();
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllReleased(); })) << cluster.Trace();
  cluster.SaveAll(10);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllCommitted(10); })) << cluster.Trace();
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
  ASSERT_TRUE(cluster.RunUntil([&] { return failures() >= 3; })) << cluster.Trace();
  cluster.MendData();
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllReleased(); })) << cluster.Trace();
  EXPECT_EQ(cluster.client(0).step, 10U) << cluster.Trace();
}

// A stray process waits for a rank; when the job restarts, its first node must not begin with it.
TEST(ClusterRestart, AStrayProcessDoesNotTakeTheRankOfANodeThatRestarts) {
  TestCluster cluster({.hosts = 3});
  for (size_t i = 0; i < 2; ++i) cluster.StartClient(i, static_cast<Rank>(i));
  ASSERT_TRUE(cluster.RunUntil([&] {
    return cluster.client(0).released && cluster.client(1).released;
  })) << cluster.Trace();
  cluster.StartClient(2, 1);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.Logged("node n2 wants rank 1"); }))
      << cluster.Trace();
  cluster.StartClient(0, 0);
  cluster.Run(2s);
  cluster.StartClient(1, 1);
  ASSERT_TRUE(cluster.RunUntil([&] {
    return cluster.client(0).released && cluster.client(1).released;
  })) << cluster.Trace();
  ASSERT_TRUE(cluster.RunUntil([&] { return !cluster.client(2).failed.empty(); }))
      << cluster.Trace();
  // Where that node doesn't come, the other one takes its rank.
  cluster.StartClient(2, 1);
  cluster.StartClient(0, 0);
  ASSERT_TRUE(cluster.RunUntil([&] {
    return cluster.client(0).released && cluster.client(2).released;
  })) << cluster.Trace();
}

}  // namespace
}  // namespace tierkeep
