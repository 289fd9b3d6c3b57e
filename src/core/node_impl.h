// Inside of NodeMachine: the state that its parts share. node.cc dispatches events, messages and
// timers; node_config.cc starts and accepts the yaml; node_join.cc finds the coordinator and a run;
// node_restore.cc restores and releases; node_save.cc stages and keeps, node_commit.cc commits and
// collects; node_leftovers.cc adopts; node_compare.cc compares replicas; node_memory.cc admits
// pulls and says what size would do.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/node.h"
#include "core/save_parts.h"
#include "format/ids.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {

class NodeMachine::Impl {
 public:
  explicit Impl(NodeOptions options);
  NodeActions Step(Instant now, const NodeEvent::Any& event);
  NodeStatus status() const;
  const SharedRecord& committed() const { return committed_; }
  const control::NodeState& state() const { return state_; }
  const std::optional<control::JobStatus>& job_status() const { return job_status_; }

 private:
  enum class Phase : uint8_t {
    kIdle,
    kCleaning,
    kLocating,
    kJoining,
    kRestoring,
    kPrepared,
    kRunning,
    kEnded,   // released in a run that is over: waits for a newer yaml
    kFailed,  // told the job so: waits for a newer yaml
    kHolder,  // without a rank, connected to a run of a job whose shards are here
  };
  enum Timer : TimerId {
    kConfigTimer = 1,  // an empty or unreadable yaml is looked at again
    kConfigKeptTimer,  // the yaml has stood long enough
    kGatherTimer,      // a run must have been found
    kLocateTimer,      // look again
    kHolderTimer,
    kSilentTimer,   // nothing heard from the coordinator
    kPersistTimer,  // what could not be persisted, or deleted with it, is done again
    kRoomTimer,     // copies wait for memory
  };
  enum class Link : uint8_t { kNone, kConnecting, kUp };

  // One shard that is being fetched or checked, by digest; several may wait for it.
  struct Fetch {
    control::SourceList wanted;
    TaskId task = 0;
    bool pulling = false;
    bool waiting = false;  // for memory
    std::string refused;   // why the last try ended for lack of it; not tried before a change
    NodeAction::Pull::Why why = NodeAction::Pull::Why::kReplicate;
  };
  // It may succeed all the same. Then it is in the store, and goes if its copies were deleted
  // since.
  struct CancelledPull {
    control::ShardInfo shard;
    bool unwanted = false;
  };
  struct RestoreWork {
    control::Restore order;
    std::set<Blake3> open;
    control::RestorePrepared answer;
    bool answered = false;
  };
  struct KeepWork {
    control::Keep order;
    std::set<Blake3> open;
    control::Kept answer;
    std::optional<uint64_t> told_short;  // how much was lacking when its waiting was last told
    Instant told_at;
  };
  struct OwnSave {
    uint64_t ordinal = 0;
    std::map<Worker, control::ShardInfo> shards;  // staged ones
    std::map<Worker, std::string> staged_names;   // not yet hashed
    bool told = false;  // to a coordinator of the run, which may have committed it
  };
  struct UnreadCopy {
    std::string problem;
    bool told = false;  // the coordinator, by a join
  };
  struct CompareWork {
    uint64_t order = 0;
    Epoch epoch = 0;
  };
  struct StageWork {
    SaveUnit unit;
    std::string staged_name;
    uint64_t ordinal = 0;
    bool adopted = false;  // of an earlier attempt: joins nothing, only becomes a shard
  };

