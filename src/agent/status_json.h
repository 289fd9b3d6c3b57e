// The JSON of `GET /v1/status`, which `tierkeep status --json` prints. Fields: docs/protocol.md,
// "Status"; `version` changes when one is removed or changes its meaning.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/node_host.h"
#include "core/coordinator.h"
#include "core/node.h"
#include "io/file_system.h"

namespace tierkeep {

inline constexpr int kStatusVersion = 1;

struct StatusInputs {
  std::string node_name;
  NodeStatus node;
  std::optional<control::JobStatus> coordinating;  // when this agent hosts the coordinator
  std::vector<RankProgress> progress;              // likewise: every rank's
  RestoreTimes restore;
  std::optional<double> last_commit_age_seconds;
  std::map<std::string, double> clock_skews;  // ControlPlane::clock_skews
  std::vector<HeldShard> shards;
  std::vector<UnreadableItem> unreadable;
  SpaceInfo space;
  uint64_t bytes_pulled = 0;
  uint64_t bytes_served = 0;
  uint64_t rejected_frames = 0;
  uint64_t rejected_data_requests = 0;
  double uptime_seconds = 0;
  uint16_t control_port = 0;
  uint16_t data_port = 0;
};

// Bytes of this node's own rank's shards, and of all others.
struct HeldBytes {
  uint64_t own = 0;
  uint64_t peer = 0;
};
HeldBytes CountHeldBytes(const StatusInputs& in);

nlohmann::json StatusJson(const StatusInputs& in);

}  // namespace tierkeep
