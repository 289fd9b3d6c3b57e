#include "sim/scenarios.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLimit = 600s;

void LoseOneMachine(Simulation& sim) {
  if (!sim.RunUntilCommitted(2, kLimit)) return;
  sim.nemesis().LoseMachine(0, true);
  sim.RunUntilCommitted(1, kLimit);
}

void RestartAllAgents(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  for (size_t i = 0; i < sim.hosts(); ++i) sim.host(i).KillAgent();
  sim.RunUntilCommitted(3, kLimit);
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> scenarios = {
      {.name = "lose-one-machine",
       .about = "a replaced machine gets its shards back from its peer",
       .run = LoseOneMachine,
       .shape = {.nodes = 4}},
      {.name = "restart-all-agents",
       .about = "agents that all die at once go on with the run without a new yaml",
       .run = RestartAllAgents,
       .shape = {.framework = Framework::kPytorch, .nodes = 3, .workers = 2}},
  };
  return scenarios;
}

const Scenario* FindScenario(std::string_view name) {
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name == name) return &scenario;
  }
  return nullptr;
}

SimulationResult RunScenario(const Scenario& scenario, bool trace, bool print) {
  SimulationOptions options;
  options.seed = scenario.seed;
  options.nodes = scenario.nodes;
  options.trace = trace;
  options.print = print;
  Simulation sim(options);
  if (scenario.run == nullptr) return sim.Run();
  sim.SetShape(scenario.shape);
  sim.Start();
  scenario.run(sim);
  return sim.Finish();
}

}  // namespace tierkeep::sim
