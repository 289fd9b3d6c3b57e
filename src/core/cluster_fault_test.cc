// What a cluster does when something is wrong: bad copies, full nodes, lost hosts, wrong yamls.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/cluster_testutil.h"
#include "core/core_testutil.h"
#include "core/holdings.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr Duration kPatience = 1000s;

bool AnyFailed(TestCluster* cluster, size_t hosts, const std::string& part) {
  for (size_t i = 0; i < hosts; ++i) {
    for (const auto& text : cluster->client(i).failed) {
      if (text.find(part) != std::string::npos) return true;
    }
  }
  return false;
}

bool AllFailed(TestCluster* cluster, size_t hosts) {
  for (size_t i = 0; i < hosts; ++i) {
    if (cluster->client(i).failed.empty()) return false;
  }
  return true;
}

Blake3 OwnDigest(TestCluster* cluster, size_t host, Rank rank, Step step) {
  for (const auto& [digest, copy] : cluster->store(host)) {
    if (copy.info.rank() == rank && copy.info.save().step() == step) return digest;
  }
  return {};
}

// ---- bad copies ------------------------------------------------------------------------------

TEST(ClusterFault, ABadCopyIsReplacedFromThePeer) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 4}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.Corrupt(1, OwnDigest(&cluster, 1, 1, 10));
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(cluster.client(i).step, 10U);
  EXPECT_TRUE(cluster.Logged("is bad: bytes differ"));
}

TEST(ClusterFault, A2_WithoutAnyGoodCopyAllFallBackToTheOlderGeneration) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.CutData(0, 1);
  cluster.SaveAll(20);
  cluster.Run(8s);
  ASSERT_TRUE(cluster.AllCommitted(10)) << LogOf(cluster);
  // Rank 1's shard of step 20 is on node 1, and perhaps on node 0.
  for (size_t i = 0; i < 2; ++i) {
    const Blake3 digest = OwnDigest(&cluster, i, 1, 20);
    if (!digest.IsZero()) cluster.Corrupt(i, digest);
  }
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.client(i).step, 10U) << LogOf(cluster);
  EXPECT_TRUE(cluster.Logged("We will restore in-cluster checkpoint: 20"));
  EXPECT_TRUE(cluster.Logged("We will restore in-cluster checkpoint: 10"));
}

TEST(ClusterFault, AllLostIsSaidLoudlyAndTheJobStartsAnew) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (size_t i = 0; i < 2; ++i) {
    const Blake3 digest = OwnDigest(&cluster, i, 1, 10);
    ASSERT_FALSE(digest.IsZero());
    cluster.Corrupt(i, digest);
  }
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_FALSE(cluster.client(0).step.has_value());
  EXPECT_TRUE(cluster.Logged("checkpoints existed, and none can be restored"));
  // Rank 0's good copies are still there: nothing is deleted before the next commit.
  EXPECT_EQ(cluster.CopiesOf(OwnDigest(&cluster, 0, 0, 10)), 2U);
}

TEST(ClusterFault, A4_AnUnreadablePartOfAStoreStopsTheDecision) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  RestartWithUnreadable(&cluster, 1, "shards: input/output error");
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  EXPECT_TRUE(AnyFailed(&cluster, 2, "node n1, RAM tier: shards: input/output error"));
  EXPECT_EQ(cluster.store(0).size(), 2U);
  EXPECT_EQ(cluster.store(1).size(), 2U);
}

TEST(ClusterFault, ADamagedCopyStopsNothingAndGoesWithTheNextCommit) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  RestartWithUnreadable(&cluster, 1, "its manifest isn't the one that it is named by",
                        std::string(Blake3::kSize, 'x'), /*damaged=*/true);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(1).step, 10U);
  EXPECT_TRUE(cluster.Logged("it may have been part of something newer, and is lost"));
  EXPECT_EQ(cluster.UnreadableParts(1), 1U);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.UnreadableParts(1) == 0);
}

// ---- replication that fails ------------------------------------------------------------------

