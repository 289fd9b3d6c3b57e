// Schedules by hand that go the way which one guard of the product protects, where random ones
// rarely do: each is what notices that guard's mutation (base/mutation.h), or what comes by a
// probe.
#include <string>
#include <utility>
#include <vector>

#include "sim/scenarios.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLimit = 600s;
constexpr Step kHighStep = 1000;

// Nothing passes between the first `hosts` hosts and the others.
void Split(Simulation& sim, size_t hosts) {
  for (size_t a = 0; a < hosts; ++a) {
    for (size_t b = hosts; b < sim.hosts(); ++b) {
      sim.network().Cut(a, b);
      sim.network().Cut(b, a);
    }
  }
  sim.world().Fault("partition");
}

// The job starts again on these hosts, ranks in this order.
bool StartOn(Simulation& sim, std::vector<size_t> hosts) {
  sim.job().SetPlacement(std::move(hosts));
  sim.world().Fault("host swapped");
  sim.job().StartLater(1ms);
  return sim.RunFor(1s);
}

// A commit of the attempt that has begun.
void DemandNoOtherStart(Simulation& sim) {
  const uint32_t attempt = sim.job().attempt();
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  if (sim.job().attempt() != attempt) sim.world().Fail("the job had to start once more");
}

// Hosts 0 and 1 hold a generation of a high step. Cut off from them, hosts 2 and 3 begin anew and
// commit a newer one of a lower step.
bool CommitElsewhere(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return false;
  sim.job().TrainTo(kHighStep);
  if (!sim.RunUntilCommitted(2, kLimit)) return false;
  Split(sim, 2);
  sim.ledger().BeginDisturbance();
  if (!StartOn(sim, {2, 3, 0, 1}) || !sim.RunUntilCommitted(1, kLimit)) return false;
  if (!sim.RestartUntilCommitted(kLimit)) return false;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return false;
  sim.ledger().EndDisturbance();
  return sim.RunFor(1s);
}

