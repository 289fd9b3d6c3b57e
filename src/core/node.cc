#include "core/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/action_names.h"
#include "core/holdings.h"
#include "core/node_impl.h"

namespace tierkeep {

NodeMachine::NodeMachine(NodeOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
NodeMachine::~NodeMachine() = default;
NodeActions NodeMachine::Step(Instant now, const NodeEvent::Any& event) {
  return impl_->Step(now, event);
}
NodeStatus NodeMachine::status() const { return impl_->status(); }
const SharedRecord& NodeMachine::committed() const { return impl_->committed(); }
const control::NodeState& NodeMachine::state() const { return impl_->state(); }
const std::optional<control::JobStatus>& NodeMachine::job_status() const {
  return impl_->job_status();
}

NodeMachine::Impl::Impl(NodeOptions options) : options_(std::move(options)) {}

NodeActions NodeMachine::Impl::Step(Instant now, const NodeEvent::Any& event) {
  now_ = now;
  TK_CHECK(started_ || std::holds_alternative<NodeEvent::Started>(event));
  std::visit([this](const auto& e) { Handle(e); }, event);
  for (std::string& text : std::exchange(errors_, {})) {
    Do(NodeAction::WriteError{std::move(text)});
  }
  return std::exchange(actions_, {});
}

// ---- small tools -----------------------------------------------------------------------------

// Encoded here: a copy, of which that is made later, costs as much.
void NodeMachine::Impl::Persist() { Do(NodeAction::PersistState{EncodeNodeState(state_)}); }

void NodeMachine::Impl::Log(Severity severity, std::string text) {
  Do(NodeAction::LogText{severity, std::move(text)});
}

void NodeMachine::Impl::Arm(Timer timer, Duration after) {
  Do(NodeAction::SetTimer{timer, now_ + after});
}

void NodeMachine::Impl::Disarm(Timer timer) { Do(NodeAction::CancelTimer{timer}); }

void NodeMachine::Impl::WriteError(std::string text) {
  last_error_ = text;
  Log(Severity::kError, text);
  if (phase_ != Phase::kIdle && phase_ != Phase::kHolder) errors_.push_back(std::move(text));
}

const std::string& NodeMachine::Impl::job() const { return holding_ ? holder_job_ : config_->job; }

control::Envelope NodeMachine::Impl::NewMessage() const {
  control::Envelope message;
  message.set_job(job());
  message.set_sender(options_.node_name);
  if (holding_) {
    if (!holder_run_.none()) *message.mutable_run() = ToProto(holder_run_);
    message.set_epoch(holder_epoch_);
  } else if (InRun()) {
    *message.mutable_run() = state_.run();
    message.set_epoch(state_.epoch());
  }
  return message;
}

void NodeMachine::Impl::Send(control::Envelope message) {
  if (link_ == Link::kUp) Do(NodeAction::Send{std::move(message)});
}

bool NodeMachine::Impl::HoldsVerified(const Blake3& digest) const {
  const auto shard = shards_.find(digest);
  return shard != shards_.end() && (!shard->second.suspect() || TK_MUTATION(kCountSuspectCopy));
}

// ---- messages --------------------------------------------------------------------------------

void NodeMachine::Impl::Handle(const NodeEvent::Received& e) {
  // Of two epochs that come over one link the older one's word is of the past, also where this node
  // has lost what it knew.
  const bool older = e.message->epoch() != 0 && e.message->epoch() < link_epoch_;
  if (link_ != Link::kUp || !Accepts(*e.message) || (older && !TK_MUTATION(kAcceptOlderEpoch))) {
    ++dropped_messages_;
    return;
  }
  link_epoch_ = std::max<Epoch>(link_epoch_, e.message->epoch());
  heard_ = now_;
  if (!link_local_) Arm(kSilentTimer, options_.timings.silent_after);
  HandleMessage(*e.message);
}

// Epochs fence: what an older coordinator still says of a run is not for us any more. A newer epoch
// is entered by RunStart alone.
bool NodeMachine::Impl::Accepts(const control::Envelope& message) const {
  if (!config_ && !holding_) return false;
  if (message.job() != job()) return false;
  switch (message.body_case()) {
    case control::Envelope::kPing:
    case control::Envelope::kRejected:
    case control::Envelope::kRunEnded:
    case control::Envelope::kRunStart:
    case control::Envelope::kJobStatus:
      return true;
    default:
      break;
  }
  if (holding_) {
    return message.epoch() == holder_epoch_ && FromProto(message.run()) == holder_run_ &&
           message.has_commit();
  }
  return entered_ && (message.epoch() == state_.epoch() || TK_MUTATION(kAcceptOlderEpoch)) &&
         FromProto(message.run()) == FromProto(state_.run());
}

void NodeMachine::Impl::HandleMessage(const control::Envelope& message) {
  switch (message.body_case()) {
    case control::Envelope::kPing: {
      if (message.ping().answer()) return;
      control::Envelope answer = NewMessage();
      answer.mutable_ping()->set_number(message.ping().number());
      answer.mutable_ping()->set_answer(true);
      Send(std::move(answer));
      return;
    }
    case control::Envelope::kRejected:
      return OnRejected(message.rejected());
    case control::Envelope::kRunStart:
      return OnRunStart(message);
    case control::Envelope::kRunEnded:
      return OnRunEnded(message.run_ended());
    case control::Envelope::kJobStatus:
      job_status_ = message.job_status();
      return;
    case control::Envelope::kRestore:
      return OnRestore(message.restore());
    case control::Envelope::kRelease:
      return OnRelease(message.release());
    case control::Envelope::kKeep:
      return OnKeep(message.keep());
    case control::Envelope::kCompare:
      return OnCompare(message.compare());
    case control::Envelope::kDivergence:
      return WriteError(message.divergence().text());
    case control::Envelope::kDrop:
      return OnDrop(message.drop());
    case control::Envelope::kGiveBack:
      return OnGiveBack(message.give_back());
    case control::Envelope::kRestoreOrders:
      return OnRestoreOrders(message.restore_orders());
    case control::Envelope::kCommit:
      return holding_ ? HolderCommit(message.commit()) : OnCommit(message.commit());
    default:
      ++dropped_messages_;
  }
}

// ---- timers and failures ---------------------------------------------------------------------

void NodeMachine::Impl::Handle(const NodeEvent::TimerFired& e) {
  switch (static_cast<Timer>(e.timer)) {
    case kConfigTimer:
      Do(NodeAction::ReadConfig{});
      break;
    case kConfigKeptTimer:
      if (config_stands_ && config_ && !Released()) {
        RemoveConfig();
        BoundWait();
      }
      break;
    case kGatherTimer:
      GatherDeadline();
      break;
    case kLocateTimer:
      RetryLocate();
      break;
    case kHolderTimer:
      PollHolder();
      break;
    case kSilentTimer:
      if (link_ == Link::kUp && !link_local_) {
        Do(NodeAction::Disconnect{});
        LinkLost(fmt::format("nothing was heard from the coordinator for {}",
                             FormatDuration(options_.timings.silent_after)));
      } else if (link_ != Link::kUp && phase_ == Phase::kRunning) {
        WriteError(fmt::format("no coordinator for {}: new saves are not protected",
                               FormatDuration(options_.timings.silent_after)));
      }
      break;
    case kPersistTimer:
      if (!delete_later_.empty()) DeleteAll({}, std::exchange(delete_later_, {}));
      if (std::exchange(refusal_untold_, false)) {
        Do(NodeAction::WriteFailed{refusal_});
        RemoveConfig();
      }
      Persist();
      break;
    case kRoomTimer:
      RetryPulls();
      break;
  }
}

void NodeMachine::Impl::Handle(const NodeEvent::BatchFailed& e) {
  const bool release =
      std::find(e.skipped.begin(), e.skipped.end(), release_task_) != e.skipped.end();
  if (release) release_task_ = 0;
  std::string text = e.action;
  if (undo_ && std::find(e.skipped.begin(), e.skipped.end(), undo_->task) != e.skipped.end()) {
    text += fmt::format(" for the commit of step {}", committed_->save().step());
  }
  TakeBackSkipped(e);
  text += " failed: " + WithAdvice(e.error);
  if (e.action == kActionName<NodeAction::WriteFailed>) {
    Log(Severity::kError, text);
    // What else ends an attempt was skipped with it. The client must at least not wait for its yaml
    // to go, nor the next one; but without it, it would take what an earlier start left there.
    if (!config_) {
      if (!state_.volume_cleaned()) {
        refusal_untold_ = true;
        Arm(kPersistTimer, options_.timings.retry_pause);
      } else {
        RemoveConfig();
      }
      if (link_ == Link::kNone) Do(NodeAction::Disconnect{});
      Persist();
    }
  } else if (phase_ == Phase::kFailed || phase_ == Phase::kIdle) {
    Log(Severity::kError, text);
    if (e.action == kActionName<NodeAction::PersistState> &&
        std::exchange(refusal_unrecorded_, false)) {
      // The job is told all the same. Where this was the record after it, it is told twice.
      Do(NodeAction::WriteFailed{refusal_});
      RemoveConfig();
      if (link_ == Link::kNone) Do(NodeAction::Disconnect{});
    }
    const bool removal = e.action == kActionName<NodeAction::RemoveConfig>;
    if (removal) Arm(kConfigTimer, options_.timings.retry_pause);
    if (removal || e.action == kActionName<NodeAction::PersistState>) {
      Arm(kPersistTimer, options_.timings.retry_pause);
    }
  } else if (config_ && (!Released() || release)) {
    // The job is not running yet, and can't be started.
    Fail(text);
  } else {
    if (e.action != kActionName<NodeAction::WriteError>) WriteError(text);
    if (e.action == kActionName<NodeAction::PersistState>) {
      Arm(kPersistTimer, options_.timings.retry_pause);
    }
  }
}

// What a failed batch left undone is taken back or counts as failed.
void NodeMachine::Impl::TakeBackSkipped(const NodeEvent::BatchFailed& e) {
  if (undo_ && std::find(e.skipped.begin(), e.skipped.end(), undo_->task) != e.skipped.end()) {
    // The commit is not recorded here: nothing that it made obsolete may be forgotten.
    TK_PROBE(kCommitTakenBack);
    generations_ = std::move(undo_->generations);
    for (auto& [save, own] : undo_->saves) {
      // What was told with the commit was skipped with it.
      const auto [it, added] = saves_.try_emplace(save, own);
      if (!added) it->second.told = own.told;
    }
    committed_ = std::move(undo_->committed);
    undo_.reset();
  }
  for (const TaskId task : e.skipped) {
    // Not deleted: the next commit finds them again.
    for (auto& shard : deleting_[task]) shards_.emplace(DigestOf(shard), std::move(shard));
    deleting_.erase(task);
    // No commit would ever find these.
    if (auto staged = deleting_staged_.extract(task)) {
      delete_later_.insert(delete_later_.end(), staged.mapped().begin(), staged.mapped().end());
      Arm(kPersistTimer, options_.timings.retry_pause);
    }
    forgets_.erase(task);
    AdoptAgain(task);
    if (task == given_way_) RestoreWithMoreRoom();
    const Error error = e.error.With("not started");
    if (compares_.count(task) != 0) Handle(NodeEvent::Compared{task, error});
    if (const auto work = staging_.find(task); work != staging_.end()) {
      // Still in store/staged: the next attempt takes it up.
      if (work->second.adopted) taken_over_.push_back(work->second.staged_name);
      Handle(NodeEvent::StageFailed{task, error});
    }
    if (const auto fetch = fetch_tasks_.find(task); fetch != fetch_tasks_.end()) {
      const Blake3 digest = fetch->second;
      fetch_tasks_.erase(fetch);
      FetchDone(digest, error, {}, 0);
    }
  }
}

void NodeMachine::Impl::Handle(const NodeEvent::StopRequested&) {
  stopping_ = true;
  if (link_ == Link::kUp) {
    control::Envelope message = NewMessage();
    message.mutable_leaving()->set_reason("the agent stops");
    Send(std::move(message));
  }
  for (const auto& [task, digest] : fetch_tasks_) Do(NodeAction::CancelTask{task});
  // Everything that the next start needs is persisted as it happens.
  Do(NodeAction::ExitNow{});
}

// ---- status ----------------------------------------------------------------------------------

NodeStatus NodeMachine::Impl::status() const {
  NodeStatus status;
  static constexpr const char* kNames[] = {"idle",      "cleaning", "locating", "joining",
                                           "restoring", "prepared", "running",  "idle",
                                           "failed",    "holder"};
  status.phase = kNames[static_cast<size_t>(phase_)];
  if (holding_ && link_ == Link::kUp) status.phase = "holder";
  status.config = config_;
  status.run = FromProto(state_.run());
  status.epoch = state_.epoch();
  if (state_.has_restored()) status.restored = state_.restored();
  status.committed = committed_;
  uint64_t newest = 0;
  for (const auto& [save, own] : saves_) {
    if (!own.staged_names.empty() || own.ordinal < newest) continue;
    newest = own.ordinal;
    status.in_flight = save;
  }
  status.members = members_;
  status.job = job_status_;
  status.last_error = last_error_;
  status.commits = commits_;
  status.sizing = Sizing();
  for (const auto& [digest, fetch] : fetches_) {
    if (!fetch.waiting) continue;
    ++status.pulls_waiting;
    status.bytes_waiting += fetch.wanted.shard().bytes();
  }
  status.dropped_messages = dropped_messages_;
  status.orders = state_.orders();
  for (const auto& count : state_.restores()) {
    if (state_.has_restored() && config_ && count.job() == config_->job &&
        FromProto(count.save()) == FromProto(state_.restored().generation().save())) {
      status.restores_without_commit = count.restores();
    }
  }
  if (state_.has_stop()) status.stop = state_.stop();
  return status;
}

}  // namespace tierkeep
