// The schedule's faults: which kinds, how often, when.
//
// Losses of copies stay within what a commit promises to survive (ledger.h), but now and then, in
// some runs, the schedule takes everything: then the job must still start again, from something
// older or from nothing, all nodes alike. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/ledger.h"
#include "sim/operator.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

// The first of a thousand steps of another job's leftovers; no schedule's job comes as far.
inline constexpr int kForeignStep = 900'000;

struct NemesisParts {
  World* world;
  std::vector<std::unique_ptr<SimHost>>* hosts;
  SimNetwork* network;
  SimRendezvous* rendezvous;
  DataRates* data_rates;
  FileRates* file_rates;
  SimJob* job;
  Ledger* ledger;
  SimOperator* people;
  uint64_t mount_bytes;
  uint64_t seed;
  bool ranks_move;  // else every rank stays on its host
};

class Nemesis {
 public:
  explicit Nemesis(NemesisParts parts) : parts_(parts) {}

  // Chooses kinds and rates, and begins.
  void Begin();
  // No faults from now on; what was put in is mended.
  void End();
  std::string Describe() const;

  // ---- single faults, for scenarios too
  void CrashAgent(size_t host);  // soon, between two file operations
  void LoseMachine(size_t host, bool replaced);
  // The mount is exchanged for an empty one, under the agent; its job's process doesn't outlive it.
  void VanishVolume(size_t host);
  // One that the newest commit outlives. False: there is none.
  bool LoseOne();
  // One job process writes into what it was restored from. False: none can.
  bool ChangeOne();
  // One file of one shard there. False: there is none, or it would be one too many.
  bool DamageShard(size_t host);

 private:
  struct Kind {
    const char* name;
    void (Nemesis::*act)();
    Duration every{};  // 0: not in this run
  };
  void ChooseKinds();
  void ChooseRates();
  void Plan(size_t kind);
  // Undone after a while.
  void For(Duration min, Duration max, std::function<void()> undo);
  size_t AnyHost() { return parts_.world->prng().Below(parts_.hosts->size()); }
  SimHost& host(size_t i) { return *(*parts_.hosts)[i]; }
  size_t hosts() const { return parts_.hosts->size(); }

  void Crash();
  void CrashSeveral();
  void RestartJob();
  void KillProcess();
  void MoveRanks();
  void SwapHost();
  void ChangeWorld();
  void LoseRam();
  void ReplaceMachine();
  void LoseMuch();
  void VanishOne();
  void BreakConnection();
  void Partition();
  void PartitionOneWay();
  void RendezvousAway();
  void Damage();
  void ChangeRestored();
  bool ChangeAt(size_t host);
  void OrderSkip();
  void LeaveForeignThings();
  void FillMount();
  void JumpWall();
  void SleepHost();
  void SlowHost();
  void FileErrors();

  const NemesisParts parts_;
  std::vector<Kind> kinds_;
  bool active_ = false;
  bool file_errors_ = false;
};

}  // namespace tierkeep::sim
