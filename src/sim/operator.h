// The people who run the job: they give `tierkeep restore` orders, when a decision stops or waits
// for them and also when nobody asked, and take their time.
//
// Checked here: a step that was skipped by an order that every agent knew of isn't restored.
// Threads: one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control.pb.h"
#include "sim/ledger.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

class SimOperator {
 public:
  SimOperator(World* world, std::vector<std::unique_ptr<SimHost>>* hosts, SimJob* job,
              Ledger* ledger)
      : world_(world), hosts_(*hosts), job_(job), ledger_(ledger) {}

  // Looks after restore decisions from now on.
  void Watch();
  // Has the next decision pass over what some agent has committed or was restored from.
  void SkipSomething();
  // The job starts, or goes on from `restored`.
  void OnStarted();
  void OnReleased(const std::optional<SaveId>& restored);

 private:
  void Look();
  void GiveUp(SimHost* host, const control::RestoreStop& stop);

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  SimJob* const job_;
  Ledger* const ledger_;
  std::optional<Instant> stopped_since_;  // seen at
  Instant next_order_ = Instant::min();
  std::vector<control::RestoreOrder> skips_;  // by step
  std::vector<Step> skipped_;                 // the present attempt can't begin from these
};

}  // namespace tierkeep::sim
