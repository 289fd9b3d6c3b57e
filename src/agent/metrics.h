// The agent's metrics, with the names and buckets that dashboards of the reference stack use
// (docs/protocol.md, "Metrics") and our own gauges beside them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

// What the gauges show, read when they are scraped.
struct MetricsSnapshot {
  bool has_commit = false;
  uint64_t last_committed_step = 0;
  double last_commit_age_seconds = 0;
  uint64_t own_bytes = 0;   // shards of this node's rank
  uint64_t peer_bytes = 0;  // other ranks' shards
  uint64_t volume_total_bytes = 0;
  uint64_t volume_free_bytes = 0;
  uint64_t volume_advised_bytes = 0;  // 0: not known yet
  uint64_t save_bytes = 0;            // this node's part of the last save
  uint64_t pulls_waiting = 0;         // for memory
  uint64_t bytes_waiting = 0;
  uint64_t bytes_pulled = 0;
  uint64_t bytes_served = 0;
  uint64_t peers_lost = 0;
  uint64_t commits = 0;
  uint64_t restores_without_commit = 0;
  bool restored_is_suspect = false;
  uint64_t dropped_messages = 0;
  uint64_t rejected_frames = 0;
  uint64_t rejected_data_requests = 0;
};

// Threads: any.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  // `node_operations_seconds`: method is one of CoordinatorRegistration, CheckpointRestore,
  // CheckpointReplicationTotal, CheckpointReplication. The status label is OK or the code's name
  // in gRPC's spelling.
  void ObserveOperation(std::string_view method, std::string_view framework, const Status& status,
                        Duration took);
  // `duration_hashing_tensorstore` for saves with OCDBT items, else `duration_hashing_dir`.
  void ObserveHashing(bool tensorstore, Duration took);

  // A save whose data-parallel replicas disagree was found by a coordinator here.
  void CountDivergence();

  // The text exposition format.
  std::string Text(const MetricsSnapshot& snapshot);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace tierkeep
