// Large jobs, whose members know some others and their own part of each generation only.
#include <gtest/gtest.h>

#include "core/cluster_testutil.h"
#include "format/generation_record.h"

namespace tierkeep {
namespace {

TestClusterOptions LargeJob(uint32_t nodes, size_t spares = 0) {
  TestClusterOptions options;
  options.hosts = nodes + spares;
  options.world.nodes = nodes;
  options.whole_view_max = 0;
  return options;
}

TEST(ClusterView, AMemberKnowsNeighboursAndItsPartOfARecord) {
  TestCluster cluster(LargeJob(20));
  Begin(&cluster, 120s);
  for (size_t host = 0; host < 20; ++host) {
    EXPECT_LE(cluster.status(host).members.size(), 5u) << host;
    const auto records = cluster.generations(host);
    ASSERT_EQ(records.size(), 1u) << host;
    EXPECT_FALSE(IsWhole(records[0]));
    EXPECT_LE(records[0].shards_size(), 3) << host;
    EXPECT_NE(EntryOf(records[0], static_cast<Rank>(host), 0), nullptr) << host;
  }
  EXPECT_EQ(cluster.NewestDigests().size(), 20u);
  EXPECT_TRUE(cluster.ok()) << LogOf(cluster);
}

// Whoever serves is named with the order to pull: none of them is a neighbour.
TEST(ClusterView, RanksMoveAndOneNodesRamIsLost) {
  constexpr uint32_t kNodes = 20;
  TestCluster cluster(LargeJob(kNodes));
  Begin(&cluster, 120s);
  cluster.KillAgent(5);
  cluster.WipeRam(5);
  cluster.StartAgent(5);
  for (size_t host = 0; host < kNodes; ++host) {
    cluster.StartClient(host, host == 0 ? 0 : static_cast<Rank>(1 + (host + 6) % (kNodes - 1)));
  }
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllReleased(); }, 300s)) << LogOf(cluster);
  for (size_t host = 0; host < kNodes; ++host) EXPECT_EQ(cluster.client(host).step, 10u) << host;
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllCommitted(10); }, 300s)) << LogOf(cluster);
  cluster.SaveAll(20);
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllCommitted(20); }, 300s)) << LogOf(cluster);
  for (const Blake3& digest : cluster.NewestDigests()) EXPECT_GE(cluster.CopiesOf(digest), 2u);
  EXPECT_TRUE(cluster.ok()) << LogOf(cluster);
}

// Three neighbours in the ring are replaced by other machines, so that some shard's owner, keeper
// and witness are all away: nobody here has its entry. The decision waits for them all the same.
TEST(ClusterView, WhatNobodyHereKnowsIsWaitedFor) {
  constexpr uint32_t kNodes = 12;
  for (const bool they_come : {true, false}) {
    TestClusterOptions options = LargeJob(kNodes, /*spares=*/3);
    options.restore.absent_wait = 60s;
    TestCluster cluster(options);
    Begin(&cluster, 120s);
    for (size_t host = 4; host < 7; ++host) {
      cluster.KillAgent(host);
      cluster.EndClient(host);
    }
    for (size_t host = 0; host < kNodes; ++host) {
      const bool replaced = host >= 4 && host < 7;
      cluster.StartClient(replaced ? kNodes + host - 4 : host, static_cast<Rank>(host));
    }
    EXPECT_TRUE(cluster.RunUntil([&] { return cluster.Logged("may hold it and is away"); }, 120s))
        << LogOf(cluster);
    if (they_come) {
      for (size_t host = 4; host < 7; ++host) cluster.StartAgent(host);
      EXPECT_TRUE(cluster.RunUntil([&] { return cluster.AllReleased(); }, 300s)) << LogOf(cluster);
      EXPECT_EQ(cluster.client(0).step, 10u);
      EXPECT_EQ(cluster.client(kNodes).step, 10u);
    } else {
      EXPECT_TRUE(
          cluster.RunUntil([&] { return cluster.Logged("the restore decision stops"); }, 300s))
          << LogOf(cluster);
      EXPECT_FALSE(cluster.client(0).released);
    }
    EXPECT_TRUE(cluster.ok()) << LogOf(cluster);
  }
}

}  // namespace
}  // namespace tierkeep
