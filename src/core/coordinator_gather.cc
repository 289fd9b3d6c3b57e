// Who takes part: gathering, rejoining, the end of a run.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

// A run's own id from the machine's nonce: the second run that a machine starts has another one.
Id128 DeriveNonce(const Id128& nonce, uint64_t count) {
  if (count == 0) return nonce;
  const Blake3 digest = ComputeBlake3(fmt::format("run {} of {}", count, nonce.Hex()));
  Id128 id;
  std::copy(digest.bytes.begin(), digest.bytes.begin() + Id128::kSize, id.bytes.begin());
  return id;
}

std::string JoinRanks(const std::vector<Rank>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size() && i < 32; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > 32) text += fmt::format(" and {} more", ranks.size() - 32);
  return text;
}

}  // namespace

void CoordinatorMachine::Impl::HandleJoin(ConnectionId from, const control::Join& join) {
  if (!TakesLink(from, join)) return;
  Peer peer;
  peer.join = join;
  peer.connection = from;
  peer.heard = peer.joined = now_;
  peer.accepted = now_ - AttemptAge(join);
  if (state_ == State::kFixing) {
    // Who takes part is being written down: whoever comes now is looked at after it.
    queued_.push_back(std::move(peer));
    return;
  }
  Admit(std::move(peer));
}

void CoordinatorMachine::Impl::Admit(Peer peer) {
  TakeOrders(peer.join);
  if (peer.join.holder()) {
    AddHolder(std::move(peer));
  } else if (state_ == State::kRestoring || state_ == State::kRunning) {
    RunJoin(std::move(peer));
  } else if (!peer.in_run().none()) {
    GatherResumed(std::move(peer));
  } else {
    GatherJoin(std::move(peer));
  }
}

void CoordinatorMachine::Impl::AddHolder(Peer peer) {
  // A member is more than a holder, unless its attempt is over.
  const auto member = members_.ByNode(peer.node());
  if (member != members_.end() && member->second.connected) return;
  if (peer.join.has_seat()) NoteSeat(peer.join.seat());
  holdings_.SetNode(peer.node(), job(), peer.join.inventory());
  const Peer& holder = Hold(std::move(peer));
  if (state_ == State::kRestoring || state_ == State::kRunning) TellMembers(&holder);
  RelieveHolder(holder);
  if (waiting_for_holders_) Decide();
}

CoordinatorMachine::Impl::Peer& CoordinatorMachine::Impl::Hold(Peer peer) {
  const std::string node = peer.node();
  return holders_.Put(node, std::move(peer));
}

// Removes what an agent said earlier, but not over connection `except`.
void CoordinatorMachine::Impl::ForgetAgent(const std::string& agent, ConnectionId except) {
  for (auto* table : {&members_, &resumed_, &pending_}) {
    const auto it = table->ByAgent(agent);
    if (it == table->end()) continue;
    if (it->second.connected && it->second.connection != except) {
      actions_.emplace_back(CoordinatorAction::CloseConnection{it->second.connection});
    }
    table->Erase(it);
  }
}

void CoordinatorMachine::Impl::GatherJoin(Peer peer) {
  if (!CheckAgreement(peer) || RefuseOlderClaim(peer) || !ResolveDuplicates(peer)) return;
  ForgetAgent(peer.agent(), peer.connection);
  holders_.Erase(peer.node());
  holdings_.SetNode(peer.node(), job(), peer.join.inventory());
  if (members_.empty()) Arm(kGatherTimer, options_.gather_deadline);
  // Whoever still waits for a run that will never go on starts again with the others; whoever was
  // released in it is told once a member of that run has a new yaml.
  bool run_is_over = false;
  for (const auto& [rank, resumed] : resumed_) {
    const auto& nodes = resumed.join.previous_nodes();
    run_is_over = run_is_over || rank == peer.rank() ||
                  FromProto(peer.join.highest_run()) == resumed.in_run() ||
                  std::find(nodes.begin(), nodes.end(), peer.node()) != nodes.end();
  }
  for (auto it = resumed_.begin(); it != resumed_.end();) {
    if (!run_is_over && it->second.join.released()) {
      ++it;
      continue;
    }
    SendRunEnded(it->second.connection, it->second.in_run(), "the job starts again");
    const auto next = std::next(it);
    Hold(resumed_.Take(it));
    it = next;
  }
  const Rank rank = peer.rank();
  members_.Put(rank, std::move(peer));
  TryClose();
}

void CoordinatorMachine::Impl::GatherResumed(Peer peer) {
  ForgetAgent(peer.agent(), peer.connection);
  holders_.Erase(peer.node());
  holdings_.SetNode(peer.node(), job(), peer.join.inventory());
  const auto& nodes = peer.join.previous_nodes();
  bool run_is_over =
      (!members_.empty() && !peer.join.released()) || members_.count(peer.rank()) != 0 ||
      std::any_of(nodes.begin(), nodes.end(),
                  [&](const auto& node) { return members_.ByNode(node) != members_.end(); }) ||
      std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
        return FromProto(entry.second.join.highest_run()) == peer.in_run();
      });
  // Of several runs only the newest can go on: all ranks had come anew when it began. Those that
  // are here are of one run.
  const uint64_t known = resumed_.empty() ? 0 : resumed_.begin()->second.in_run().sequence;
  run_is_over = run_is_over || known > peer.in_run().sequence;
  while (known < peer.in_run().sequence && !resumed_.empty()) {
    Peer older = resumed_.Take(resumed_.begin());
    SendRunEnded(older.connection, older.in_run(), "a newer run of the job goes on");
    Hold(std::move(older));
  }
  if (run_is_over) {
    SendRunEnded(peer.connection, peer.in_run(), "the job starts again");
    Hold(std::move(peer));
    return;
  }
  const Rank rank = peer.rank();
  resumed_.Put(rank, std::move(peer));
  TryClose();
}

std::vector<Rank> CoordinatorMachine::Impl::MissingRanks() const {
  const auto& map = members_.empty() ? resumed_ : members_;
  const uint32_t nodes =
      map.empty() ? settings_.world().nodes() : map.begin()->second.join.settings().world().nodes();
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < nodes; ++rank) {
    if (map.count(rank) == 0) missing.push_back(rank);
  }
  return missing;
}

// As MissingRanks().empty(), without looking at each: their ranks are in range.
bool CoordinatorMachine::Impl::AllRanksCame() const {
  const auto& table = members_.empty() ? resumed_ : members_;
  return !table.empty() && table.size() >= table.begin()->second.join.settings().world().nodes() &&
         MissingRanks().empty();
}

void CoordinatorMachine::Impl::TryClose() {
  if (state_ != State::kGathering || write_in_flight_) return;  // else once it is written
  if (members_.empty() == resumed_.empty()) {
    if (members_.empty()) return;
  }
  if (members_.empty() &&
      FromProto(record_.run()).sequence > resumed_.begin()->second.in_run().sequence) {
    EndResumed("a newer run of the job has begun");
    return;
  }
  if (!AllRanksCame()) return;
  if (!members_.empty()) {
    for (const auto& [rank, member] : members_) {
      if (member.doubted_until > now_) return;  // looked at again by kRecheckTimer
    }
    continuing_ = false;
  } else {
    const RunId run = resumed_.begin()->second.in_run();
    for (const auto& [rank, peer] : resumed_) {
      if (peer.in_run() != run) return;
    }
    TK_PROBE(kRunGoesOn);
    continuing_ = true;
    members_ = std::exchange(resumed_, {});
  }
  settings_ = AgreedSettings();
  state_ = State::kFixing;
  Disarm(kGatherTimer);
  WriteRun();
}