TEST(ClusterFault, A1_AFullPeerKeepsTheOlderGenerationEverywhere) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 4}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const std::vector<Blake3> older = cluster.NewestDigests();
  cluster.FillStore(2, true);
  cluster.SaveAll(20);
  cluster.Run(10s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  for (const Blake3& digest : older) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
  EXPECT_FALSE(cluster.client(2).errors.empty());
  ASSERT_TRUE(cluster.job_status().has_value());
  EXPECT_EQ(cluster.job_status()->problems_size(), 1);
  // The next save is tried again; the one that could not be protected makes room for it.
  cluster.FillStore(2, false);
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  cluster.Run(1s);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(cluster.store(i).size(), 2U);
    EXPECT_TRUE(cluster.client(i).failed.empty());
  }
  EXPECT_EQ(cluster.job_status()->problems_size(), 0);
}

TEST(ClusterFault, AFailedRecordKeepsTheOlderGenerationThere) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const Blake3 older = OwnDigest(&cluster, 1, 1, 10);
  cluster.FailNext(1, "RecordGeneration");
  cluster.SaveAll(20);
  cluster.Run(50s);
  EXPECT_EQ(cluster.store(1).count(older), 1U) << LogOf(cluster);
  EXPECT_EQ(cluster.generations(1)[0].save().step(), 10U);
  // It is said, and asked for once more.
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_TRUE(cluster.Logged("has not recorded the commit of step 20"));
  ASSERT_RUNS_UNTIL(cluster, cluster.job_status()->problems_size() == 0);
  // The next one is recorded and the older ones go.
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  cluster.Run(1s);
  EXPECT_EQ(cluster.store(1).size(), 2U);
}

TEST(ClusterFault, B8_ASaveThatOneNodeSkipsIsDroppedByAll) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.Save(0, 20);
  cluster.Run(1s);
  EXPECT_EQ(cluster.store(0).size(), 3U);
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  cluster.Run(1s);
  EXPECT_EQ(cluster.store(0).size(), 2U);
}

TEST(ClusterFault, ASaveThatCannotBeTakenIsDroppedByAll) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.FailNext(1, "Stage");
  cluster.SaveAll(20);
  cluster.Run(1s);
  EXPECT_EQ(cluster.store(0).size(), 2U) << LogOf(cluster);
  EXPECT_FALSE(cluster.client(1).errors.empty());
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
}

// What a machine loses with its RAM may include who it was, and its new agent may be heard before
// the end of its old one's connection.
TEST(ClusterFault, AHostThatLostAllIsTakenInUnderItsName) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    TestCluster cluster({.seed = seed, .hosts = 3, .world = {.nodes = 3}, .delay_max = 20ms});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.KillAgent(2);
    cluster.LoseHost(2);
    cluster.StartAgent(2);
    cluster.StartClient(2, 2);
    cluster.Run(5s);
    for (size_t i = 0; i < 2; ++i) cluster.StartClient(i, static_cast<Rank>(i));
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    EXPECT_TRUE(cluster.client(2).failed.empty());
    EXPECT_EQ(cluster.client(2).step, 10U);
  }
}

TEST(ClusterFault, OfABurstOfSavesTheNewestCommits) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Prng draw(seed);
    TestCluster cluster({.seed = seed, .hosts = 2, .delay_max = 20ms});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    for (Step step = 11; step <= 30; ++step) {
      cluster.SaveAll(step);
      cluster.Run(draw.Below(100) * 1ms);
    }
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  }
}

TEST(ClusterFault, SavesFasterThanReplicationStillCommit) {
  TestCluster cluster({.hosts = 2, .delay_max = 20ms});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  uint64_t commits = cluster.status(0).commits;
  const Instant begin = cluster.now();
  Step step = 11;
  for (; cluster.now() < begin + 40s; ++step) {
    cluster.SaveAll(step);
    cluster.Run(15ms);
  }
  EXPECT_GE(cluster.status(0).commits, commits + 7) << LogOf(cluster);
  cluster.SaveAll(step);
  cluster.Run(5s);
  cluster.SaveAll(step + 1);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(step + 1));
  cluster.Run(1s);
  EXPECT_EQ(cluster.store(0).size(), 2U);
}

TEST(ClusterFault, TheSameStepTwiceIsTwoSaves) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.SaveAll(10);
  const auto second = [&](size_t host) {
    return cluster.generations(host).size() == 1 &&
           cluster.generations(host)[0].save().occurrence() == 2;
  };
  ASSERT_RUNS_UNTIL(cluster, second(0) && second(1));
}

