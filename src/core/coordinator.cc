#include "core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

// What is told of a large job's troubles: people read it, and every member gets it.
constexpr int kRanksToldMax = 256;
constexpr int kProblemsToldMax = 64;
constexpr Duration kStatusPausePerMember = 100us;

}  // namespace

CoordinatorMachine::CoordinatorMachine(CoordinatorOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
CoordinatorMachine::~CoordinatorMachine() = default;
CoordinatorActions CoordinatorMachine::Step(Instant now, const CoordinatorEvent::Any& event) {
  return impl_->Step(now, event);
}
control::JobStatus CoordinatorMachine::status() const { return impl_->status(); }
std::vector<RankProgress> CoordinatorMachine::progress() const { return impl_->progress(); }
uint64_t CoordinatorMachine::dropped_messages() const { return impl_->dropped_messages(); }
const std::string& CoordinatorMachine::job() const { return impl_->job(); }

CoordinatorMachine::Impl::Impl(CoordinatorOptions options)
    : options_(std::move(options)), settings_(options_.settings) {
  TK_CHECK(!options_.run_nonce.IsZero());
}

CoordinatorActions CoordinatorMachine::Impl::Step(Instant now, const CoordinatorEvent::Any& event) {
  now_ = now;
  if (state_ == State::kDown) return {};
  std::visit([this](const auto& e) { Handle(e); }, event);
  if (state_ == State::kRunning || state_ == State::kRestoring) TellStatusIfChanged();
  return std::exchange(actions_, {});
}

// ---- rendezvous ------------------------------------------------------------------------------

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::Started& e) {
  started_ = now_;
  wall_ = e.wall;
  actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
  Arm(kPingTimer, options_.timings.ping_interval);
}

control::RendezvousRecord CoordinatorMachine::Impl::OwnRecord() const {
  control::RendezvousRecord record = record_;
  record.set_job(job());
  record.mutable_coordinator()->set_host(options_.control_host);
  record.mutable_coordinator()->set_port(options_.control_port);
  record.set_boot(options_.boot.Raw());
  record.set_node(options_.node_name);
  return record;
}

bool CoordinatorMachine::Impl::IsOurs(const control::RendezvousRecord& record) const {
  return record.node() == options_.node_name && record.boot() == options_.boot.Raw() &&
         record.coordinator().host() == options_.control_host &&
         record.coordinator().port() == options_.control_port;
}

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::RendezvousRead& e) {
  const control::RendezvousRecord found = e.record.value_or(control::RendezvousRecord());
  const bool others = e.record && !IsOurs(found) && found.epoch() > epoch_;
  if (write_in_flight_) return;  // its outcome comes first
  if (state_ == State::kRestoring || state_ == State::kRunning) {
    // A newer run stands there only once all its ranks had come: what is here may serve it.
    const bool newer_run = others && found.run().sequence() > run_.sequence;
    // Whoever is still to come will ask there.
    const bool deserted =
        others && std::none_of(members_.begin(), members_.end(),
                               [](const auto& entry) { return entry.second.connected; });
    // A member that coordinates the job itself by now doesn't come back here, and waits for the
    // others: they go on with it there, or begin anew.
    const bool left = others && std::any_of(members_.begin(), members_.end(), [&](const auto& m) {
                        return !m.second.connected && m.second.node() == found.node();
                      });
    if (!newer_run && !deserted) {
      if (!left) return WriteMark(e);
      return StandDown(fmt::format("node {}, of this run, coordinates the job now", found.node()));
    }
    const std::string reason =
        newer_run
            ? fmt::format("all ranks have started again, and node {} coordinates them",
                          found.node())
            : fmt::format("no member is left here, and node {} coordinates the job", found.node());
    EndRun(reason);
    StandDown(reason);
    return;
  }
  if (state_ == State::kGathering && others) {
    // Somebody else gathers this job now; of two claims to a rank, that one picks the newer.
    StandDown(fmt::format("node {} coordinates the job now", found.node()));
    return;
  }
  record_ = found;
  version_ = e.version;
  if (state_ == State::kFixing) {
    if (others) {
      StandDown(fmt::format("node {} coordinates the job now", found.node()));
      return;
    }
    WriteRun();
    return;
  }
  if (epoch_ == 0 && !options_.resumes.none() && !IsOurs(found) &&
      found.run().sequence() > options_.resumes.sequence) {
    StandDown(fmt::format("node {} has begun a newer run of the job", found.node()));
    return;
  }
  const bool registered = epoch_ != 0 && IsOurs(found);
  if (state_ != State::kStarting && (state_ != State::kGathering || registered)) return;
  state_ = State::kStarting;
  writing_ = OwnRecord();
  writing_.set_epoch((TK_MUTATION(kLowEpoch) ? epoch_ : std::max(record_.epoch(), epoch_)) + 1);
  write_in_flight_ = true;
  actions_.emplace_back(CoordinatorAction::WriteRendezvous{writing_, version_});
}

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::RendezvousWritten& e) {
  write_in_flight_ = false;
  if (std::exchange(mark_in_flight_, false)) {
    if (IsOurs(writing_)) {
      record_ = writing_;
      version_ = e.version;
    }
    TryClose();
    return;
  }
  record_ = writing_;
  version_ = e.version;
  epoch_ = record_.epoch();
  if (state_ == State::kStarting) {
    state_ = State::kGathering;
    Arm(kRecheckTimer, options_.timings.gather_recheck);
    TryClose();
  } else if (state_ == State::kFixing) {
    StartRun();
  }
}

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::RendezvousFailed& e) {
  write_in_flight_ = false;
  if (std::exchange(mark_in_flight_, false)) {
    if (writing_.has_newest() && !mark_) mark_ = writing_.newest();
    TryClose();
  }
  if (e.error.code() == Code::kAborted) {
    actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
    return;
  }
  // A run doesn't need it: it is only looked at now and then.
  if (state_ == State::kRestoring || state_ == State::kRunning) return;
  Log(Severity::kWarning, "The rendezvous can't be used: " + e.error.ToString());
  Arm(kRendezvousTimer, options_.timings.reconnect_max);
}

