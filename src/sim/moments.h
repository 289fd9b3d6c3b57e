// Promises judged at the moment when an agent acts, by the renames that it makes its acts durable
// with: a shard is given up, a commit is recorded, a link appears. Threads: one.
#pragma once

#include <set>
#include <string>

#include "sim/ledger.h"
#include "sim/sim_fs.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

class Moments {
 public:
  Moments(World* world, Ledger* ledger, const SimJob* job)
      : world_(world), ledger_(ledger), job_(job) {}

  // A new life of an agent has looked at its store: nothing that is there may be overlooked.
  void OnOpened(SimHost* host, Store& store);
  // Before the agent's rename happens; it may still fail.
  void OnMove(SimHost* host, const FsOp& op);

 private:
  void CheckDecision(SimHost* host, const std::string& name);
  void OnLink(SimHost* host, const std::string& name);

  World* const world_;
  Ledger* const ledger_;
  const SimJob* const job_;
  std::set<std::string> recorded_;  // paths of generation records
};

}  // namespace tierkeep::sim
