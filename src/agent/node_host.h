// Runs the node machine: feeds it what happens on the volume, the store and the control side, and
// carries out its actions. Holds no policy.
//
// Order: ordered actions run on one thread of their own, batch after batch; the rest of a batch is
// skipped when one fails (core/events.h). Timers and cancellations act at once, on the loop.
// Threads: the loop's, except where said.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "agent/control_plane.h"
#include "agent/memory_room.h"
#include "agent/metrics.h"
#include "agent/runtime.h"
#include "agent/steps.h"
#include "base/log.h"
#include "base/log_sinks.h"
#include "core/node.h"
#include "tiers/ram/stager.h"
#include "tiers/ram/store.h"
#include "tiers/ram/volume.h"

namespace tierkeep {

// Durations of the last restore as this node saw them, for status and the demo's table.
struct RestoreTimes {
  std::optional<Instant> yaml_seen;
  std::optional<Duration> to_decision;  // yaml → the coordinator's choice arrived
  std::optional<Duration> to_prepared;  // → everything verified here
  std::optional<Duration> to_release;   // → links placed
  uint64_t bytes_pulled = 0;
};

class NodeHost {
 public:
  struct Parts {
    Runtime* runtime;
    Clock* clock;
    Metrics* metrics;
    Store* store;
    Stager* stager;
    Volume* volume;
    PullStarter* pulls;
    ControlPlane* control;
    Dir* state_dir;
    std::shared_ptr<LogContext> log_context;
    Logger logger;
    EnvironmentLookup environment;
    std::string volume_path;  // <mount>/client, to watch
    Steps* steps = nullptr;   // may be none
    MemoryLimit memory_limit = {};
    // The RAM volume has vanished, and that was logged: the agent is to end with status 1, so that
    // it is started anew as one that has lost its RAM. Called once, on the loop.
    std::function<void(const Status& why)> on_volume_lost = {};
  };
  // How often the volume is looked at, beside each time before a message leaves.
  static constexpr Duration kLookEvery = 2s;

  NodeHost(Parts parts, NodeOptions options);
  ~NodeHost();

  // Reads the persisted state, starts watching, sends Started. Any thread, once.
  Status Start();
  // Events of the control side and SIGTERM.
  void Dispatch(const NodeEvent::Any& event);
  void RequestStop(std::function<void()> done);
  // `done` gets how the last write of the state ended, once all that was dispatched so far is
  // carried out; on another thread.
  void WhenPersisted(std::function<void(Status)> done) {
    ordered_->Submit([this, done = std::move(done)] {
      const Status ends = Error(Code::kUnavailable, "the agent ends: its volume is gone");
      done(volume_lost_ ? ends : persisted_);
    });
  }

  NodeStatus status() const { return machine_.status(); }
  const NodeMachine& machine() const { return machine_; }
  const RestoreTimes& restore_times() const { return times_; }
  std::optional<Instant> last_commit_at() const { return last_commit_at_; }

 private:
  struct Task {
    std::shared_ptr<std::atomic<bool>> cancelled;
  };
  struct Peer {
    HostPort address;
    std::string token;
  };
  bool LinksStand(const control::NodeState& state, const JobConfig& config) const;

