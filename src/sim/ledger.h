// What was promised and what came of it: saves, commits, losses, restores.
//
// Checked here, beside what sim_client.cc (restored bytes) and sim_job.cc (one save for all nodes)
// check:
//   * a restore doesn't go back behind the newest committed generation, the *floor*;
//   * as long as the schedule leaves each of its shards one good copy, the agents do, too;
//   * nor to a branch that was abandoned by a restore;
//   * a commit is recorded only when all copies that its placement demands are there;
//   * saves that aren't committed don't pile up (docs/memory.md, "What a volume holds");
//   * in the end every shard has its copies, and nothing else is left in the stores.
// Copies are looked for in the files themselves and read in full: no agent's word counts.
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control.pb.h"
#include "format/generation_record.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

class Ledger {
 public:
  Ledger(World* world, std::vector<std::unique_ptr<SimHost>>* hosts)
      : world_(world), hosts_(*hosts) {}
  void set_job(const SimJob* job) { job_ = job; }

  void OnStarted(uint32_t attempt);
  // The first rank of an attempt has its links: decided is decided, though another rank's process
  // may die before the whole job is released.
  void OnWentOn(const std::optional<SaveId>& restored);
  void OnReleased(uint32_t attempt, const std::optional<SaveId>& restored);
  // Whether all ranks' agents have recorded the same commit of this attempt's run, of its nth save
  // or a later one.
  bool CommittedEverywhere(uint32_t nth);

  // Whether the floor stays restorable without this host's copies, or without its copy of one
  // shard.
  bool MayLose(size_t host);
  bool MayLoseCopy(size_t host, const Blake3& digest);
  // The schedule took more than was promised to survive.
  void GiveUpFloor();
  // Something is going on that may make a restore fall back: errors, full or damaged stores, cuts.
  void Disturb() { disturbed_at_ = world_->now(); }
  void BeginDisturbance() { ++disturbances_; }
  // Cuts: where people decide nothing is given up for them.
  void BeginPartition() {
    if (!people_decide_) BeginDisturbance();
  }
  void EndPartition() {
    if (!people_decide_) EndDisturbance();
  }
  void set_people_decide(bool decide) { people_decide_ = decide; }
  void EndDisturbance() {
    --disturbances_;
    Disturb();
  }
  // A copy on that host was damaged: what its client was given since may be bad without fault.
  void OnDamage(size_t host, const Blake3& digest) {
    Disturb();
    damaged_.insert(digest);
    damaged_copies_.insert({digest, host});
    damaged_at_[host] = world_->now();
  }
  bool DamagedSince(size_t host, Instant when) const {
    const auto it = damaged_at_.find(host);
    return it != damaged_at_.end() && it->second >= when;
  }
  // An operator had the decisions do without what can't be read or reached, or skip a step.
  void OnGivenUp() { without_since_ = world_->now(); }
  void OnSkipped(Step step) { skipped_.insert(step); }
  bool has_floor() const { return floor_.has_value(); }

  // A machine and all that it held is lost, or a job wrote into a copy.
  void OnLost() { losses_.push_back(world_->now()); }
  // ---- at the moment when an agent does it
  // A copy of the shard was given up.
  void OnGone(const Blake3& digest);
  // A generation was recorded for the first time: its copies must be there.
  void OnRecorded();

  // The floor stands, good copies of all of its shards are somewhere.
  void CheckFloor(const char* when);
  void CheckMemory();
  // Nothing is being saved: no node holds more than `most` saves of its run that aren't committed.
  void CheckUncommitted(size_t most);
  // Every shard of the newest commit has all copies that its placement demands and the stores hold
  // nothing else.
  void CheckAllInPlace();
  // What is missing for that; "" when nothing is.
  std::string NotInPlace();
  // Most bytes seen in a mount, in percent of a node's checkpoint.
  uint64_t peak_percent() const { return peak_percent_; }
  // Whether a commit of that job, or what it was restored from, is this save or a newer one.
  bool IsPast(const std::string& job, const SaveId& save);
  // Which save it is, by what is in its shards.
  std::optional<SaveId> SaveOf(const control::GenerationRecord& record);
  // What one node's checkpoint takes in a mount.
  static uint64_t CheckpointBytes(const JobShape& shape);
  // Beside checkpoints. Records, ids, links, texts for the client: a page each; store/spare and
  // store/reserve (64 KiB each).
  static constexpr uint64_t kSmallFilesBytes = 56 * 4096;

