#include "core/placement.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

namespace tierkeep {
namespace {

using Lists = std::vector<std::vector<Rank>>;

TEST(Placement, PairsNeighboursLikeTheReference) {
  EXPECT_EQ(Keepers({.nodes = 4, .peers_per_node = 1}), (Lists{{1}, {0}, {3}, {2}}));
  EXPECT_EQ(Keepers({.nodes = 6, .peers_per_node = 2}),
            (Lists{{1, 3}, {0, 4}, {3, 5}, {2, 0}, {5, 1}, {4, 2}}));
}

TEST(Placement, KeepsTheReferencesOffsetsWithDataParallelism) {
  EXPECT_EQ(Keepers({.nodes = 6, .data_parallelism = 3, .peers_per_node = 2}),
            (Lists{{4, 2}, {5, 3}, {0, 4}, {1, 5}, {2, 0}, {3, 1}}));
}

// The cases in which the reference's formula names the node itself, repeats a peer, or loads one
// node twice.
TEST(Placement, CorrectsTheReferencesFaults) {
  EXPECT_EQ(Keepers({.nodes = 1, .peers_per_node = 1}), (Lists{{}}));
  EXPECT_EQ(Keepers({.nodes = 2, .peers_per_node = 3}), (Lists{{1}, {0}}));
  for (const auto& list : Keepers({.nodes = 6, .data_parallelism = 2, .peers_per_node = 3})) {
    EXPECT_EQ(list.size(), 3U);
  }
  EXPECT_EQ(Keepers({.nodes = 5, .peers_per_node = 1}), (Lists{{2}, {3}, {4}, {0}, {1}}));
}

TEST(Placement, ExplicitPeersWinAndEmptyOnesDoNot) {
  const Lists lists = Keepers({.nodes = 4,
                               .explicit_peers = {{0, {3, 3, 0, 9}}, {1, {}}, {7, {1}}},
                               .peers_per_node = std::nullopt});
  EXPECT_EQ(lists, (Lists{{3}, {0}, {3}, {2}}));
}

TEST(Placement, A12_IsAlwaysDistinctCompleteAndBalanced) {
  EXPECT_TRUE(rc::check("placement", [] {
    const auto partitions = *rc::gen::inRange<uint32_t>(1, 9);
    const auto nodes = partitions * *rc::gen::inRange<uint32_t>(1, 13);
    const auto peers = *rc::gen::inRange<uint32_t>(0, 12);
    const PlacementInput input{
        .nodes = nodes, .data_parallelism = partitions, .peers_per_node = peers};
    const Lists lists = Keepers(input);
    RC_ASSERT(lists.size() == nodes);
    const uint32_t count = std::min(std::max(1U, peers), nodes - 1);
    std::vector<uint32_t> incoming(nodes, 0);
    for (Rank rank = 0; rank < nodes; ++rank) {
      RC_ASSERT(lists[rank].size() == count);
      const std::set<Rank> distinct(lists[rank].begin(), lists[rank].end());
      RC_ASSERT(distinct.size() == count);
      RC_ASSERT(distinct.count(rank) == 0);
      for (const Rank peer : distinct) ++incoming[peer];
    }
    for (const uint32_t load : incoming) RC_ASSERT(load == count);
    // Replicas come first while there are any.
    if (partitions > 1 && count < partitions) {
      for (Rank rank = 0; rank < nodes; ++rank) {
        for (const Rank peer : lists[rank]) {
          RC_ASSERT(peer % (nodes / partitions) == rank % (nodes / partitions));
        }
      }
    }
  }));
}

}  // namespace
}  // namespace tierkeep