// For what need not be equal, rank 0's value holds for all; peer-ranks are each node's own.
control::JobSettings CoordinatorMachine::Impl::AgreedSettings() {
  control::JobSettings agreed = members_.at(0).join.settings();
  for (const auto& [rank, peer] : members_) {
    const auto& own = peer.join.settings();
    if (own.backup_interval_minutes() != agreed.backup_interval_minutes() ||
        own.backup_interval_steps() != agreed.backup_interval_steps() ||
        own.has_peers_per_node() != agreed.has_peers_per_node() ||
        own.peers_per_node() != agreed.peers_per_node()) {
      Log(Severity::kWarning,
          fmt::format("Node {} has other peers-per-node or backup settings than rank 0, whose "
                      "settings hold for all",
                      peer.node()));
    }
  }
  agreed.set_has_peer_ranks(false);
  agreed.clear_peer_ranks();
  return agreed;
}

void CoordinatorMachine::Impl::WriteRun() {
  // A run that this machine began and never released has no checkpoints: the one before it counts.
  if (FromProto(record_.run()) != run_ || released_run_ == run_) {
    previous_run_ = FromProto(record_.run());
  }
  uint64_t sequence = WallMillis(wall_ + (now_ - started_));
  Epoch epoch = std::max<Epoch>(epoch_, record_.epoch());
  for (const auto& [rank, peer] : members_) {
    epoch = std::max<Epoch>(epoch, peer.join.highest_epoch());
    if (TK_MUTATION(kLowRunSequence)) continue;
    sequence = std::max<uint64_t>(sequence, peer.join.highest_run().sequence() + 1);
  }
  if (!TK_MUTATION(kLowRunSequence)) {
    sequence = std::max<uint64_t>(sequence, record_.run().sequence() + 1);
  }
  if (continuing_) {
    run_ = members_.begin()->second.in_run();
    // Which one there was before it, only the mark tells.
    previous_run_ = FromProto(record_.newest().run());
  } else {
    run_ = {sequence, DeriveNonce(options_.run_nonce, runs_started_)};
  }
  writing_ = OwnRecord();
  writing_.set_epoch(epoch + 1);
  *writing_.mutable_run() = ToProto(run_);
  write_in_flight_ = true;
  actions_.emplace_back(CoordinatorAction::WriteRendezvous{writing_, version_});
}

// The run stands in the rendezvous: only now may anybody hear of it.
void CoordinatorMachine::Impl::StartRun() {
  ++runs_started_;
  state_ = State::kRestoring;
  Disarm(kRecheckTimer);
  problems_.Clear();
  PlacementInput placement{.nodes = settings_.world().nodes(),
                           .data_parallelism = settings_.world().data_parallelism()};
  if (settings_.has_peers_per_node()) placement.peers_per_node = settings_.peers_per_node();
  for (const auto& [rank, peer] : members_) {
    const auto& own = peer.join.settings();
    if (own.has_peer_ranks()) {
      placement.explicit_peers[rank] = {own.peer_ranks().begin(), own.peer_ranks().end()};
    }
  }
  keepers_ = Keepers(placement);
  LayOutNeighbours();
  optional_peers_ = names_no_peers_ = PeersAreOptional();
  thinned_ = restored_dropped_ = false;
  if (settings_.world().nodes() == 1) {
    SetProblem("alone", "The job has one node: its checkpoints have no in-cluster redundancy");
  }
  EndResumed("the job has started again without this node");
  matcher_.emplace(settings_.world().nodes(), options_.timings.overtaken_max);
  Log(Severity::kInfo, fmt::format("Run {} {} with {} nodes", run_.ToString(),
                                   continuing_ ? "goes on" : "begins", members_.size()));
  for (auto& [rank, peer] : members_) {
    if (!continuing_) peer.join.set_released(false);
  }
  StartRestore();
  for (Peer& peer : std::exchange(queued_, {})) Admit(std::move(peer));
}

// Agents of a run that is over serve as holders from now on.
void CoordinatorMachine::Impl::EndResumed(const std::string& reason) {
  while (!resumed_.empty()) {
    Peer peer = resumed_.Take(resumed_.begin());
    SendRunEnded(peer.connection, peer.in_run(), reason);
    Hold(std::move(peer));
  }
}

