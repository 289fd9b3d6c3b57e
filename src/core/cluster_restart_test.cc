// Restarts of a job that meet a bad source or a process that doesn't belong, and of agents that
// have something to tell.
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

// Its rank's own shard.
Blake3 OwnCopy(TestCluster* cluster, size_t host) {
  for (const auto& [digest, copy] : cluster->store(host)) {
    if (copy.info.rank() == cluster->rank(host)) return digest;
  }
  return {};
}

// An error while it is read proves nothing: the only copy of what is committed isn't passed over.
TEST(ClusterRestart, ACopyThatCanNotBeReadStopsTheDecisionUntilItCan) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const Blake3 digest = OwnCopy(&cluster, 1);
  cluster.KillAgent(0);
  cluster.LoseHost(0);
  cluster.StartAgent(0);
  cluster.store(1).at(digest).unread = true;
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster,
                    !cluster.client(0).failed.empty() && !cluster.client(1).failed.empty());
  EXPECT_NE(
      cluster.client(0).failed[0].find("node n1, RAM tier: the copy of rank 1's shard of step 10"),
      std::string::npos)
      << cluster.client(0).failed[0];
  EXPECT_FALSE(cluster.client(0).released || cluster.client(1).released);
  // The next start reads it again.
  cluster.store(1).at(digest).unread = false;
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.client(i).step, 10U) << LogOf(cluster);
}

TEST(ClusterRestart, ACopyThatCanNotBeReadIsReplacedFromThePeer) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const Blake3 digest = OwnCopy(&cluster, 1);
  cluster.store(1).at(digest).unread = true;
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.client(i).step, 10U) << LogOf(cluster);
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

TEST(ClusterRestart, TheYamlGoesEarlyWhenTheClientRestarts) {
  TestCluster cluster({.hosts = 2});
  cluster.ChangeJaxInit(0, "one");
  cluster.Run(1s);
  cluster.StartClient(0, 0);
  cluster.Run(2s);
  EXPECT_TRUE(cluster.YamlStands(0));
  cluster.ChangeJaxInit(0, "two");
  cluster.Run(1s);
  EXPECT_FALSE(cluster.YamlStands(0));
  // Where that can't be known, it goes after a minute; the attempt stays valid.
  cluster.StartClient(1, 1);
  cluster.StartClient(0, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  TestCluster unknown({.hosts = 2});
  unknown.StartClient(0, 0);
  unknown.Run(61s);
  EXPECT_FALSE(unknown.YamlStands(0));
  unknown.StartClient(1, 1);
  ASSERT_RUNS_UNTIL(unknown, unknown.AllReleased());
}

// While the job gathers, a younger attempt takes the rank of host 1, whose own is refused for good.
void RefuseHost1(TestCluster* cluster, const std::function<void()>& before) {
  cluster->StartClient(0, 0);
  cluster->StartClient(1, 1);
  ASSERT_TRUE(cluster->RunUntil([&] { return cluster->status(1).phase == "joining"; }, kPatience));
  before();
  cluster->StartClient(2, 1);
}

// Who refused the attempt has told all and is gone: nobody would say it again.
TEST(ClusterRestart, ARefusalThatIsRecordedIsToldByTheNextLife) {
  size_t recorded = 0;
  for (uint64_t actions = 0; actions < 40; ++actions) {
    TestCluster cluster({.seed = actions + 1, .hosts = 4, .world = {.nodes = 3}});
    RefuseHost1(&cluster, [&] { cluster.KillAfter(1, actions); });
    if (!cluster.RunUntil([&] { return !cluster.Up(1); }, 20s)) continue;
    if (cluster.state(1).refusal().empty()) continue;
    ++recorded;
    cluster.client(1).failed.clear();
    cluster.StartAgent(1);
    ASSERT_TRUE(cluster.RunUntil([&] { return !cluster.client(1).failed.empty(); }, 5s))
        << "killed before action " << actions << "\n"
        << LogOf(cluster);
    EXPECT_FALSE(cluster.YamlStands(1));
    EXPECT_TRUE(cluster.state(1).refusal().empty()) << "it is told twice";
  }
  EXPECT_GE(recorded, 2U);
}

TEST(ClusterRestart, ARefusalThatCanNotBeRecordedIsTold) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 3}});
  RefuseHost1(&cluster, [&] { cluster.FailNext(1, "PersistState"); });
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(1).failed.empty());
  EXPECT_FALSE(cluster.YamlStands(1));
  cluster.StartClient(3, 2);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released && cluster.client(2).released);
}

// A start that was given up, whose decision waits for somebody, ends once all ranks have come to
// another coordinator, and isn't released beside them.
TEST(ClusterRestart, AWaitingDecisionEndsWhenAllHaveStartedAgainElsewhere) {
  TestCluster cluster({.hosts = 6, .world = {Framework::kPytorchDistributed, 2, 1, 0}});
  for (const size_t host : {4, 5}) cluster.StartClient(host, static_cast<Rank>(host - 4));
  ASSERT_RUNS_UNTIL(cluster, cluster.client(4).released && cluster.client(5).released);
  for (const size_t host : {4, 5}) {
    cluster.EndClient(host);
    cluster.KillAgent(host);
  }
  // Nobody here was part of that run: its nodes are waited for.
  for (const size_t host : {0, 1}) cluster.StartClient(host, static_cast<Rank>(host));
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("which may hold a newer checkpoint"));
  cluster.Run(1s);
  for (const size_t host : {2, 3}) cluster.StartClient(host, static_cast<Rank>(host - 2));
  ASSERT_RUNS_UNTIL(cluster, cluster.client(2).released && cluster.client(3).released);
  EXPECT_FALSE(cluster.client(0).released || cluster.client(1).released) << LogOf(cluster);
}

}  // namespace
}  // namespace tierkeep
