// Schedules by name: those that once showed a fault of the product, kept so that it can't come
// back, and situations that chance seldom makes. `tierkeep-sim --scenario NAME`, `--list`.
#pragma once

#include <string_view>
#include <vector>

#include "sim/simulation.h"

namespace tierkeep::sim {

struct Scenario {
  std::string_view name;
  std::string_view about;  // one line: what must hold
  // Either a seed of the usual kind of schedule, or steps by hand between Start and Finish.
  uint64_t seed = 0;
  uint32_t nodes = 0;
  void (*run)(Simulation&) = nullptr;
  JobShape shape{};  // with `run`, and the rest
  size_t spares = 0;
  bool people_decide = false;  // whether a newer generation whose nodes are away is given up
};

const std::vector<Scenario>& Scenarios();
// Those of start_scenarios.cc, guard_scenarios.cc and volume_scenarios.cc, which are among them.
std::vector<Scenario> StartScenarios();
std::vector<Scenario> GuardScenarios();
std::vector<Scenario> VolumeScenarios();
// nullptr: no such scenario.
const Scenario* FindScenario(std::string_view name);
SimulationResult RunScenario(const Scenario& scenario, bool trace, bool print);

}  // namespace tierkeep::sim