void CoordinatorMachine::Impl::StandDown(const std::string& reason) {
  TK_PROBE(kNewerCoordinator);
  ForEachPeer([&](Peer& peer) { Reject(peer, reason, false); });
  Log(Severity::kWarning, "This node no longer coordinates the job: " + reason);
  actions_.emplace_back(CoordinatorAction::StandDown{reason});
  state_ = State::kDown;
}

// ---- messages --------------------------------------------------------------------------------

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::Received& e) {
  const control::Envelope& message = *e.message;
  if (message.job() != job()) {
    ++dropped_messages_;
    if (message.has_join()) RefuseOtherJob(e.from, message);
    return;
  }
  if (message.has_join()) {
    HandleJoin(e.from, message.join());
    return;
  }
  Peer* peer = FindByConnection(e.from);
  if (peer == nullptr) {
    ++dropped_messages_;
    return;
  }
  peer->heard = now_;
  if (message.has_ping()) return;
  // These also come outside of a run, but not from one of an earlier epoch. One that leaves closes
  // its connection, and an order is part of its next join.
  if (message.epoch() != 0 && message.epoch() < epoch_ && !TK_MUTATION(kAcceptOlderEpoch)) {
    TK_PROBE(kOlderEpochDropped);
    ++dropped_messages_;
    return;
  }
  if (message.has_leaving()) {
    LostConnection(e.from);
    return;
  }
  if (message.has_restore_orders()) {
    OnOrders(*peer, message.restore_orders());
    return;
  }
  const bool ours = message.epoch() == epoch_ && FromProto(message.run()) == run_;
  const bool in_run = state_ == State::kRestoring || state_ == State::kRunning;
  const auto member = members_.find(peer->rank());
  if (!ours || !in_run || member == members_.end() || &member->second != peer) {
    ++dropped_messages_;
    return;
  }
  HandleMember(peer, message);
}

void CoordinatorMachine::Impl::HandleMember(Peer* peer, const control::Envelope& message) {
  switch (message.body_case()) {
    case control::Envelope::kRestorePrepared:
      OnPrepared(peer, message.restore_prepared());
      break;
    case control::Envelope::kSaveStaged:
      OnStaged(peer, message.save_staged());
      break;
    case control::Envelope::kSaveFailed:
      OnSaveFailed(peer, message.save_failed());
      break;
    case control::Envelope::kKept:
      OnKept(peer, message.kept());
      break;
    case control::Envelope::kCompared:
      OnCompared(peer, message.compared());
      break;
    case control::Envelope::kCommitRecorded:
      OnCommitRecorded(peer, message.commit_recorded());
      break;
    default:
      ++dropped_messages_;
  }
}

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::Disconnected& e) {
  LostConnection(e.from);
}

void CoordinatorMachine::Impl::LostConnection(ConnectionId connection) {
  std::erase_if(queued_, [&](const Peer& peer) { return peer.connection == connection; });
  const auto of = [&](const Peer& peer) { return peer.connected && peer.connection == connection; };
  const bool fixed =
      state_ == State::kFixing || state_ == State::kRestoring || state_ == State::kRunning;
  if (const auto it = members_.ByConnection(connection); it != members_.end() && of(it->second)) {
    if (fixed) {
      it->second.connected = false;
      ++connections_;
      SetProblem("away " + it->second.node(),
                 fmt::format("rank {} on node {} is not connected", it->first, it->second.node()));
      if (state_ != State::kFixing) Arm(kRecheckTimer, options_.timings.gather_recheck);
      return;
    }
    holdings_.RemoveNode(it->second.node());
    members_.Erase(it);
    if (members_.empty()) Disarm(kGatherTimer);
    return;
  }
  const auto remove = [&](auto* table) {
    const auto it = table->ByConnection(connection);
    if (it == table->end() || !of(it->second)) return false;
    holdings_.RemoveNode(it->second.node());
    table->Erase(it);
    return true;
  };
  if (!remove(&resumed_) && !remove(&pending_)) remove(&holders_);
}