  void Observe(const NodeEvent::Any& event);
  void ObserveAction(const NodeAction::Any& action);
  void Post(NodeEvent::Any event);  // any thread
  void Announce(const NodeAction::Any& action);
  // Ordered actions and starts of tasks, on the ordered thread.
  void RunBatch(NodeActions* actions);
  Status Carry(NodeAction::Any* action);  // a message that it sends is moved out
  void GiveUpSave(const NodeAction::Stage& stage);
  Status Do(const NodeAction::PersistState& action);
  Status Do(const NodeAction::RemoveConfig& action);
  Status Do(const NodeAction::ReadConfig& action);
  Status Do(const NodeAction::CleanVolume& action);
  Status Do(const NodeAction::StartWatchingSaves& action);
  Status Do(const NodeAction::LocateCoordinator& action);
  Status Do(const NodeAction::BecomeCoordinator& action);
  Status Do(const NodeAction::Connect& action);
  Status Do(const NodeAction::Disconnect& action);
  Status Do(NodeAction::Send& action);
  Status Do(const NodeAction::DiscardSaves& action);
  Status Do(const NodeAction::WritePrerestore& action);
  Status Do(const NodeAction::PlaceLink& action);
  Status Do(const NodeAction::PlaceNoCheckpoint& action);
  Status Do(const NodeAction::WriteMeta& action);
  Status Do(const NodeAction::RemoveOtherMetas& action);
  Status Do(const NodeAction::RecordGeneration& action);
  Status Do(const NodeAction::ForgetGenerations& action);
  Status Do(const NodeAction::WriteError& action);
  Status Do(const NodeAction::WriteFailed& action);
  Status Do(const NodeAction::LogText& action);
  Status Do(const NodeAction::UseMembers& action);
  Status Do(const NodeAction::ReadMemory&) {
    Post(NodeEvent::MemorySeen{SeeMemory(*parts_.store, parts_.memory_limit)});
    return OkStatus();
  }
  Status Do(const NodeAction::ExitNow& action);
  Status Do(const NodeAction::Stage& action);
  Status Do(const NodeAction::Pull& action);
  Status Do(const NodeAction::Verify& action);
  Status Do(const NodeAction::DeleteShards& action);
  Status Do(const NodeAction::Compare& action);
  // Carried out by Dispatch, at once; they never reach a batch.
  Status Do(const NodeAction::SetTimer&) { return OkStatus(); }
  Status Do(const NodeAction::CancelTimer&) { return OkStatus(); }
  Status Do(const NodeAction::CancelTask&) { return OkStatus(); }
  void StageOn(TaskId task, std::shared_ptr<StageJob> job);
  Status OnLoop(std::function<void()> work);
  // Whether what this node says of its copies can be true: they stand where others see them.
  bool VolumeStands();
  void LookEverySoOften();
  void GiveUpVolume(const Status& why);
  std::shared_ptr<std::atomic<bool>> Flag(TaskId task);  // any thread
  std::vector<PullSource> SourcesOf(const control::SourceList& wanted) const;
  void EndTask(TaskId task);

  // The volume's watch. OnChange runs on the watch's thread, the others on the ordered one.
  void OnChange(const DirChange& change);
  void ReadConfigNow();
  const Result<ParsedConfig>& Parsed(const std::string& text);
  void ReadJaxInit();
  void ReportSave(const std::string& name, bool made_in_place);
  void ScanSaves();

  Parts parts_;
  Loop* loop_;
  NodeMachine machine_;
  NodeOptions options_;
  RestoreTimes times_;
  std::map<SaveKey, Instant> save_started_;
  std::optional<Instant> last_commit_at_;
  std::string framework_;  // label of metrics
  std::function<void()> stopped_;
  std::atomic<bool> volume_lost_{false};  // set on the loop: nothing is done any more

  std::mutex mutex_;  // of tasks_
  std::map<TaskId, Task> tasks_;

  // Ordered thread only.
  Status persisted_;
  std::map<std::string, Peer> peers_;                                   // by node name
  std::optional<std::pair<std::string, Result<ParsedConfig>>> parsed_;  // the last text
  bool watching_saves_ = false;
  Framework save_framework_ = Framework::kOrbax;
  std::string save_job_;
  std::set<uint64_t> reported_inodes_;  // saves told to the machine: each once
  std::set<uint64_t> useless_inodes_;   // discarded saves that could not be removed
  bool scan_due_ = false;               // a save that was seen could not be looked at
  // Steps made by mkdir in place, the oldest first.
  std::list<std::pair<std::string, std::unique_ptr<DirWatch>>> half_made_;
  std::atomic<bool> config_to_read_{false};  // a reading is on its way

  std::unique_ptr<WorkQueue> tasks_queue_;
  std::unique_ptr<WorkQueue> ordered_;
  std::unique_ptr<DirWatch> watch_;  // last: its callback uses all above
};

}  // namespace tierkeep
