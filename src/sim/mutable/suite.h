// Does the simulator notice? Takes the guards of base/mutation.h away one at a time and counts the
// schedules until one fails; shows that the same schedules pass with all guards in place, and that
// these came by every probe.
#pragma once

#include <cstdint>
#include <string>

namespace tierkeep::sim {

struct SuiteOptions {
  uint64_t seed = 1;      // the first schedule
  uint64_t within = 200;  // a mutation must be noticed in so many schedules, the named ones last
  uint64_t runs = 0;      // schedules without one, at least `within`
  uint32_t jobs = 0;      // processes; 0: one a processor
  std::string mutation;   // this one alone, and no run without
  bool survey = false;    // goes on after the first notice: all that notice each, and how often
  bool as_json = false;
};

// The exit status: 0 when every mutation was noticed, every checker noticed its own (hints.h),
// every unmutated schedule passed, and every probe was hit.
int RunSuite(const SuiteOptions& options);

// Selects by name; false: there is none of that name.
bool SelectMutation(const std::string& name);
void PrintMutations();
void PrintProbes();

}  // namespace tierkeep::sim
