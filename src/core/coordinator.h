// The job-wide decisions, as a pure machine living in one agent: gathers all ranks, fixes the run,
// makes the one restore decision, matches saves, orders copies, commits, rebuilds redundancy.
//
// Threads: one. Same options, events and times: the same actions, byte for byte.
#pragma once

#include <memory>

#include "core/events.h"
#include "core/timings.h"

namespace tierkeep {

struct CoordinatorOptions {
  control::JobSettings settings;  // rank 0's, until all have joined
  std::string node_name;
  std::string control_host;
  uint16_t control_port = 0;
  Id128 boot;
  Id128 run_nonce;  // for the run that this machine may start; runs after it derive theirs from it
  Duration gather_deadline = 840s;
  CoreTimings timings;
};

class CoordinatorMachine {
 public:
  explicit CoordinatorMachine(CoordinatorOptions options);
  ~CoordinatorMachine();
  CoordinatorActions Step(Instant now, const CoordinatorEvent::Any& event);
  control::JobStatus status() const;
  const std::string& job() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkeep
