// Who talks to whom: carries the node machine's messages to its coordinator, hosts the machines of
// jobs that this agent coordinates, and keeps connections apart from decisions.
//
// Threads: the loop's only, except where said. Network callbacks are posted to the loop.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/metrics.h"
#include "agent/runtime.h"
#include "agent/steps.h"
#include "base/log.h"
#include "base/log_sinks.h"
#include "core/coordinator.h"
#include "core/events.h"
#include "io/clock.h"
#include "io/frame_network.h"
#include "io/rendezvous.h"

namespace tierkeep {

class ControlPlane : private FrameHandler {
 public:
  struct Options {
    std::string node_name;
    std::string advertise_host;
    Id128 boot;
    FrameNetworkOptions network;
    bool fixed_address = false;  // no record leads here: nodes of any job may come
    RestorePolicy restore;
    uint32_t whole_view_max = kWholeViewMax;  // CoordinatorOptions::whole_view_max
    CoreTimings timings;
    Steps* steps = nullptr;  // of the coordinators; may be none
  };
  // Receives the node machine's events of the control side (loop thread).
  using NodeSink = std::function<void(NodeEvent::Any)>;
  // Makes the logger of a coordinator (its lines say `job=J coord`).
  using LoggerFactory = std::function<Logger(const std::string& job)>;

  ControlPlane(Options options, Runtime* runtime, Clock* clock, RandomSource* random,
               Metrics* metrics, Logger logger, LoggerFactory coordinator_logger);
  ~ControlPlane() override;

  // Listens. `rendezvous` is asked on a thread of its own; both must outlive this.
  Status Start(Rendezvous* rendezvous, NodeSink sink);
  uint16_t port() const { return network_->port(); }  // any thread, after Start

  // Actions of the node machine.
  void Locate(const std::string& job);
  void BecomeCoordinator(const NodeAction::BecomeCoordinator& action);
  void Connect(const HostPort& to, bool local);
  void Disconnect();
  void Send(control::Envelope message);

  std::optional<control::JobStatus> CoordinatorStatus(const std::string& job) const;
  // Empty unless this agent coordinates the job.
  std::vector<RankProgress> Progress(const std::string& job) const;
  // Seconds by which other agents' wall clocks are ahead of ours, by node: of those whose messages
  // came over the network. As true as a message is quick.
  const std::map<std::string, double>& clock_skews() const { return clock_skews_; }
  // Malformed ones, and connections that never got to a whole one. Any thread.
  uint64_t rejected_frames() const;
  // What was of another job, run or epoch for the coordinators here, or for none of them.
  uint64_t dropped_messages() const;

 private:
  struct Host {
    uint64_t owner = 0;    // of its timers
    std::string settings;  // serialized, to tell a job's next shape from this one
    std::unique_ptr<CoordinatorMachine> machine;
    Logger logger;
    Instant registering_since{};
  };

  // FrameHandler, on the network's thread: posts to the loop.
  void OnAccepted(ConnectionId connection, const HostPort& peer) override;
  void OnConnected(ConnectionId connection) override;
  void OnFrame(ConnectionId connection, std::string frame) override;
  void OnClosed(ConnectionId connection, const Error& why) override;

  Result<std::string> Encode(control::Envelope message) const;
  void NoteClock(const control::Envelope& message);
  void HandleFrame(ConnectionId connection, const std::string& frame);
  void HandleClosed(ConnectionId connection, const Error& why);
  void ToCoordinator(const std::string& job, const CoordinatorEvent::Any& event);
  void Run(const std::string& job, CoordinatorActions actions);
  void ReadRendezvous(const std::string& job);
  void WriteRendezvous(const std::string& job, const CoordinatorAction::WriteRendezvous& write);
  void SendTo(const std::string& job, ConnectionId to, control::Envelope message);
  void Remove(const std::string& job, const std::string& reason);

  const Options options_;
  Runtime* runtime_;
  Loop* loop_;
  Clock* clock_;
  RandomSource* random_;
  Metrics* metrics_;
  Logger logger_;
  LoggerFactory coordinator_logger_;
  Rendezvous* rendezvous_ = nullptr;
  NodeSink sink_;
  uint64_t next_owner_ = 1;
  std::map<std::string, Host> hosts_;             // by job
  std::map<ConnectionId, std::string> accepted_;  // → the job it speaks of, empty before a frame
  std::optional<ConnectionId> coordinator_;       // the node's connection
  bool connected_ = false;
  std::string own_job_;    // the job that the node last became coordinator of
  uint64_t link_ = 0;      // counts the node's connections: news of an ended one is dropped
  std::string local_job_;  // set while the node speaks to a machine in this process
  std::map<std::string, double> clock_skews_;
  std::unique_ptr<WorkQueue> slow_;  // rendezvous calls
  std::atomic<uint64_t> malformed_{0};
  Instant spoke_of_malformed_ = Instant::min();
  uint64_t strangers_messages_ = 0;  // for jobs that no machine here coordinates
  uint64_t dropped_by_former_ = 0;   // by coordinators that are gone
  std::unique_ptr<FrameNetwork> network_;
};

}  // namespace tierkeep