  // -- node.cc
  void Handle(const NodeEvent::Started& e);
  void Handle(const NodeEvent::ConfigSeen& e);
  void Handle(const NodeEvent::ConfigGone& e);
  void Handle(const NodeEvent::JaxInitChanged& e);
  void Handle(const NodeEvent::SaveSeen& e);
  void Handle(const NodeEvent::VolumeCleaned& e);
  void Handle(const NodeEvent::CoordinatorLocated& e);
  void Handle(const NodeEvent::LocateFailed& e);
  void Handle(const NodeEvent::CoordinatorConnected& e);
  void Handle(const NodeEvent::CoordinatorLost& e);
  void Handle(const NodeEvent::Received& e);
  void Handle(const NodeEvent::Staged& e);
  void Handle(const NodeEvent::StageFailed& e);
  void Handle(const NodeEvent::Pulled& e);
  void Handle(const NodeEvent::Verified& e);
  void Handle(const NodeEvent::Deleted& e);
  void Handle(const NodeEvent::Compared& e);
  void Handle(const NodeEvent::MemorySeen& e);
  void Handle(const NodeEvent::TimerFired& e);
  void Handle(const NodeEvent::BatchFailed& e);
  void Handle(const NodeEvent::StopRequested& e);
  void Handle(const NodeEvent::OrderGiven& e);
  void TakeBackSkipped(const NodeEvent::BatchFailed& e);
  void HandleMessage(const control::Envelope& message);
  bool Accepts(const control::Envelope& message) const;
  template <typename T>
  void Do(T action) {
    actions_.emplace_back(std::move(action));
  }
  void Persist();
  void Log(Severity severity, std::string text);
  void Arm(Timer timer, Duration after);
  void Disarm(Timer timer);
  TaskId NewTask() { return next_task_++; }
  control::Envelope NewMessage() const;
  void Send(control::Envelope message);
  void WriteError(std::string text);
  const std::string& job() const;
  bool InRun() const { return state_.run().sequence() != 0; }
  bool Released() const { return InRun() && state_.released(); }

  // -- node_config.cc
  void Resume(bool links_stand);
  void JudgeConfig(const NodeEvent::ConfigSeen& e);
  void AcceptConfig(const NodeEvent::ConfigSeen& e, const ParsedConfig& parsed);
  void RefuseConfig(const NodeEvent::ConfigSeen& e, const std::string& text);
  void ForgetConfig(const std::string& reason);
  void LeaveRun(const std::string& reason);
  void NoteShards();
  // -- node_leftovers.cc
  void NoteUnclaimed(const NodeEvent::SaveSeen& e);
  bool StageRest(const NodeEvent::SaveSeen& e);
  uint64_t OrdinalOfLeftover(const SaveKey& save);
  void StageAdopted(const std::vector<std::string>& names);
  void StageLeftover(TaskId task, const StageWork& work);
  bool AdoptWithMoreRoom(const StageWork& work, const Error& error);
  void AdoptAgain(TaskId deleted);

  // -- node_join.cc
  void StartLocating();
  void Locate();
  void RetryLocate();
  void LinkLost(const std::string& why);
  void SendJoin();
  void TellSeat(control::Join* join) const;
  void TellSaves(control::Join* join);
  void Fail(const std::string& text);
  void GatherDeadline();
  void KeepConfig();
  void BoundWait();
  void RemoveConfig();
  void OnRejected(const control::Rejected& m);
  void OnRunStart(const control::Envelope& message);
  void OnRunEnded(const control::RunEnded& m);
  void OnJobStatus(const control::JobStatus& m);
  void StartHolding();
  bool HoldsForOthers() const;
  void TryNextJob(bool was_up);
  void TakeTurns(Duration turn);
  void PollHolder();
  std::set<std::string> HolderJobs() const;
  Duration GatherBudget() const;
  void Meet(const control::SourceList& sources);
  void NoteNodes();
  void TakeMembers(const control::RunStart& m);

  // -- node_restore.cc
  void OnRestore(const control::Restore& m);
  void OnRelease(const control::Release& m);
  void DistrustRestored();
  void PlaceAll();
  void WriteRestoredMetas();
  void RestoreFetched(const Blake3& digest, const Status& status);
  void AnswerRestore();
  void TellUnread();
  void CancelRestore();

  // -- node_orders.cc
  void OnRestoreOrders(const control::RestoreOrders& m);
  void NoteRelease(const control::RestoreChoice& choice);
  void ForgetDecision(const std::string& job);
  void ForgetRestores(const std::string& job);

