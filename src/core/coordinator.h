// The job-wide decisions, as a pure machine living in one agent: gathers all ranks, fixes the run,
// makes the one restore decision, matches saves, orders copies, commits, rebuilds redundancy.
//
// Threads: one. Same options, events and times: the same actions, byte for byte.
#pragma once

#include <memory>

#include "core/events.h"
#include "core/timings.h"

namespace tierkeep {

// What an administrator decided about restores.
struct RestorePolicy {
  // Restored so often without a later commit, a generation is reported as suspect; 0: never.
  uint32_t suspect_after = 3;
  uint32_t restores_max = 0;  // RestoreQuestion::restores_max
  // A newer generation is known of and all who hold it are away: how long they are waited for. Then
  // the decision stops, or, with go_on_without_absent, gives it up. Shorter than the clients' waits
  // after their yaml has gone (docs/protocol.md, "Waits").
  Duration absent_wait = 240s;
  bool go_on_without_absent = false;
};

inline constexpr uint32_t kWholeViewMax = 64;

struct CoordinatorOptions {
  control::JobSettings settings;  // rank 0's, until all have joined
  std::string node_name;
  std::string control_host;
  uint16_t control_port = 0;
  Id128 boot;
  Id128 run_nonce;  // for the run that this machine may start; runs after it derive theirs from it
  // The run that this node goes on with: if a newer one has begun elsewhere by now, this machine
  // leaves it to its coordinator. None: the node has a new yaml.
  RunId resumes;
  Duration gather_deadline = 840s;
  RestorePolicy restore;
  // Of a job with at most so many shards a generation every member knows all other members and
  // records whole generations. Of a larger one it gets what it keeps and stands beside, so that the
  // coordinator's work grows with the number of members, not with its square.
  uint32_t whole_view_max = kWholeViewMax;
  CoreTimings timings;
};

// One rank of the running job as the coordinator sees it, for `tierkeep status` on its node. Not
// part of JobStatus, which goes to every member on every change.
struct RankProgress {
  Rank rank = 0;
  std::string node;
  bool connected = false;
  std::optional<Step> staged;     // newest that isn't committed yet
  std::optional<Step> committed;  // newest that this rank is known to have recorded
};

class CoordinatorMachine {
 public:
  explicit CoordinatorMachine(CoordinatorOptions options);
  ~CoordinatorMachine();
  CoordinatorActions Step(Instant now, const CoordinatorEvent::Any& event);
  control::JobStatus status() const;
  std::vector<RankProgress> progress() const;  // by rank
  uint64_t dropped_messages() const;           // of another job, run or epoch, or no member's
  const std::string& job() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkeep
