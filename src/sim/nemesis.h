// The schedule's faults: which kinds, how often, when.
// Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct NemesisParts {
  World* world;
  std::vector<std::unique_ptr<SimHost>>* hosts;
  SimNetwork* network;
  SimRendezvous* rendezvous;
  DataRates* data_rates;
  FileRates* file_rates;
  SimJob* job;
};

class Nemesis {
 public:
  explicit Nemesis(NemesisParts parts) : parts_(parts) {}

  // Chooses kinds and rates, and begins.
  void Begin();
  // No faults from now on; what was put in is mended.
  void End();
  bool active() const { return active_; }
  std::string Describe() const;

  // ---- single faults, for scenarios too
  void CrashAgent(size_t host);  // soon, between two file operations
  void LoseMachine(size_t host, bool replaced);

 private:
  struct Kind {
    const char* name;
    void (Nemesis::*act)();
    Duration every{};  // 0: not in this run
  };
  void Plan(size_t kind);
  size_t AnyHost() { return parts_.world->prng().Below(parts_.hosts->size()); }
  SimHost& host(size_t i) { return *(*parts_.hosts)[i]; }

  void Crash();
  void CrashSeveral();
  void RestartJob();

  const NemesisParts parts_;
  std::vector<Kind> kinds_;
  bool active_ = false;
};

}  // namespace tierkeep::sim
