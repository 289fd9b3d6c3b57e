// tierkeep-sim-mutable: the simulator over the second build of the product's code, whose guards can
// be taken away (base/mutation.h).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/command_line.h"
#include "sim/mutable/suite.h"
#include "sim/runner.h"
#include "sim/scenarios.h"

int main(int argc, char** argv) {
  using namespace tierkeep::sim;
  CLI::App app{
      "Shows that the simulator notices when a guard of the product is missing, and that its "
      "schedules come by the rare paths. --replay runs schedules with one mutation instead."};
  app.footer("Exit status: 0 all as it should be, 1 not, 2 bad usage.");
  SuiteOptions suite;
  std::string scenario;
  bool list = false, probes = false, replay = false, trace = false;
  app.add_option("--seed", suite.seed, "the first schedule")->capture_default_str();
  app.add_option("--within", suite.within, "a mutation must be noticed in so many schedules")
      ->capture_default_str();
  app.add_option("--runs", suite.runs,
                 "schedules without mutation, at least --within; with --replay, with it")
      ->capture_default_str();
  app.add_option("--jobs", suite.jobs, "processes; without it one a processor");
  app.add_option("--mutation", suite.mutation, "this one alone; --list names them");
  app.add_flag("--survey", suite.survey, "tell all checkers that notice each, which takes longer");
  app.add_flag("--replay", replay, "run --runs schedules with the mutation, as tierkeep-sim does");
  app.add_option("--scenario", scenario, "with --replay: a schedule by name instead of seeds");
  app.add_flag("--trace", trace, "with --replay: print every event");
  app.add_flag("--json", suite.as_json, "print the report as JSON");
  app.add_flag("--list", list, "print the mutations");
  app.add_flag("--probes", probes, "print the probes");
  if (const auto ended = tierkeep::ParseCommandLine(app, argc, argv)) return *ended;
  if (list) PrintMutations();
  if (probes) PrintProbes();
  if (list || probes) return 0;
  if (!suite.mutation.empty() && !SelectMutation(suite.mutation)) {
    fmt::print(stderr, "tierkeep-sim-mutable: no mutation '{}'; --list names them\n",
               suite.mutation);
    return 2;
  }
  if (!replay) return RunSuite(suite);
  if (!scenario.empty() && FindScenario(scenario) == nullptr) {
    fmt::print(stderr, "tierkeep-sim-mutable: no scenario '{}'\n", scenario);
    return 2;
  }
  RunnerOptions runner;
  runner.seed = suite.seed;
  runner.runs = std::max<uint64_t>(suite.runs, 1);
  runner.scenario = scenario;
  runner.jobs = suite.jobs;
  runner.trace = trace;
  runner.as_json = suite.as_json;
  return RunMany(runner);
}
