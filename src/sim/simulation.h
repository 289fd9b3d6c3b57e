// One schedule: a cluster, its jobs, faults for a while, then none, and the promises that must hold
// all the time and at the end.
//
// Swarm testing: each run enables a random part of the kinds of faults, each at a rate of its own
// (nemesis.h), so that runs differ in kind and not only in order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/budget.h"
#include "sim/fates.h"
#include "sim/ledger.h"
#include "sim/moments.h"
#include "sim/nemesis.h"
#include "sim/operator.h"
#include "sim/outcomes.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct SimulationOptions {
  uint64_t seed = 1;
  uint32_t nodes = 0;  // 0: by the seed
  bool trace = false;  // keep the texts of the last events
  bool print = false;  // and print them all
};

struct SimulationResult {
  uint64_t seed = 0;
  std::string failure;                   // empty: all promises were kept
  Checker checker = Checker::kScenario;  // that saw it
  uint64_t hash = 0;
  uint64_t events = 0;
  uint64_t faults = 0;
  double simulated_seconds = 0;
  std::map<std::string, uint64_t, std::less<>> counts;
  std::map<std::string, uint64_t, std::less<>> faults_by_kind;
  std::deque<std::string> trace;
  std::string setup;  // the run's options in one line
};

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options);
  ~Simulation();

  // The whole schedule of the seed.
  SimulationResult Run();

  // For scenarios, which put faults in by hand.
  void Start();
  // Until the job trains with `saves` written and committed in its present attempt. Fails the run
  // when that doesn't come.
  bool RunUntilCommitted(uint32_t saves, Duration limit);
  // The job starts again, and so on.
  bool RestartUntilCommitted(Duration limit);
  bool RunFor(Duration time);
  SimulationResult Finish();
  World& world() { return world_; }
  SimJob& job() { return *job_; }
  SimNetwork& network() { return *network_; }
  SimRendezvous& rendezvous() { return *rendezvous_; }
  SimHost& host(size_t i) { return *hosts_[i]; }
  size_t hosts() const { return hosts_.size(); }
  Nemesis& nemesis() { return *nemesis_; }
  Ledger& ledger() { return *ledger_; }
  Budget& budget() { return *budget_; }
  SimOperator& people() { return *people_; }
  // What happens to the chunks that peers pull from now on.
  void SetDataRates(const DataRates& rates) { data_rates_ = rates; }
  void set_people_decide(bool decide) { people_decide_ = decide; }  // before Start
  void SetShape(const JobShape& shape, size_t spares) {             // before Start
    shape_ = shape;
    spares_ = spares;
    host_parts_.immutable_flags = true;
    host_parts_.watch_queue_max = 16384;
  }

 private:
  void ChooseShape(uint32_t nodes);
  void ChooseMount();
  void ChooseExactMount();
  uint64_t MountBytes() const;
  void MakeHosts();
  void OnLog(size_t host, Severity severity, std::string_view text);
  void Converge();
  bool SaveLast();
  uint64_t SavesFailed() const;
  void RebuildOne();
  void RestartInPlace(const char* when);
  bool TryUntilCommitted(uint32_t saves, Duration limit);
  void WatchMemory();
  void WatchBudget();
  std::string States();
  std::string Contents(SimHost* host);

  const SimulationOptions options_;
  World world_;
  JobShape shape_;
  size_t spares_ = 0;
  uint32_t mount_tenths_ = 0;  // size of the mounts in tenths of a checkpoint; 0: ample
  bool ranks_move_ = true;
  bool last_save_failed_ = false;  // at some rank
  // Who gives up a newer generation whose nodes are away; else the agents do by themselves.
  bool people_decide_ = false;
  JobRhythm rhythm_;
  SimNetwork* network_ = nullptr;
  std::unique_ptr<SimNetwork> owned_network_;
  std::unique_ptr<SimRendezvous> rendezvous_;
  DataRates data_rates_;
  FileRates file_rates_;
  HostParts host_parts_{};
  std::vector<std::unique_ptr<SimHost>> hosts_;
  std::unique_ptr<SimJob> job_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<Budget> budget_;
  std::unique_ptr<Moments> moments_;
  std::unique_ptr<Outcomes> outcomes_;
  std::unique_ptr<Fates> fates_;
  std::unique_ptr<SimOperator> people_;
  std::unique_ptr<Nemesis> nemesis_;
};

// One line for people, and the last events, if the run failed.
SimulationResult RunSeed(const SimulationOptions& options);

}  // namespace tierkeep::sim
