// One node's life in a job, as a pure machine: accept the yaml, find the coordinator, restore,
// release the job, stage saves, keep peers' copies, record commits, collect. It composes the small
// machines named after the journey (run, save, restore, collect) and holds no I/O.
//
// Threads: one. Same options, events and times: the same actions, byte for byte.
#pragma once

#include <memory>

#include "core/events.h"
#include "core/memory_budget.h"
#include "core/timings.h"
#include "format/restore_orders.h"

namespace tierkeep {

enum class CoordinatorPlace : uint8_t {
  kRankZero,   // the agent of rank 0 (rendezvous file:)
  kHere,       // this agent, whatever its rank (static:, and it is this address)
  kElsewhere,  // a fixed address that isn't ours
};

struct NodeOptions {
  std::string node_name;
  Id128 agent;  // used when the persisted state has none
  Id128 boot;
  std::string data_host;
  uint16_t data_port = 0;
  std::string data_token;
  CoordinatorPlace place = CoordinatorPlace::kRankZero;
  OnPressure on_pressure = OnPressure::kRefuse;
  CoreTimings timings;
};

// What the node's checkpoints need and have, once a save has been staged or restored here.
struct MemorySizing {
  GenerationBytes generation;                   // of the last one
  MemoryRoom room;                              // as last seen
  uint64_t advised_bytes = 0;                   // for the volume
  std::optional<uint64_t> advised_limit_bytes;  // for the agent's control group, where it has one
  bool fits = false;
};

// For `tierkeep status`: a snapshot, cheap enough to take on every request.
struct NodeStatus {
  std::string
      phase;  // idle, cleaning, locating, joining, restoring, prepared, running, failed, holder
  std::optional<JobConfig> config;
  RunId run;
  Epoch epoch = 0;
  std::optional<control::RestoreChoice> restored;
  SharedRecord committed;            // last recorded here, or null
  std::optional<SaveKey> in_flight;  // newest save staged but not committed
  std::vector<control::Member> members;
  std::optional<control::JobStatus> job;  // as the coordinator last told
  std::string last_error;
  uint64_t commits = 0;
  std::optional<MemorySizing> sizing;
  uint64_t pulls_waiting = 0;  // copies that there is no room for now
  uint64_t bytes_waiting = 0;
  uint64_t dropped_messages = 0;             // of another job, run or epoch
  RestoreOrders orders;                      // waiting for the next restore decision
  uint32_t restores_without_commit = 0;      // of what this run was restored from
  std::optional<control::RestoreStop> stop;  // why the last restore decision stopped
};

class NodeMachine {
 public:
  explicit NodeMachine(NodeOptions options);
  ~NodeMachine();
  NodeActions Step(Instant now, const NodeEvent::Any& event);
  NodeStatus status() const;
  // Parts of the same that are looked at often; until the next Step.
  const SharedRecord& committed() const;
  const control::NodeState& state() const;
  const std::optional<control::JobStatus>& job_status() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkeep
