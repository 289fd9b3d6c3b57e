// Schedules by hand of starts and restores that have to do without something: copies, agents, time.
#include <cerrno>
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

// The agent that has the only copies dies again and again while they are pulled. It was given up
// after five tries, and the job began anew beside a committed checkpoint.
void SourceDiesAgainAndAgain(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  if (!sim.RunFor(20s)) return;
  sim.nemesis().LoseMachine(0, true);
  const auto restoring = [&] {
    return sim.host(0).node() != nullptr && sim.host(0).node()->status().phase == "restoring";
  };
  sim.world().RunUntil(sim.world().now() + kLimit, restoring);
  const Instant until = sim.world().now() + 40s;
  sim.host(1).set_between([&](const FsOp&) {
    if (sim.world().now() >= until) return;
    sim.world().Fault("agent crash");
    sim.host(1).KillAgent();
  });
  if (!sim.RunFor(50s)) return;
  sim.host(1).set_between({});
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// A node can't take a save, which all nodes give up then, and many later ones are committed. The
// next start must not find it where the job left it: with equal replicas one node's would do.
void LeavesASaveThatCanNotBeTaken(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  bool failed = false;
  sim.host(1).set_between([&](const FsOp& op) {
    if (failed || op.call != FsCall::kRename || op.to.find("staged/") == std::string::npos) return;
    // Nothing may be replaced.
    failed = sim.host(1).outside().MakeDir(op.to, 0700).ok();
    sim.world().Fault("write error");
  });
  if (!sim.RunUntilCommitted(sim.job().saves_written() + 3, kLimit)) return;
  sim.host(1).set_between({});
  if (!failed) return sim.world().Fail("no save was refused");
  sim.RestartUntilCommitted(kLimit);
}

// A start in vain left the yaml of rank 1 on a host that the next start doesn't use: of the two
// that want the rank then, the newer one gets it.
void WantsARankThatAnOlderStartWants(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  sim.host(2).set_between([&](const FsOp&) {
    sim.world().Fault("agent crash");
    sim.host(2).KillAgent();
  });
  sim.job().StartLater(1ms);
  if (!sim.RunFor(15s)) return;
  sim.world().Fault("host swapped");
  sim.job().SetPlacement({0, 3, 4});
  sim.job().StartLater(1ms);
  if (!sim.RunFor(15s)) return;
  sim.host(2).set_between({});
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

// An agent that can't list its shards when it starts knows that it doesn't know what it holds.
void StartsWithoutAListing(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  bool failed = false;
  sim.host(1).set_failing([&](const FsOp& op) {
    if (failed || op.call != FsCall::kList || op.path != "shards") return 0;
    sim.world().Fault("read error");
    failed = true;
    return EIO;
  });
  sim.host(1).KillAgent();
  sim.world().Fault("agent crash");
  if (!sim.RestartUntilCommitted(kLimit)) return;
  sim.host(1).set_failing({});
  if (!failed) sim.world().Fail("nothing was listed");
}

// An agent that can't read its records takes nothing for a save that was never committed, however
// little room there is. The job goes on from a newer save, which isn't committed for want of room.
void LittleRoomAndUnreadRecords(Simulation& sim) {
  if (!sim.RunUntilCommitted(1, kLimit)) return;
  sim.job().set_saving(false);
  for (size_t i = 0; i < sim.hosts(); ++i) sim.host(i).KillAgent();
  sim.world().Fault("agent crash");
  sim.job().SaveNow(/*new_step=*/true);
  if (!sim.RunFor(1s)) return;
  const uint64_t checkpoint = Ledger::CheckpointBytes(sim.job().shape());
  for (size_t i = 0; i < sim.hosts(); ++i) {
    SimFs& mount = sim.host(i).mount();
    mount.set_bytes_max(mount.use().bytes + checkpoint / 2);
  }
  sim.world().Fault("mount full");
  sim.ledger().BeginDisturbance();
  sim.job().StartLater(1ms);
  if (!sim.RunFor(30s)) return;
  size_t failed = 0;
  for (size_t i = 0; i < sim.hosts(); ++i) {
    sim.host(i).set_failing([&](const FsOp& op) {
      if (op.call != FsCall::kList || !op.path.starts_with("generations/")) return 0;
      sim.world().Fault("read error");
      ++failed;
      return EIO;
    });
    sim.host(i).KillAgent();
  }
  sim.world().Fault("agent crash");
  if (!sim.RunFor(30s)) return;
  if (failed < sim.hosts()) return sim.world().Fail("no record was looked for");
  for (size_t i = 0; i < sim.hosts(); ++i) {
    sim.host(i).set_failing({});
    sim.host(i).mount().set_bytes_max(uint64_t{1} << 40);
  }
  sim.job().set_saving(true);
  sim.RunUntilCommitted(1, kLimit);
}

}  // namespace

std::vector<Scenario> StartScenarios() {
  return {
      {.name = "little-room-and-unread-records",
       .about = "what a record that can't be read may have committed doesn't give way",
       .run = LittleRoomAndUnreadRecords,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2, .file_bytes = 256 << 10}},
      {.name = "starts-without-a-listing",
       .about = "what can't be listed at the start isn't taken for nothing",
       .run = StartsWithoutAListing,
       .shape = {.nodes = 2}},
      {.name = "rank-of-an-older-start",
       .about = "of two nodes that want one rank the one of the newer start gets it",
       .run = WantsARankThatAnOlderStartWants,
       .shape = {.nodes = 3},
       .spares = 2},
      {.name = "source-dies-again-and-again",
       .about = "copies aren't given up because the agent that has them isn't there just now",
       .run = SourceDiesAgainAndAgain,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 2}},
      {.name = "leaves-a-save-that-cannot-be-taken",
       .about = "a save that was given up isn't the newest at the next start",
       .run = LeavesASaveThatCanNotBeTaken,
       .shape = {.nodes = 2, .replicas = 2}},
      {.name = "loses-part-of-a-large-job",
       .about = "a large job begins anew when no copy of some part of its checkpoint is left",
       .seed = 2,  // makes it a large one
       .run = LosesPartOfALargeJob,
       .shape = {.framework = Framework::kPytorchDistributed, .nodes = 6}},
  };
}

}  // namespace tierkeep::sim