  // -- node_save.cc
  void TakeSave(const NodeEvent::SaveSeen& e);
  bool IsOfUse(const NodeEvent::SaveSeen& e);
  void StageSave(tierkeep::Step step, const std::map<Worker, std::string>& names);
  void StageOne(const SaveKey& save, Worker worker, const std::string& name, OwnSave* own);
  bool NoteSave(const SaveKey& save, uint64_t ordinal);
  void SaveIsStaged(const SaveKey& save, OwnSave* own);
  void TellStaged(const SaveKey& save, OwnSave* own);
  bool IsWhole(const OwnSave& own) const;  // all workers' parts are hashed
  bool MayTell() const;
  void TellHeldBack();
  void ForgetOlderSaves(uint64_t ordinal);
  void OnKeep(const control::Keep& m);
  void KeepFetched(const Blake3& digest, const Status& status,
                   const std::vector<std::string>& bad_sources, uint64_t bytes);
  void AnswerKeepIfDone(uint64_t order);
  void OnDrop(const control::Drop& m);
  bool MayDrop(const SaveKey& save) const;
  void DropSave(const SaveKey& save);
  void OnCommit(const control::Commit& m);
  std::vector<std::string> NotHere(const control::Commit& m);
  bool IsOutdated(const control::ShardInfo& shard, const control::Commit& m) const;
  bool IsOvertaken(const control::ShardInfo& shard) const;
  std::vector<Blake3> Outdated(const control::Commit& m) const;
  void CancelOutdated(const control::Commit& m);
  std::vector<Blake3> OutdatedUnreadable(const control::Commit& m) const;
  void ForgetUnreadable(const std::vector<Blake3>& digests);
  void GiveUpNamelessDamage();
  std::vector<std::string> LeftBehindBy(const control::Commit& m);
  void HolderCommit(const control::Commit& m);
  void ForgetOthers(const std::string& job, std::optional<GenerationId> keep);
  void TellMetas();
  // -- node_compare.cc
  void OnCompare(const control::Compare& m);

  // Gets a verified copy of the shard; ends in FetchDone.
  void StartFetch(const control::SourceList& wanted, NodeAction::Pull::Why why);
  void StartPull(const Blake3& digest, Fetch* fetch);
  void FetchDone(const Blake3& digest, const Status& status,
                 const std::vector<std::string>& bad_sources, uint64_t bytes);
  void CancelFetch(const Blake3& digest);
  void CancelledPullEnded(const CancelledPull& pull, const Status& status);
  void DeleteAll(std::vector<Blake3> digests, std::vector<std::string> staged);
  bool HoldsVerified(const Blake3& digest) const;
  void TakeBackUnread(const Blake3& digest);

  // -- node_memory.cc
  void AskForRoom();
  void BeginPull(Fetch* fetch, const Blake3& digest);
  void AdmitPulls();
  uint64_t RefusedBytes(NodeAction::Pull::Why why) const;
  uint64_t UnderWayBytes() const;
  bool PeersFit() const;
  bool MayBegin(const Blake3& digest) const;
  void RetryPulls();
  void NoteNoRoom(Fetch* fetch, const Error& error);
  void TellWaiting();
  void TellWaiting(KeepWork* work, const Fetch& fetch);
  void OnGiveBack(const control::GiveBack& m);
  bool IsNeededHere(const control::ShardInfo& shard) const;
  void ForgetOrdersFor(const std::vector<Blake3>& digests);
  bool IsOfCommitted(const Blake3& digest) const;
  bool MayHideRecordOf(const RunId& run) const;
  bool MayBeOfCommitted(const Blake3& digest, const control::ShardInfo& shard) const;
  bool GiveWay();
  bool GiveUpPassedOver();
  bool GiveUpOtherJobs();
  bool ClaimIsKnown() const;
  bool IsPassedOver(const Blake3& digest, const control::ShardInfo& shard) const;
  bool GivesWayForSaves(const Blake3& digest, const control::ShardInfo& shard) const;
  void LookAtRoomForSaves();
  void MakeRoomForSaves();
  void GiveUp(std::vector<Blake3> digests, const std::string& what);
  void RestoreWithMoreRoom();
  void NoteOwnBytes(const OwnSave& own);
  void NoteKeptBytes(const control::Keep& m);
  void NoteKeptBytes(const control::Commit& m);
  uint64_t OwnBytes() const;
  uint64_t ReserveBytes() const;
  std::optional<MemorySizing> Sizing() const;
  void TellSizing();
  void TellWhetherPeersFit();
  std::string SizeAdvice() const;
  std::string Kept() const;
  std::string WithAdvice(const Error& error) const;
  Error WithWhatIsLacking(const Error& error, const Fetch& fetch) const;

  NodeOptions options_;
  Instant now_{};
  NodeActions actions_;
  Phase phase_ = Phase::kIdle;
  bool started_ = false;
  control::NodeState state_;
  std::optional<JobConfig> config_;
  std::string jax_init_;
  std::string last_error_;

  // The store, as far as told.
  std::map<Blake3, control::ShardInfo> shards_;
  std::map<Blake3, control::ShardInfo> bad_;  // found bad; deleted with the next commit
  // Of these, what can't be read and may be good: the next attempt reads it again.
  std::map<Blake3, UnreadCopy> unread_;
  std::vector<SharedRecord> generations_;
  std::vector<control::Unreadable> unreadable_;

