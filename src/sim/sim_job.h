// A training job and its launcher: starts a process on each of its hosts, trains while all are
// there, and starts again when one fails, perhaps with ranks moved, hosts replaced, or another
// world. Threads: one.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/sim_client.h"
#include "sim/sim_host.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct JobShape {
  std::string name = "train";
  Framework framework = Framework::kOrbax;
  uint32_t nodes = 2;
  uint32_t workers = 1;
  uint32_t replicas = 1;    // assume-data-parallelism, when above 1
  uint32_t peers = 1;       // copies elsewhere; 0 with replicas
  bool peer_ranks = false;  // named by the yaml, else computed
  uint64_t file_bytes = 4096;
  bool jax_init = true;
  bool diverging = false;  // ContentOptions::diverging
  auto operator<=>(const JobShape&) const = default;
};

struct JobRhythm {
  Duration save_every_min = 4s;
  Duration save_every_max = 40s;
};

// What a run of the job came to, for the checkers.
struct JobEvents {
  // All of an attempt's processes have their checkpoint (rank and worker 0 in `restored`).
  std::function<void(uint32_t attempt, std::optional<SaveId> restored)> released;
  // One rank has its links, whether or not the others get theirs before the attempt ends.
  std::function<void(std::optional<SaveId> restored)> went_on;
  // As SimClient::Events.
  std::function<bool(size_t host, Instant since)> damaged;
  std::function<void(size_t host, const std::string& name, const SaveId& id)> stands;
  std::function<void(size_t host, const std::string& name)> removes;
  std::function<void(size_t host, const std::string& what, Instant since)> overdue;
  // An attempt begins; nothing of the one before runs any more.
  std::function<void(uint32_t attempt)> started;
};

class SimJob {
 public:
  SimJob(World* world, std::vector<std::unique_ptr<SimHost>>* hosts, JobShape shape,
         JobRhythm rhythm, uint64_t content_seed, JobEvents events);

  // Kills what runs and starts the processes anew: on the hosts as they are, or as said here
  // before.
  void Start();
  void StartLater(Duration delay);
  void Stop();
  void SetShape(const JobShape& shape) { next_shape_ = shape; }
  void ShuffleRanks();
  void SetPlacement(std::vector<size_t> hosts) { placement_ = std::move(hosts); }
  void SwapHost();  // one of the job's hosts gives way to a spare, where there is one
  void KillProcess(size_t host);
  // The process there changes the checkpoint that it was given. False: there is none.
  bool ChangeRestored(size_t host);
  void HostLost(size_t host) { KillProcess(host); }
  void set_saving(bool saving) { saving_ = saving; }
  // The next save is of a later step than this one.
  void TrainTo(Step step) { step_ = std::max(step_, step); }

  const JobShape& shape() const { return shape_; }
  uint32_t attempt() const { return attempt_; }
  bool training() const { return training_; }
  // Of the last save, or what the attempt goes on from.
  Step step() const { return step_; }
  // All saves of this attempt that every rank has finished writing.
  uint32_t saves_written() const { return saves_written_; }
  // Saves that were begun after the first one that this attempt numbered so; all, if there is none.
  size_t SavesSince(uint32_t attempt, uint32_t nth) const;
  const std::vector<size_t>& placement() const { return placement_; }  // host by rank
  const SimClient* client(Rank rank) const {
    return rank < clients_.size() ? clients_[rank].get() : nullptr;
  }
  const std::string& last_failure() const { return last_failure_; }
  ContentOptions content() const;
  // A save of all ranks now; `new_step`: certainly not of the last one once more.
  void SaveNow(bool new_step = false);

 private:
  std::string ConfigOf(Rank rank) const;
  void WriteJaxInit(size_t host);
  void OnReady(uint32_t attempt, Rank rank, std::optional<SaveId> restored);
  void OnFailed(uint32_t attempt, Rank rank, const std::string& why);
  void OnSaved(uint32_t attempt, uint32_t nth);
  void PlanSave();

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  JobShape shape_;
  JobShape next_shape_;
  const JobRhythm rhythm_;
  const uint64_t content_seed_;
  const JobEvents events_;
  std::vector<size_t> placement_;
  std::vector<std::unique_ptr<SimClient>> clients_;  // by rank
  std::vector<std::unique_ptr<SimClient>> ended_;    // until their last event is over
  uint32_t attempt_ = 0;
  uint64_t starts_planned_ = 0;
  std::vector<std::optional<std::optional<SaveId>>> ready_;
  bool training_ = false;
  bool saving_ = true;
  bool failed_ = false;
  Step step_ = 0;
  uint32_t nth_ = 0;
  uint32_t save_id_ = 0;
  std::vector<std::pair<uint32_t, uint32_t>> begun_;  // attempt, number
  uint32_t saved_parts_ = 0;
  bool save_complete_ = true;
  uint32_t saves_written_ = 0;
  std::string last_failure_;
};

}  // namespace tierkeep::sim