// The last step of a release, its links, can fail: then the job is told, and a new yaml helps.
TEST(ClusterFault, B16_AReleaseThatFailsIsToldToTheJob) {
  for (const char* action : {"PersistState", "WritePrerestore", "PlaceLink"}) {
    TestCluster cluster({.hosts = 2});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.status(1).phase == "prepared");
    cluster.FailNext(1, action);
    ASSERT_RUNS_UNTIL(cluster, !cluster.client(1).failed.empty());
    EXPECT_FALSE(cluster.client(1).released);
    EXPECT_FALSE(cluster.YamlStands(1));
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    EXPECT_EQ(cluster.client(1).step, 10U) << LogOf(cluster);
  }
}

TEST(ClusterFault, AStoppedAgentSaysSoAndGoesOnLater) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.Stop(1);
  cluster.Run(1s);
  EXPECT_TRUE(cluster.Logged("rank 1 on node n1 is not connected"));
  cluster.KillAgent(1);
  cluster.StartAgent(1);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
}

TEST(ClusterFault, A10_DisagreeingReplicasAreCopiedForReal) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 4, .data_parallelism = 2}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  EXPECT_EQ(cluster.pulls(), 0U);
  for (size_t i = 0; i < 4; ++i) cluster.Save(i, 20, i == 3 ? 777 : 500 + i % 2);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_TRUE(cluster.Logged("rank 3 (node n3) holds other values than rank 1")) << LogOf(cluster);
  for (const Blake3& digest : cluster.NewestDigests()) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
  // A restore gives one partition's state to all.
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).digest, cluster.client(2).digest);
  EXPECT_EQ(cluster.client(1).digest, cluster.client(3).digest);
}

TEST(ClusterFault, OneNodeCommitsAloneAndSaysSo) {
  TestCluster cluster({.hosts = 1, .world = {.nodes = 1}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  EXPECT_TRUE(cluster.Logged("no in-cluster redundancy"));
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U);
}

// ---- commits whose word is lost --------------------------------------------------------------

size_t FewestCopies(const TestCluster& cluster, const std::vector<Blake3>& digests) {
  size_t fewest = SIZE_MAX;
  for (const Blake3& digest : digests) fewest = std::min(fewest, cluster.CopiesOf(digest));
  return fewest;
}

// The coordinator decides; the word of it never reaches the others. They can't know that the older
// generation is gone elsewhere, and must not give the newer one up for what they save meanwhile.
TEST(ClusterFault, ASaveThatMayBeCommittedOutlivesNewerOnesUnheard) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("Generation 2 of step 20"));
  cluster.CutLink(1);
  cluster.CutLink(2);
  for (const Step step : {30, 40}) {
    for (size_t host : {1, 2}) cluster.Save(host, step);
    ASSERT_RUNS_UNTIL(cluster, !OwnDigest(&cluster, 1, 1, step).IsZero() &&
                                   !OwnDigest(&cluster, 2, 2, step).IsZero());
  }
  EXPECT_EQ(cluster.generations(1)[0].save().step(), 10U);
  EXPECT_EQ(cluster.generations(2)[0].save().step(), 10U);
  const std::vector<Blake3> committed = cluster.NewestDigests();
  EXPECT_EQ(FewestCopies(cluster, committed), 2U) << LogOf(cluster);
  // Of what nobody was told of only the newest is kept.
  EXPECT_TRUE(OwnDigest(&cluster, 1, 1, 30).IsZero());
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_EQ(FewestCopies(cluster, committed), 2U) << LogOf(cluster);
  EXPECT_FALSE(cluster.Logged("no longer here")) << LogOf(cluster);
}

// Only one member has recorded the commit when the coordinator dies. The next one learns of it from
// that member, and must not have the others drop it because that member no longer offers it.
TEST(ClusterFault, ACommitThatOneMemberRecordedIsNotDroppedByTheNextCoordinator) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.Logged("Generation 2 of step 20"));
  cluster.CutLink(2);
  ASSERT_RUNS_UNTIL(cluster, cluster.generations(1)[0].save().step() == 20U);
  cluster.KillAgent(0);
  const std::vector<Blake3> committed = cluster.NewestDigests();
  EXPECT_EQ(FewestCopies(cluster, committed), 2U);
  // The next save can't be protected, so that step 20 is all there is.
  for (size_t from = 0; from < 3; ++from) {
    for (size_t to = 0; to < 3; ++to) cluster.CutData(from, to);
  }
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, !OwnDigest(&cluster, 2, 2, 30).IsZero());
  cluster.StartAgent(0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  cluster.Run(1s);
  EXPECT_EQ(FewestCopies(cluster, committed), 2U) << LogOf(cluster);
  EXPECT_FALSE(cluster.Logged("no longer here")) << LogOf(cluster);
  cluster.MendData();
  cluster.SaveAll(40);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(40));
}

