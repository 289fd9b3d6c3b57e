// Inside of CoordinatorMachine: the state that its parts share. coordinator.cc dispatches events
// and speaks to members; coordinator_gather.cc finds out who takes part; coordinator_restore.cc
// makes the restore decision; coordinator_view.cc tells each member its part of a large job;
// coordinator_orders.cc knows what else it depends on: who is away,
// what operators asked, how often a generation was restored; coordinator_run.cc protects and
// commits saves; coordinator_diverge.cc reports replicas that disagree; coordinator_memory.cc
// decides what gives way where a node's memory is short.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/coordinator.h"
#include "core/coordinator_links.h"
#include "core/coordinator_peers.h"
#include "core/coordinator_problems.h"
#include "core/holdings.h"
#include "core/protection.h"
#include "core/restore_choice.h"
#include "core/save_match.h"
#include "format/generation_record.h"
#include "format/ids.h"
#include "format/messages.h"

namespace tierkeep {

class CoordinatorMachine::Impl {
 public:
  explicit Impl(CoordinatorOptions options);
  CoordinatorActions Step(Instant now, const CoordinatorEvent::Any& event);
  control::JobStatus status() const;
  std::vector<RankProgress> progress() const;
  uint64_t dropped_messages() const { return dropped_messages_; }
  const std::string& job() const { return options_.settings.job(); }

 private:
  enum class State : uint8_t {
    kStarting,   // registering at the rendezvous
    kGathering,  // waiting for all ranks
    kFixing,     // all are here; the run is being written to the rendezvous
    kRestoring,
    kRunning,
    kDown,
  };
  enum Timer : TimerId {
    kGatherTimer = 1,
    kRecheckTimer,
    kHolderTimer,
    kPrepareTimer,
    kPingTimer,
    kKeepTimer,
    kRetryTimer,
    kCommitTimer,
    kRendezvousTimer,
    kCompareTimer,
    kStatusTimer,
  };
  using Peer = CoordinatorPeer;
  // A node that can't hold what it is to keep.
  struct NoRoom {
    uint64_t short_bytes = 0;
    bool may_thin = false;
    void Give(uint64_t bytes) { short_bytes -= std::min(short_bytes, bytes); }
  };
  // A generation on its way to enough copies.
  struct Protection {
    control::GenerationRecord record;
    ProtectionPlan plan;
    bool rebuild = false;
    bool commits = true;                     // false: already committed, copies were lost since
    std::map<std::string, uint64_t> orders;  // outstanding, by node
    std::map<std::string, NoRoom> no_room;   // of these: what waits for memory
    // By node, as last looked at; `looked_at` tells whether copies were lost since.
    std::map<std::string, std::vector<Blake3>> missing;
    std::optional<uint64_t> looked_at;
    int failed_tries = 0;
    bool waiting = false;  // for the retry timer
    bool stalled = false;  // given up; something newer will take its place
  };

  // Replicas of the active save that disagree, while what differs is being found out.
  struct Comparison {
    control::Divergence found;     // filled in as answers come
    std::vector<Disagreement> of;  // of found.odd, by index
    std::map<uint64_t, int> open;  // order → index in found.odd
  };

  // All that JobStatus follows from, in a form that is cheap to compare.
  struct StatusStamp {
    State state = State::kStarting;
    uint64_t problems = 0;
    uint64_t connections = 0;
    const void* committed = nullptr;
    uint64_t decision = 0;
    bool decided = false;
    bool waiting = false;
    bool operator==(const StatusStamp&) const = default;
  };

  struct Seat {
    std::string agent;
    Instant accepted;  // its yaml
  };
  // Nodes of earlier runs that aren't here.
  struct Absent {
    std::set<std::string> nodes;
    uint32_t unnamed = 0;  // so many more, whose names nobody here knows
    bool none() const { return nodes.empty() && unnamed == 0; }
  };