 private:
  // Where a generation stands among the others: of which attempt, which save; 0 is what the attempt
  // was restored from.
  using Position = std::pair<uint32_t, uint32_t>;
  struct Floor {
    SaveId save;
    JobShape shape;
    SharedRecord record;
    // The same with other shards: restored from an equal replica's, or one partition's for all.
    std::vector<SharedRecord> others = {};
  };
  bool FloorIsAvailable(std::optional<size_t> without_host, const Blake3* without_copy) const;
  // Looks for newer committed generations in the records of all stores.
  void Refresh();
  SharedRecord Decoded(const std::string& bytes);
  void Consider(const SharedRecord& part);
  void NoteShardsOfFloor(const SharedRecord& record);
  SharedRecord WithOtherParts(const SharedRecord& record);
  std::vector<size_t> HoldersOf(const Blake3& digest) const;
  bool IsIntact(size_t host, const Blake3& digest) const;
  std::optional<ShardIdentity> IdentityOf(size_t host, const Blake3& digest) const;
  // For each rank and worker: the shards that can stand there.
  static std::vector<std::vector<Blake3>> Places(const control::GenerationRecord& record);
  // Its equal partitions don't have equal values: one of them must serve all nodes.
  static bool Diverges(const control::GenerationRecord& record);
  bool IsAvailable(const control::GenerationRecord& record, std::optional<size_t> without_host,
                   const Blake3* without_copy) const;
  bool IsBehind(const std::optional<SaveId>& restored) const;
  bool IsGivenUp(Step step) const;
  SharedRecord Restored();
  void CheckBase(uint32_t attempt, const std::optional<SaveId>& restored);
  bool IsOfFloor(const Blake3& digest) const;
  // Good ones of the place, and how many there must be.
  std::pair<size_t, size_t> CopiesOf(const control::GenerationRecord& record,
                                     const std::vector<Blake3>& place) const;
  // Losses of a whole RAM that agents may not have noticed yet.
  size_t UnnoticedLosses() const;
  // Of the place: those that were damaged at rest and stand there still.
  size_t RottenCopiesOf(const std::vector<Blake3>& place) const;
  std::string NotInPlace(const control::GenerationRecord& record) const;
  std::set<SaveKey> UncommittedAt(size_t host, Rank rank) const;
  Position PositionOf(const SaveId& save) const;
  std::set<Blake3> ShardsAt(size_t host) const;
  static bool IsSameWorld(const JobShape& a, const JobShape& b);

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  const SimJob* job_ = nullptr;
  std::map<GenerationId, SaveId> known_;
  std::unordered_map<std::string, SharedRecord> decoded_;  // by bytes
  std::map<std::pair<GenerationId, std::string>, SharedRecord> parts_;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> bases_;  // attempt → restored attempt, nth
  std::optional<Floor> floor_;
  std::map<std::string, Position> past_;  // by job: the newest that was ever committed or restored
  // The newest, by job: runs of different jobs, with clocks that jump, have no order.
  std::map<std::string, GenerationId> given_up_;
  Instant started_at_{};
  int disturbances_ = 0;
  bool people_decide_ = false;
  // What the last attempt was released from.
  struct Base {
    uint32_t attempt;
    SaveId save;
    JobShape shape;
    SharedRecord record;
  };
  std::optional<Base> base_;
  std::set<Blake3> damaged_;  // some copy of it
  std::set<std::pair<Blake3, size_t>> damaged_copies_;
  std::vector<Instant> losses_;
  std::optional<Instant> without_since_;
  std::set<Step> skipped_;
  std::map<size_t, Instant> damaged_at_;
  Instant disturbed_at_ = Instant::min();
  uint64_t peak_percent_ = 0;
};

}  // namespace tierkeep::sim