// ---- who takes part --------------------------------------------------------------------------

TEST(ClusterFault, MissingRanksAreNamedAtTheDeadline) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  cluster.StartClient(0, 0);
  cluster.StartClient(1, 1);
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  EXPECT_TRUE(AnyFailed(&cluster, 1, "2 did not join within 5 min 30 s")) << LogOf(cluster);
  EXPECT_EQ(cluster.status(0).phase, "failed");
  EXPECT_FALSE(cluster.YamlStands(0));
  // A new yaml on every node begins again.
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
}

TEST(ClusterFault, WithoutACoordinatorTheNodeSaysSo) {
  TestCluster cluster({.hosts = 2});
  cluster.StartClient(1, 1);
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(1).failed.empty());
  EXPECT_TRUE(AnyFailed(&cluster, 2, "no run of the job was found"));
}

TEST(ClusterFault, B3_DisagreeingYamlsFailOnAllNodesAndNameBoth) {
  TestCluster cluster({.hosts = 2});
  cluster.StartClient(0, 0);
  JobConfig config;
  config.job = "job";
  config.rank = 1;
  config.world = {.framework = Framework::kOrbax, .nodes = 2, .workers_per_node = 4};
  cluster.SendYaml(1, Result<ParsedConfig>(ParsedConfig{config, {}}));
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  const std::string text = cluster.client(0).failed[0];
  EXPECT_NE(text.find("workers-per-node"), std::string::npos) << text;
  EXPECT_NE(text.find("n0"), std::string::npos) << text;
  EXPECT_NE(text.find("n1"), std::string::npos) << text;
}

TEST(ClusterFault, ARankClaimedTwiceGoesToTheLaterOne) {
  TestCluster cluster({.hosts = 4, .world = {.nodes = 3}});
  cluster.StartClient(0, 0);
  cluster.StartClient(1, 1);
  cluster.Run(1s);
  cluster.StartClient(3, 1);
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(1).failed.empty());
  EXPECT_NE(cluster.client(1).failed[0].find("n1"), std::string::npos);
  EXPECT_NE(cluster.client(1).failed[0].find("n3"), std::string::npos);
  cluster.StartClient(2, 2);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(2).released && cluster.client(3).released);
  EXPECT_FALSE(cluster.client(1).released);
}

TEST(ClusterFault, C12_AStrangerDoesNotEndARun) {
  TestCluster cluster({.hosts = 3});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.StartClient(2, 1);
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(2).failed.empty());
  EXPECT_NE(cluster.client(2).failed[0].find("went on without this node"), std::string::npos);
  cluster.EndClient(2);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
}

TEST(ClusterFault, ARankThatMovesToANewHostEndsTheRunOnceAllHaveComeAnew) {
  TestCluster cluster({.hosts = 3});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.StartClient(2, 1);
  cluster.Run(1s);
  cluster.EndClient(1);
  cluster.StartClient(0, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(2).step, 10U);
  EXPECT_GT(cluster.client(2).digest, Blake3());
}

TEST(ClusterFault, B14_ABadYamlFailsAndAnEmptyOneResets) {
  TestCluster cluster({.hosts = 1, .world = {.nodes = 1}});
  cluster.SendYaml(0, Result<ParsedConfig>(Error(Code::kInvalidArgument, "nodes: -3")));
  ASSERT_RUNS_UNTIL(cluster, !cluster.client(0).failed.empty());
  cluster.Run(1s);
  EXPECT_FALSE(cluster.YamlStands(0));
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  cluster.SendYaml(0, std::nullopt);
  ASSERT_RUNS_UNTIL(cluster, cluster.status(0).phase == "idle");
  EXPECT_TRUE(cluster.client(0).failed.empty());
}

TEST(ClusterFault, AYamlBeingWrittenIsWaitedFor) {
  TestCluster cluster({.hosts = 1, .world = {.nodes = 1}});
  cluster.SendYaml(0, std::nullopt);
  cluster.Run(500ms);
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
}

