// Data-parallel replicas that disagree: what is said, to whom, and what is committed and restored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/cluster_testutil.h"
#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr Duration kPatience = 1000s;

TestClusterOptions Replicas(uint32_t replicas, uint32_t nodes) {
  TestClusterOptions options;
  options.hosts = nodes;
  options.world = {.framework = Framework::kOrbax, .nodes = nodes, .data_parallelism = replicas};
  return options;
}

// Host i saves contents[i].
void SaveEach(TestCluster* cluster, Step step, const std::vector<uint64_t>& contents) {
  for (size_t i = 0; i < contents.size(); ++i) cluster->Save(i, step, contents[i]);
}

bool Told(TestCluster* cluster) { return cluster->job_status()->has_divergence(); }

std::vector<std::string> ErrorLines(const TestCluster& cluster, const std::string& part) {
  std::vector<std::string> lines;
  for (const std::string& line : cluster.log()) {
    if (line.find("coord ERR") != std::string::npos && line.find(part) != std::string::npos) {
      lines.push_back(line);
    }
  }
  return lines;
}

TEST(Divergence, TheOddOneOfThreeIsNamedWithItsKeyAndTheSaveIsCopied) {
  TestCluster cluster(Replicas(3, 3));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  EXPECT_EQ(cluster.divergences(), 0U);
  EXPECT_EQ(cluster.pulls(), 0U);
  SaveEach(&cluster, 20, {7, 8, 7});
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20) && Told(&cluster));
  EXPECT_EQ(cluster.divergences(), 1U);
  EXPECT_EQ(cluster.pulls(), 3U);

  const control::Divergence told = cluster.job_status()->divergence();
  ASSERT_EQ(told.odd_size(), 1);
  EXPECT_EQ(told.odd_total(), 1U);
  EXPECT_EQ(told.odd(0).rank(), 1U);
  EXPECT_EQ(told.odd(0).node(), "n1");
  EXPECT_EQ(told.odd(0).reference_node(), "n0");
  EXPECT_TRUE(told.odd(0).outvoted());
  EXPECT_EQ(told.odd(0).total(), 1U);
  EXPECT_THAT(told.odd(0).differences(), ElementsAre("state: the value of b'w' differs"));

  const auto whole = AllOf(HasSubstr("disagree at step 20"), HasSubstr("rank 1 (node n1)"),
                           HasSubstr("rank 0 (node n0), which 2 replicas agree on"),
                           HasSubstr("state: the value of b'w' differs"));
  EXPECT_THAT(ErrorLines(cluster, "disagree"), ElementsAre(whole));
  EXPECT_THAT(cluster.job_status()->problems(), Contains(whole));
  // In the job's own file on the nodes that it is about.
  cluster.Run(1s);
  EXPECT_THAT(cluster.client(0).errors, ElementsAre(whole));
  EXPECT_THAT(cluster.client(1).errors, ElementsAre(whole));
  EXPECT_THAT(cluster.client(2).errors, IsEmpty());

  // The next save is equal again: nothing is left of it.
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_FALSE(Told(&cluster));
  EXPECT_THAT(cluster.job_status()->problems(), Each(Not(HasSubstr("disagree"))));
  EXPECT_EQ(cluster.divergences(), 1U);
}

TEST(Divergence, OfTwoBothAreNamedAndNeitherIsCalledWrong) {
  TestCluster cluster(Replicas(2, 4));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  SaveEach(&cluster, 20, {1, 5, 1, 6});  // ranks 1 and 3 are replicas
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20) && Told(&cluster));
  cluster.Run(1s);
  const auto both = AllOf(HasSubstr("rank 3 (node n3)"), HasSubstr("rank 1 (node n1)"),
                          HasSubstr("nobody can tell which is right"));
  EXPECT_THAT(ErrorLines(cluster, "disagree"), ElementsAre(both));
  EXPECT_THAT(cluster.client(1).errors, ElementsAre(both));
  EXPECT_THAT(cluster.client(3).errors, ElementsAre(both));
  EXPECT_FALSE(cluster.job_status()->divergence().odd(0).outvoted());
}

TEST(Divergence, OfManyTheFirstAreComparedAndTheRestCounted) {
  TestCluster cluster(Replicas(8, 8));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  SaveEach(&cluster, 20, {1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20) && Told(&cluster));
  EXPECT_EQ(cluster.job_status()->divergence().odd_size(), 4);
  EXPECT_EQ(cluster.job_status()->divergence().odd_total(), 7U);
  EXPECT_THAT(ErrorLines(cluster, "disagree"), ElementsAre(HasSubstr("3 more replicas differ")));
}

