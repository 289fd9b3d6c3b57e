// What was promised and what came of it: saves, commits, losses, restores.
//
// Promises checked (numbers of docs/testing.md):
//   * what is restored is, byte for byte, what was saved (sim_client.cc), the same save on all
//   nodes
//     (sim_job.cc);
//   * no restore goes back behind the newest committed generation while no more copies were lost
//     than it has to spare;
//   * the agents never delete the last copies of it;
//   * a mount never holds more than the table of docs/ARCHITECTURE.md, "Memory", allows.
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control.pb.h"
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
  void OnReleased(uint32_t attempt, const std::optional<SaveId>& restored);
  // An agent says that it recorded a commit.
  void OnCommit(size_t host);
  // Whether all ranks' agents have recorded a commit of a save of this attempt, the nth or a later
  // one.
  bool CommittedEverywhere(uint32_t attempt, uint32_t nth) const;

 private:
  struct Commit {
    uint32_t attempt = 0;
    control::GenerationRecord record;
  };
  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  const SimJob* job_ = nullptr;
};

}  // namespace tierkeep::sim
