// A whole job in memory: hosts with a volume, a store and a state directory, real node and
// coordinator machines, a network that delays, and a training client that does what its yaml and
// links tell it. Everything comes from one seed; the same seed gives the same run.
//
// Every message passes the checks of the wire. The invariants that no schedule may break are
// checked as actions are carried out (ADD_FAILURE with the seed).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/prng.h"
#include "core/coordinator.h"
#include "core/node.h"

namespace tierkeep {

struct TestClusterOptions {
  uint64_t seed = 1;
  size_t hosts = 2;
  WorldShape world{.framework = Framework::kOrbax, .nodes = 2};
  std::optional<uint32_t> peers_per_node = 1;
  // Bytes that a host's volume holds, and that a node's save takes; 0: no limit, small.
  uint64_t capacity = 0;
  uint64_t save_bytes = 0;
  OnPressure on_pressure = OnPressure::kRefuse;
  bool names_no_peers = false;  // yamls say `peer-ranks: []`
  Duration delay_max = 1ms;     // of a message, a task
  CoreTimings timings;
  RestorePolicy restore = {};
  uint32_t whole_view_max = kWholeViewMax;
};

class TestCluster {
 public:
  // What the job of one host sees.
  struct Client {
    bool released = false;
    std::optional<Step> step;  // restored from; none: no checkpoint
    Blake3 digest;             // of worker 0's link
    std::vector<std::string> failed;
    std::vector<std::string> errors;
    int failed_writes = 0;
  };
  struct Copy {
    control::ShardInfo info;
    bool good = true;
    bool unread = false;  // its bytes are good, but can't be read
  };

  explicit TestCluster(TestClusterOptions options);
  ~TestCluster();

  // -- what happens to the cluster
  // The job's process on `host` starts as `rank`: a new yaml appears.
  void StartClient(size_t host, Rank rank);
  void StartJob();                                        // host i as rank i
  void EndClient(size_t host) { at(host).rank.reset(); }  // its job is no longer counted
  // The job finished writing a step there. `content`: what its replicas have in common. Without
  // room for it the write fails, and is counted by the client.
  void Save(size_t host, Step step, uint64_t content = 0);
  void SaveAll(Step step);              // on the hosts of StartClient
  void SaveOn(size_t host, Step step);  // as SaveAll, if that host has a rank
  void KillAgent(size_t host);          // at once, its RAM stays
  void StartAgent(size_t host);
  // Kills the agent of `host` just before it carries out its next-but-`actions` action.
  void KillAfter(size_t host, uint64_t actions) { at(host).kill_after = actions; }
  void WipeRam(size_t host);   // with the agent down: volume and store are gone
  void LoseHost(size_t host);  // and the state directory too
  void Corrupt(size_t host, const Blake3& digest);
  void CutData(size_t from, size_t to);  // pulls of `to` from `from` fail
  void MendData() { cut_.clear(); }
  void FillStore(size_t host, bool full) { at(host).full = full; }
  // Something else takes so much of the host's volume, or of the agent's control group.
  void TakeMemory(size_t host, uint64_t bytes) { at(host).taken = bytes; }
  void SetPullLimit(size_t host, uint64_t bytes) { at(host).pull_limit = bytes; }
  void CutLink(size_t host);  // its control connection breaks
  void FailNext(size_t host, const std::string& action, Code code = Code::kDataLoss);
  void ClearFailures(size_t host) { at(host).fail.clear(); }
  void Stop(size_t host) { NodeLater(host, NodeEvent::StopRequested{}); }
  void ChangeJaxInit(size_t host, const std::string& text) {
    NodeLater(host, NodeEvent::JaxInitChanged{text});
  }
  void AddUnreadable(size_t host, const control::Unreadable& item) {
    at(host).unreadable.push_back(item);
  }
  // `ahead`: so far that host's clock is.
  void GiveOrder(size_t host, control::RestoreOrder order, Duration ahead = {}) {
    order.set_after(WallMillis(WallTime(now_.time_since_epoch()) + ahead));
    NodeLater(host, NodeEvent::OrderGiven{order});
  }
  size_t UnreadableParts(size_t host) const { return hosts_[host]->unreadable.size(); }
  void ForgetUnreadable(size_t host) { at(host).unreadable.clear(); }
  void SendYaml(size_t host, std::optional<Result<ParsedConfig>> parsed);
  void SeeYamlAgain(size_t host);  // a second event for the same file
  void TakeYaml(size_t host);      // its client removes it
  size_t SavesInVolume(size_t host) const { return hosts_[host]->volume.size(); }

  // -- running
  // Until `done`, at most `limit` of simulated time. Returns whether it came.
  bool RunUntil(const std::function<bool()>& done, Duration limit = 60s);
  void Run(Duration time);

