// From a start or a new yaml to a clean volume: resuming, adopting what the last run left,
// accepting or refusing a replicator.yaml.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"
#include "core/restore_choice.h"

namespace tierkeep {

// ---- start -----------------------------------------------------------------------------------

void NodeMachine::Impl::Handle(const NodeEvent::Started& e) {
  TK_CHECK(!started_);
  started_ = true;
  state_ = e.state;
  if (state_.agent().empty()) state_.set_agent(options_.agent.Raw());
  state_.set_life(state_.life() + 1);
  Arm(kPersistTimer, {});  // apart: what else a start does must not depend on it
  jax_init_ = e.jax_init;
  for (const auto& shard : e.inventory.shards()) shards_[DigestOf(shard)] = shard;
  for (const auto& record : e.inventory.generations()) {
    generations_.push_back(Shared(record));
  }
  unreadable_ = {e.inventory.unreadable().begin(), e.inventory.unreadable().end()};
  if (!state_.config_text().empty() && state_.attempt().counter() != 0) {
    if (e.config) {
      config_ = e.config;
    } else {
      Log(Severity::kError, "The accepted replicator.yaml can't be read any more");
    }
  }
  for (const auto& record : generations_) {
    if (!record->committed() || (config_ && record->job() != config_->job)) continue;
    if (!committed_ || GenerationIdOf(*committed_) < GenerationIdOf(*record)) committed_ = record;
  }
  if (!config_) {
    // Between two attempts: the next one takes up what was taken and not hashed.
    taken_over_ = e.staged;
    GiveUpNamelessDamage();
    StartHolding();
    return;
  }
  accepted_at_ = now_;
  claimed_at_ = ClaimIsKnown() ? Instant{std::chrono::milliseconds(state_.accepted_ms())} : now_;
  if (!state_.refusal().empty()) {
    // Nobody else would say it again: who refused this attempt has told all and is gone.
    const std::string refusal = state_.refusal();
    Fail(refusal);
    return;
  }
  // The list of saves is the last run's until a new one has begun.
  if (!state_.last_run().nonce().empty() && (Released() || !InRun())) NoteShards();
  TK_PROBE_IF(kResumeMidClean, !state_.volume_cleaned());
  if (!state_.volume_cleaned() || TK_MUTATION(kCleanOnResume)) {
    phase_ = Phase::kCleaning;
    BoundWait();
    JobConfig previous = *config_;
    previous.rank = state_.last_rank();
    if (state_.has_last_world()) previous.world = FromProto(state_.last_world());
    Do(NodeAction::CleanVolume{FromProto(state_.last_run()), previous, state_});
    // What an interrupted cleaning took over already comes with what this one finds.
    StageAdopted(e.staged);
    return;
  }
  Do(NodeAction::StartWatchingSaves{config_->world.framework, config_->job});
  Resume(e.links_stand);
  StageAdopted(e.staged);
  if (!Released()) BoundWait();  // unless its yaml stands
  if (adopting_.empty() || Released()) {
    StartLocating();
  } else {
    phase_ = Phase::kCleaning;
  }
}

// Goes on within the run that was accepted before the restart.
void NodeMachine::Impl::Resume(bool links_stand) {
  if (!Released()) return;
  if (!state_.links_placed() && links_stand) {
    // The job may train on them. Placed again they would be taken away from it for a moment, and
    // what it was given is its own, whatever has become of the copies here.
    state_.set_links_placed(true);
    Persist();
    WriteRestoredMetas();
  }
  if (!state_.links_placed() && !state_.restored().none()) {
    const auto own = ShardsOfRank(state_.restored().generation(), config_->rank);
    const bool known = own.size() == config_->world.workers_per_node;
    if (!known || !std::all_of(own.begin(), own.end(), [&](const auto& shard) {
          return shards_.count(DigestOf(shard)) != 0;
        })) {
      // The store was lost before the links stood: this part is restored once more.
      state_.set_released(false);
      state_.clear_restored();
      Persist();
      return;
    }
  }
  phase_ = Phase::kRunning;
  TK_PROBE_IF(kResumeMidRelease, !state_.links_placed());
  if (state_.links_placed()) return;
  // The store knows of those links only that stood when the agent ended.
  DistrustRestored();
  PlaceAll();
}

// The shards of this node's last run tell of saves that the state doesn't know yet; those of a run
// that goes on are told to the coordinator again.
void NodeMachine::Impl::NoteShards() {
  const RunId run = FromProto(Released() ? state_.run() : state_.last_run());
  const Rank rank = Released() ? config_->rank : state_.last_rank();
  uint64_t committed = 0;
  if (committed_ && FromProto(committed_->save().run()) == run) {
    for (const auto& shard : committed_->shards()) {
      if (shard.rank() == rank) committed = shard.ordinal();
    }
  }
  std::map<uint64_t, const control::ShardInfo*> newer;
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() != config_->job || FromProto(shard.save().run()) != run ||
        shard.rank() != rank) {
      continue;
    }
    newer[shard.ordinal()] = &shard;
    if (Released() && shard.ordinal() > committed) {
      OwnSave& own = saves_[FromProto(shard.save())];
      own.ordinal = shard.ordinal();
      own.shards[shard.worker()] = shard;
      own.told = IsWhole(own);
    }
  }
  for (const auto& [ordinal, shard] : newer) NoteSave(FromProto(shard->save()), ordinal);
}

// ---- the yaml --------------------------------------------------------------------------------

void NodeMachine::Impl::Handle(const NodeEvent::ConfigSeen& e) {
  if (stopping_) return;
  // One that we are removing may be seen once more before it is gone.
  config_stands_ = e.file_id.empty() || e.file_id != config_removed_;
  JudgeConfig(e);
}

void NodeMachine::Impl::JudgeConfig(const NodeEvent::ConfigSeen& e) {
  const bool same = !state_.config_file_id().empty() && e.file_id == state_.config_file_id();
  if (same && !TK_MUTATION(kSameYamlIsNew)) {
    // The same file is the same attempt. It stands longer than it should only when its removal was
    // cut short.
    if (!config_ || (Released() && state_.links_placed())) RemoveConfig();
    if (config_ && !Released() && config_stands_ && std::exchange(config_gone_at_, std::nullopt))
      KeepConfig();
    return;
  }
  if (e.parsed && e.parsed->ok()) {
    // A new yaml replaces the attempt before it at once, or two processes' attempts would mix. Only
    // a job that never stops writing has to wait, so that it can't have the service begin all the
    // time.
    const Duration ahead = config_pace_ - now_;
    const Duration burst = options_.timings.config_settle * options_.timings.config_burst;
    if (ahead > burst) {
      Arm(kConfigTimer, ahead - burst);
      return;
    }
    config_pace_ = std::max(config_pace_, now_) + options_.timings.config_settle;
    config_bad_since_.reset();
    config_unfinished_since_.reset();
    Disarm(kConfigTimer);
    const std::string& job = (*e.parsed)->config.job;
    if (config_ && !Released() && config_->job != job) {
      // Nothing tells which of them this volume belongs to, and each would get the other's files.
      RefuseConfig(e, fmt::format("two jobs use this volume: {}, which still waits to start, and "
                                  "{}; give each job a volume of its own, and start again what "
                                  "shall run here",
                                  config_->job, job));
      return;
    }
    AcceptConfig(e, **e.parsed);
    return;
  }
  const bool unfinished = e.parsed && (e.parsed->error().code() == Code::kAborted ||
                                       e.parsed->error().code() == Code::kUnavailable);
  std::optional<Instant>& since = unfinished ? config_unfinished_since_ : config_bad_since_;
  if (!since) since = now_;
  // Some clients write in place: it may not be finished, and what stands there may even parse. Time
  // counts, not how often it changed: each change is seen.
  if (now_ - *since <
      (unfinished ? options_.timings.config_writing_max : options_.timings.config_bad_max)) {
    Arm(kConfigTimer, options_.timings.config_settle);
    return;
  }
  if (unfinished && e.parsed->error().code() == Code::kUnavailable && Released()) {
    // What can't be read doesn't end a run.
    WriteError("replicator.yaml can't be read: " + e.parsed->error().message());
    config_unfinished_since_ = now_;
    Arm(kConfigTimer, options_.timings.config_settle);
    return;
  }
  config_bad_since_.reset();
  config_unfinished_since_.reset();
  RefuseConfig(e, e.parsed ? "replicator.yaml can't be accepted: " + e.parsed->error().message()
                           : "replicator.yaml is empty: the service is reset");
}

void NodeMachine::Impl::RefuseConfig(const NodeEvent::ConfigSeen& e, const std::string& text) {
  const bool empty = !e.parsed;
  state_.set_config_file_id(e.file_id);
  Log(Severity::kError, text);
  last_error_ = text;
  refusal_unrecorded_ = refusal_untold_ = false;
  if (!empty) {
    refusal_ = text;
    Do(NodeAction::WriteFailed{text});
  }
  RemoveConfig();
  ForgetConfig(text);
  phase_ = empty ? Phase::kIdle : Phase::kFailed;
  StartHolding();
}

// Ends the attempt; a restart of the agent must not take it up again.
void NodeMachine::Impl::ForgetConfig(const std::string& reason) {
  LeaveRun(reason);
  state_.clear_config_text();
  state_.clear_attempt();
  if (!TK_MUTATION(kRefusedForGood)) state_.clear_refusal();
  config_.reset();
  Persist();
}

void NodeMachine::Impl::AcceptConfig(const NodeEvent::ConfigSeen& e, const ParsedConfig& parsed) {
  for (const std::string& warning : parsed.warnings) Log(Severity::kWarning, warning);
  LeaveRun("a new replicator.yaml has come");
  const bool other_job = config_
                             ? config_->job != parsed.config.job
                             : state_.has_last_restored() && !state_.last_restored().none() &&
                                   state_.last_restored().generation().job() != parsed.config.job;
  if (other_job) {
    state_.clear_last_run();
    state_.clear_last_restored();
    state_.clear_last_world();
    state_.clear_highest_run();
    state_.clear_nodes();
    state_.clear_saves();
    state_.set_highest_epoch(0);
    committed_.reset();
  }
  config_ = parsed.config;
  unclaimed_.clear();
  // What it heard as a holder fences too: a run that ended before this attempt can't take it in.
  state_.set_highest_epoch(std::max<Epoch>(state_.highest_epoch(), holder_epochs_[config_->job]));
  state_.set_attempt_counter(state_.attempt_counter() + 1);
  state_.set_config_text(e.text);
  state_.set_config_file_id(e.file_id);
  if (!TK_MUTATION(kRefusedForGood)) state_.clear_refusal();
  refusal_unrecorded_ = refusal_untold_ = false;
  state_.mutable_attempt()->set_agent(state_.agent());
  state_.mutable_attempt()->set_boot(options_.boot.Raw());
  state_.mutable_attempt()->set_counter(state_.attempt_counter());
  state_.set_volume_cleaned(false);
  state_.set_accepted_ms(static_cast<uint64_t>(ToMillis(now_.time_since_epoch())));
  Persist();
  phase_ = Phase::kCleaning;
  accepted_at_ = claimed_at_ = now_;
  config_gone_at_.reset();
  last_error_.clear();
  ask_rendezvous_ = false;
  pause_ = {};
  checked_.clear();
  Disarm(kHolderTimer);
  KeepConfig();
  JobConfig previous = *config_;
  if (state_.has_last_run()) {
    previous.rank = state_.last_rank();
    if (state_.has_last_world()) previous.world = FromProto(state_.last_world());
  }
  Do(NodeAction::CleanVolume{FromProto(state_.last_run()), previous, state_});
}

// Ends what this node did for its run: tasks, orders, the link. Shards stay; a save still being
// hashed becomes a shard, which the next restore may need.
void NodeMachine::Impl::LeaveRun(const std::string& reason) {
  release_task_ = 0;
  if (link_ == Link::kUp) {
    control::Envelope message = NewMessage();
    message.mutable_leaving()->set_reason(reason);
    Send(std::move(message));
  }
  if (link_ != Link::kNone) Do(NodeAction::Disconnect{});
  link_ = Link::kNone;
  link_local_ = entered_ = holding_ = locating_ = false;
  holder_job_.clear();
  restore_.reset();
  keeps_.clear();
  while (!fetches_.empty()) CancelFetch(fetches_.begin()->first);
  while (!unread_.empty()) TakeBackUnread(unread_.begin()->first);
  for (auto& [task, work] : staging_) {
    work.adopted = true;
    NoteSave(work.unit.save, work.ordinal);
    adopting_.insert(task);
  }
  saves_.clear();
  parts_.Clear();
  waiting_saves_.clear();
  members_.clear();
  job_status_.reset();
  state_.clear_run();
  state_.clear_restored();
  state_.set_epoch(0);
  state_.set_released(false);
  state_.set_links_placed(false);
  for (const Timer timer : {kGatherTimer, kConfigKeptTimer, kLocateTimer, kSilentTimer}) {
    Disarm(timer);
  }
}

void NodeMachine::Impl::RemoveConfig() {
  Do(NodeAction::RemoveConfig{state_.config_file_id()});
  config_removed_ = state_.config_file_id();
  config_stands_ = false;
}

void NodeMachine::Impl::Handle(const NodeEvent::ConfigGone&) {
  if (config_bad_since_ || config_unfinished_since_) Disarm(kConfigTimer);
  config_bad_since_.reset();
  config_unfinished_since_.reset();
  if (!std::exchange(config_stands_, false) || !config_ || Released()) return;
  // Its client has taken it away before it was answered, and writes a new one: whoever waits for
  // this start must not be released together with it.
  const std::string text = "replicator.yaml was taken away by its client before the job's start";
  Log(Severity::kWarning, text);
  ForgetConfig(text);
  phase_ = Phase::kIdle;
  StartHolding();
}

void NodeMachine::Impl::Handle(const NodeEvent::JaxInitChanged& e) {
  const bool restarted = !jax_init_.empty() && jax_init_ != e.text;
  jax_init_ = e.text;
  if (!restarted || !config_ || Released()) return;
  // The client of this attempt has gone. The next one must not find its yaml, and whoever waits for
  // the start must not be released together with it. (What came with a yaml is told before it.)
  const std::string text = "the job's process has started again before its start";
  Log(Severity::kWarning, text);
  if (config_stands_) RemoveConfig();
  ForgetConfig(text);
  phase_ = Phase::kIdle;
  StartHolding();
}

void NodeMachine::Impl::Handle(const NodeEvent::VolumeCleaned& e) {
  // Of an attempt that is over: the next one's cleaning doesn't find them in the volume any more.
  taken_over_.insert(taken_over_.end(), e.adopted.begin(), e.adopted.end());
  if (phase_ != Phase::kCleaning || !config_) return;
  const auto adopted = std::exchange(taken_over_, {});
  state_.set_volume_cleaned(true);
  StageAdopted(adopted);
  // What no known run of this node saved can't be told apart from another rank's: it goes.
  std::vector<std::string> unknown;
  for (const std::string& name : adopted) {
    const std::optional<SaveUnit> unit = ParseStagedName(name);
    if (!unit || unit->save.run != FromProto(state_.last_run())) unknown.push_back(name);
  }
  if (!unknown.empty()) DeleteAll({}, std::move(unknown));
  // Ordinals that adoption gave out are persisted before the job can save again.
  auto stages = std::exchange(actions_, {});
  Persist();
  Do(NodeAction::StartWatchingSaves{config_->world.framework, config_->job});
  for (auto& action : stages) actions_.push_back(std::move(action));
  if (adopting_.empty()) StartLocating();
}

Duration NodeMachine::Impl::GatherBudget() const {
  return config_->world.framework == Framework::kOrbax ? options_.timings.gather_deadline_orbax
                                                       : options_.timings.gather_deadline_pytorch;
}

// Tells the job that it can't start, and waits for the next yaml. Whatever ends the agent on the
// way, its next life tells it.
void NodeMachine::Impl::Fail(const std::string& text) {
  last_error_ = text;
  Log(Severity::kError, text);
  state_.set_refusal(text);
  Persist();
  refusal_ = text;
  refusal_unrecorded_ = true;
  Do(NodeAction::WriteFailed{text});
  RemoveConfig();
  ForgetConfig(text);
  phase_ = Phase::kFailed;
  StartHolding();
}

// Nor does a clock that began anew with its host say anything.
bool NodeMachine::Impl::ClaimIsKnown() const {
  return state_.accepted_ms() != 0 &&
         Instant{std::chrono::milliseconds(state_.accepted_ms())} <= now_;
}

// The yaml stands, and the job waits for its start. After a restart of the agent, too: else the
// next process would wait in vain for the yaml of one that is gone.
void NodeMachine::Impl::KeepConfig() {
  Arm(kGatherTimer, accepted_at_ + GatherBudget() - now_);
  Arm(kConfigKeptTimer, jax_init_.empty()
                            ? std::min(options_.timings.config_kept_max, GatherBudget())
                            : GatherBudget());
}

// The yaml is gone before the job's start. An attempt whose client has given up in silence would
// take its rank in a run with the next attempt's other ranks, which nobody trains in. All clients
// wait for a link as long as PyTorch's wait for anything.
void NodeMachine::Impl::BoundWait() {
  config_gone_at_ = now_;
  const Duration left = accepted_at_ + GatherBudget() - now_;
  Arm(kGatherTimer, std::min(left, options_.timings.gather_deadline_pytorch));
}

void NodeMachine::Impl::GatherDeadline() {
  if (!config_ || Released() || TK_MUTATION(kNoStartDeadline)) return;
  if (InRun() && link_ == Link::kUp && entered_) {
    // Found in time. The decision and its transfers have their own deadlines at the coordinator,
    // but the client doesn't wait longer because of them.
    Duration left = options_.timings.prepare_deadline;
    if (config_gone_at_) {
      left = std::min(left, *config_gone_at_ + options_.timings.gather_deadline_pytorch - now_);
    }
    if (left > Duration{}) {
      Arm(kGatherTimer, left);
      return;
    }
    std::string text = fmt::format("there is no checkpoint to go on from after {}",
                                   FormatDuration(now_ - accepted_at_));
    if (job_status_) {
      for (const std::string& problem : job_status_->problems()) text += "; " + problem;
    }
    Fail(text);
    return;
  }
  std::string missing;
  if (job_status_ && link_ == Link::kUp) {
    for (const uint32_t rank : job_status_->missing_ranks()) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    const auto named = static_cast<uint32_t>(job_status_->missing_ranks_size());
    if (job_status_->missing_total() > named) {
      missing += fmt::format(" and {} more", job_status_->missing_total() - named);
    }
  }
  const std::string within = FormatDuration(std::min(GatherBudget(), now_ - accepted_at_));
  if (job_status_ && job_status_->state() == "running") {
    std::string text = "the job's run went on without this node for " + within;
    for (const std::string& problem : job_status_->problems()) text += "; " + problem;
    Fail(text);
    return;
  }
  Fail(missing.empty() ? "no run of the job was found within " + within
                       : fmt::format("ranks {} did not join within {}", missing, within));
}

}  // namespace tierkeep
