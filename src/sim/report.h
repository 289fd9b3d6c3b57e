// What many schedules came to.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/simulation.h"

namespace tierkeep::sim {

// Crosses from the processes that run schedules to the one that reports.
nlohmann::json ToJson(const SimulationResult& result);

class Report {
 public:
  // `tell`: prints what failed when it is added.
  explicit Report(bool tell) : tell_(tell) {}
  // `replay`: the command that runs this schedule again.
  void Add(const nlohmann::json& result, const std::string& replay);
  // A process died in the middle of a schedule.
  void AddDeath(const std::string& replay, const std::string& how);
  // Below the stated minimums; empty if not, or if there are too few schedules to say.
  std::vector<std::string> Shortfalls() const;
  uint64_t failures() const { return failures_; }
  uint64_t schedules() const { return schedules_; }
  void Print(double seconds, double cpu_seconds) const;
  nlohmann::json Json(double seconds, double cpu_seconds) const;

 private:
  void NoteFailed(nlohmann::json failed);
  double Average(double total) const { return schedules_ == 0 ? 0 : total / double(schedules_); }
  uint64_t Crashes() const;

  const bool tell_;
  uint64_t schedules_ = 0, failures_ = 0, events_ = 0, faults_ = 0, run_twice_ = 0;
  uint64_t hashes_ = 0;  // of all traces, summed: the same schedules give the same
  double simulated_seconds_ = 0;
  std::map<std::string, uint64_t> counts_, faults_by_kind_;
  nlohmann::json failed_ = nlohmann::json::array();
};

}  // namespace tierkeep::sim
