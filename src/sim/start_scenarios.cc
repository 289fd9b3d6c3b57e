// Schedules by hand of starts and restores that have to do without something: copies, agents, time.
#include <string>
#include <vector>

#include "sim/scenarios.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLimit = 600s;

// Each node of a large job knows a part of what it was restored from. When the only copies of
// another part are lost, the job has to begin anew: that isn't an abandoned branch.
void LosesPartOfALargeJob(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  sim.job().StartLater(1ms);
  if (!sim.RunFor(30s)) return;
  sim.ledger().GiveUpFloor();
  for (const size_t host : {2, 3}) sim.nemesis().LoseMachine(host, true);
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

}  // namespace

std::vector<Scenario> StartScenarios() {
  return {
      {.name = "loses-part-of-a-large-job",
       .about = "a large job begins anew when no copy of some part of its checkpoint is left",
       .seed = 2,  // makes it a large one
       .run = LosesPartOfALargeJob,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 6}},
  };
}

}  // namespace tierkeep::sim