  // -- looking
  Client& client(size_t host) { return at(host).client; }
  NodeStatus status(size_t host) const;
  std::optional<control::JobStatus> job_status() const;
  size_t hosts() const { return hosts_.size(); }
  // Shards there of other saves than this step's, for people.
  std::string StaleShards(size_t host, Step step) const;
  std::optional<Rank> rank(size_t host) const { return hosts_[host]->rank; }
  bool Up(size_t host) const { return hosts_[host]->node != nullptr; }
  bool YamlStands(size_t host) const { return hosts_[host]->yaml.has_value(); }
  bool AllReleased() const;
  // All running agents recorded a commit of this step as their newest generation.
  bool AllCommitted(Step step) const;
  std::map<Blake3, Copy>& store(size_t host) { return at(host).store; }
  std::vector<control::GenerationRecord> generations(size_t host) const {
    return hosts_[host]->generations;
  }
  size_t CopiesOf(const Blake3& digest) const;  // good ones
  uint64_t Used(size_t host) const;             // bytes of its volume
  uint64_t PeakUsed() const { return peak_used_; }
  // Digests of the newest generation recorded anywhere, by rank.
  std::vector<Blake3> NewestDigests() const;
  control::NodeState state(size_t host) const { return hosts_[host]->state; }
  std::optional<control::RendezvousRecord> record() const { return record_; }
  const std::vector<std::string>& log() const { return log_; }
  bool Logged(const std::string& part) const;
  uint64_t pulls() const { return pulls_; }
  uint64_t divergences() const { return divergences_; }
  std::string Trace() const { return trace_; }
  Instant now() const { return now_; }
  bool ok() const { return ok_; }

 private:
  struct Task {
    enum class Kind : uint8_t { kStage, kPull, kVerify, kDelete, kCompare } kind;
    NodeAction::Any action;
    bool cancelled = false;
  };
  struct Host {
    std::string name;
    // Survives a kill of the agent.
    control::NodeState state;
    std::map<Blake3, Copy> store;
    std::vector<control::GenerationRecord> generations;
    std::map<std::string, uint64_t> staged;  // name → content
    std::map<std::string, uint64_t> volume;  // finished saves: name → content
    std::optional<std::string> yaml;         // text
    std::string yaml_id;
    std::optional<Rank> rank;
    std::vector<control::Unreadable> unreadable;
    Client client;
    bool full = false;
    uint64_t taken = 0;
    std::optional<uint64_t> pull_limit;
    // The agent's life.
    uint64_t life = 0;
    std::unique_ptr<NodeMachine> node;
    std::unique_ptr<CoordinatorMachine> coordinator;
    std::map<TaskId, Task> tasks;
    std::map<TimerId, uint64_t> node_timers, coordinator_timers;
    std::set<Blake3> verified;
    std::map<std::string, std::string> met;  // members by name, their tokens
    bool watching = false;
    std::optional<uint64_t> link;  // to a coordinator
    Instant local_busy{};
    std::map<std::string, int> fail;
    Code fail_code = Code::kDataLoss;
    std::optional<uint64_t> kill_after;
  };
  struct Connection {
    size_t node = 0;
    size_t coordinator = 0;
    ConnectionId id = 0;
    uint64_t node_life = 0;
    uint64_t coordinator_life = 0;
    Instant to_node{};
    Instant to_coordinator{};
    bool open = true;
  };
  struct Due {
    Instant at;
    uint64_t order = 0;
    auto operator<=>(const Due&) const = default;
  };

  Host& at(size_t host) { return *hosts_[host]; }
  size_t IndexOf(const std::string& name) const;
  void After(Duration delay, std::function<void()> what);
  void AtTime(Instant at, std::function<void()> what);
  Duration Delay();
  void ToNode(size_t host, NodeEvent::Any event);
  void NodeLater(size_t host, NodeEvent::Any event);
  void ToCoordinator(size_t host, const CoordinatorEvent::Any& event);
  void CoordinatorLater(size_t host, CoordinatorEvent::Any event);
  void CarryOut(size_t host, const NodeActions& actions);
  void CarryOut(size_t host, const CoordinatorActions& actions);
  void StartTask(size_t host, TaskId id, Task task);
  void FinishTask(size_t host, TaskId id);
  MemoryRoom RoomOf(size_t host) const;
  void CheckMemory(size_t host);
  NodeEvent::Any FinishStage(Host& h, const NodeAction::Stage& a);
  NodeEvent::Any FinishPull(size_t host, const NodeAction::Pull& a);
  Result<LogicalDifference> FinishCompare(size_t host, const NodeAction::Compare& a);
  void Open(size_t host, size_t coordinator, bool local);
  void Close(uint64_t connection, bool tell_node, bool tell_coordinator);
  void CloseAllOf(size_t host);
  void Violation(const std::string& text);
  void CheckCommit(size_t host, const control::GenerationRecord& record);
  void CheckDelete(size_t host, const NodeAction::DeleteShards& a);
  bool HasEqual(const control::ShardInfo& shard) const;
  std::string TokenOf(size_t host) const;
  void Held(size_t host, const Blake3& digest);
  void ScanVolume(size_t host);
  std::vector<std::vector<Rank>> PlacementOf(const control::GenerationRecord& record) const;

