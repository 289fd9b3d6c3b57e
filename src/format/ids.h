// Identities. Each crosses the wire and stands in records, so its form is fixed here.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

namespace tierkeep {

struct Id128Tag;
// A random 128-bit id: an agent (persisted in --state-dir), a boot, a run, a store.
using Id128 = FixedBytes<Id128Tag, 16>;

using Rank = uint32_t;    // node rank, 0..nodes-1
using Worker = uint32_t;  // checkpoint unit inside a node, 0..workers_per_node-1
using Step = uint64_t;
using Epoch = uint64_t;  // fences messages of older coordinators of one job

// Limits on a job. They bound what a message or a manifest can make a reader allocate.
inline constexpr uint32_t kNodesMax = 1u << 20;
inline constexpr uint32_t kWorkersPerNodeMax = 1u << 12;
inline constexpr size_t kNodeNameBytesMax = 253;

// [A-Za-z0-9] then [A-Za-z0-9._-]*, at most `bytes_max` bytes: no separator, no dots alone, nothing
// that a shell, a path or a log line could misread. Job and node names have this form.
bool IsPlainName(std::string_view name, size_t bytes_max);
inline bool IsValidNodeName(std::string_view name) { return IsPlainName(name, kNodeNameBytesMax); }

// One start of the job. Ordered by `sequence` alone: runs with equal sequences and different
// nonces are refused where they meet, so they never need an order.
struct RunId {
  uint64_t sequence = 0;  // 0: no run
  Id128 nonce;
  auto operator<=>(const RunId&) const = default;
  bool none() const { return sequence == 0; }
  // "<sequence>-<first 8 hex digits of nonce>", for people; "none" without a run. Paths carry the
  // whole nonce (format/store_names.h).
  std::string ToString() const;
};

// One accepted replicator.yaml.
struct AttemptId {
  Id128 agent;
  Id128 boot;
  uint64_t counter = 0;  // persisted, grows with every accepted file of this agent; 0: none
  auto operator<=>(const AttemptId&) const = default;
};

// One save of one step over all nodes; `occurrence` (from 1) counts how often a node saved that
// step within the run.
struct SaveKey {
  RunId run;
  Step step = 0;
  uint32_t occurrence = 1;
  auto operator<=>(const SaveKey&) const = default;
  // "step 100 (run 17-0a1b2c3d, occurrence 2)"; the occurrence only when above 1.
  std::string ToString() const;
};

// All shards of one save number of one run. Newest = highest (run sequence, save number).
struct GenerationId {
  RunId run;
  uint64_t save_number = 0;  // from 1; 0: not numbered yet
  auto operator<=>(const GenerationId&) const = default;
};

enum class Framework : uint8_t { kOrbax = 1, kPytorchDistributed = 2, kPytorch = 3 };
std::string_view FrameworkName(Framework framework);  // "orbax", "pytorch.distributed", "pytorch"
std::optional<Framework> ParseFramework(std::string_view name);

// What a job looked like when a shard was made: a shard fits a job only if all of it is equal.
struct WorldShape {
  Framework framework = Framework::kOrbax;
  uint32_t nodes = 0;
  uint32_t workers_per_node = 1;
  uint32_t data_parallelism = 0;  // 0: not assumed
  auto operator<=>(const WorldShape&) const = default;
  // Number of equal partitions that really exist: data_parallelism when above 1, else 1.
  uint32_t replicas() const { return data_parallelism > 1 ? data_parallelism : 1; }
};
// kInvalidArgument: a count of 0 or above its limit, or partitions that don't divide the nodes.
Status CheckWorldShape(const WorldShape& world);

}  // namespace tierkeep