  // -- coordinator.cc
  void Handle(const CoordinatorEvent::Started& e);
  void Handle(const CoordinatorEvent::RendezvousRead& e);
  void Handle(const CoordinatorEvent::RendezvousWritten& e);
  void Handle(const CoordinatorEvent::RendezvousFailed& e);
  void Handle(const CoordinatorEvent::Received& e);
  void Handle(const CoordinatorEvent::Disconnected& e);
  void Handle(const CoordinatorEvent::TimerFired& e);
  void HandleMember(Peer* peer, const control::Envelope& message);
  control::Envelope NewMessage() const;
  void SendTo(const Peer& peer, control::Envelope message);
  void SendTo(ConnectionId connection, control::Envelope message);
  void Log(Severity severity, std::string text);
  void Arm(Timer timer, Duration after);
  void Disarm(Timer timer);
  Peer* FindByConnection(ConnectionId connection);
  template <typename F>
  void ForEachPeer(F f) {  // members, resumed, holders, pending
    EachPeer(this, f);
  }
  template <typename F>
  void ForEachPeer(F f) const {
    EachPeer(this, f);
  }
  template <typename Self, typename F>
  static void EachPeer(Self* self, F f) {
    for (auto* map : {&self->members_, &self->resumed_, &self->pending_}) {
      for (auto& [rank, peer] : *map) f(peer);
    }
    for (auto& [node, peer] : self->holders_) f(peer);
  }
  bool MayHaveMoved() const;
  void PingAll();
  void LostConnection(ConnectionId connection);
  void TellStatus(bool even_if_gathering);
  void TellStatusIfChanged();
  StatusStamp Stamp() const;
  void SetProblem(const std::string& key, std::string text);
  void ClearProblem(const std::string& key);
  control::RendezvousRecord OwnRecord() const;
  bool IsOurs(const control::RendezvousRecord& record) const;
  void StandDown(const std::string& reason);

  // -- coordinator_links.cc
  bool TakesLink(ConnectionId from, const control::Join& join);

  // -- coordinator_gather.cc
  void HandleJoin(ConnectionId from, const control::Join& join);
  Duration AttemptAge(const control::Join& join) const;
  void Admit(Peer peer);
  void AddHolder(Peer peer);
  Peer& Hold(Peer peer);  // among the holders, and no more
  void GatherJoin(Peer peer);
  void GatherResumed(Peer peer);
  void RunJoin(Peer peer);
  bool AllHaveComeAnew(uint32_t nodes) const;
  bool CheckAgreement(const Peer& peer);
  void RefuseOtherJob(ConnectionId from, const control::Envelope& message);
  bool RefuseOlderClaim(const Peer& peer);
  void NoteSeat(const control::Seat& told);
  bool ResolveDuplicates(const Peer& peer);
  void ForgetAgent(const std::string& agent, ConnectionId except);
  void Reject(const Peer& peer, const std::string& reason, bool fatal,
              const control::RestoreStop* stop = nullptr);
  void Reject(ConnectionId connection, uint64_t attempt, const std::string& reason, bool fatal,
              const control::RestoreStop* stop = nullptr);
  void RejectMembers(const std::string& reason, const control::RestoreStop* stop = nullptr);
  void TryClose();
  void EndResumed(const std::string& reason);
  void WriteRun();
  void StartRun();
  void DoubtStrangers();
  void EndRun(const std::string& reason);
  void SendRunEnded(ConnectionId connection, const RunId& run, const std::string& reason);
  void GatherDeadline();
  void Rejoin(Peer* member, Peer peer);
  std::vector<Rank> MissingRanks() const;
  bool AllRanksCame() const;
  control::JobSettings AgreedSettings();

  // -- coordinator_view.cc
  bool WholeView() const;
  bool IsMember(const Peer& peer) const;  // this very one, of this run
  void LayOutNeighbours();
  std::set<Rank> NeighboursOf(Rank rank) const;
  std::set<uint32_t> SlotsOfView(const control::GenerationRecord& record, Rank rank) const;
  void SendRunStart(const Peer& peer, bool continued);
  void TellMembers(const Peer* holder);
  void TellMoved(const Peer& member);
  void AddSources(control::SourceList* wanted, std::vector<std::string> nodes) const;
  void SetChoice(control::RestoreChoice choice);
  bool AddChoice(control::RestoreChoice* choice, Rank rank) const;
  bool FindReleasedChoice();
  bool FindCommitted();
  void AddCommitted(control::Commit* commit, const Peer& peer) const;
  void AddObsolete(control::Commit* commit, const Peer& peer) const;

