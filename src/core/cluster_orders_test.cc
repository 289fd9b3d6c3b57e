// Restore decisions that depend on more than copies: what operators asked for, how often a
// generation was restored, and what nobody who is here can know.
#include <gtest/gtest.h>

#include "core/cluster_testutil.h"
#include "core/holdings.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr Duration kPatience = 1000s;

// And a complete step 20 that can't be committed, since nothing can be pulled.
void BeginWithTwo(TestCluster* cluster) {
  ASSERT_NO_FATAL_FAILURE(Begin(cluster, kPatience));
  for (size_t to = 0; to < cluster->hosts(); ++to) {
    for (size_t from = 0; from < cluster->hosts(); ++from) cluster->CutData(from, to);
  }
  cluster->SaveAll(20);
  cluster->Run(8s);
  ASSERT_TRUE(cluster->AllCommitted(10)) << LogOf(*cluster);
}

void Restart(TestCluster* cluster) {
  cluster->StartJob();
  ASSERT_RUNS_UNTIL(*cluster, cluster->AllReleased());
}

control::RestoreOrder SkipStep(Step step) {
  control::RestoreOrder order;
  order.set_job("job");
  order.set_skip_step(step);
  return order;
}
control::RestoreOrder Without(const std::string& node) {
  control::RestoreOrder order;
  order.set_job("job");
  order.set_without(node);
  return order;
}
control::RestoreOrder WithoutAbsent() {
  control::RestoreOrder order;
  order.set_job("job");
  order.set_without_absent(true);
  return order;
}

bool AllFailed(TestCluster* cluster, size_t hosts) {
  for (size_t i = 0; i < hosts; ++i) {
    if (cluster->client(i).failed.empty()) return false;
  }
  return true;
}

// ---- skip ------------------------------------------------------------------------------------

TEST(RestoreOrder, SkippedStepIsNotChosenOnce) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(BeginWithTwo(&cluster));
  cluster.GiveOrder(1, SkipStep(20));
  cluster.Run(1s);
  // Every member keeps it.
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.status(i).orders.size(), 1) << i;
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.client(1).step, 10U);
  EXPECT_TRUE(cluster.Logged("is skipped, as asked"));
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.status(i).orders.size(), 0) << i;
  // Once: the next save of that number is restored like any other.
  cluster.MendData();
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 20U) << LogOf(cluster);
}

// What a decision has dealt with was given by a clock that is ahead: the same order, given again,
// is another one.
TEST(RestoreOrder, TheSameOrderGivenByAnEarlierClockIsObeyed) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (const Duration ahead : {9h, 0h}) {
    cluster.GiveOrder(ahead == 0h ? 0 : 1, SkipStep(10), ahead);
    cluster.Run(1s);
    ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
    EXPECT_FALSE(cluster.client(0).step.has_value()) << LogOf(cluster);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.status(i).orders.size(), 0) << i;
    cluster.SaveAll(10);
    ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
  }
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
}

// A run that began without a checkpoint ends before it has saved anything: what it was asked not to
// go on from is still the newest that there is.
TEST(RestoreOrder, WhatWasSkippedForNothingDoesNotComeBack) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.GiveOrder(0, SkipStep(10));
  cluster.Run(1s);
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
    EXPECT_FALSE(cluster.client(0).step.has_value()) << LogOf(cluster);
    for (size_t host = 0; host < 2; ++host) {
      EXPECT_EQ(cluster.status(host).orders.size(), 0) << host;
      // Nor after a restart of the agents.
      cluster.KillAgent(host);
      cluster.StartAgent(host);
    }
  }
  // What is saved from here on wasn't meant.
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  cluster.SaveAll(10);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(10));
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.client(1).step, 10U);
}

TEST(RestoreOrder, SkippedSaveIsNamedByRunAndNumber) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  control::RestoreOrder other;
  other.set_job("job");
  other.mutable_skip()->set_run(cluster.status(0).run.ToString());
  other.mutable_skip()->set_save_number(7);
  cluster.GiveOrder(0, other);
  cluster.Run(1s);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  other.mutable_skip()->set_run(FromProto(cluster.generations(0)[0].save().run()).ToString());
  other.mutable_skip()->set_save_number(1);
  cluster.GiveOrder(0, other);
  cluster.Run(1s);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_FALSE(cluster.client(0).step.has_value()) << LogOf(cluster);
  EXPECT_TRUE(cluster.Logged("No valid checkpoints found anywhere"));
}

