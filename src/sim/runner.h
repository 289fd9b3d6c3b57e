// Many schedules over several processes, one report.
#pragma once

#include <cstdint>
#include <string>

namespace tierkeep::sim {

struct RunnerOptions {
  uint64_t seed = 1;
  uint64_t runs = 1;
  uint32_t nodes = 0;
  uint32_t jobs = 0;          // processes; 0: one a processor
  uint32_t failures_max = 0;  // ends after so many failed schedules; 0: never
  bool trace = false;         // print every event as it happens
  std::string scenario;       // instead of seeds; "all"
  bool as_json = false;
};

// The exit status: 0 all promises were kept and the stated minimums reached, else 1.
int RunMany(const RunnerOptions& options);

}  // namespace tierkeep::sim
