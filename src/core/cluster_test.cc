#include <gtest/gtest.h>

#include "core/cluster_testutil.h"
#include "core/holdings.h"

namespace tierkeep {
namespace {

constexpr Duration kPatience = 60s;

void Restart(TestCluster* cluster) { cluster->StartJob(); }

// A job of `nodes` that has committed step 10.
void Begin(TestCluster* cluster) {
  cluster->StartJob();
  ASSERT_RUNS_UNTIL(*cluster, cluster->AllReleased());
  EXPECT_FALSE(cluster->client(0).step.has_value());
  cluster->SaveAll(10);
  ASSERT_RUNS_UNTIL(*cluster, cluster->AllCommitted(10));
}

TEST(Cluster, ColdStartSavesReplicatesCommits) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  EXPECT_TRUE(cluster.Logged("No valid checkpoints found anywhere"));
  EXPECT_TRUE(cluster.Logged("All files were replicated globally for step 10"));
  for (const Blake3& digest : cluster.NewestDigests()) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  // Only the newest generation stays.
  cluster.Run(1s);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.store(i).size(), 2U);
  EXPECT_EQ(cluster.status(0).phase, "running");
  EXPECT_TRUE(cluster.client(0).failed.empty());
}

// Saves come faster than they can be protected; whichever is passed over, it isn't the newest.
TEST(Cluster, TheLastSaveOfABurstIsCommitted) {
  size_t dropped = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    TestCluster cluster({.seed = seed, .hosts = 2});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
    for (Step step = 11; step < 19; ++step) {
      cluster.SaveAll(step);
      cluster.Run(Duration(std::chrono::milliseconds(seed)));
    }
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(18));
    dropped += cluster.Logged("is dropped: a newer save is complete") ? 1 : 0;
    cluster.Run(1s);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.store(i).size(), 2U) << LogOf(cluster);
  }
  EXPECT_GT(dropped, 0U) << "nothing came too fast";
}

TEST(Cluster, RestartRestoresOwnShards) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  const uint64_t pulls = cluster.pulls();
  Restart(&cluster);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.client(1).step, 10U);
  EXPECT_TRUE(cluster.Logged("We will restore in-cluster checkpoint: 10"));
  EXPECT_EQ(cluster.pulls(), pulls);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
}

TEST(Cluster, ALostNodesShardComesFromItsPeer) {
  for (const size_t lost : {0, 1, 2, 3}) {
    TestCluster cluster({.seed = lost + 1, .hosts = 4, .world = {.nodes = 4}});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
    cluster.KillAgent(lost);
    cluster.LoseHost(lost);
    cluster.StartAgent(lost);
    Restart(&cluster);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(cluster.client(i).step, 10U) << LogOf(cluster);
    // Redundancy is rebuilt without waiting for the next save.
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
    for (const Blake3& digest : cluster.NewestDigests()) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
  }
}

TEST(Cluster, RanksSwapped) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 4}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  const std::vector<Blake3> digests = cluster.NewestDigests();
  for (size_t i = 0; i < 4; ++i) cluster.StartClient(i, static_cast<Rank>(3 - i));
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(cluster.client(i).digest, digests[3 - i]);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
}

TEST(Cluster, ACompleteSaveThatWasNotCommittedIsRestored) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  // Nothing can be pulled, so that step 20 stays uncommitted.
  cluster.CutData(0, 1);
  cluster.SaveAll(20);
  cluster.Run(5s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  Restart(&cluster);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 20U) << LogOf(cluster);
}

TEST(Cluster, A5_ASaveThatWasNotEvenTakenIsAdopted) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  for (size_t i = 0; i < 2; ++i) cluster.KillAgent(i);
  cluster.SaveAll(20);
  for (size_t i = 0; i < 2; ++i) cluster.StartAgent(i);
  Restart(&cluster);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 20U) << LogOf(cluster);
}

// The agents of the old hosts still believe in their run: they must notice that it is over, within
// the time that the new coordinator gives them.
TEST(Cluster, AJobThatMovesIsServedByItsOldHosts) {
  for (const size_t first : {2, 3}) {
    TestCluster cluster({.hosts = 4});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
    for (size_t i = 0; i < 2; ++i) cluster.EndClient(i);
    cluster.StartClient(first, static_cast<Rank>(first - 2));
    cluster.Run(first == 2 ? 5s : 0s);
    const size_t second = 5 - first;
    cluster.StartClient(second, static_cast<Rank>(second - 2));
    ASSERT_RUNS_UNTIL(cluster, cluster.client(2).released && cluster.client(3).released);
    EXPECT_EQ(cluster.client(2).step, 10U) << LogOf(cluster);
    EXPECT_EQ(cluster.client(3).step, 10U);
    EXPECT_EQ(cluster.status(0).phase, "holder");
  }
}

TEST(Cluster, DataParallelReplicasNeedNoCopies) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 4, .data_parallelism = 2}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster));
  EXPECT_EQ(cluster.pulls(), 0U);
  cluster.KillAgent(0);
  cluster.LoseHost(0);
  cluster.StartAgent(0);
  Restart(&cluster);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.pulls(), 1U);
}

}  // namespace
}  // namespace tierkeep
