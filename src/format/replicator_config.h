// `replicator.yaml` as a typed, checked value (docs/protocol.md, "replicator.yaml").
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/ids.h"

namespace tierkeep {

struct JobConfig {
  std::string job;  // stays text, even of digits
  Rank rank = 0;
  WorldShape world;                             // framework, nodes, workers-per-node, D
  std::optional<std::vector<Rank>> peer_ranks;  // explicit peers of this node; wins
  std::optional<uint32_t> peers_per_node;       // peers to compute
  std::optional<uint32_t> backup_interval_minutes;
  std::optional<uint32_t> backup_interval_steps;
  uint16_t master_port = 4242;
  std::string master;  // "tcp://host:port" or empty
  bool operator==(const JobConfig&) const = default;
};

struct ParsedConfig {
  JobConfig config;
  std::vector<std::string> warnings;  // whole sentences
};

// Looks one variable up; only names on the fixed list (JOBSET_NAME, JOB_NAME, NODE_RANK, NNODES,
// POD_NAME, HOSTNAME) are ever asked for.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

// kInvalidArgument names key, value (escaped) and rule. Never quotes anything else of the text.
Result<ParsedConfig> ParseReplicatorConfig(std::string_view text,
                                           const EnvironmentLookup& environment);

}  // namespace tierkeep
