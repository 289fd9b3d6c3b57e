// Who keeps a copy of whose shards (docs/protocol.md, "Peers"). Pure functions: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "format/ids.h"

namespace tierkeep {

struct PlacementInput {
  uint32_t nodes = 0;
  uint32_t data_parallelism = 0;  // 0 or 1: none; else it divides `nodes`
  // Peers that a node's own yaml names. An empty list is like none.
  std::map<Rank, std::vector<Rank>> explicit_peers = {};
  // Rank 0's; absent or 0 counts as one peer, for a single copy protects nothing.
  std::optional<uint32_t> peers_per_node = {};
};

// For each rank, the ranks that keep a copy of its shards: distinct, never itself, best first.
// Computed ones are min(k, nodes - 1) many and every rank keeps equally many of others'.
std::vector<std::vector<Rank>> Keepers(const PlacementInput& input);

}  // namespace tierkeep
