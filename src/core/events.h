// What goes into and comes out of the two machines of the core, as plain data.
//
// Actions of one Step run in order. Ordered actions (files, sends, timers) are carried out one
// after the other; if one fails, the rest of that Step's actions are skipped and BatchFailed comes
// back. Tasks (Stage, Pull, Verify, Delete, Compare) are started in order, run beside everything
// else, and end in exactly one event with their task id, also when cancelled.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "base/time.h"
#include "control.pb.h"
#include "core/memory_budget.h"
#include "format/generation_record.h"
#include "format/manifest.h"
#include "format/messages.h"
#include "format/ocdbt_logical.h"
#include "format/replicator_config.h"
#include "format/volume_names.h"

namespace tierkeep {

using TaskId = uint64_t;   // never reused within one machine's life
using TimerId = uint32_t;  // each machine's own enum; setting one again moves it

// ---- the node machine ------------------------------------------------------------------------

// A shard in the local store, as the store knows it.
struct LocalShard {
  control::ShardInfo info;
};

struct NodeEvent {
  // First event of a machine's life. `state` is what was persisted, or empty on a new host.
  struct Started {
    control::NodeState state;
    std::optional<JobConfig> config;  // of state.config_text, when it parses
    control::Inventory inventory;     // of the whole store, all jobs
    std::vector<std::string> staged;  // names below store/staged: taken but not yet hashed
    std::string jax_init;             // contents, or empty
    // The links of state.restored stand in the volume, or were taken by the client: it may train.
    bool links_stand = false;
  };
  // A replicator.yaml stands in the volume. `parsed` is empty for an empty file. Its error is
  // kAborted while somebody still writes it, kUnavailable when it can't be read.
  struct ConfigSeen {
    std::string text;
    std::string file_id;
    std::optional<Result<ParsedConfig>> parsed;
  };
  struct ConfigGone {};  // the client took it away, or we removed it
  struct JaxInitChanged {
    std::string text;
  };
  struct SaveSeen {
    std::string name;
    Step step = 0;
    Worker worker = 0;
    Rank rank = 0;  // framework pytorch only: what the name says
  };
  // Answer to CleanVolume: saves that were taken over on the way, as staged names.
  struct VolumeCleaned {
    std::vector<std::string> adopted;
  };
  struct CoordinatorLocated {
    std::optional<control::RendezvousRecord> record;
  };
  struct LocateFailed {
    Error error;
  };
  struct CoordinatorConnected {};
  // Never of a connection that Disconnect or a newer Connect has ended.
  struct CoordinatorLost {
    Error error;
  };  // also when connecting failed
  struct Received {
    SharedEnvelope message;
  };
  struct Staged {
    TaskId task = 0;
    control::ShardInfo shard;
  };
  struct StageFailed {
    TaskId task = 0;
    Error error;
  };
  struct Pulled {
    TaskId task = 0;
    Blake3 digest;
    Status status;
    uint64_t bytes_pulled = 0;
    std::vector<std::string> bad_sources;
    Duration took{};
  };
  struct Verified {
    TaskId task = 0;
    Blake3 digest;
    bool ok = false;
    std::string problem;
    Duration took{};
    bool unread = false;  // its bytes can't be read: whether they are good isn't known
  };
  struct Deleted {
    TaskId task = 0;
    std::vector<std::string> staged_left{};  // what was taken and not hashed, and would not go
  };
  struct Compared {
    TaskId task = 0;
    Result<LogicalDifference> difference;
  };
  // Answer to ReadMemory.
  struct MemorySeen {
    MemoryRoom room;
  };
  struct TimerFired {
    TimerId timer = 0;
  };
  // The name of the action that failed, and the tasks of that Step that were not started because of
  // it: those end in no other event.
  struct BatchFailed {
    std::string action;
    Error error;
    std::vector<TaskId> skipped;
  };
  struct StopRequested {};  // SIGTERM: leave in order
  // An operator's order (format/restore_orders.h); `after` is the wall clock in milliseconds.
  struct OrderGiven {
    control::RestoreOrder order;
  };
  using Any = std::variant<Started, ConfigSeen, ConfigGone, JaxInitChanged, SaveSeen, VolumeCleaned,
                           CoordinatorLocated, LocateFailed, CoordinatorConnected, CoordinatorLost,
                           Received, Staged, StageFailed, Pulled, Verified, Deleted, Compared,
                           MemorySeen, TimerFired, BatchFailed, StopRequested, OrderGiven>;
};

struct NodeAction {
  // -- ordered
  struct PersistState {
    Result<std::string> bytes;  // by EncodeNodeState; an error fails the action
  };
  // Removes the yaml if it is still that file.
  struct RemoveConfig {
    std::string file_id;
  };
  struct ReadConfig {};  // read it again now → ConfigSeen or ConfigGone
  // Takes complete saves over into staged/ under `run` (names by format/store_names.h, occurrence
  // from `saves`, ordinals follow), then cleans the volume. → VolumeCleaned.
  struct CleanVolume {
    RunId run;
    JobConfig config;
    control::NodeState state;
  };
  struct StartWatchingSaves {
    Framework framework;
    std::string job;
  };  // then scans → SaveSeen
  struct LocateCoordinator {
    std::string job;
  };
  // This agent becomes the job's coordinator (its CoordinatorMachine is made, if there is none).
  struct BecomeCoordinator {
    control::JobSettings settings;
    Duration gather_deadline;
    RunId resumes;  // the run that this node goes on with
  };
  struct Connect {
    std::string host;
    uint16_t port = 0;
    bool local = false;
  };
  struct Disconnect {};
  struct Send {
    control::Envelope message;
  };
  // Finished saves that are of no use to anybody: removed from the volume.
  struct DiscardSaves {
    std::vector<std::string> names;
  };
  struct WritePrerestore {
    std::optional<Step> step;
  };
  struct PlaceLink {
    WorkerName name;
    Blake3 digest;
  };  // H.data tree, then the .restore link
  struct PlaceNoCheckpoint {
    WorkerName name;
  };
  struct WriteMeta {
    WorkerName name;
    std::string h;
  };
  struct RemoveOtherMetas {
    std::vector<WorkerName> keep;
  };
  struct RecordGeneration {
    SharedRecord record;
  };
  struct ForgetGenerations {
    std::string job;
    std::optional<GenerationId> keep;
  };
  struct WriteError {
    std::string text;
  };  // replicator.errors
  struct WriteFailed {
    std::string text;
  };  // replicator.failed too: only before the release
  struct SetTimer {
    TimerId timer = 0;
    Instant at;
  };
  struct CancelTimer {
    TimerId timer = 0;
  };
  struct LogText {
    Severity severity;
    std::string text;
  };
  // Names and addresses of members, tokens for the data ports: for Pull's sources and for status.
  struct UseMembers {
    std::vector<control::Member> members;
  };
  struct ReadMemory {};  // → MemorySeen; what can't be read is said there, too
  struct ExitNow {};     // answer to StopRequested when all is in order
  // -- tasks
  // `name` empty: the staged directory is already there (taken over before).
  struct Stage {
    TaskId task = 0;
    std::string name;
    std::string staged_name;
    ShardIdentity identity;
  };
  struct Pull {
    TaskId task = 0;
    control::SourceList wanted;
    enum class Why : uint8_t { kRestore, kReplicate, kRebuild } why;
  };
  struct Verify {
    TaskId task = 0;
    Blake3 digest;
  };
  struct DeleteShards {
    TaskId task = 0;
    std::vector<Blake3> digests;
    std::vector<std::string> staged;
  };
  // Where the shard `own`, which is here, and its replica `other` differ.
  struct Compare {
    TaskId task = 0;
    control::ShardInfo own;
    control::SourceList other;
  };
  struct CancelTask {
    TaskId task = 0;
  };
  using Any = std::variant<PersistState, RemoveConfig, ReadConfig, CleanVolume, StartWatchingSaves,
                           LocateCoordinator, BecomeCoordinator, Connect, Disconnect, Send,
                           DiscardSaves, WritePrerestore, PlaceLink, PlaceNoCheckpoint, WriteMeta,
                           RemoveOtherMetas, RecordGeneration, ForgetGenerations, WriteError,
                           WriteFailed, SetTimer, CancelTimer, LogText, UseMembers, ReadMemory,
                           ExitNow, Stage, Pull, Verify, DeleteShards, Compare, CancelTask>;
};
using NodeActions = std::vector<NodeAction::Any>;

// ---- the coordinator machine -----------------------------------------------------------------

// Of the agent's control network. Events of one id come in order; a Disconnected of the local one
// before anything that its node says after it connected again.
using ConnectionId = uint64_t;
inline constexpr ConnectionId kLocalConnection = 0;  // the node machine in the same process

struct CoordinatorEvent {
  struct Started {
    WallTime wall;
  };
  struct RendezvousRead {
    std::optional<control::RendezvousRecord> record;
    std::string version;
  };
  struct RendezvousWritten {
    std::string version;
  };
  struct RendezvousFailed {
    Error error;
  };  // kAborted: somebody else wrote; read again
  struct Received {
    ConnectionId from = 0;
    SharedEnvelope message;
  };
  struct Disconnected {
    ConnectionId from = 0;
  };
  struct TimerFired {
    TimerId timer = 0;
  };
  using Any = std::variant<Started, RendezvousRead, RendezvousWritten, RendezvousFailed, Received,
                           Disconnected, TimerFired>;
};

struct CoordinatorAction {
  struct ReadRendezvous {};
  struct WriteRendezvous {
    control::RendezvousRecord record;
    std::string expected_version;
  };
  struct Send {
    ConnectionId to = 0;
    control::Envelope message;
  };
  struct CloseConnection {
    ConnectionId connection = 0;
  };
  struct SetTimer {
    TimerId timer = 0;
    Instant at;
  };
  struct CancelTimer {
    TimerId timer = 0;
  };
  struct LogText {
    Severity severity;
    std::string text;
  };
  struct CountDivergence {};  // a save's replicas disagree: for metrics
  struct StandDown {
    std::string reason;
  };  // last action of this machine
  using Any = std::variant<ReadRendezvous, WriteRendezvous, Send, CloseConnection, SetTimer,
                           CancelTimer, LogText, CountDivergence, StandDown>;
};
using CoordinatorActions = std::vector<CoordinatorAction::Any>;

}  // namespace tierkeep
