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
  // From now on nobody looks.
  void Rest() { rests_ = true; }
  // Has the next decision pass over what some agent has committed or was restored from.
  void SkipSomething();
  // The same for that step, asked of that agent. False: it is away.
  bool Skip(size_t host, Step step) { return SkipStep(hosts_[host].get(), step); }
  // The job starts, or goes on from `restored`.
  void OnStarted();
  void OnReleased(const std::optional<SaveId>& restored);

 private:
  void Look();
  bool SkipStep(SimHost* host, Step step);
  bool Give(SimHost* host, const control::RestoreOrder& order, Step step);
  void GiveUp(SimHost* host, const control::RestoreStop& stop);

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  SimJob* const job_;
  Ledger* const ledger_;
  std::optional<Instant> stopped_since_;  // seen at
  Instant next_order_ = Instant::min();
  std::vector<control::RestoreOrder> skips_;  // by step
  bool rests_ = false;
  std::vector<Step> skipped_;  // the present attempt can't begin from these
};

}  // namespace tierkeep::sim
