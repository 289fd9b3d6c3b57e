// tierkeep-sim: the product's code in simulated clusters, one seed a schedule.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/command_line.h"
#include "sim/runner.h"
#include "sim/scenarios.h"

int main(int argc, char** argv) {
  using namespace tierkeep::sim;
  CLI::App app{
      "Runs Tierkeep's own code in simulated clusters under random faults, and checks what it "
      "promises. A seed is a schedule: the same seed does the same, to the last event."};
  app.footer("Exit status: 0 all promises were kept, 1 one was not, 2 bad usage.");
  RunnerOptions options;
  bool list = false;
  app.add_option("--seed", options.seed, "the first schedule")->capture_default_str();
  app.add_option("--runs", options.runs, "how many schedules, from --seed on")
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "nodes of the job; without it the seed decides")
      ->check(CLI::Range(2, 64));
  app.add_option("--jobs", options.jobs, "processes; without it one a processor");
  app.add_option("--failures", options.failures_max,
                 "end after so many failed schedules; without it all are run");
  app.add_flag("--trace", options.trace, "print every event as it happens");
  app.add_option("--scenario", options.scenario, "a schedule by name instead, or 'all'");
  app.add_flag("--json", options.as_json, "print the report as JSON");
  app.add_flag("--list", list, "print the scenarios");
  if (const auto ended = tierkeep::ParseCommandLine(app, argc, argv)) return *ended;
  if (list) {
    for (const Scenario& s : Scenarios()) fmt::print("{:<32} {}\n", s.name, s.about);
    return 0;
  }
  if (!options.scenario.empty() && options.scenario != "all" &&
      FindScenario(options.scenario) == nullptr) {
    fmt::print(stderr, "tierkeep-sim: no scenario '{}'; --list names them\n", options.scenario);
    return 2;
  }
  return RunMany(options);
}