void CoordinatorMachine::Impl::RunJoin(Peer peer) {
  auto found = members_.ByAgent(peer.agent());
  // A host that lost even its state directory is the same host still.
  if (found == members_.end()) found = members_.ByNode(peer.node());
  Peer* member = found == members_.end() ? nullptr : &found->second;
  const bool same_agent = member != nullptr && member->agent() == peer.agent();
  if (member != nullptr && !same_agent && member->connected) {
    // Either two agents have one name, or the host was lost with all it had and came back before
    // its old connection was found dead. The older one tells which: it answers pings or it doesn't.
    const bool known =
        member->contested && now_ - *member->contested < options_.timings.silent_after;
    if (!known) member->contested = now_;
    Reject(peer, fmt::format("node name {} is used by another agent", peer.node()),
           /*fatal=*/known && member->heard > *member->contested);
    return;
  }
  if (!peer.in_run().none() && (peer.in_run() != run_ || !same_agent)) {
    SendRunEnded(peer.connection, peer.in_run(), "another run of the job has begun");
    AddHolder(std::move(peer));
    return;
  }
  if (same_agent && peer.attempt() == member->attempt() && peer.rank() == member->rank()) {
    Rejoin(member, std::move(peer));
    return;
  }
  if (same_agent && peer.attempt() < member->attempt()) {
    Reject(peer, "a newer attempt of this agent is part of the run", true);
    return;
  }
  if (member != nullptr) {
    TK_PROBE(kRunEndsForYaml);
    EndRun(fmt::format("node {} has a new replicator.yaml", peer.node()));
    GatherJoin(std::move(peer));
    return;
  }
  // A stranger: the run ends only when all ranks have come anew. What it has may serve until then.
  ForgetAgent(peer.agent(), peer.connection);
  holders_.Erase(peer.node());
  holdings_.SetNode(peer.node(), job(), peer.join.inventory());
  const Rank rank = peer.rank();
  const uint32_t nodes = peer.join.settings().world().nodes();
  if (const auto earlier = pending_.find(rank); earlier != pending_.end()) {
    holdings_.RemoveNode(earlier->second.node());
  }
  const Peer& stranger = pending_.Put(rank, std::move(peer));
  SetProblem("stranger", fmt::format("node {} wants rank {} of the job while its run goes on",
                                     stranger.node(), rank));
  if (AllHaveComeAnew(nodes)) {
    TK_PROBE(kStrangersTakeOver);
    EndRun("all ranks have come with a new replicator.yaml");
    return;
  }
  Arm(kRecheckTimer, options_.timings.gather_recheck);
  TellMembers(nullptr);
  if (waiting_for_holders_) Decide();
}

// Of two whole sets of nodes that want the ranks, the older one must not end the run of the younger
// one: that would end the next one, and so on.
bool CoordinatorMachine::Impl::AllHaveComeAnew(uint32_t nodes) const {
  if (pending_.size() < nodes) return false;
  const auto anew = std::count_if(pending_.begin(), pending_.end(), [&](const auto& stranger) {
    const auto member = members_.find(stranger.first);
    return member == members_.end() || stranger.second.accepted > member->second.accepted;
  });
  return static_cast<uint32_t>(anew) == nodes;
}

void CoordinatorMachine::Impl::Rejoin(Peer* member, Peer peer) {
  if (member->connected && member->connection != peer.connection) {
    actions_.emplace_back(CoordinatorAction::CloseConnection{member->connection});
  }
  ClearProblem("away " + member->node());
  const bool moved =
      member->join.data().SerializeAsString() != peer.join.data().SerializeAsString() ||
      member->join.data_token() != peer.join.data_token();
  // An agent that was restarted takes its yaml for a new one.
  peer.accepted = std::min(peer.accepted, member->accepted);
  if (member->connected && member->connection == peer.connection) peer.failures = member->failures;
  member = &members_.Put(member->rank(), std::move(peer));
  ++connections_;
  if (member->in_run() != run_) member->join.set_released(false);
  if (state_ == State::kRestoring && !member->join.released()) {
    prepare_open_.insert(member->rank());
  }
  holdings_.SetNode(member->node(), job(), member->join.inventory());
  SendRunStart(*member, member->join.released());
  if (moved) TellMoved(*member);
  ResumeMember(member);
}