TEST(RestoreOrder, AnOrderOutlivesTheAgentsAndTheCoordinator) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 3}});
  ASSERT_NO_FATAL_FAILURE(BeginWithTwo(&cluster));
  cluster.GiveOrder(2, SkipStep(20));
  cluster.Run(1s);
  // The agent that was asked is lost with its host; the others know.
  for (size_t i = 0; i < 3; ++i) cluster.KillAgent(i);
  cluster.LoseHost(2);
  for (size_t i = 0; i < 3; ++i) cluster.StartAgent(i);
  cluster.MendData();
  for (size_t i = 0; i < 3; ++i) cluster.StartClient(i, static_cast<Rank>((i + 1) % 3));
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  EXPECT_EQ(cluster.client(1).step, 10U) << LogOf(cluster);
}

TEST(RestoreOrder, WhatANodeWasAskedWhileItWasCutOffReachesAll) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.KillAgent(0);
  cluster.Run(1s);
  cluster.GiveOrder(1, SkipStep(10));
  cluster.Run(1s);
  cluster.StartAgent(0);
  ASSERT_RUNS_UNTIL(cluster, cluster.status(0).orders.size() == 1);
}

TEST(RestoreOrder, AHolderThatWasAskedDoesNotRepeatIt) {
  TestCluster cluster({.hosts = 3});
  ASSERT_NO_FATAL_FAILURE(BeginWithTwo(&cluster));
  // Host 2 never hears that the order is done.
  cluster.GiveOrder(2, SkipStep(20));
  cluster.GiveOrder(0, SkipStep(20));
  cluster.Run(1s);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  cluster.MendData();
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_EQ(cluster.status(2).orders.size(), 1);
  cluster.EndClient(1);
  cluster.StartClient(0, 0);
  cluster.StartClient(2, 1);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released && cluster.client(2).released);
  EXPECT_EQ(cluster.client(2).step, 20U) << LogOf(cluster);
}

// ---- without ---------------------------------------------------------------------------------

TEST(RestoreOrder, ADecisionThatStoppedGoesOnWithoutTheNode) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  RestartWithUnreadable(&cluster, 1, "shards: input/output error");
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  EXPECT_NE(cluster.client(0).failed[0].find("tierkeep restore --without n1"), std::string::npos)
      << cluster.client(0).failed[0];
  const auto stop = cluster.status(0).stop;
  ASSERT_TRUE(stop.has_value());
  ASSERT_EQ(stop->nodes_size(), 1);
  EXPECT_EQ(stop->nodes(0), "n1");
  EXPECT_NE(stop->instead().find("step 10"), std::string::npos) << stop->instead();
  EXPECT_EQ(stop->given_up_size(), 1);
  // It stops again as long as nobody gives that up.
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  cluster.GiveOrder(0, Without("n1"));
  cluster.Run(1s);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(1).step, 10U) << LogOf(cluster);
  EXPECT_FALSE(cluster.status(0).stop.has_value());
  EXPECT_TRUE(cluster.Logged("can't be read and is given up, as asked"));
}

TEST(RestoreOrder, WhatWasGivenUpStopsNoLaterDecision) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  RestartWithUnreadable(&cluster, 1, "manifest: input/output error",
                        std::string(Blake3::kSize, 'x'));
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  cluster.GiveOrder(0, Without("n1"));
  cluster.Run(1s);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  // Like every abandoned branch it is freed with the next commit.
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.UnreadableParts(1) == 0);
  cluster.KillAgent(1);
  cluster.StartAgent(1);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(1).step, 20U) << LogOf(cluster);
}

// A node that has left the job still shows the decision that it was told of.
TEST(RestoreOrder, AnOrderOnANodeThatHasLeftTheJobReachesIt) {
  TestCluster cluster({.hosts = 3, .world = {.nodes = 2}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  RestartWithUnreadable(&cluster, 1, "shards: input/output error");
  ASSERT_RUNS_UNTIL(cluster, AllFailed(&cluster, 2));
  // The job goes elsewhere; nothing of it is left here.
  cluster.EndClient(0);
  cluster.KillAgent(0);
  cluster.WipeRam(0);
  cluster.StartAgent(0);
  cluster.GiveOrder(0, Without("n1"));
  cluster.Run(1s);
  cluster.StartClient(1, 1);
  cluster.StartClient(2, 0);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(1).released && cluster.client(2).released);
  EXPECT_EQ(cluster.client(2).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.status(0).orders.size(), 1);
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.status(0).orders.empty());
  EXPECT_FALSE(cluster.status(0).stop.has_value());
}