  // The yaml.
  Instant config_pace_{};  // beyond now by config_settle for each one accepted of late
  std::optional<Instant> config_bad_since_;         // empty, or nothing that can be accepted
  std::optional<Instant> config_unfinished_since_;  // being written, or unreadable
  bool config_stands_ = false;
  std::string config_removed_;             // id of the last file that we removed
  Instant accepted_at_{};                  // the yaml, in this life of the agent
  Instant claimed_at_{};                   // the same, in any of its lives
  std::optional<Instant> config_gone_at_;  // before the job's start: its client waits for a link
  std::string refusal_;                    // the last that the job was told of
  bool refusal_unrecorded_ = false;        // told once more if it can't be recorded
  bool refusal_untold_ = false;            // could not be written; told when kPersistTimer fires
  std::set<TaskId> adopting_;              // must end before joining
  std::vector<std::string> taken_over_;    // by a cleaning, staged names: not yet hashed

  // The way to the coordinator.
  Link link_ = Link::kNone;
  bool link_local_ = false;
  bool run_is_newest_ = false;   // by the rendezvous
  bool ask_rendezvous_ = false;  // our own coordinator has stood down
  bool locating_ = false;
  Instant heard_{};       // a coordinator's last word
  bool entered_ = false;  // RunStart came over this link
  Epoch link_epoch_ = 0;  // the highest that came over this link
  uint64_t links_made_ = 0;
  bool holding_ = false;  // the link is a holder's
  std::string host_;
  uint32_t port_ = 0;
  Duration pause_{};
  std::string holder_job_;                      // asked about, or held for
  std::set<std::string> holder_done_;           // asked about in this round
  bool took_turn_ = false;                      // in this round a coordinator was left
  std::map<std::string, Epoch> holder_epochs_;  // seen, by job
  RunId holder_run_;
  Epoch holder_epoch_ = 0;

  std::vector<control::Member> members_;
  std::optional<control::JobStatus> job_status_;
  std::optional<RestoreWork> restore_;
  std::set<Blake3> checked_;  // verified since this attempt began: need no second pass
  std::map<Blake3, Fetch> fetches_;
  std::map<TaskId, Blake3> fetch_tasks_;
  std::map<TaskId, CancelledPull> cancelled_pulls_;
  std::vector<std::string> errors_;  // written last in a Step: they may fail
  std::map<uint64_t, KeepWork> keeps_;
  std::map<TaskId, CompareWork> compares_;

  std::vector<NodeEvent::SaveSeen> waiting_saves_;  // seen before the run goes
  SaveParts parts_;                   // framework pytorch: files of saves that are not whole
  std::map<SaveKey, OwnSave> saves_;  // of this run, not committed
  std::map<TaskId, StageWork> staging_;
  std::map<TaskId, TaskId> adopt_again_;  // by the deletion that makes room for it
  // Seen in the volume while no job is known: step and names, the newest last.
  std::vector<std::pair<tierkeep::Step, std::vector<std::string>>> unclaimed_;
  SharedRecord committed_;

  // Shards whose deletion isn't certain to have begun.
  std::map<TaskId, std::vector<control::ShardInfo>> deleting_;
  // The same of what was taken and not hashed; those that weren't begun are deleted later.
  std::map<TaskId, std::vector<std::string>> deleting_staged_;
  std::vector<std::string> delete_later_;
  // Records that go after a commit's deletion; at most one a job.
  std::map<TaskId, NodeAction::ForgetGenerations> forgets_;

  // Memory.
  std::optional<MemoryRoom> room_;
  uint64_t own_bytes_ = 0;              // the last save of this run
  std::optional<uint64_t> kept_bytes_;  // copies of peers' shards, a generation; unset: not known
  bool sizing_due_ = false;             // to be said with the next look at the memory
  bool fit_untold_ = false;             // of a commit whose copies of peers nobody asked for
  std::optional<bool> sizing_told_;     // in this run: whether it fits
  TaskId given_way_ = 0;                // the deletion that a restore waits for

  // What a failed commit batch must take back.
  struct CommitUndo {
    std::vector<SharedRecord> generations;
    std::map<SaveKey, OwnSave> saves;
    SharedRecord committed;
    TaskId task = 0;
  };
  std::optional<CommitUndo> undo_;

  TaskId next_task_ = 1;
  uint64_t commits_ = 0;
  uint64_t dropped_messages_ = 0;
  bool stopping_ = false;
  TaskId release_task_ = 0;  // 0: no release is being carried out
};

}  // namespace tierkeep
