// Memory that is short: what is admitted, what waits, what gives way, what is said.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cluster_testutil.h"
#include "core/holdings.h"

namespace tierkeep {
namespace {

constexpr uint64_t kSave = 100 << 20;

constexpr Duration kPatience = 1000s;

size_t LinesWith(const TestCluster& cluster, const std::string& part) {
  return static_cast<size_t>(
      std::count_if(cluster.log().begin(), cluster.log().end(),
                    [&](const std::string& line) { return line.find(part) != std::string::npos; }));
}

TestClusterOptions Sized(uint64_t tenths) {
  TestClusterOptions options;
  options.capacity = kSave * tenths / 10;
  options.save_bytes = kSave;
  return options;
}

TEST(ClusterMemory, WhatWaitsIsSaidOnceAndCommitsWhenMemoryIsGivenBack) {
  TestCluster cluster(Sized(50));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.TakeMemory(1, kSave / 2);
  cluster.SaveAll(20);
  cluster.Run(60s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  EXPECT_EQ(cluster.status(1).pulls_waiting, 1U) << LogOf(cluster);
  EXPECT_EQ(cluster.status(0).pulls_waiting, 0U);
  EXPECT_EQ(LinesWith(cluster, "copies of step 20 can't be kept on node n1 now"), 1U);
  EXPECT_TRUE(cluster.Logged("the committed step 10 is kept"));
  EXPECT_TRUE(cluster.Logged("a volume of 525 MiB would do, this one has 500 MiB"));
  ASSERT_FALSE(cluster.client(1).errors.empty());
  ASSERT_EQ(cluster.job_status()->problems_size(), 1);
  EXPECT_NE(cluster.job_status()->problems(0).find("step 20 lacks copies: node n1"),
            std::string::npos);
  // Others give it back unseen: no new save is needed.
  cluster.TakeMemory(1, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_EQ(cluster.job_status()->problems_size(), 0);
  EXPECT_EQ(cluster.status(1).pulls_waiting, 0U);
}

TEST(ClusterMemory, TheAgentsControlGroupCountsForPullsAlone) {
  TestCluster cluster(Sized(100));
  for (size_t i = 0; i < 2; ++i) cluster.SetPullLimit(i, kSave * 3 / 2);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.SaveAll(20);
  cluster.Run(20s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  EXPECT_TRUE(cluster.Logged("control group a memory limit of 210 MiB would do, it has 150 MiB"))
      << LogOf(cluster);
  for (size_t i = 0; i < 2; ++i) cluster.SetPullLimit(i, kSave * 2);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
}

TEST(ClusterMemory, SizeIsToldAfterTheFirstSave) {
  for (const uint64_t tenths : {49, 50}) {
    TestCluster cluster(Sized(tenths));
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.Run(1s);
    const auto sizing = cluster.status(0).sizing;
    ASSERT_TRUE(sizing.has_value()) << LogOf(cluster);
    EXPECT_EQ(sizing->generation.own, kSave);
    EXPECT_EQ(sizing->generation.kept, kSave);
    EXPECT_EQ(sizing->fits, tenths == 50);
    EXPECT_EQ(sizing->advised_bytes, 525U << 20);
    EXPECT_EQ(LinesWith(cluster, "holds a checkpoint of 100 MiB and 100 MiB of peers' copies"), 2U);
    EXPECT_EQ(cluster.Logged("too small"), tenths == 49) << LogOf(cluster);
    const size_t lines = cluster.log().size();
    cluster.SaveAll(20);
    cluster.Run(20s);
    EXPECT_GT(cluster.log().size(), lines);
    EXPECT_EQ(LinesWith(cluster, "holds a checkpoint of"), 2U) << "once a run";
  }
}

// In the middle of every operation: the job trains on, what was committed stays whole, the error
// says what is kept and what size would do, and the next save is protected.
TEST(ClusterMemory, EveryOperationWithoutSpaceSaysWhatIsKeptAndWhatWouldDo) {
  for (const char* action : {"Stage", "Pull", "RecordGeneration", "WriteMeta", "RemoveOtherMetas",
                             "ForgetGenerations", "PersistState", "DeleteShards"}) {
    SCOPED_TRACE(action);
    TestCluster cluster(Sized(60));
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.Run(1s);
    const std::vector<Blake3> older = cluster.NewestDigests();
    cluster.FailNext(1, action, Code::kResourceExhausted);
    cluster.SaveAll(20);
    cluster.Run(1s);
    // What fails to go after the rest is the older one's record: then the newer one is committed.
    const bool only_record = std::string(action) == "ForgetGenerations";
    for (const Blake3& digest : only_record ? cluster.NewestDigests() : older) {
      if (cluster.AllCommitted(20)) break;
      EXPECT_GE(cluster.CopiesOf(digest), 1U) << LogOf(cluster);
    }
    if (std::string(action) != "DeleteShards") {  // a task: it ends well or is done again
      EXPECT_TRUE(cluster.Logged("node n1")) << LogOf(cluster);
      EXPECT_TRUE(cluster.Logged("is kept")) << LogOf(cluster);
      EXPECT_TRUE(cluster.Logged("the volume of 600 MiB is large enough")) << LogOf(cluster);
      ASSERT_FALSE(cluster.client(1).errors.empty());
    }
    EXPECT_TRUE(cluster.client(1).failed.empty());
    cluster.SaveAll(30);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  }
}

TEST(ClusterMemory, AFailedRecordNamesTheStepAndKeepsTheOlderOne) {
  TestCluster cluster(Sized(60));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.FailNext(1, "RecordGeneration", Code::kResourceExhausted);
  cluster.SaveAll(20);
  cluster.Run(1s);
  EXPECT_TRUE(cluster.Logged("RecordGeneration for the commit of step 20 failed"))
      << LogOf(cluster);
  EXPECT_TRUE(cluster.Logged("the committed step 10 is kept"));
  EXPECT_EQ(cluster.generations(1)[0].save().step(), 10U);
}

TEST(ClusterMemory, PeersThatNobodyNamedAreUsedOnlyWhereTheyFit) {
  for (const uint64_t tenths : {49, 50}) {
    TestClusterOptions options = Sized(tenths);
    options.names_no_peers = true;
    TestCluster cluster(options);
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    const bool alone = tenths == 49;
    EXPECT_EQ(cluster.Logged("its checkpoints have no in-cluster redundancy"), alone);
    for (const Blake3& digest : cluster.NewestDigests()) {
      EXPECT_EQ(cluster.CopiesOf(digest), alone ? 1U : 2U);
    }
    cluster.SaveAll(20);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    EXPECT_EQ(cluster.client(0).step, 20U);
    cluster.SaveAll(30);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
    EXPECT_EQ(cluster.job_status()->problems_size(), alone ? 1 : 0);
  }
}

// It knows that nobody named peers, but not that their copies didn't fit: none of them is missed.
TEST(ClusterMemory, ACoordinatorThatGoesOnMissesNoPeersCopiesThatNeverFitted) {
  TestClusterOptions options = Sized(49);
  options.names_no_peers = true;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_TRUE(cluster.Logged("its checkpoints have no in-cluster redundancy"));
  cluster.KillAgent(0);
  cluster.StartAgent(0);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_FALSE(cluster.Logged("no longer here")) << LogOf(cluster);
  // Nor by a member that comes back to it.
  cluster.CutLink(1);
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_FALSE(cluster.Logged("no longer here")) << LogOf(cluster);
}

// Each node has the other's shard already: kept for good, they would take the next save's room.
TEST(ClusterMemory, PeersCopiesThatRanksLeftBehindMakeRoomWhereTheyDoNotFit) {
  TestClusterOptions options = Sized(22);
  options.names_no_peers = true;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (size_t host = 0; host < 2; ++host) cluster.StartClient(host, static_cast<Rank>(1 - host));
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  ASSERT_RUNS_UNTIL(cluster, cluster.store(0).size() == 1 && cluster.store(1).size() == 1);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_TRUE(cluster.ok());
}

// Without another save nothing else would free it; but not before all copies are elsewhere.
TEST(ClusterMemory, ANodeThatLostItsRankAndComesLateIsFreed) {
  for (const bool fits : {true, false}) {
    TestClusterOptions options = Sized(50);
    options.hosts = 3;
    TestCluster cluster(options);
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.KillAgent(1);
    cluster.EndClient(1);
    if (!fits) cluster.TakeMemory(2, kSave * 5 / 2);
    cluster.StartClient(0, 0);
    cluster.StartClient(2, 1);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    cluster.Run(10s);
    EXPECT_EQ(cluster.store(2).size(), fits ? 2U : 1U) << LogOf(cluster);
    cluster.StartAgent(1);
    cluster.Run(60s);
    EXPECT_EQ(cluster.store(1).size(), fits ? 0U : 2U) << LogOf(cluster);
    cluster.TakeMemory(2, 0);
    ASSERT_RUNS_UNTIL(cluster, cluster.store(1).empty());
    for (const Blake3& digest : cluster.NewestDigests()) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
  }
}

// Copies are given up for a save that is then lost: what is left is protected again.
TEST(ClusterMemory, AfterThinningInVainTheCopiesComeBack) {
  TestClusterOptions options = Sized(40);
  options.on_pressure = OnPressure::kThin;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const std::vector<Blake3> older = cluster.NewestDigests();
  cluster.CutData(0, 1);
  cluster.CutData(1, 0);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("--on-pressure=thin"));
  cluster.Run(1s);
  ASSERT_TRUE(cluster.AllCommitted(10));
  for (const Blake3& digest : older) EXPECT_EQ(cluster.CopiesOf(digest), 1U) << LogOf(cluster);
  // Node 1 loses its part of step 20 with its memory of it.
  cluster.KillAgent(1);
  std::erase_if(cluster.store(1),
                [](const auto& entry) { return entry.second.info.save().step() == 20; });
  cluster.StartAgent(1);
  cluster.MendData();
  ASSERT_RUNS_UNTIL(cluster, std::all_of(older.begin(), older.end(), [&](const Blake3& digest) {
                      return cluster.CopiesOf(digest) == 2;
                    }));
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
}

// Who goes on for the coordinator knows of no thinning.
TEST(ClusterMemory, NothingIsMissedOfWhatWasGivenBack) {
  TestClusterOptions options = Sized(40);
  options.on_pressure = OnPressure::kThin;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.CutData(0, 1);
  cluster.CutData(1, 0);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("--on-pressure=thin"));
  cluster.Run(1s);
  for (const size_t host : {0, 1}) {
    cluster.KillAgent(host);
    cluster.StartAgent(host);
  }
  cluster.MendData();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_FALSE(cluster.Logged("no longer here")) << LogOf(cluster);
}

// The job goes on from step 20, which nobody matched, and of which no copy can be made; and has
// saved step 30.
void GoOnFromUnprotected(TestCluster* cluster) {
  cluster->KillAgent(1);
  cluster->SaveAll(20);
  cluster->Run(2s);
  cluster->CutData(0, 1);
  cluster->CutData(1, 0);
  cluster->StartJob();
  cluster->StartAgent(1);
  ASSERT_RUNS_UNTIL(*cluster, cluster->AllReleased());
  ASSERT_EQ(cluster->client(0).step, 20U);
  cluster->SaveAll(30);
  cluster->Run(2s);
  ASSERT_FALSE(cluster->AllCommitted(20)) << "nothing is tested";
}

// What the job was restored from was never committed, and its copies are still to be made when the
// next save is complete: then two generations and that save are here, and no copy of it fits. As
// after any newer save, the older unprotected one goes.
TEST(ClusterMemory, ASaveTakesThePlaceOfTheUnprotectedOneThatTheJobWasRestoredFrom) {
  TestCluster cluster(Sized(53));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_NO_FATAL_FAILURE(GoOnFromUnprotected(&cluster));
  cluster.MendData();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_TRUE(cluster.ok());
}

// The committed generation is one of an earlier run, and thinned all the same.
TEST(ClusterMemory, CopiesThatAnEarlierRunLeftAreThinned) {
  TestClusterOptions options = Sized(40);
  options.on_pressure = OnPressure::kThin;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_NO_FATAL_FAILURE(GoOnFromUnprotected(&cluster));
  cluster.MendData();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_TRUE(cluster.ok());
}

// Every node has a committed shard and a newer one of its old rank, and no room for its new one: of
// both generations a copy stays elsewhere, and the job goes on from the newer one.
TEST(ClusterMemory, AfterRanksMovedTwoGenerationsLeaveRoomForTheNewerOne) {
  TestClusterOptions options = Sized(22);
  options.hosts = 4;
  options.world.nodes = 4;
  options.world.data_parallelism = 2;
  TestCluster cluster(options);
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  // Not matched: a node's agent is down until the job starts again.
  cluster.KillAgent(0);
  cluster.SaveAll(20);
  cluster.Run(5s);
  for (size_t host = 0; host < 4; ++host) cluster.StartClient(host, static_cast<Rank>(3 - host));
  cluster.StartAgent(0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_TRUE(cluster.Logged("of copies are given back")) << LogOf(cluster);
  for (size_t host = 0; host < 4; ++host) EXPECT_EQ(cluster.client(host).step, 20U);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_TRUE(cluster.ok());
}

}  // namespace
}  // namespace tierkeep
