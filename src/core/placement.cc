#include "core/placement.h"

#include <algorithm>

namespace tierkeep {
namespace {

using Lists = std::vector<std::vector<Rank>>;

// Every list has `count` distinct entries without its own rank, and every rank appears equally
// often.
bool IsBalanced(const Lists& lists, uint32_t count) {
  std::vector<uint32_t> incoming(lists.size(), 0);
  for (Rank rank = 0; rank < lists.size(); ++rank) {
    std::vector<Rank> sorted = lists[rank];
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() != count || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return false;
    for (const Rank peer : sorted) {
      if (peer == rank || ++incoming[peer] > count) return false;
    }
  }
  return true;
}

// One set of distinct offsets for all ranks gives every rank as many keepers as it keeps.
Lists FromOffsets(uint32_t nodes, const std::vector<uint32_t>& offsets) {
  Lists lists(nodes);
  for (Rank rank = 0; rank < nodes; ++rank) {
    for (const uint32_t offset : offsets) lists[rank].push_back((rank + offset) % nodes);
  }
  return lists;
}

// The same position of the partitions before and behind, nearest first; then, when more peers are
// wanted than there are other partitions, whatever is left.
std::vector<uint32_t> PartitionOffsets(uint32_t nodes, uint32_t partitions, uint32_t count) {
  const uint32_t width = nodes / partitions;
  std::vector<uint32_t> offsets;
  const auto add = [&](uint32_t offset) {
    if (offset != 0 && offsets.size() < count &&
        std::find(offsets.begin(), offsets.end(), offset) == offsets.end()) {
      offsets.push_back(offset);
    }
  };
  for (uint32_t distance = 1; distance < partitions; ++distance) {
    add(nodes - distance * width);
    add(distance * width);
  }
  for (uint32_t offset = 1; offset < nodes; ++offset) add(offset);
  return offsets;
}

// The reference's formula: the neighbour in a pair, then strides of nodes / k.
Lists PairFormula(uint32_t nodes, uint32_t count) {
  Lists lists(nodes);
  for (Rank rank = 0; rank < nodes; ++rank) {
    lists[rank].push_back((rank ^ 1U) % nodes);
    for (uint32_t i = 1; i < count; ++i) {
      lists[rank].push_back((rank + i * (nodes / count)) % nodes);
    }
  }
  return lists;
}

Lists Computed(const PlacementInput& input) {
  const uint32_t wanted = std::max(1U, input.peers_per_node.value_or(1));
  const uint32_t count = std::min(wanted, input.nodes - 1);
  if (count == 0) return Lists(input.nodes);
  if (input.data_parallelism > 1) {
    return FromOffsets(input.nodes, PartitionOffsets(input.nodes, input.data_parallelism, count));
  }
  Lists pairs = PairFormula(input.nodes, count);
  if (IsBalanced(pairs, count)) return pairs;
  // The formula repeats itself or the own rank here: equal strides round the ring instead.
  std::vector<uint32_t> offsets;
  for (uint32_t i = 1; i <= count; ++i) {
    offsets.push_back(static_cast<uint32_t>(static_cast<uint64_t>(i) * input.nodes / (count + 1)));
  }
  return FromOffsets(input.nodes, offsets);
}

}  // namespace

std::vector<std::vector<Rank>> Keepers(const PlacementInput& input) {
  if (input.nodes == 0) return {};
  Lists lists = Computed(input);
  for (const auto& [rank, peers] : input.explicit_peers) {
    if (rank >= input.nodes) continue;
    std::vector<Rank> chosen;
    for (const Rank peer : peers) {
      if (peer < input.nodes && peer != rank &&
          std::find(chosen.begin(), chosen.end(), peer) == chosen.end()) {
        chosen.push_back(peer);
      }
    }
    if (!chosen.empty()) lists[rank] = std::move(chosen);
  }
  return lists;
}

}  // namespace tierkeep
