#include "core/protection.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

control::GenerationRecord Record(const WorldShape& world, const std::vector<uint64_t>& logicals) {
  control::GenerationRecord record;
  record.set_job("job");
  const SaveKey save{TestRun(10), 5, 1};
  *record.mutable_save() = ToProto(save);
  *record.mutable_world() = ToProto(world);
  for (Rank rank = 0; rank < world.nodes; ++rank) {
    *record.add_shards() =
        MakeShard({.save = save, .rank = rank, .world = world, .logical = logicals.at(rank)});
  }
  return record;
}

std::vector<std::string> Nodes(uint32_t count) {
  std::vector<std::string> nodes;
  for (uint32_t i = 0; i < count; ++i) nodes.push_back("n" + std::to_string(i));
  return nodes;
}

constexpr WorldShape kSquare{.framework = Framework::kOrbax, .nodes = 4, .data_parallelism = 2};

ProtectionPlan PlanOf(const WorldShape& world, const std::vector<uint64_t>& logicals) {
  return PlanProtection(
      Record(world, logicals), Nodes(world.nodes),
      Keepers(
          {.nodes = world.nodes, .data_parallelism = world.data_parallelism, .peers_per_node = 1}));
}

TEST(Protection, EqualReplicasNeedNoCopies) {
  const ProtectionPlan plan = PlanOf(kSquare, {1, 2, 1, 2});
  EXPECT_FALSE(plan.copies_needed);
  EXPECT_TRUE(plan.disagreements.empty());
  for (const auto& [node, digests] : plan.wanted) EXPECT_EQ(digests.size(), 1U);
}

TEST(Protection, OneOddReplicaMeansCopiesForAllAndIsNamed) {
  const ProtectionPlan plan = PlanOf(
      {.framework = Framework::kOrbax, .nodes = 6, .data_parallelism = 3}, {1, 2, 1, 9, 1, 2});
  EXPECT_TRUE(plan.copies_needed);
  ASSERT_EQ(plan.disagreements.size(), 1U);
  const Disagreement& found = plan.disagreements[0];
  EXPECT_EQ(found.odd, std::vector<Rank>{3});
  EXPECT_EQ(found.reference, 1U);
  EXPECT_EQ(found.equal, 2U);
  EXPECT_TRUE(found.majority);
  for (const auto& [node, digests] : plan.wanted) EXPECT_EQ(digests.size(), 2U);
}

TEST(Protection, UnknownEqualityIsNotEquality) {
  const ProtectionPlan plan = PlanOf(kSquare, {0, 0, 0, 0});
  EXPECT_TRUE(plan.copies_needed);
  EXPECT_TRUE(plan.disagreements.empty());
}

TEST(Protection, OfTwoReplicasNobodyKnowsWhichIsRight) {
  const ProtectionPlan plan = PlanOf(kSquare, {1, 2, 9, 2});
  ASSERT_EQ(plan.disagreements.size(), 1U);
  EXPECT_FALSE(plan.disagreements[0].majority);
  EXPECT_EQ(plan.disagreements[0].reference, 0U);
  EXPECT_EQ(plan.disagreements[0].odd, std::vector<Rank>{2});
}

TEST(Protection, WhatIsKnownToDifferIsNamedBesideWhatIsNotKnown) {
  const ProtectionPlan plan =
      PlanOf({.framework = Framework::kOrbax, .nodes = 4, .data_parallelism = 4}, {0, 5, 6, 5});
  EXPECT_TRUE(plan.copies_needed);
  ASSERT_EQ(plan.disagreements.size(), 1U);
  EXPECT_EQ(plan.disagreements[0].reference, 1U);
  EXPECT_EQ(plan.disagreements[0].odd, std::vector<Rank>{2});
  // Known values that are equal beside an unknown one: copies, and nobody to name.
  EXPECT_TRUE(PlanOf({.framework = Framework::kOrbax, .nodes = 2, .data_parallelism = 2}, {0, 5})
                  .copies_needed);
}

TEST(Protection, A9_DataParallelismOfOneIsNone) {
  const ProtectionPlan plan =
      PlanOf({.framework = Framework::kOrbax, .nodes = 2, .data_parallelism = 1}, {1, 2});
  EXPECT_TRUE(plan.copies_needed);
  for (const auto& [node, digests] : plan.wanted) EXPECT_EQ(digests.size(), 2U);
}

TEST(Protection, SuspectCopiesDoNotCount) {
  const control::GenerationRecord record =
      Record({.framework = Framework::kOrbax, .nodes = 2}, {0, 0});
  const ProtectionPlan plan = PlanProtection(record, Nodes(2), {{1}, {0}});
  control::Inventory all;
  for (const auto& shard : record.shards()) *all.add_shards() = shard;
  Holdings holdings;
  holdings.SetNode("n0", "job", all);
  all.mutable_shards(0)->set_suspect(true);
  holdings.SetNode("n1", "job", all);
  const auto missing = Missing(plan, holdings);
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing.at("n1"), std::vector{DigestOf(record.shards(0))});
  holdings.AddVerified("n1", record.shards(0));
  EXPECT_TRUE(Missing(plan, holdings).empty());
}

// A protected generation survives the loss of any k nodes.
TEST(Protection, SurvivesTheLossOfAnyNodes) {
  EXPECT_TRUE(rc::check("loss", [] {
    const auto nodes = *rc::gen::inRange<uint32_t>(2, 9);
    const auto peers = *rc::gen::inRange<uint32_t>(1, nodes);
    const WorldShape world{.framework = Framework::kOrbax, .nodes = nodes};
    const auto record = Record(world, std::vector<uint64_t>(nodes, 0));
    ProtectionPlan plan =
        PlanProtection(record, Nodes(nodes), Keepers({.nodes = nodes, .peers_per_node = peers}));
    for (uint32_t i = 0; i < peers; ++i) {
      auto lost = plan.wanted.begin();
      std::advance(lost, *rc::gen::inRange<size_t>(0, plan.wanted.size()));
      plan.wanted.erase(lost);
    }
    std::set<Blake3> left;
    for (const auto& [node, digests] : plan.wanted) left.insert(digests.begin(), digests.end());
    RC_ASSERT(left.size() == nodes);
  }));
}

}  // namespace
}  // namespace tierkeep