// ---- the same generation again and again -----------------------------------------------------

TEST(RestoreCount, TheThirdRestoreWithoutACommitIsSuspect) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_FALSE(cluster.Logged("is suspect"));
  // What was counted survives agents and coordinator.
  for (size_t i = 0; i < 2; ++i) cluster.KillAgent(i);
  for (size_t i = 0; i < 2; ++i) cluster.StartAgent(i);
  for (size_t i = 0; i < 2; ++i) cluster.StartClient(i, static_cast<Rank>(1 - i));
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  cluster.Run(1s);
  EXPECT_EQ(cluster.client(0).step, 10U);
  EXPECT_TRUE(cluster.Logged("restored 3 times without a later commit"));
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_FALSE(cluster.client(i).errors.empty());
    EXPECT_NE(cluster.client(i).errors[0].find("is suspect"), std::string::npos);
  }
  EXPECT_EQ(cluster.job_status()->problems_size(), 1);
  // A later commit ends it.
  cluster.SaveAll(20);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_EQ(cluster.job_status()->problems_size(), 0);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(cluster.state(i).restores_size(), 0);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.state(0).restores(0).restores(), 1U);
}

TEST(RestoreCount, OneNodeThatLostItsStateDoesNotBeginAgain) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (int i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  cluster.KillAgent(0);
  cluster.LoseHost(0);
  cluster.StartAgent(0);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_TRUE(cluster.Logged("restored 3 times")) << LogOf(cluster);
  EXPECT_EQ(cluster.state(0).restores(0).restores(), 3U);
}

TEST(RestoreCount, TheNextOlderOneIsTakenAtTheLimit) {
  TestCluster cluster({.hosts = 2, .restore = {.restores_max = 2}});
  ASSERT_NO_FATAL_FAILURE(BeginWithTwo(&cluster));
  // Its redundancy can't be built, so that the older generation stays.
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
    EXPECT_EQ(cluster.client(0).step, 20U) << LogOf(cluster);
  }
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  EXPECT_TRUE(cluster.Logged("is passed over: it was restored 2 times"));
}

