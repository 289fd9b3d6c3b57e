// What becomes of each finished save. As long as it stands where it was written, or in the store,
// it may still be committed. Once it is gone from there, it is one of these:
//   * committed, or overtaken by a commit or by what a later start was restored from;
//   * lost, with its machine or by damage at rest;
//   * given up, and that was told: a line of some agent's log names its step and says so.
// None just vanishes. A save is followed by its inode: a rename takes it into the store.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/ledger.h"
#include "sim/sim_fs.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

class Fates {
 public:
  Fates(World* world, std::vector<std::unique_ptr<SimHost>>* hosts, const SimJob* job,
        Ledger* ledger)
      : world_(world), hosts_(*hosts), job_(job), ledger_(ledger) {}

  // Looks at all of them, from now on.
  void Watch();
  // One stands in the volume, finished; or its job is about to remove what stands there.
  void OnSaved(size_t host, const std::string& name, const SaveId& id);
  void OnRemoved(size_t host, const std::string& name);
  // All ranks go on.
  void OnReleased();
  // A rename that an agent is about to make.
  void OnMove(size_t host, const FsOp& op);
  void OnLog(size_t host, std::string_view text);
  // Nothing of what is gone by now may be without an explanation.
  void CheckAll();

 private:
  struct Save {
    size_t host;
    std::string name;
    uint64_t inode;
    SaveId id;
    std::string job;
    Instant since;                     // when it was finished
    std::optional<uint64_t> run = {};  // the sequence of the run that took it
    std::optional<Instant> gone = {};  // when that was noticed
  };
  void NoteRun(size_t host);
  void Look(Duration gone_max);
  std::set<uint64_t> InodesAt(SimHost* host) const;
  // "" when it is not known.
  std::string FateOf(const Save& save) const;
  bool IsRestoredPast(const Save& save) const;

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  const SimJob* const job_;
  Ledger* const ledger_;
  std::vector<Save> saves_;
  std::map<size_t, uint64_t> noted_;     // by host: the run that was looked at last
  std::map<uint32_t, uint64_t> run_of_;  // sequence of an attempt's run
  // By job: the sequence of the newest run that a node of it was released in.
  std::map<std::string, uint64_t> released_in_;
  std::set<std::pair<Step, uint32_t>> told_;  // step, attempt that was under way
  // By host and job: what that job left there did, for another one.
  std::map<std::pair<size_t, std::string>, Instant> others_gave_way_;
  std::map<size_t, Instant> gave_way_;  // by host: unnamed saves did
  Instant started_at_{};                // when the job was last seen not to train
};

}  // namespace tierkeep::sim