// Back where the older generation is whole: the newer one, which only the rendezvous knows of, is
// waited for as long as nobody gives it up, and taken though its step is lower.
void NewerGenerationIsAway(Simulation& sim) {
  if (!CommitElsewhere(sim)) return;
  sim.people().Rest();
  if (!StartOn(sim, {0, 1, 2, 3}) || !sim.RunFor(100s)) return;
  sim.network().MendAll();
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// The same, and the coordinator's host stands still while it waits: nobody could come meanwhile, so
// that this time isn't theirs.
void WaitsWhileSuspended(Simulation& sim) {
  if (!CommitElsewhere(sim)) return;
  if (!StartOn(sim, {0, 1, 2, 3}) || !sim.RunFor(20s)) return;
  sim.host(0).Sleep(120s);
  if (!sim.RunFor(1s)) return;
  sim.network().MendAll();
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// Of the newer generation no good copy is left: the older one, on hosts of an earlier run, serves.
void OlderGenerationElsewhere(Simulation& sim) {
  if (!CommitElsewhere(sim)) return;
  sim.job().Stop();
  sim.network().MendAll();
  for (const std::string& path : sim.host(2).mount().Files("store/shards")) {
    if (path.ends_with("/manifest") || path.ends_with("/state")) continue;
    if (sim.host(2).mount().FlipByte(path, 10, 1).ok()) sim.world().Fault("damage at rest");
  }
  sim.nemesis().LoseMachine(3, true);
  sim.ledger().GiveUpFloor();
  if (!StartOn(sim, {2, 3, 0, 1})) return;
  sim.job().set_saving(true);
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  if (sim.job().step() < kHighStep) sim.world().Fail("the older generation was not restored");
}

// All processes start again on other machines, which reach neither each other nor host 0 at first.
// Meanwhile its agent, the coordinator of the run before, is killed, comes back and goes on with
// that run, until both of the others are there.
void WholeJobElsewhere(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  for (const auto& [a, b] : {std::pair(2, 3), std::pair(0, 2), std::pair(0, 3)}) {
    sim.network().Cut(a, b);
    sim.network().Cut(b, a);
  }
  sim.world().Fault("partition");
  if (!StartOn(sim, {2, 3, 0, 1}) || !sim.RunFor(10s)) return;
  sim.host(0).KillAgent();
  if (!sim.RunFor(20s)) return;
  sim.network().MendAll();
  DemandNoOtherStart(sim);
}

// Hosts `a` and `b`, without the others.
void SplitTwo(Simulation& sim, size_t a, size_t b) {
  sim.network().Cut(a, b);
  sim.network().Cut(b, a);
  sim.world().Fault("partition");
}

// Host 1 claims its rank for a start of which rank 0 never came, and is heard when host 2 has been
// released with that rank and is late for the start after that. Were it taken instead, host 2 would
// come to a run that goes on without it.
void OlderClaimComesFirst(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  SplitTwo(sim, 0, 1);
  sim.world().Fault("job restart");
  sim.job().StartLater(1ms);
  if (!sim.RunFor(2ms)) return;
  sim.job().KillProcess(0);
  sim.job().SetPlacement({0, 2, 1});
  sim.world().Fault("host swapped");
  sim.job().StartLater(10s);
  const auto trains = [&] { return sim.job().attempt() == 3 && sim.job().training(); };
  if (!sim.world().RunUntil(sim.world().now() + kLimit, trains)) {
    return sim.world().Fail("no start");
  }
  sim.network().MendAll();
  SplitTwo(sim, 0, 2);
  sim.job().StartLater(1ms);
  if (!sim.RunFor(20s)) return;
  sim.network().MendAll();
  sim.job().set_saving(true);
  DemandNoOtherStart(sim);
}

// All agents are asked to skip the step of the last save.
bool SkipNewest(Simulation& sim) {
  if (sim.people().Skip(1, sim.job().step())) return sim.RunFor(5s);
  sim.world().Fail("the order can't be given");
  return false;
}

// The job starts again and trains, whether or not anything is committed.
bool Restart(Simulation& sim) {
  sim.world().Fault("job restart");
  sim.job().StartLater(1ms);
  if (!sim.RunFor(1s)) return false;
  const auto trains = [&] { return sim.job().training(); };
  if (!sim.world().RunUntil(sim.world().now() + kLimit, trains)) sim.world().Fail("no start");
  return !sim.world().failed();
}

// No copies can be made, so nothing is committed any more. The job goes on from a save, leaves the
// next one behind as asked, and doesn't come back to it when that order is a thing of the past.
void AbandonedBranch(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  sim.SetDataRates({.flipped = 0, .cut_off = 1'000'000});
  sim.job().SaveNow(/*new_step=*/true);
  if (!sim.RunFor(30s) || !Restart(sim)) return;
  sim.job().SaveNow(/*new_step=*/true);
  if (!sim.RunFor(30s) || !SkipNewest(sim) || !Restart(sim) || !Restart(sim)) return;
  sim.SetDataRates({});
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// A step that all agents were asked to skip isn't restored, though it is the newest.
void SkipAsAsked(Simulation& sim) {
  if (!sim.RunUntilCommitted(2, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  if (!SkipNewest(sim)) return;
  sim.job().set_saving(true);
  sim.RestartUntilCommitted(kLimit);
}

// The agent dies after its part was released, before the yaml is gone: that attempt goes on, and
// costs the job no other start.
void DiesBeforeTheYamlGoes(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  bool died = false;
  sim.host(1).set_between([&](const FsOp& op) {
    if (died || op.call != FsCall::kRename || op.Path() != "client/replicator.yaml") return;
    died = true;
    sim.world().Fault("agent crash");
    sim.host(1).KillAgent();
  });
  sim.job().StartLater(1ms);
  if (!sim.RunFor(1s)) return;
  DemandNoOtherStart(sim);
  sim.host(1).set_between({});
  if (!died) sim.world().Fail("the yaml never went");
}

// No copy can be made: of the saves that are complete everywhere only the newest stays, and it is
// protected once that is possible again.
void NoCopyCanBeMade(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.SetDataRates({.flipped = 0, .cut_off = 1'000'000});
  if (!sim.RunFor(300s)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  sim.ledger().CheckUncommitted(1);
  sim.SetDataRates({});
  sim.job().set_saving(true);
  sim.RunUntilCommitted(sim.job().saves_written() + 1, kLimit);
}

// From now on the watch tells of nothing but that it has lost something.
void WatchOverflows(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.host(1).mount().set_watch_queue_max(0);
  sim.RunUntilCommitted(sim.job().saves_written() + 2, kLimit);
}

// The job still works in the directory that it has saved, and writes while the agent hashes it.
void WrittenWhileHashed(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  std::string written;  // by the job, and not put right yet
  bool probed = false;  // for writers: what is read next is hashed
  bool done = false;
  const auto flip = [&](const std::string& path) {
    const auto file = sim.host(1).outside().OpenFileReadWrite(path);
    const auto bytes = sim.host(1).mount().Content(path);
    if (!file.ok() || !bytes.ok()) return sim.world().Fail("the job can't write");
    const std::string first(1, static_cast<char>(bytes->front() ^ 1));
    if (!(*file)->WriteAll(0, AsBytes(first)).ok()) sim.world().Fail("the job can't write");
  };
  sim.host(1).set_between([&](const FsOp& op) {
    const std::string path = op.Path();
    if (path.find("store/staged/") == std::string::npos || done) return;
    probed = probed || op.call == FsCall::kProbeWriters;
    if (op.call == FsCall::kRead && probed && written.empty()) {
      written = path;
      flip(written);
    } else if (op.call == FsCall::kList && !written.empty()) {
      done = true;
      flip(written);
    }
  });
  if (!sim.RunUntilCommitted(3, kLimit)) return;
  sim.host(1).set_between({});
  if (!done) return sim.world().Fail("no save was hashed");
  sim.RestartUntilCommitted(kLimit);
}

// The job goes on elsewhere, and the agent of a node that has lost its rank comes when all copies
// are where they belong. Without another save it must still be freed of its own.
void LateHolderIsFreed(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  sim.budget().Begin(Budget::Stretch::kMoved);
  sim.host(1).KillAgent();
  sim.world().Fault("agent crash");
  if (!StartOn(sim, {0, 2, 1})) return;
  const auto in_place = [&] { return sim.job().training() && sim.ledger().NotInPlace().empty(); };
  if (!sim.world().RunUntil(sim.world().now() + kLimit, in_place)) {
    return sim.world().Fail("the copies are not made elsewhere");
  }
  sim.budget().Begin(Budget::Stretch::kRebuilt);
  sim.RunFor(60s);
}

// A node saves when it has known for long that its coordinator is away: that save is kept, and
// committed as soon as the coordinator is back.
void SavedUntold(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  Split(sim, 1);
  sim.ledger().BeginDisturbance();
  if (!sim.RunFor(60s)) return;
  sim.job().SaveNow(/*new_step=*/true);
  if (!sim.RunFor(150s)) return;
  sim.network().MendAll();
  sim.ledger().EndDisturbance();
  sim.RunUntilCommitted(sim.job().saves_written(), kLimit);
}

// An agent comes back, loses its connection and dials again. Its coordinator reads the older
// connection's join when it has heard the newer one's.
void ReadBehindANewerOne(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.network().set_rates({.overtaken = 1'000'000});
  sim.host(1).KillAgent();
  sim.world().Fault("agent crash");
  sim.world().RunUntil(sim.world().now() + kLimit,
                       [&] { return sim.world().HadFault("connection overtaken"); });
  sim.network().set_rates({});
  if (!sim.RunUntilCommitted(sim.job().saves_written() + 2, kLimit)) return;
  if (sim.world().count("frames of overtaken connections") == 0) {
    sim.world().Fail("no older connection was read");
  }
}

}  // namespace

std::vector<Scenario> GuardScenarios() {
  return {
      {.name = "newer-generation-is-away",
       .about =
           "a newer generation on nodes of another run is waited for, though its step is lower",
       .run = NewerGenerationIsAway,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 2,
       .people_decide = true},
      {.name = "waits-while-suspended",
       .about =
           "a suspended coordinator doesn't take its own standing still for the others' silence",
       .run = WaitsWhileSuspended,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 2},
      {.name = "older-generation-elsewhere",
       .about = "where no good copy of the newest generation is left an older one serves",
       .run = OlderGenerationElsewhere,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 2},
      {.name = "whole-job-elsewhere",
       .about = "a job that starts on other machines takes its run away from those that it had",
       .run = WholeJobElsewhere,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 2},
      {.name = "older-claim-comes-first",
       .about = "a node of an older start doesn't get the rank of one that was released since",
       .run = OlderClaimComesFirst,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 1},
      {.name = "skip-as-asked",
       .about = "a step that everybody was asked to skip isn't restored",
       .run = SkipAsAsked,
       .shape = {.nodes = 3}},
      {.name = "abandoned-branch",
       .about = "a save that was left behind by a restore doesn't win later",
       .run = AbandonedBranch,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 3}},
      {.name = "dies-before-the-yaml-goes",
       .about = "an agent that dies between the release and its yaml's removal costs no start",
       .run = DiesBeforeTheYamlGoes,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2}},
      {.name = "no-copy-can-be-made",
       .about = "saves that can't be protected don't pile up",
       .run = NoCopyCanBeMade,
       .shape = {.nodes = 2}},
      {.name = "watch-overflows",
       .about = "a save is found where the watch has lost that it came",
       .run = WatchOverflows,
       .shape = {.nodes = 2}},
      {.name = "late-holder-is-freed",
       .about = "a node without a rank keeps nothing once all copies are elsewhere",
       .run = LateHolderIsFreed,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 1},
      {.name = "read-behind-a-newer-one",
       .about = "what an older connection brings behind a newer one's join has no effect",
       .run = ReadBehindANewerOne,
       .shape = {.nodes = 2}},
      {.name = "saved-untold",
       .about = "a save that no coordinator could be told of is kept until one can",
       .run = SavedUntold,
       .shape = {.nodes = 2}},
      {.name = "written-while-hashed",
       .about = "a save that changed while it was hashed is hashed again",
       .run = WrittenWhileHashed,
       .shape = {.nodes = 2}},
  };
}

}  // namespace tierkeep::sim