CoordinatorMachine::Impl::Peer* CoordinatorMachine::Impl::FindByConnection(
    ConnectionId connection) {
  const auto in = [&](auto* table) -> Peer* {
    const auto it = table->ByConnection(connection);
    return it != table->end() && it->second.connected ? &it->second : nullptr;
  };
  for (auto* table : {&members_, &resumed_, &pending_}) {
    if (Peer* peer = in(table)) return peer;
  }
  return in(&holders_);
}

control::Envelope CoordinatorMachine::Impl::NewMessage() const {
  control::Envelope message;
  message.set_job(job());
  message.set_sender(options_.node_name);
  const bool in_run = state_ == State::kRestoring || state_ == State::kRunning;
  if (in_run) {
    *message.mutable_run() = ToProto(run_);
    message.set_epoch(epoch_);
  }
  return message;
}

void CoordinatorMachine::Impl::SendTo(const Peer& peer, control::Envelope message) {
  if (peer.connected) SendTo(peer.connection, std::move(message));
}

void CoordinatorMachine::Impl::SendTo(ConnectionId connection, control::Envelope message) {
  actions_.emplace_back(CoordinatorAction::Send{connection, std::move(message)});
}

void CoordinatorMachine::Impl::SendRunEnded(ConnectionId connection, const RunId& run,
                                            const std::string& reason) {
  control::Envelope message = NewMessage();
  *message.mutable_run_ended()->mutable_run() = ToProto(run);
  message.mutable_run_ended()->set_reason(reason);
  SendTo(connection, std::move(message));
}

void CoordinatorMachine::Impl::Reject(const Peer& peer, const std::string& reason, bool fatal,
                                      const control::RestoreStop* stop) {
  if (peer.connected) Reject(peer.connection, peer.attempt(), reason, fatal, stop);
}

void CoordinatorMachine::Impl::Reject(ConnectionId connection, uint64_t attempt,
                                      const std::string& reason, bool fatal,
                                      const control::RestoreStop* stop) {
  control::Envelope message = NewMessage();
  message.mutable_rejected()->set_attempt(attempt);
  message.mutable_rejected()->set_reason(reason);
  message.mutable_rejected()->set_fatal(fatal);
  if (stop != nullptr) *message.mutable_rejected()->mutable_stop() = *stop;
  SendTo(connection, std::move(message));
}

void CoordinatorMachine::Impl::Log(Severity severity, std::string text) {
  actions_.emplace_back(CoordinatorAction::LogText{severity, std::move(text)});
}

// ---- timers and status -----------------------------------------------------------------------

void CoordinatorMachine::Impl::Arm(Timer timer, Duration after) {
  actions_.emplace_back(CoordinatorAction::SetTimer{timer, now_ + after});
}

void CoordinatorMachine::Impl::Disarm(Timer timer) {
  actions_.emplace_back(CoordinatorAction::CancelTimer{timer});
}

void CoordinatorMachine::Impl::Handle(const CoordinatorEvent::TimerFired& e) {
  switch (static_cast<Timer>(e.timer)) {
    case kGatherTimer:
      GatherDeadline();
      break;
    case kRecheckTimer:
      if (state_ != State::kGathering && !MayHaveMoved()) break;
      actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
      Arm(kRecheckTimer, options_.timings.gather_recheck);
      TryClose();
      break;
    case kRendezvousTimer:
      if (!write_in_flight_) actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
      break;
    case kHolderTimer:
      if (!waiting_for_holders_ || !HoldersHadTheirTime()) break;
      waited_for_holders_ = true;  // and for the nodes that are away
      Decide();
      break;
    case kPrepareTimer:
      PrepareDeadline();
      break;
    case kPingTimer:
      PingAll();
      TellStatus(true);
      // A decision may wait for minutes: meanwhile all may have started again elsewhere.
      if (state_ == State::kRunning || state_ == State::kRestoring) {
        actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
      }
      Arm(kPingTimer, options_.timings.ping_interval);
      break;
    case kKeepTimer:
      KeepDeadline();
      break;
    case kRetryTimer:
      RetryKeeps();
      AskSourcesAgain();
      break;
    case kCompareTimer:
      CompareDeadline();
      break;
    case kStatusTimer:
      if (std::exchange(status_due_, false)) TellStatus(false);
      break;
    case kCommitTimer:
      CommitDeadline();
      break;
  }
}