TEST(Divergence, WithoutRoomForCopiesItStaysUncommittedAndThatIsSaid) {
  TestCluster cluster(Replicas(2, 2));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.FillStore(1, true);
  SaveEach(&cluster, 20, {7, 8});
  ASSERT_RUNS_UNTIL(cluster, Told(&cluster) && !ErrorLines(cluster, "stays uncommitted").empty());
  cluster.Run(30s);
  EXPECT_TRUE(cluster.AllCommitted(10));
  const auto said = AllOf(HasSubstr("step 20 stays uncommitted"), HasSubstr("replicas disagree"),
                          HasSubstr("node n1"), HasSubstr("full"));
  EXPECT_THAT(ErrorLines(cluster, "stays uncommitted"), ElementsAre(said));
  EXPECT_THAT(cluster.job_status()->problems(), Contains(said));
  EXPECT_THAT(cluster.client(0).errors, Contains(said));
  EXPECT_THAT(cluster.client(1).errors, Contains(said));
  // What differs is known all the same: it needs no room.
  EXPECT_EQ(cluster.job_status()->divergence().odd(0).total(), 1U);
  // The next save of equal replicas needs no copies and is committed.
  cluster.SaveAll(30);
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30));
  EXPECT_THAT(cluster.job_status()->problems(), IsEmpty());
}

TEST(Divergence, WhatCannotBeComparedIsReportedAllTheSame) {
  TestCluster cluster(Replicas(2, 2));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.CutData(0, 1);
  SaveEach(&cluster, 20, {7, 8});
  ASSERT_RUNS_UNTIL(cluster, Told(&cluster));
  EXPECT_THAT(ErrorLines(cluster, "disagree at step"),
              ElementsAre(AllOf(HasSubstr("rank 1 (node n1)"), HasSubstr("is not known: "),
                                HasSubstr("no source answers"))));
  EXPECT_EQ(cluster.job_status()->divergence().odd(0).total(), 0U);
}

TEST(Divergence, ANodeThatDoesNotAnswerIsNotWaitedForForever) {
  TestCluster cluster(Replicas(2, 2));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.FailNext(1, "Compare");
  SaveEach(&cluster, 20, {7, 8});
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  EXPECT_FALSE(Told(&cluster));
  EXPECT_THAT(cluster.job_status()->problems(), Contains(HasSubstr("disagree at step 20")));
  cluster.Run(61s);
  ASSERT_TRUE(Told(&cluster));
  EXPECT_THAT(ErrorLines(cluster, "disagree"),
              ElementsAre(HasSubstr("there was no answer within")));
}

TEST(Divergence, ANewerSaveEndsTheComparison) {
  TestCluster cluster(Replicas(2, 2));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  cluster.FailNext(1, "Compare");
  SaveEach(&cluster, 20, {7, 8});
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  SaveEach(&cluster, 30, {7, 9});
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(30) && Told(&cluster));
  EXPECT_THAT(ErrorLines(cluster, "disagree"),
              ElementsAre(AllOf(HasSubstr("step 20"), HasSubstr("a newer save was complete")),
                          AllOf(HasSubstr("step 30"), HasSubstr("b'w' differs"))));
  EXPECT_EQ(cluster.divergences(), 2U);
}

TEST(Divergence, ARestoreTakesOneRowForAllAndTheMajoritys) {
  TestCluster cluster(Replicas(3, 3));
  ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
  SaveEach(&cluster, 20, {9, 8, 8});  // the odd one is the first
  ASSERT_RUNS_UNTIL(cluster, cluster.AllCommitted(20));
  cluster.StartJob();
  ASSERT_RUNS_UNTIL(cluster, cluster.AllReleased());
  const Blake3 digest = cluster.client(0).digest;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cluster.client(i).step, 20U);
    EXPECT_EQ(cluster.client(i).digest, digest);
  }
  EXPECT_EQ(cluster.store(0).at(digest).info.rank(), 1U);
}

// Whatever goes wrong beside it, a disagreement is never forgotten and nothing false is committed
// (the cluster checks each commit and restore by itself).
TEST(Divergence, SurvivesAgentsThatDieInTheMiddle) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    TestClusterOptions options = Replicas(2, 4);
    options.seed = seed;
    TestCluster cluster(options);
    ASSERT_NO_FATAL_FAILURE(Begin(&cluster, kPatience));
    const size_t victim = seed % 4;
    cluster.KillAfter(victim, seed);
    SaveEach(&cluster, 20, {1, 5, 1, 6});
    cluster.Run(2s);
    if (!cluster.Up(victim)) cluster.StartAgent(victim);
    ASSERT_TRUE(cluster.RunUntil(
        [&] { return cluster.AllCommitted(20) && !ErrorLines(cluster, "step 20").empty(); }, 200s))
        << "seed " << seed << "\n"
        << cluster.Trace();
    ASSERT_TRUE(cluster.ok());
  }
}

}  // namespace
}  // namespace tierkeep
