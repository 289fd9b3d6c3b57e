#include "sim/scenarios.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

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

// The agent of rank 0 coordinates; after a pause all members seemed silent to it, its own node too,
// which never heard of it.
void CoordinatorSleeps(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.host(0).Sleep(60s);
  sim.RunUntilCommitted(3, kLimit);
}

// A copy whose manifest rots is outdated by the next commit. Left behind, it stopped every later
// restore: by then nobody knew any more that it was old.
void UnreadableOldCopy(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  for (const std::string& path : sim.host(1).mount().Files("store/shards")) {
    if (!path.ends_with("/manifest")) continue;
    if (sim.host(1).mount().FlipByte(path, 10, 1).ok()) sim.world().Fault("damage at rest");
  }
  sim.host(1).KillAgent();
  if (!sim.RunFor(20s)) return;
  sim.job().set_saving(true);
  if (!sim.RunUntilCommitted(2, kLimit)) return;
  sim.RestartUntilCommitted(kLimit);
}

// Rots the manifests on host 1 of shards that aren't in `before`. Returns how many.
size_t RotManifests(Simulation& sim, const std::vector<std::string>& before) {
  size_t rotten = 0;
  for (const std::string& path : sim.host(1).mount().Files("store/shards")) {
    const bool old = std::find(before.begin(), before.end(), path) != before.end();
    if (old || !path.ends_with("/manifest")) continue;
    if (sim.host(1).mount().FlipByte(path, 10, 1).ok()) ++rotten;
  }
  if (rotten > 0) sim.world().Fault("damage at rest");
  return rotten;
}

// Nobody pulls, so that the only copy of a save that no record names is its owner's, and that one
// rots. Nothing tells any more what it was: the job must go on from what was committed, and be rid
// of it in the end. It stopped every later decision.
void OnlyCopyRots(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(20s)) return;
  const std::vector<std::string> before = sim.host(1).mount().Files("store/shards");
  for (size_t i = 0; i < sim.hosts(); ++i) sim.network().Cut(i, i == 0 ? 1 : 0);
  sim.world().Fault("partition");
  sim.ledger().BeginDisturbance();
  sim.job().SaveNow(/*new_step=*/true);
  if (!sim.RunFor(20s)) return;
  sim.host(1).KillAgent();
  if (RotManifests(sim, before) != 1) return sim.world().Fail("there is no such copy");
  sim.network().MendAll();
  sim.ledger().EndDisturbance();
  sim.job().set_saving(true);
  if (!sim.RestartUntilCommitted(kLimit)) return;
  sim.job().set_saving(false);
  if (sim.RunFor(60s)) sim.ledger().CheckAllInPlace();
}

// The agent dies in the middle of collecting, and a copy that it was to delete has rotted. With the
// old record gone before it, nobody knew that it was old.
void DiesWhileCollecting(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  SimFs& mount = sim.host(1).mount();
  const std::vector<std::string> records = mount.Files("store/generations");
  std::string rotten;
  for (const std::string& path : mount.Files("store/shards")) {
    if (rotten.empty() && path.ends_with("/manifest")) rotten = path;
  }
  if (!mount.FlipByte(rotten, 10, 1).ok()) return sim.world().Fail("the copy can't be damaged");
  sim.world().Fault("damage at rest");
  sim.world().RunUntil(sim.world().now() + kLimit, [&] {
    const std::vector<std::string> now = mount.Files("store/generations");
    return std::any_of(now.begin(), now.end(), [&](const std::string& path) {
      return path.find("/.") == std::string::npos &&
             std::find(records.begin(), records.end(), path) == records.end();
    });
  });
  if (!mount.Content(rotten).ok()) return sim.world().Fail("the copy has been deleted already");
  sim.host(1).KillAgent();
  sim.RestartUntilCommitted(kLimit);
}

// With no room for replicator.failed the client must still see its yaml go, and the next one, too.
void FailedOnFullMount(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  SimFs& mount = sim.host(0).mount();
  sim.job().StartLater(1ms);
  // From when the volume is clean, so that nothing of the restore fits.
  sim.world().RunUntil(sim.world().now() + kLimit, [&] {
    return sim.host(0).node() != nullptr && sim.host(0).node()->status().phase == "joining";
  });
  mount.set_bytes_max(mount.use().bytes);
  sim.world().Fault("mount full");
  sim.ledger().BeginDisturbance();
  if (!sim.RunFor(60s)) return;
  mount.set_bytes_max(uint64_t{1} << 30);
  sim.ledger().EndDisturbance();
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  // What it was refused for isn't told to the start that came through.
  sim.host(0).KillAgent();
  sim.RunUntilCommitted(sim.job().saves_written() + 2, kLimit);
}

