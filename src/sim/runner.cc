#include "sim/runner.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "sim/report.h"
#include "sim/scenarios.h"
#include "sim/simulation.h"
#include "sim/workers.h"

namespace tierkeep::sim {
namespace {

using nlohmann::json;

// Every so many seeds one runs twice: the hashes of its traces must be the same.
constexpr uint64_t kTwiceEvery = 50;

struct Unit {
  uint64_t number = 0;  // of the whole
  std::string replay;
  std::function<SimulationResult(bool trace, bool print)> run;
};

std::vector<Unit> UnitsOf(const RunnerOptions& options) {
  std::vector<Unit> units;
  if (options.scenario.empty()) {
    for (uint64_t i = 0; i < options.runs; ++i) {
      Unit unit;
      unit.number = i;
      const uint64_t seed = options.seed + i;
      unit.replay = fmt::format("tierkeep-sim --seed {}{} --trace", seed,
                                options.nodes ? fmt::format(" --nodes {}", options.nodes) : "");
      unit.run = [seed, nodes = options.nodes](bool trace, bool print) {
        return RunSeed({seed, nodes, trace, print});
      };
      units.push_back(std::move(unit));
    }
    return units;
  }
  for (const Scenario& scenario : Scenarios()) {
    if (options.scenario != "all" && options.scenario != scenario.name) continue;
    Unit unit;
    unit.number = units.size();
    unit.replay = fmt::format("tierkeep-sim --scenario {} --trace", scenario.name);
    unit.run = [&scenario](bool trace, bool print) { return RunScenario(scenario, trace, print); };
    units.push_back(std::move(unit));
  }
  return units;
}

json RunUnit(const Unit& unit, bool print) {
  const SimulationResult result = unit.run(false, print);
  json out = ToJson(result);
  out["unit"] = unit.number;
  const bool failed = !result.failure.empty();
  if (!failed && (print || unit.number % kTwiceEvery != 0)) return out;
  // A failed one for the texts of its events.
  const SimulationResult again = unit.run(failed, false);
  out["run_twice"] = true;
  if (failed) out["trace"] = again.trace;
  if (again.hash != result.hash || again.failure != result.failure) {
    out["failure"] = fmt::format("two runs of one seed differ: {:016x} '{}', then {:016x} '{}'",
                                 result.hash, result.failure, again.hash, again.failure);
  }
  return out;
}

// What one process does: every `stride`-th schedule from `next` on, a line for each. One that
// brings its process down is noted, and a new process goes on behind it.
class Lane {
 public:
  Lane(size_t next, size_t stride, const std::vector<Unit>& units, const RunnerOptions& options,
       Report* report, Workers* workers)
      : next_(next),
        stride_(stride),
        units_(units),
        options_(options),
        report_(report),
        workers_(workers) {}

  void Begin() {
    if (next_ >= units_.size()) return;
    workers_->Add({[this](const Workers::Say& say) { Work(say); },
                   [this](const std::string& line) {
                     report_->Add(json::parse(line), units_[next_].replay);
                     Next();
                   },
                   [this](const std::string& death) { Ended(death); }});
  }

 private:
  void Work(const Workers::Say& say) const {
    for (size_t i = next_; i < units_.size(); i += stride_) {
      LimitComputing();
      say(RunUnit(units_[i], false).dump());
    }
  }
  void Next() {
    next_ += stride_;
    if (options_.failures_max != 0 && report_->failures() >= options_.failures_max) {
      workers_->Stop();
    }
  }
  void Ended(const std::string& death) {
    if (next_ >= units_.size()) return;
    report_->AddDeath(units_[next_].replay, death.empty() ? "it ended too early" : death);
    Next();
    Begin();
  }

  size_t next_;
  const size_t stride_;
  const std::vector<Unit>& units_;
  const RunnerOptions& options_;
  Report* const report_;
  Workers* const workers_;
};

void RunInLanes(const std::vector<Unit>& units, size_t processes, const RunnerOptions& options,
                Report* report) {
  Workers workers;
  std::vector<Lane> lanes;
  for (size_t i = 0; i < processes; ++i) {
    lanes.emplace_back(i, processes, units, options, report, &workers);
  }
  for (Lane& lane : lanes) lane.Begin();
  workers.Run(processes);
}

double CpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage use;
    ::getrusage(who, &use);
    for (const timeval& t : {use.ru_utime, use.ru_stime}) {
      seconds += double(t.tv_sec) + double(t.tv_usec) / 1e6;
    }
  }
  return seconds;
}

}  // namespace

int RunMany(const RunnerOptions& options) {
  const std::vector<Unit> units = UnitsOf(options);
  const auto begin = std::chrono::steady_clock::now();
  Report report(!options.as_json);
  if (options.trace) {
    for (const Unit& unit : units) report.Add(RunUnit(unit, true), unit.replay);
  } else {
    const size_t jobs =
        options.jobs > 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
    RunInLanes(units, jobs, options, &report);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (options.as_json) {
    fmt::print("{}\n", report.Json(took.count(), CpuSeconds()).dump(2));
  } else {
    report.Print(took.count(), CpuSeconds());
  }
  return report.failures() == 0 && report.Shortfalls().empty() ? 0 : 1;
}

}  // namespace tierkeep::sim