// A stranger that waited for a rank may be a stray process, and then the job's own comes in a
// moment.
void CoordinatorMachine::Impl::DoubtStrangers() {
  for (auto& [rank, stranger] : pending_) {
    const auto member = members_.find(rank);
    if (member == members_.end()) continue;
    // One that was here a moment ago may have left for its new start.
    const Duration silent = now_ - member->second.heard;
    if (!member->second.connected && silent > options_.timings.ping_interval) continue;
    stranger.doubted_until = now_ + options_.timings.stranger_grace;
  }
}

void CoordinatorMachine::Impl::EndRun(const std::string& reason) {
  if (pending_.size() < settings_.world().nodes()) DoubtStrangers();
  if (comparison_) EndComparison("the run ended before");
  Log(Severity::kWarning, fmt::format("Run {} is over: {}", run_.ToString(), reason));
  seated_.clear();
  for (auto& [rank, peer] : members_) {
    if (peer.join.released()) seated_[rank] = {peer.agent(), peer.accepted};
    if (!peer.connected) {
      if (holders_.count(peer.node()) == 0) holdings_.RemoveNode(peer.node());
      continue;
    }
    SendRunEnded(peer.connection, run_, reason);
    Hold(std::move(peer));
  }
  members_.clear();
  state_ = State::kGathering;
  choice_cutter_.reset();
  choice_.reset();
  decision_ = 0;
  prepare_open_.clear();
  waits_for_sources_.clear();
  failures_.clear();
  waiting_for_holders_ = waited_for_holders_ = waiting_for_absent_ = gave_up_absent_ = false;
  mark_.reset();
  prepare_timeouts_ = 0;
  matcher_.reset();
  active_.reset();
  rebuild_.reset();
  divergence_.reset();
  committed_cutter_.reset();
  committed_.reset();
  committed_keep_.clear();
  commit_open_.clear();
  problems_.Clear();
  for (const Timer timer : {kHolderTimer, kPrepareTimer, kKeepTimer, kRetryTimer, kCommitTimer}) {
    Disarm(timer);
  }
  actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
  Arm(kRecheckTimer, options_.timings.gather_recheck);
  for (auto& [rank, peer] : std::exchange(pending_, {})) GatherJoin(std::move(peer));
}

// Ends the attempt of every member: their jobs must be told and start again.
void CoordinatorMachine::Impl::RejectMembers(const std::string& reason,
                                             const control::RestoreStop* stop) {
  Log(Severity::kError, reason);
  for (const auto& [rank, peer] : members_) {
    Reject(peer, reason, true, stop);
    holdings_.RemoveNode(peer.node());
  }
  members_.clear();
  Disarm(kGatherTimer);
}

void CoordinatorMachine::Impl::GatherDeadline() {
  if (members_.empty() || (state_ != State::kGathering && state_ != State::kStarting)) return;
  // Whoever the timer was set for may have gone meanwhile: the longest wait counts.
  Instant first = now_;
  for (const auto& [rank, peer] : members_) first = std::min(first, peer.joined);
  if (first + options_.gather_deadline > now_) {
    Arm(kGatherTimer, first + options_.gather_deadline - now_);
    return;
  }
  const std::vector<Rank> missing = MissingRanks();
  if (missing.empty()) {
    RejectMembers("the rendezvous could not be written within " +
                  FormatDuration(options_.gather_deadline));
    return;
  }
  RejectMembers(fmt::format("rank{} {} did not join within {}", missing.size() == 1 ? "" : "s",
                            JoinRanks(missing), FormatDuration(options_.gather_deadline)));
}

}  // namespace tierkeep
