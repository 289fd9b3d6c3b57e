// One machine: a RAM mount, a disk for the agent's state, clocks, and an agent that is the
// product's own code from the stores up (agent/node_host.h, agent/control_plane.h, tiers/ram), life
// after life.
//
// An agent's life ends between any two of its file operations: from then on nothing that it does
// has an effect, and what it was in the middle of is undone by nobody.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/control_plane.h"
#include "agent/metrics.h"
#include "agent/node_host.h"
#include "sim/sim_fs.h"
#include "sim/sim_network.h"
#include "sim/sim_pulls.h"
#include "sim/sim_rendezvous.h"
#include "sim/sim_runtime.h"

namespace tierkeep::sim {

// Injected errors of an agent's file operations, per million.
struct FileRates {
  uint32_t read_errors = 0;   // EIO
  uint32_t write_errors = 0;  // EIO, ENOSPC
};

struct HostParts {
  World* world;
  SimNetwork* network;
  SimRendezvous* rendezvous;
  const DataRates* data_rates;
  const FileRates* file_rates;
  bool immutable_flags;    // of the mounts
  size_t watch_queue_max;  // SimFsOptions::watch_queue_max of the mounts
  RestorePolicy restore;
  uint32_t whole_view_max;  // CoordinatorOptions::whole_view_max
  // Another host's data port.
  std::function<DataServerView(const HostPort&)> server_at;
  // A rename that an agent is about to make.
  std::function<void(size_t host, const FsOp& op)> on_move;
  // A life begins with what it found in its store.
  std::function<void(size_t host, Store& store)> on_opened;
  // Every line that an agent logs.
  std::function<void(size_t host, Severity severity, std::string_view text)> on_log;
};

class SimHost {
 public:
  SimHost(size_t index, const HostParts& parts, uint64_t mount_bytes_max);
  ~SimHost();

  size_t index() const { return index_; }
  SimFs& mount() { return *mount_; }
  SimClock& clock() { return clock_; }
  HostSpeed& speed() { return speed_; }

  bool up() const { return life_ != nullptr && life_->process->alive(); }
  // A process manager's duty; an agent that can't start is started again later.
  void StartAgent();
  void KillAgent();  // at once
  // Kills it in the middle of what it does: before its next-but-`operations` file operation.
  void KillAgentAfter(uint64_t operations) { kill_after_ = operations; }
  // Asked before each file operation of whatever agent lives here: a scenario's chance to write in
  // between, or to end that life just there. Empty: nothing.
  using Between = std::function<void(const FsOp& op)>;
  void set_between(Between between) { between_ = std::move(between); }
  // What any one of them fails with (an errno; 0: it doesn't). Empty: chance decides alone.
  using Failing = std::function<int(const FsOp&)>;
  void set_failing(Failing failing) { failing_ = std::move(failing); }
  // The whole machine goes down and comes up without its RAM; what was not synced to its disk may
  // be lost. `replaced`: a new machine, without state, takes its name.
  void LoseMachine(bool replaced);
  // Its mount is gone and an empty one in its place, under an agent that lives on in the old one.
  void VanishVolume();
  // An agent is there, and works in the mount that all others see.
  bool sees_mount() const { return up() && life_->mount == mounts_; }
  // Moves the clocks on; what is due fires.
  void Sleep(Duration time);

  // When it last lost its RAM.
  Instant lost_at() const { return lost_at_; }
  // Its agent can't be blamed for what wasn't done before this: it was down, stopped or slow, or
  // its files failed or its mount was full.
  Instant disturbed_at() const;
  void Disturb() { disturbed_at_ = world_->now(); }

  // An operator's, as `tierkeep restore` gives them. False: no agent is there.
  bool GiveOrder(control::RestoreOrder order);
  // What a restore decision of the job waits for or stopped at, as this agent knows.
  std::optional<control::RestoreStop> StopOf(const std::string& job) const;

  NodeHost* node() { return up() ? life_->node.get() : nullptr; }
  Store* store() { return up() ? life_->store.get() : nullptr; }
  DataServerView data_server(uint16_t port);
  uint64_t lives() const { return lives_; }
  // The mount seen from outside: looking at it is no call of an agent.
  Dir& outside() { return *outside_; }
  // Of a directory, seen so; none where it isn't there.
  std::vector<DirEntry> Entries(std::string_view path);

 private:
  struct Life {
    uint64_t mount = 0;  // the how manieth it works in
    std::shared_ptr<SimProcess> process;
    std::unique_ptr<SimRandom> random;
    std::shared_ptr<LogContext> context = std::make_shared<LogContext>();
    Metrics metrics;
    std::unique_ptr<SimRuntime> runtime;
    std::unique_ptr<Dir> state_dir;
    std::unique_ptr<Store> store;
    std::unique_ptr<Stager> stager;
    std::unique_ptr<Volume> volume;
    std::unique_ptr<SimPulls> pulls;
    std::string data_token;
    uint16_t data_port = 0;
    std::unique_ptr<ControlPlane> control;
    std::unique_ptr<NodeHost> node;
    ~Life();
  };

  Status Start(Life& life);
  void StartControlAndNode(Life& life, Status* status);
  int BeforeCall(SimProcess* process, const FsOp& op);
  int InjectedError(const FsOp& op);
  Logger LoggerOf(const std::shared_ptr<SimProcess>& process, std::string role);
  void OnVolumeLost();
  void Reap();
  void StartLater();
  void OpenOutside();

  const size_t index_;
  const HostParts& parts_;
  World* const world_;
  SimClock clock_;
  HostSpeed speed_;
  std::unique_ptr<SimFs> mount_;
  std::unique_ptr<SimFs> disk_;
  std::shared_ptr<SimProcess> outsider_ = std::make_shared<SimProcess>();
  std::unique_ptr<Dir> outside_;
  std::unique_ptr<Life> life_;
  std::optional<uint64_t> kill_after_;
  Between between_;
  Failing failing_;
  uint64_t lives_ = 0;
  uint64_t mounts_ = 0;
  Instant disturbed_at_{};
  Instant lost_at_{};
  bool reaping_ = false;
};

}  // namespace tierkeep::sim