  // -- coordinator_restore.cc
  void StartRestore();
  void Decide();
  bool WaitForHolders(const RestoreAnswer& answer);
  void GiveHoldersTime(Duration wait);
  bool HoldersHadTheirTime();  // otherwise it goes on
  void Stop(const RestoreAnswer& answer, const std::string& reason);
  void Say(const RestoreAnswer& answer);
  RestoreQuestion Question() const;
  void Announce();
  void SendRestore(const Peer& member);
  void OnPrepared(Peer* member, const control::RestorePrepared& m);
  bool IsSilent(const std::string& node) const;
  bool WaitForSources(const Peer& member, const control::RestorePrepared& m);
  void NoteSourceFailed(const std::string& receiver, const std::string& source,
                        const std::vector<Blake3>& wanted);
  void AskSourcesAgain();
  void NoteFailure(Peer* member, const control::RestorePrepared& m);
  void PrepareDeadline();
  void ReleaseIfAllPrepared();
  bool SomeReleased() const;
  void SendRelease(const Peer& member);

  // -- coordinator_orders.cc
  void OnOrders(const Peer& from, const control::RestoreOrders& m);
  void TakeOrders(const control::Join& join);
  void SpreadOrders(const RestoreOrders& orders, const std::string& from);
  RestoreOrders OpenOrders() const;
  RestoreOrders SkippedBefore() const;
  RestoreOrders SkippedFrom(const RestoreAnswer& answer) const;
  std::map<SaveKey, uint32_t> Restores() const;
  std::optional<control::GenerationMark> OpenMark() const;
  Absent AbsentNodes() const;
  bool WaitForAbsent(const RestoreAnswer& answer);
  void JudgeRestores(control::RestoreChoice* choice, uint32_t before);
  void MarkNewest(const control::GenerationRecord* record);
  void WriteMark(const CoordinatorEvent::RendezvousRead& e);

  // -- coordinator_run.cc
  void StartRunning();
  void OnStaged(Peer* member, const control::SaveStaged& m);
  void OnSaveFailed(Peer* member, const control::SaveFailed& m);
  void OnKept(Peer* member, const control::Kept& m);
  void OnCommitRecorded(Peer* member, const control::CommitRecorded& m);
  void Apply(const SaveMatcher::Drops& drops);
  void AfterMatch();
  void BeginSave(const SaveKey& save);
  void BeginRebuild(const control::GenerationRecord& record, bool commits);
  void Pump(std::optional<Protection>* protection, const std::string* only = nullptr);
  bool LookForMissing(std::optional<Protection>* slot, const std::string* only);
  bool SendKeeps(Protection* protection, const std::string* only);
  bool SendKeep(Protection* protection, const Peer& peer, const std::vector<Blake3>& lacks);
  void FailTry(Protection* protection, const std::string& why, bool final);
  void Commit(std::optional<Protection>* protection);
  bool IsOwnShard(Rank rank, const Blake3& digest) const;
  void SendCommit(const Peer& peer);
  void CheckLastCommitted();
  void ResumeMember(Peer* member);
  void KeepDeadline();
  void RetryKeeps();
  void CommitDeadline();
  // -- coordinator_diverge.cc
  void NoteReplicas(const Protection& protection);
  void StartComparison(const control::GenerationRecord& record, int index);
  void OnCompared(Peer* member, const control::Compared& m);
  void CompareDeadline();
  std::string DescribeDivergence() const;
  void EndComparison(const std::string& open_because);
  void TellDivergence(const control::Divergence& divergence);
  void SayUncommitted(const Protection& protection, const std::string& why);

  // -- coordinator_memory.cc
  bool PeersAreOptional() const;
  void OnNoRoom(std::optional<Protection>* slot, Peer* member, const control::Kept& m);
  void GiveUpPeers(const std::string& node, const std::string& why);
  void FreePeersCopies();
  void GiveUpRestored(Protection* active);
  uint64_t DropRestored(const Peer& member);
  bool MayHideRecordOf(const RunId& run) const;
  void MakeRoom(Protection* protection);
  bool MakeRoomToRestore(const Peer& member, uint64_t bytes);
  std::vector<Blake3> SpareOn(const Peer& member, uint64_t bytes) const;
  size_t OthersWith(const control::ShardInfo& shard, const std::string& node) const;
  std::vector<Blake3> MisplacedOn(const std::string& node, uint64_t bytes) const;
  void Thin(const Protection& active, const Peer& member, NoRoom* no_room);
  std::shared_ptr<const control::GenerationRecord> LastCommittedOn(const std::string& node) const;
  bool KnowsOf(const std::string& node, const control::GenerationRecord& last) const;
  const CoordinatorPeer* OwnerOf(const control::GenerationRecord& last, Rank rank,
                                 const Blake3& digest) const;
  std::vector<Blake3> ThinnableOn(const control::GenerationRecord& last, const Peer& member,
                                  uint64_t bytes) const;
  uint64_t GiveBack(const Peer& member, const std::vector<Blake3>& digests,
                    const std::string& reason);
  void EndThinning();
  bool MayRelieve(const std::string& holder) const;
  void RelieveHolder(const Peer& holder);
  std::vector<std::string> NodesByRank() const;
  bool AllConnected() const;