TEST(RestoreCount, TheOnlyOneIsTakenAllTheSame) {
  TestCluster cluster({.hosts = 2, .restore = {.restores_max = 1}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (int i = 0; i < 3; ++i) {
    ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
    EXPECT_EQ(cluster.client(0).step, 10U) << LogOf(cluster);
  }
  EXPECT_TRUE(cluster.Logged("and there is no other"));
}

// ---- who is away -----------------------------------------------------------------------------

// The old hosts are away, and two coordinators in a row are replaced before any release.
void LoseTwoCoordinators(TestCluster* cluster) {
  for (size_t i = 0; i < 2; ++i) {
    cluster->EndClient(i);
    cluster->KillAgent(i);
  }
  cluster->KillAgent(2);
  cluster->KillAgent(3);
  for (size_t host : {2, 3}) {
    cluster->StartAgent(host);
    const size_t other = host == 2 ? 4 : 5;
    cluster->StartClient(host, 0);
    cluster->StartClient(other, 1);
    ASSERT_RUNS_UNTIL(*cluster, cluster->status(other).phase == "restoring");
    EXPECT_FALSE(cluster->client(host).released);
    cluster->EndClient(host);
    cluster->EndClient(other);
    cluster->KillAgent(host);
    cluster->KillAgent(other);
    cluster->LoseHost(host);
    cluster->LoseHost(other);
  }
  cluster->StartAgent(4);
  cluster->StartAgent(5);
  cluster->StartClient(4, 0);
  cluster->StartClient(5, 1);
}

TEST(AbsentHolders, AGenerationThatComesLateIsWaitedFor) {
  TestCluster cluster({.hosts = 6});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_NO_FATAL_FAILURE(LoseTwoCoordinators(&cluster));
  cluster.Run(100s);
  EXPECT_FALSE(cluster.client(4).released) << LogOf(cluster);
  ASSERT_TRUE(cluster.status(5).job.has_value());
  EXPECT_TRUE(cluster.status(5).job->has_waiting());
  cluster.StartAgent(1);
  ASSERT_RUNS_UNTIL(cluster, cluster.client(4).released && cluster.client(5).released);
  EXPECT_EQ(cluster.client(4).step, 10U) << LogOf(cluster);
  EXPECT_EQ(cluster.client(5).step, 10U);
}

TEST(AbsentHolders, WithoutThemTheDecisionStopsUntilSomebodyGivesThemUp) {
  TestCluster cluster({.hosts = 6});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_NO_FATAL_FAILURE(LoseTwoCoordinators(&cluster));
  ASSERT_RUNS_UNTIL(cluster,
                    !cluster.client(4).failed.empty() && !cluster.client(5).failed.empty());
  const std::string& text = cluster.client(5).failed[0];
  for (const char* part : {"step 10", "n0", "n1", "tierkeep restore --without-absent"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << ": " << text;
  }
  cluster.StartClient(4, 0);
  cluster.StartClient(5, 1);
  cluster.Run(20s);
  EXPECT_FALSE(cluster.client(4).released);
  // While it waits an order counts at once.
  cluster.GiveOrder(5, WithoutAbsent());
  ASSERT_RUNS_UNTIL(cluster, cluster.client(4).released && cluster.client(5).released);
  EXPECT_FALSE(cluster.client(4).step.has_value()) << LogOf(cluster);
  // That start has settled it.
  cluster.StartClient(4, 0);
  cluster.StartClient(5, 1);
  cluster.Run(20s);
  EXPECT_TRUE(cluster.client(4).released && cluster.client(5).released) << LogOf(cluster);
}

TEST(AbsentHolders, GivenUpBySettingItIsSaid) {
  TestCluster cluster({.hosts = 6, .restore = {.go_on_without_absent = true}});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  ASSERT_NO_FATAL_FAILURE(LoseTwoCoordinators(&cluster));
  ASSERT_RUNS_UNTIL(cluster, cluster.client(4).released && cluster.client(5).released);
  EXPECT_TRUE(cluster.Logged("none came within 50.0 s: it is given up")) << LogOf(cluster);
  cluster.Run(1s);
  EXPECT_EQ(cluster.job_status()->problems_size(), 1);
}

TEST(AbsentHolders, NodesThatAreHereWithNothingAreNotWaitedFor) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  for (size_t i = 0; i < 2; ++i) {
    cluster.KillAgent(i);
    cluster.LoseHost(i);
    cluster.StartAgent(i);
  }
  cluster.StartJob();
  ASSERT_TRUE(cluster.RunUntil([&] { return cluster.AllReleased(); }, 60s)) << LogOf(cluster);
  EXPECT_FALSE(cluster.client(0).step.has_value());
}

TEST(AbsentHolders, TheMarkFollowsCommitsAndReleases) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.Run(1s);
  const RunId first = cluster.status(0).run;
  ASSERT_TRUE(cluster.record()->has_newest());
  EXPECT_EQ(cluster.record()->newest().step(), 10U);
  EXPECT_EQ(cluster.record()->newest().save_number(), 1U);
  EXPECT_EQ(cluster.record()->newest().nodes_size(), 2);
  EXPECT_TRUE(FromProto(cluster.record()->newest().run()) == first);
  ASSERT_NO_FATAL_FAILURE(Restart(&cluster));
  cluster.Run(1s);
  EXPECT_TRUE(FromProto(cluster.record()->newest().run()) == cluster.status(0).run);
  EXPECT_EQ(cluster.record()->newest().save_number(), 0U);
  EXPECT_EQ(cluster.record()->newest().step(), 10U);
}

// ---- other shapes ----------------------------------------------------------------------------

TEST(OtherWorld, WhatItSavedIsSkippedAndNamed) {
  TestCluster cluster({.hosts = 2});
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  JobConfig config;
  config.job = "job";
  config.world = {.framework = Framework::kOrbax, .nodes = 1};
  config.peers_per_node = 1;
  cluster.EndClient(1);
  cluster.SendYaml(0, Result<ParsedConfig>(ParsedConfig{config, {}}));
  ASSERT_RUNS_UNTIL(cluster, cluster.client(0).released);
  EXPECT_FALSE(cluster.client(0).step.has_value());
  EXPECT_TRUE(
      cluster.Logged("was saved by a job of another shape (orbax, 2 nodes, 1 workers each; "
                     "now orbax, 1 nodes, 1 workers each)"))
      << LogOf(cluster);
}

}  // namespace
}  // namespace tierkeep
