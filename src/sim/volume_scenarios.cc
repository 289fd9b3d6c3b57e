// Schedules by hand of RAM volumes that are exchanged under live agents.
#include <cerrno>
#include <utility>
#include <vector>

#include "format/messages.h"
#include "sim/scenarios.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLimit = 600s;

// Until the agent that lives there has ended, and no longer than it may take to notice.
bool EndsWithoutItsVolume(Simulation& sim, size_t host) {
  constexpr Duration kSlack = 100ms;
  const uint64_t life = sim.host(host).lives();
  const Instant limit = sim.world().now() + NodeHost::kLookEvery + kSlack;
  const bool ended = sim.world().RunUntil(
      limit, [&] { return !sim.host(host).up() || sim.host(host).lives() != life; });
  if (!ended && !sim.world().failed()) sim.world().Fail("the agent works on without its volume");
  return ended;
}

// The agent ends, touches nothing of what is in its volume's place, and comes back as one that has
// lost its copies.
void VolumeVanishes(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.nemesis().VanishVolume(1);
  if (!EndsWithoutItsVolume(sim, 1)) return;
  if (!sim.host(1).Entries("").empty()) return sim.world().Fail("the new mount was written to");
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (sim.RunFor(60s)) sim.ledger().CheckAllInPlace();
}

// The volume vanishes while a peer's copy is received into it: the copy is whole and verified, but
// where nobody sees it. Told of it, the coordinator would commit the save.
void CopyInAVanishedVolume(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  SaveKey before = FromProto(sim.host(0).node()->machine().committed()->save());
  bool vanished = false;
  sim.host(1).set_between([&](const FsOp& op) {
    const bool is_copy = op.call == FsCall::kRename && op.path.starts_with("incoming/") &&
                         op.to.starts_with("shards/");
    if (!is_copy || std::exchange(vanished, true)) return;
    before = FromProto(sim.host(0).node()->machine().committed()->save());
    sim.nemesis().VanishVolume(1);
  });
  sim.world().RunUntil(sim.world().now() + kLimit, [&] { return vanished; });
  if (!vanished) return sim.world().Fail("no copy came");
  if (!EndsWithoutItsVolume(sim, 1)) return;
  sim.host(1).set_between({});
  if (FromProto(sim.host(0).node()->machine().committed()->save()) != before) {
    return sim.world().Fail("a save was committed on the word of a copy that is gone");
  }
  sim.RunUntilCommitted(1, kLimit);
}

// Where the look fails, nothing is known of the volume: the agents live on, and commit.
void LookFails(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  size_t failed = 0;
  for (size_t i = 0; i < sim.hosts(); ++i) {
    sim.host(i).set_failing([&](const FsOp& op) {
      if (op.call != FsCall::kCheckPath) return 0;
      if (failed++ == 0) sim.world().Fault("read error");
      return EIO;
    });
  }
  const uint64_t lives = sim.host(0).lives() + sim.host(1).lives();
  if (!sim.RunUntilCommitted(sim.job().saves_written() + 2, kLimit)) return;
  for (size_t i = 0; i < sim.hosts(); ++i) sim.host(i).set_failing({});
  if (failed == 0) return sim.world().Fail("nobody looked");
  if (sim.host(0).lives() + sim.host(1).lives() != lives) sim.world().Fail("an agent ended");
}

}  // namespace

std::vector<Scenario> VolumeScenarios() {
  return {
      {.name = "volume-vanishes",
       .about =
           "an agent whose RAM volume is exchanged under it ends, and its copies are made again",
       .run = VolumeVanishes,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2}},
      {.name = "copy-in-a-vanished-volume",
       .about = "no save is committed on the word of a copy that nobody sees",
       .run = CopyInAVanishedVolume,
       .shape = {.nodes = 2}},
      {.name = "look-at-the-volume-fails",
       .about = "an agent that can't look at its volume doesn't give it up",
       .run = LookFails,
       .shape = {.nodes = 2}},
  };
}

}  // namespace tierkeep::sim