  CoordinatorOptions options_;
  Instant now_{};
  CoordinatorActions actions_;
  State state_ = State::kStarting;
  Instant started_{};
  WallTime wall_{};

  // Rendezvous.
  control::RendezvousRecord record_;  // as last read or written
  std::string version_;
  control::RendezvousRecord writing_;
  bool write_in_flight_ = false;
  bool mark_in_flight_ = false;                  // the write is of a mark only
  std::optional<control::GenerationMark> mark_;  // not written yet

  // Who is who.
  AgentLinks links_;
  PeerTable<Rank> members_;         // fresh joins while gathering; then the run's
  PeerTable<Rank> resumed_;         // of a run that this machine doesn't know: may go on with all
  PeerTable<Rank> pending_;         // strangers' joins during a run
  PeerTable<std::string> holders_;  // by node
  uint64_t connections_ = 0;        // counts members' going and coming back
  std::vector<Peer> queued_;        // came while the run was being fixed
  std::map<std::string, uint64_t> refused_attempts_;  // by agent: losers of a duplicate rank
  std::map<Rank, Seat> seated_;  // who was released, in the run that ended last or another
  uint64_t ping_number_ = 0;

  // The run.
  control::JobSettings settings_;
  RunId run_;
  RunId previous_run_;  // of the rendezvous, before this one
  RunId released_run_;  // the last one that this machine saw released
  Epoch epoch_ = 0;
  bool continuing_ = false;
  uint64_t runs_started_ = 0;
  Holdings holdings_;
  std::vector<std::vector<Rank>> keepers_;
  // Of a large job, by rank: those whose copies it keeps by this run's placement, those that keep
  // its own, and those whose entries it is told beside its own.
  std::vector<std::set<Rank>> linked_;
  std::vector<std::set<Rank>> beside_;

  // The decision.
  std::optional<control::RestoreChoice> choice_;
  control::RestoreChoice choice_head_;  // without its generation
  std::optional<RecordCutter> choice_cutter_;
  uint64_t decision_ = 0;
  std::set<Rank> prepare_open_;  // members that have not prepared the current decision
  SourceFailures failures_;
  // Members that could not get their part from sources that can't be heard now.
  std::map<Rank, std::set<std::string>> waits_for_sources_;
  bool waiting_for_holders_ = false;
  static constexpr int kHolderParts = 10;
  int holder_parts_left_ = 0;
  Duration holder_part_{};
  bool waited_for_holders_ = false;
  bool waiting_for_absent_ = false;  // then waiting_for_holders_ too
  bool gave_up_absent_ = false;
  control::RestoreStop waiting_;  // whom for
  RestoreOrders orders_;
  int prepare_timeouts_ = 0;

  // Saves.
  std::optional<SaveMatcher> matcher_;
  std::optional<Protection> active_;
  std::optional<Protection> rebuild_;
  std::optional<Comparison> comparison_;
  std::optional<control::Divergence> divergence_;  // of the newest complete save, compared
  std::shared_ptr<const control::GenerationRecord> committed_;
  std::optional<RecordCutter> committed_cutter_;
  std::map<std::string, std::set<Blake3>> committed_keep_;
  std::set<Rank> commit_open_;     // members that have not recorded it yet
  bool restored_dropped_ = false;  // GiveUpRestored
  bool optional_peers_ = false;    // no yaml names any: only where they fit
  bool names_no_peers_ = false;    // as optional_peers_, also where they were found not to fit
  bool thinned_ = false;           // copies of the last committed generation were given up
  uint64_t next_number_ = 1;
  uint64_t next_order_ = 1;

  CoordinatorProblems problems_;
  std::string told_status_;
  StatusStamp told_stamp_;
  Instant told_at_{};
  bool status_due_ = false;  // told once the timer says so
  uint64_t dropped_messages_ = 0;
};

}  // namespace tierkeep