// A directory that Orbax was making in place when its job died looks like a save, but isn't one.
void HalfMadeSave(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(30s)) return;
  for (size_t i = 0; i < sim.hosts(); ++i) {
    Dir& mount = sim.host(i).outside();
    const bool made = mount.MakeDir("client/999999", 0755).ok() &&
                      mount.CreateFile("client/999999/array", 0644).ok();
    if (!made) return sim.world().Fail("the directory can't be made");
  }
  sim.job().set_saving(true);
  sim.RestartUntilCommitted(kLimit);
}

// The coordinator is heard no more by one member, whose word still arrives: it commits saves of
// which that member knows only that it told of them. What it saves later must not push them out.
void CommitUnheard(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.network().Cut(0, 1);
  sim.world().Fault("one-way partition");
  sim.ledger().BeginDisturbance();
  if (!sim.RunFor(300s)) return;
  sim.network().MendAll();
  sim.ledger().EndDisturbance();
  if (!sim.RunUntilCommitted(2, kLimit)) return;
  sim.RestartUntilCommitted(kLimit);
}

// Rank 0 has moved, and before copies are made in the new run both of its nodes lose their RAM. One
// that only the run before knew has all that is needed.
void LastCopyOnAnOldNode(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  sim.job().SetPlacement({2, 1, 0});
  sim.job().StartLater(1ms);
  const auto released = [&] {
    return sim.host(2).node() != nullptr && sim.host(2).node()->status().phase == "running";
  };
  sim.world().RunUntil(sim.world().now() + kLimit, released);
  SimFs& mount = sim.host(2).mount();
  mount.set_bytes_max(mount.use().bytes + sim.job().shape().file_bytes / 2);
  sim.world().Fault("mount full");
  if (!sim.RunFor(5s)) return;
  sim.nemesis().LoseMachine(1, false);
  sim.nemesis().LoseMachine(2, true);
  mount.set_bytes_max(uint64_t{1} << 30);
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// A start that was given up left its yamls with two nodes, which want all ranks, as the next
// start's nodes do.
void TwoWholeSets(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.ledger().GiveUpFloor();
  for (const size_t host : {0, 1}) sim.nemesis().LoseMachine(host, true);
  sim.job().SetPlacement({2, 3, 0, 1, 4, 5});
  sim.job().StartLater(1ms);
  if (!sim.RunFor(15s)) return;
  sim.job().SetPlacement({4, 5, 0, 1, 2, 3});
  sim.job().StartLater(1ms);
  sim.RunUntilCommitted(1, kLimit);
}

// The only copy is with an agent that still listens to a coordinator whose machine is gone.
void HolderListensToTheDead(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.nemesis().LoseMachine(0, true);
  sim.job().SetPlacement({2, 3, 0, 1});
  sim.RunUntilCommitted(1, kLimit);
}

// A member's word no longer arrives, and it notices late. What it saves meanwhile may be committed
// as far as it knows, but must not fill its mount.
void MuteLink(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  const uint64_t checkpoint = Ledger::CheckpointBytes(sim.job().shape());
  const uint64_t before = sim.host(1).mount().use().bytes;
  sim.network().Cut(1, 0);
  sim.network().Cut(0, 1);
  sim.world().Fault("partition");
  for (int i = 0; i < 20; ++i) {
    sim.job().SaveNow(/*new_step=*/true);
    if (!sim.RunFor(1500ms)) return;
  }
  const uint64_t more = sim.host(1).mount().use().bytes - before;
  if (more > 7 * checkpoint) {
    return sim.world().Fail(fmt::format("undecided saves take {}", FormatBytes(more)));
  }
  sim.network().MendAll();
  sim.RunUntilCommitted(sim.job().saves_written() + 1, kLimit);
}

// A job that dies in the middle of a save has filled its mount to the last page: the next one
// can't write its replicator.yaml until the agent makes room.
void FullAtStart(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().Stop();
  SimFs& mount = sim.host(0).mount();
  auto file = sim.host(0).outside().CreateFile("client/unfinished", 0644);
  const std::string bytes(200'000, 'x');
  if (!file.ok() || !(*file)->WriteAll(0, AsBytes(bytes)).ok()) {
    return sim.world().Fail("the file can't be made");
  }
  mount.set_bytes_max(mount.use().bytes);
  sim.world().Fault("mount full");
  sim.ledger().BeginDisturbance();
  sim.job().StartLater(1ms);
  sim.RunUntilCommitted(1, kLimit);
}

// The agent dies with the job, finds the yaml of the next start, and can't find the coordinator
// of the run before at the same moment.
void LateAnswerAtStart(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.rendezvous().set_away(true);
  sim.world().Fault("rendezvous away");
  sim.host(0).KillAgent();
  sim.job().StartLater(1ms);
  if (!sim.RunFor(30s)) return;
  sim.rendezvous().set_away(false);
  sim.RunUntilCommitted(2, kLimit);
}

std::vector<Scenario> WithOthers(std::vector<Scenario> scenarios) {
  for (const auto& others : {StartScenarios(), GuardScenarios(), VolumeScenarios()}) {
    scenarios.insert(scenarios.end(), others.begin(), others.end());
  }
  return scenarios;
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> scenarios = WithOthers({
      {.name = "lose-one-machine",
       .about = "a replaced machine gets its shards back from its peer",
       .run = LoseOneMachine,
       .shape = {.nodes = 4}},
      {.name = "coordinator-sleeps",
       .about = "commits go on after the coordinator's host was suspended",
       .run = CoordinatorSleeps,
       .shape = {.nodes = 3}},
      {.name = "unreadable-old-copy",
       .about = "a copy that can't be read goes with the commit that outdates it",
       .run = UnreadableOldCopy,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 3}},
      {.name = "only-copy-rots",
       .about = "a damaged copy that nobody knows anything of is lost, and stops nothing",
       .run = OnlyCopyRots,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2}},
      {.name = "dies-while-collecting",
       .about = "what can't be read is known to be old until all that is old is gone",
       .run = DiesWhileCollecting,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 3}},
      {.name = "failed-on-full-mount",
       .about = "a start that fails on a full mount still ends, and the next one comes through",
       .run = FailedOnFullMount,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2}},
      {.name = "half-made-save",
       .about = "what a dead job was still making in place is never restored",
       .run = HalfMadeSave,
       .shape = {.nodes = 2}},
      {.name = "holder-listens-to-the-dead",
       .about = "a restore waits for the last copy's holder to notice that its coordinator is gone",
       .run = HolderListensToTheDead,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2, .replicas = 2},
       .spares = 2},
      {.name = "last-copy-on-an-old-node",
       .about = "a decision waits for a node of an earlier run that may have the last copy",
       .run = LastCopyOnAnOldNode,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2, .file_bytes = 512 * 1024},
       .spares = 1},
      {.name = "two-whole-sets",
       .about = "of two sets of nodes that want all ranks the younger one's run goes on",
       .run = TwoWholeSets,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2},
       .spares = 4},
      {.name = "commit-unheard",
       .about = "a commit that a node hasn't heard of outlives that node's newer saves",
       .run = CommitUnheard,
       .shape = {.nodes = 3, .replicas = 3}},
      {.name = "mute-link",
       .about = "saves that no coordinator decides about don't fill the mount",
       .run = MuteLink,
       .shape = {.nodes = 2, .replicas = 2}},
      {.name = "full-at-start",
       .about = "a job starts on a mount that its predecessor has filled to the last page",
       .run = FullAtStart,
       .shape = {.nodes = 1, .peers = 0, .peer_ranks = true}},
      {.name = "late-answer-at-start",
       .about = "an answer for the run before doesn't keep a start's saves from being taken",
       .run = LateAnswerAtStart,
       .shape = {.nodes = 2}},
      {.name = "restart-all-agents",
       .about = "agents that all die at once go on with the run without a new yaml",
       .run = RestartAllAgents,
       .shape = {.framework = Framework::kPytorch, .nodes = 3, .workers = 2}},
  });
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
  sim.SetShape(scenario.shape, scenario.spares);
  sim.set_people_decide(scenario.people_decide);
  sim.Start();
  scenario.run(sim);
  return sim.Finish();
}

}  // namespace tierkeep::sim