TEST(ClusterFault, AHostWithoutARankServesWhatItHas) {
  TestCluster cluster({.hosts = 3});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  // Rank 1 moves to a new machine, and node 0 has lost its copies: node 1 alone has them.
  cluster.KillAgent(0);
  cluster.WipeRam(0);
  cluster.StartAgent(0);
  cluster.EndClient(1);
  cluster.StartClient(0, 0);
  cluster.StartClient(2, 1);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.client(2).step, 10U);
  // Once the new ones are protected, the old host is freed.
  ASSERT_RUNS_UNTIL(cluster, cluster.store(1).empty());
  for (const Blake3& digest : cluster.NewestDigests()) EXPECT_EQ(cluster.CopiesOf(digest), 2U);
}

TEST(ClusterFault, AnIdleAgentThatWasRestartedIsFoundAsAHolder) {
  TestCluster cluster({.hosts = 3});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.KillAgent(0);
  cluster.WipeRam(0);
  cluster.StartAgent(0);
  cluster.EndClient(1);
  cluster.KillAgent(1);
  cluster.StartClient(0, 0);
  cluster.StartClient(2, 1);
  cluster.Run(2s);
  EXPECT_TRUE(cluster.Logged("node n1 may hold it and is away: waiting up to")) << LogOf(cluster);
  cluster.StartAgent(1);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(2).step, 10U) << LogOf(cluster);
}

// ---- resuming --------------------------------------------------------------------------------

TEST(ClusterFault, A23_AllAgentsRestartedInMidRunGoOn) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const RunId run = cluster.status(0).run;
  for (size_t i = 0; i < 3; ++i) cluster.KillAgent(i);
  for (size_t i = 0; i < 3; ++i) cluster.StartAgent(i);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_EQ(cluster.status(2).run, run);
  EXPECT_EQ(cluster.generations(0)[0].save_number(), 2U);
}

TEST(ClusterFault, A20_AMemberThatLostItsCopiesInMidRunGetsThemBack) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.KillAgent(1);
  cluster.store(1).clear();
  cluster.StartAgent(1);
  const std::vector<Blake3> digests = cluster.NewestDigests();
  ASSERT_EQ(digests.size(), 3U);
  ASSERT_RUNS_UNTIL(cluster, std::all_of(digests.begin(), digests.end(), [&](const auto& digest) {
                      return cluster.CopiesOf(digest) == 2;
                    }));
}

TEST(ClusterFault, ALongSilenceIsReportedAndTrainingGoesOn) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.KillAgent(0);
  cluster.SaveAll(20);
  cluster.Run(5s);
  cluster.SaveAll(30);
  cluster.Run(60s);
  EXPECT_FALSE(cluster.client(1).errors.empty());
  EXPECT_TRUE(cluster.client(1).failed.empty());
  // Of the saves that nobody could match only the newest uses memory.
  EXPECT_EQ(cluster.store(1).size(), 3U);
  cluster.StartAgent(0);
  ASSERT_RUNS_UNTIL(cluster, cluster.status(1).job.has_value());
  cluster.SaveAll(40);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(40));
}

TEST(ClusterFault, BrokenLinksAreMended) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (Step step = 20; step < 30; ++step) {
    cluster.SaveAll(step);
    cluster.Run(1ms);
    cluster.CutLink(step % 3);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(step));
  }
}

TEST(ClusterFault, OneNodesNewYamlEndsTheRun) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  const RunId run = cluster.status(0).run;
  cluster.StartClient(1, 1);
  cluster.Run(2s);
  EXPECT_FALSE(cluster.client(1).released);
  EXPECT_EQ(cluster.status(2).phase, "holder");
  cluster.StartClient(0, 0);
  cluster.StartClient(2, 2);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_GT(cluster.status(0).run.sequence, run.sequence);
  EXPECT_EQ(cluster.client(1).step, 10U);
}

TEST(ClusterFault, SameSeedSameActions) {
  std::string first;
  for (int i = 0; i < 2; ++i) {
    TestCluster cluster({.seed = 7, .hosts = 4, .world = {.nodes = 4}});
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    cluster.StartJob();
    ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
    if (i == 0) {
      first = cluster.Trace();
    } else {
      EXPECT_EQ(cluster.Trace(), first);
    }
  }
}

}  // namespace
}  // namespace tierkeep