// A stranger, or a member that is away, may be part of a run that has begun elsewhere.
bool CoordinatorMachine::Impl::MayHaveMoved() const {
  if (state_ != State::kRestoring && state_ != State::kRunning) return false;
  return !pending_.empty() || std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return !entry.second.connected;
  });
}

void CoordinatorMachine::Impl::PingAll() {
  control::Envelope ping = NewMessage();
  ping.mutable_ping()->set_number(++ping_number_);
  std::vector<ConnectionId> silent;
  ForEachPeer([&](Peer& peer) {
    if (!peer.connected) return;
    // Our own node can't be silent: after the host slept it only seems so, and it would never know
    // that it was given up.
    const bool local = peer.connection == kLocalConnection;
    if (!local && now_ - peer.heard > options_.timings.silent_after) {
      silent.push_back(peer.connection);
    } else {
      SendTo(peer, ping);
    }
  });
  for (const ConnectionId connection : silent) {
    actions_.emplace_back(CoordinatorAction::CloseConnection{connection});
    LostConnection(connection);
  }
}

void CoordinatorMachine::Impl::SetProblem(const std::string& key, std::string text) {
  if (problems_.Set(key, text)) Log(Severity::kWarning, std::move(text));
}

void CoordinatorMachine::Impl::ClearProblem(const std::string& key) { problems_.Erase(key); }

control::JobStatus CoordinatorMachine::Impl::status() const {
  control::JobStatus status;
  const auto missing = [&status](Rank rank) {
    status.set_missing_total(status.missing_total() + 1);
    if (status.missing_ranks_size() < kRanksToldMax) status.add_missing_ranks(rank);
  };
  switch (state_) {
    case State::kStarting:
    case State::kGathering:
    case State::kFixing:
      status.set_state("gathering");
      for (const Rank rank : MissingRanks()) missing(rank);
      break;
    case State::kRestoring:
      status.set_state("restoring");
      break;
    case State::kRunning:
      status.set_state("running");
      break;
    case State::kDown:
      status.set_state("gathering");
      break;
  }
  if (state_ == State::kRestoring || state_ == State::kRunning) {
    for (const auto& [rank, peer] : members_) {
      if (!peer.connected) missing(rank);
    }
  }
  if (committed_) {
    *status.mutable_last_committed() = WithoutShards(*committed_);
  }
  if (choice_) status.set_restore_reason(choice_->reason());
  for (const auto& [key, text] : problems_) {
    if (status.problems_size() < kProblemsToldMax) status.add_problems(text);
  }
  if (problems_.size() > kProblemsToldMax) {
    status.add_problems(fmt::format("and {} more", problems_.size() - kProblemsToldMax));
  }
  if (divergence_) *status.mutable_divergence() = *divergence_;
  if (waiting_for_absent_) *status.mutable_waiting() = waiting_;
  return status;
}

CoordinatorMachine::Impl::StatusStamp CoordinatorMachine::Impl::Stamp() const {
  return {state_,    problems_.version(), connections_,       committed_.get(),
          decision_, choice_.has_value(), waiting_for_absent_};
}

// After every event. All members are told, so in a large job not of every change at once.
void CoordinatorMachine::Impl::TellStatusIfChanged() {
  if (Stamp() == told_stamp_ || status_due_) return;
  const Duration pause = kStatusPausePerMember * static_cast<int64_t>(members_.size());
  if (now_ - told_at_ >= pause) {
    TellStatus(false);
    return;
  }
  status_due_ = true;
  Arm(kStatusTimer, told_at_ + pause - now_);
}

void CoordinatorMachine::Impl::TellStatus(bool even_if_gathering) {
  const bool in_run = state_ == State::kRestoring || state_ == State::kRunning;
  if (!in_run && !even_if_gathering) return;
  told_stamp_ = Stamp();
  control::JobStatus now = status();
  std::string bytes = now.SerializeAsString();
  if (bytes == told_status_) return;
  told_status_ = std::move(bytes);
  told_at_ = now_;
  control::Envelope message = NewMessage();
  *message.mutable_job_status() = std::move(now);
  for (const auto& [rank, peer] : members_) SendTo(peer, message);
  for (const auto& [rank, peer] : pending_) SendTo(peer, message);
}

std::vector<RankProgress> CoordinatorMachine::Impl::progress() const {
  std::vector<RankProgress> out;
  for (const auto& [rank, peer] : members_) {
    RankProgress progress{.rank = rank, .node = peer.node(), .connected = peer.connected};
    if (matcher_) {
      if (const auto staged = matcher_->NewestStaged(rank)) progress.staged = staged->step;
    }
    if (committed_ && commit_open_.count(rank) == 0) progress.committed = committed_->save().step();
    out.push_back(std::move(progress));
  }
  return out;
}

}  // namespace tierkeep