  // One overload an action.
  bool Do(size_t host, const NodeAction::PersistState& a);
  bool Do(size_t host, const NodeAction::RemoveConfig& a);
  bool Do(size_t host, const NodeAction::ReadConfig& a);
  bool Do(size_t host, const NodeAction::CleanVolume& a);
  bool Do(size_t host, const NodeAction::StartWatchingSaves& a);
  bool Do(size_t host, const NodeAction::LocateCoordinator& a);
  bool Do(size_t host, const NodeAction::BecomeCoordinator& a);
  bool Do(size_t host, const NodeAction::Connect& a);
  bool Do(size_t host, const NodeAction::Disconnect& a);
  bool Do(size_t host, const NodeAction::Send& a);
  bool Do(size_t host, const NodeAction::DiscardSaves& a);
  bool Do(size_t host, const NodeAction::WritePrerestore& a);
  bool Do(size_t host, const NodeAction::PlaceLink& a);
  bool Do(size_t host, const NodeAction::PlaceNoCheckpoint& a);
  bool Do(size_t host, const NodeAction::RecordGeneration& a);
  bool Do(size_t host, const NodeAction::ForgetGenerations& a);
  bool Do(size_t host, const NodeAction::WriteError& a);
  bool Do(size_t host, const NodeAction::WriteFailed& a);
  bool Do(size_t host, const NodeAction::SetTimer& a);
  bool Do(size_t host, const NodeAction::CancelTimer& a);
  bool Do(size_t host, const NodeAction::LogText& a);
  bool Do(size_t host, const NodeAction::UseMembers& a);
  bool Do(size_t host, const NodeAction::ReadMemory& a);
  bool Do(size_t host, const NodeAction::Stage& a);
  bool Do(size_t host, const NodeAction::Pull& a);
  bool Do(size_t host, const NodeAction::Verify& a);
  bool Do(size_t host, const NodeAction::DeleteShards& a);
  bool Do(size_t host, const NodeAction::Compare& a);
  bool Do(size_t host, const NodeAction::CancelTask& a);
  template <typename T>
  bool Do(size_t, const T&) {
    return true;  // tools' files: nothing here reads them
  }

  void Do(size_t host, const CoordinatorAction::ReadRendezvous& a);
  void Do(size_t host, const CoordinatorAction::WriteRendezvous& a);
  void Do(size_t host, const CoordinatorAction::Send& a);
  void Do(size_t host, const CoordinatorAction::CloseConnection& a);
  void Do(size_t host, const CoordinatorAction::SetTimer& a);
  void Do(size_t host, const CoordinatorAction::CancelTimer& a);
  void Do(size_t host, const CoordinatorAction::LogText& a);
  void Do(size_t, const CoordinatorAction::CountDivergence&) { ++divergences_; }
  void Do(size_t host, const CoordinatorAction::StandDown& a);

  TestClusterOptions options_;
  Prng prng_;
  std::vector<std::unique_ptr<Host>> hosts_;
  Instant now_ = Instant(1000s);
  uint64_t next_order_ = 0;
  std::map<Due, std::function<void()>> queue_;
  std::map<uint64_t, Connection> connections_;
  uint64_t next_connection_ = 1;
  uint64_t next_timer_ = 1;
  uint64_t next_yaml_ = 1;
  std::map<std::string, std::optional<Result<ParsedConfig>>> yamls_;
  std::optional<control::RendezvousRecord> record_;
  uint64_t record_version_ = 0;
  std::set<std::pair<size_t, size_t>> cut_;
  std::map<Blake3, std::set<std::string>> ever_held_;
  std::map<Blake3, control::ShardInfo> ever_known_;  // what those were
  std::map<RunId, std::string> released_;            // by run: what all were released with
  std::optional<GenerationId> told_commit_;          // the newest one that a coordinator sent
  std::vector<std::string> log_;
  std::string trace_;
  uint64_t pulls_ = 0;
  uint64_t divergences_ = 0;
  uint64_t peak_used_ = 0;
  bool ok_ = true;
};

// What was logged, a line each: what a failing test prints.
std::string LogOf(const TestCluster& cluster);

// Starts the job and commits step 10. Ends in a fatal failure of the test where that doesn't come.
void Begin(TestCluster* cluster, Duration patience);
// The host's agent starts again and finds this in its store, and so does the job.
void RestartWithUnreadable(TestCluster* cluster, size_t host, const std::string& detail,
                           const std::string& digest = {}, bool damaged = false);

}  // namespace tierkeep

// Ends the test, with the cluster's log, unless the condition comes within the file's own kPatience
// of simulated time.
#define ASSERT_RUNS_UNTIL(cluster, condition) \
  ASSERT_TRUE((cluster).RunUntil([&] { return (condition); }, kPatience)) << LogOf(cluster)
