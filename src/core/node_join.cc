// Finding the coordinator, joining, the run's beginning and end; and, without a rank, serving as a
// holder.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"

namespace tierkeep {
namespace {

constexpr std::string_view kUnreachable = "The coordinator can't be reached: ";

}  // namespace

// ---- the coordinator -------------------------------------------------------------------------

void NodeMachine::Impl::StartLocating() {
  if (phase_ != Phase::kRunning) phase_ = Phase::kLocating;
  Locate();
}

void NodeMachine::Impl::Locate() {
  if (link_ != Link::kNone || locating_ || !config_) return;
  const bool here = options_.place == CoordinatorPlace::kHere ||
                    (options_.place == CoordinatorPlace::kRankZero && config_->rank == 0);
  // The one that ours gave way to is gone: a record is stale only when nobody answers for long.
  if (ask_rendezvous_ && now_ - heard_ > options_.timings.silent_after) ask_rendezvous_ = false;
  // Going on with a run after a restart: only if no newer one has been begun elsewhere.
  if (here && !ask_rendezvous_ && (!InRun() || run_is_newest_)) {
    const RunId resumes = InRun() ? FromProto(state_.run()) : RunId();
    Do(NodeAction::BecomeCoordinator{SettingsOf(*config_), GatherBudget(), resumes});
    Do(NodeAction::Connect{"", 0, /*local=*/true});
    link_ = Link::kConnecting;
    link_local_ = true;
    return;
  }
  locating_ = true;
  Do(NodeAction::LocateCoordinator{config_->job});
}

// The timer's turn: look for a coordinator, or whether it is still the right one.
void NodeMachine::Impl::RetryLocate() {
  if (!config_ || holding_ || phase_ == Phase::kEnded) return;
  if (link_ == Link::kNone) {
    Locate();
  } else if (link_ == Link::kUp && !link_local_ && !InRun() && !locating_) {
    locating_ = true;
    Do(NodeAction::LocateCoordinator{config_->job});
    Arm(kLocateTimer, options_.timings.gather_recheck);
  }
}

void NodeMachine::Impl::Handle(const NodeEvent::CoordinatorLocated& e) {
  if (!config_ || phase_ == Phase::kEnded) {
    if (holder_job_.empty() || link_ != Link::kNone) return;
    if (!e.record || e.record->job() != holder_job_ ||
        (e.record->epoch() != 0 && e.record->epoch() < holder_epochs_[holder_job_])) {
      PollHolder();
      return;
    }
    holder_epochs_[holder_job_] = e.record->epoch();
    holding_ = true;
    link_ = Link::kConnecting;
    link_local_ = false;
    host_ = e.record->coordinator().host();
    port_ = e.record->coordinator().port();
    Do(NodeAction::Connect{host_, static_cast<uint16_t>(port_), false});
    return;
  }
  if (!std::exchange(locating_, false)) return;
  if (InRun() && !run_is_newest_ && link_ == Link::kNone) {
    run_is_newest_ = !e.record || e.record->run().sequence() <= state_.run().sequence();
    const bool here = options_.place == CoordinatorPlace::kHere ||
                      (options_.place == CoordinatorPlace::kRankZero && config_->rank == 0);
    if (run_is_newest_ && here) {
      Locate();
      return;
    }
    heard_ = now_;
    ask_rendezvous_ = ask_rendezvous_ || here;
  }
  if (!e.record) {
    if (link_ == Link::kNone) LinkLost("");
    return;
  }
  const std::string& host = e.record->coordinator().host();
  const uint32_t port = e.record->coordinator().port();
  if (link_ != Link::kNone) {
    if (host == host_ && port == port_) return;
    Do(NodeAction::Disconnect{});
    entered_ = false;
  }
  host_ = host;
  port_ = port;
  link_ = Link::kConnecting;
  link_local_ = false;
  Do(NodeAction::Connect{host_, static_cast<uint16_t>(port_), false});
}

void NodeMachine::Impl::Handle(const NodeEvent::LocateFailed& e) {
  if (!config_ || phase_ == Phase::kEnded) {
    if (!holder_job_.empty() && link_ == Link::kNone) PollHolder();
    return;
  }
  // Asked for by an attempt that is over: the one that is being started has no link to lose.
  if (!std::exchange(locating_, false)) return;
  if (link_ == Link::kNone) LinkLost(e.error.ToString());
}

void NodeMachine::Impl::Handle(const NodeEvent::CoordinatorConnected&) {
  if (link_ != Link::kConnecting) return;
  link_ = Link::kUp;
  ++links_made_;
  link_epoch_ = 0;
  if (!link_local_) Arm(kSilentTimer, options_.timings.silent_after);
  if (!holding_ && !link_local_ && !InRun()) {
    Arm(kLocateTimer, options_.timings.gather_recheck);
  }
  SendJoin();
  if (!holding_ && !InRun()) phase_ = Phase::kJoining;
  if (holding_ && phase_ != Phase::kEnded && phase_ != Phase::kFailed) phase_ = Phase::kHolder;
  if (holding_) TakeTurns(options_.timings.holder_poll);
}

void NodeMachine::Impl::Handle(const NodeEvent::CoordinatorLost& e) {
  if (link_ == Link::kNone) return;
  if (link_local_) {
    // Our own coordinator has given way to another one.
    ask_rendezvous_ = true;
    heard_ = now_;
  }
  LinkLost(e.error.ToString());
}

void NodeMachine::Impl::LinkLost(const std::string& why) {
  if (link_ == Link::kUp && !why.empty()) {
    Log(Severity::kWarning, "The connection to the coordinator is lost: " + why);
  }
  if (link_ != Link::kUp && !why.empty()) {
    // Said once for each reason, however often it is tried.
    std::string text = std::string(kUnreachable) + why;
    if (text != last_error_) Log(Severity::kWarning, text);
    last_error_ = std::move(text);
  }
  const bool was_up = link_ == Link::kUp;
  link_ = Link::kNone;
  entered_ = link_local_ = run_is_newest_ = false;
  keeps_.clear();  // whoever wants them says so again
  if (holding_) {
    holding_ = false;
    if (phase_ == Phase::kHolder) phase_ = Phase::kIdle;
    TryNextJob(was_up);
    return;
  }
  if (!config_) return;
  if (!InRun()) phase_ = Phase::kLocating;
  if (was_up && phase_ == Phase::kRunning) Arm(kSilentTimer, options_.timings.silent_after);
  pause_ = pause_ == Duration{} ? options_.timings.reconnect_first
                                : std::min(2 * pause_, options_.timings.reconnect_max);
  Arm(kLocateTimer, pause_);
}

// Of a process that may train on, though its run is over.
void NodeMachine::Impl::TellSeat(control::Join* join) const {
  if (!holding_ || !config_ || config_->job != job() || !Released()) return;
  if (!ClaimIsKnown()) return;  // it would look younger than it is
  control::Seat* seat = join->mutable_seat();
  seat->set_rank(config_->rank);
  *seat->mutable_attempt() = state_.attempt();
  seat->set_attempt_age_ms(static_cast<uint64_t>(ToMillis(now_ - claimed_at_)));
}

void NodeMachine::Impl::SendJoin() {
  control::Envelope message = NewMessage();
  message.clear_run();
  message.clear_epoch();
  control::Join* join = message.mutable_join();
  join->set_holder(holding_);
  join->set_node(options_.node_name);
  join->mutable_data()->set_host(options_.data_host);
  join->mutable_data()->set_port(options_.data_port);
  join->set_data_token(options_.data_token);
  join->set_agent_boot(options_.boot.Raw());
  join->mutable_link()->set_agent(state_.agent());
  join->mutable_link()->set_life(state_.life());
  join->mutable_link()->set_number(links_made_);
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() == job()) *join->mutable_inventory()->add_shards() = shard;
  }
  for (const auto& record : generations_) {
    if (record->job() == job()) *join->mutable_inventory()->add_generations() = *record;
  }
  for (const auto& item : unreadable_) *join->mutable_inventory()->add_unreadable() = item;
  for (const auto& [digest, copy] : unread_) {
    const auto known = bad_.find(digest);
    if (known == bad_.end() || known->second.job() != job()) continue;
    auto* item = join->mutable_inventory()->add_unreadable();
    item->set_digest(digest.Raw());
    item->set_detail(fmt::format("the copy of rank {}'s shard of step {}: {}", known->second.rank(),
                                 known->second.save().step(), copy.problem));
  }
  for (const auto& order : state_.orders()) {
    if (order.job() == job()) *join->add_orders() = order;
  }
  for (const auto& count : state_.restores()) {
    if (count.job() == job()) *join->add_restores() = count;
  }
  if (config_ && config_->job == job()) {
    if (state_.has_last_run()) {
      *join->mutable_last_run() = state_.last_run();
      join->set_last_nodes(state_.last_world().nodes());
    }
    if (state_.has_last_restored()) *join->mutable_last_restored() = state_.last_restored();
    if (state_.has_highest_run()) *join->mutable_highest_run() = state_.highest_run();
    join->set_highest_epoch(state_.highest_epoch());
    *join->mutable_previous_nodes() = state_.nodes();
  }
  TellSeat(join);
  if (!holding_) {
    join->set_rank(config_->rank);
    *join->mutable_attempt() = state_.attempt();
    join->set_attempt_age_ms(static_cast<uint64_t>(ToMillis(now_ - claimed_at_)));
    *join->mutable_settings() = SettingsOf(*config_);
    if (InRun()) *join->mutable_in_run() = state_.run();
    join->set_released(Released());
    if (Released()) {
      *join->mutable_restored() = state_.restored();
    } else if (InRun() && restore_ && restore_->answered && restore_->answer.ok()) {
      // Others may have been released from it: of a large job each knows a part of it.
      *join->mutable_restored() = restore_->order.choice();
    }
    TellSaves(join);
  }
  Send(std::move(message));
}

void NodeMachine::Impl::TellSaves(control::Join* join) {
  for (auto& [save, own] : saves_) {
    own.told = IsWhole(own) && (own.told || MayTell());
    if (!own.told) continue;
    auto* staged = join->add_staged();
    *staged->mutable_save() = ToProto(save);
    staged->set_ordinal(own.ordinal);
    for (const auto& [worker, shard] : own.shards) *staged->add_shards() = shard;
  }
}

void NodeMachine::Impl::OnRejected(const control::Rejected& m) {
  if (!holding_ && m.attempt() != 0 && m.attempt() != state_.attempt().counter()) {
    ++dropped_messages_;
    return;
  }
  if (m.has_stop()) *state_.mutable_stop() = m.stop();
  if (m.fatal() && !holding_ && !Released()) {
    Fail(m.reason());
    return;
  }
  if (m.fatal() && !holding_) {
    // The job trains on, without protection.
    WriteError("the coordinator refuses this node: " + m.reason());
    phase_ = Phase::kEnded;
    Do(NodeAction::Disconnect{});
    link_ = Link::kNone;
    entered_ = link_local_ = false;
    StartHolding();
    return;
  }
  Do(NodeAction::Disconnect{});
  if (link_local_) ask_rendezvous_ = true;
  heard_ = now_;
  LinkLost(m.reason());
}

void NodeMachine::Impl::OnRunStart(const control::Envelope& message) {
  const control::RunStart& m = message.run_start();
  if (holding_) {
    // While it restores, it is served longer.
    if (holder_run_ != FromProto(m.run())) TakeTurns(options_.timings.holder_turn);
    holder_run_ = FromProto(m.run());
    holder_epoch_ = m.epoch();
    holder_epochs_[holder_job_] = std::max<Epoch>(holder_epochs_[holder_job_], m.epoch());
    return;
  }
  // Said to the holder that this node was there: its join will be answered.
  const bool is_member =
      config_ && std::any_of(m.members().begin(), m.members().end(), [&](const auto& one) {
        return one.node() == options_.node_name && !one.holder() && one.rank() == config_->rank;
      });
  if (!is_member) {
    ++dropped_messages_;
    return;
  }
  const RunId run = FromProto(m.run());
  const bool same_run = InRun() && run == FromProto(state_.run());
  if (entered_ && same_run && m.epoch() == state_.epoch()) {
    TakeMembers(m);
    return;
  }
  // An attempt that is in no run enters none that an earlier one has seen begin.
  const bool left = !InRun() && run.sequence <= state_.highest_run().sequence();
  const bool older =
      m.epoch() < state_.highest_epoch() || (same_run && m.epoch() < state_.epoch()) || left;
  if (older && !TK_MUTATION(kAcceptOlderEpoch)) {
    TK_PROBE(kOlderEpochDropped);
    ++dropped_messages_;
    return;
  }
  members_ = {m.members().begin(), m.members().end()};
  if (!same_run || m.epoch() != state_.epoch()) CancelRestore();
  if (!same_run) {
    state_.set_released(false);
    state_.set_links_placed(false);
    state_.clear_restored();
    state_.clear_saves();
    state_.set_last_ordinal(0);
    saves_.clear();
    own_bytes_ = 0;
    kept_bytes_.reset();
    sizing_told_.reset();
  }
  *state_.mutable_run() = m.run();
  run_is_newest_ = true;
  state_.set_epoch(m.epoch());
  state_.set_highest_epoch(m.epoch());
  if (state_.highest_run().sequence() < run.sequence) *state_.mutable_highest_run() = m.run();
  NoteNodes();
  Persist();
  Do(NodeAction::UseMembers{members_});
  entered_ = true;
  if (last_error_.starts_with(kUnreachable)) last_error_.clear();
  pause_ = {};
  Disarm(kLocateTimer);
  if (m.continued() && Released()) {
    phase_ = Phase::kRunning;
    // The join carried those that were staged by then.
    TellHeldBack();
    LookAtRoomForSaves();
    for (const auto& save : std::exchange(waiting_saves_, {})) TakeSave(save);
  } else if (!Released()) {
    phase_ = restore_ && restore_->answered && restore_->answer.ok() ? Phase::kPrepared
                                                                     : Phase::kRestoring;
  }
}

// Until the release the nodes of the run before may have the only copies: they stay in the list.
void NodeMachine::Impl::NoteNodes() {
  if (Released()) state_.clear_nodes();
  for (const auto& member : members_) {
    const auto& nodes = state_.nodes();
    if (!member.holder() && std::find(nodes.begin(), nodes.end(), member.node()) == nodes.end()) {
      state_.add_nodes(member.node());
    }
  }
}

// Of the run that goes on. Of a large job they are some; whoever was met beside them is known
// still.
void NodeMachine::Impl::TakeMembers(const control::RunStart& m) {
  const auto met = std::exchange(members_, {m.members().begin(), m.members().end()});
  const bool some = members_.size() < m.settings().world().nodes();
  for (const auto& other : met) {
    const bool named = std::any_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member.node() == other.node();
    });
    if (some && !named) members_.push_back(other);
  }
  Do(NodeAction::UseMembers{members_});
}

// Of a large job members are named where they are to serve.
void NodeMachine::Impl::Meet(const control::SourceList& sources) {
  bool news = false;
  for (const auto& member : sources.members()) {
    const auto known = std::find_if(members_.begin(), members_.end(), [&](const auto& other) {
      return other.node() == member.node();
    });
    if (known == members_.end()) {
      members_.push_back(member);
    } else if (known->SerializeAsString() == member.SerializeAsString()) {
      continue;
    } else {
      *known = member;
    }
    news = true;
  }
  if (news) Do(NodeAction::UseMembers{members_});
}

void NodeMachine::Impl::OnRunEnded(const control::RunEnded& m) {
  if (holding_ || !InRun() || FromProto(m.run()) != FromProto(state_.run())) return;
  Log(Severity::kWarning,
      fmt::format("Run {} is over: {}", FromProto(m.run()).ToString(), m.reason()));
  entered_ = false;
  keeps_.clear();
  CancelRestore();
  while (!fetches_.empty()) CancelFetch(fetches_.begin()->first);
  if (!Released()) {
    // The job still waits for its yaml to go: the same attempt takes part in the next run.
    state_.clear_run();
    state_.set_epoch(0);
    Persist();
    phase_ = Phase::kJoining;
    if (!link_local_) Arm(kLocateTimer, options_.timings.gather_recheck);
    SendJoin();
    return;
  }
  // What is here may be needed by whoever takes part next.
  phase_ = Phase::kEnded;
  holder_job_ = config_->job;
  holding_ = true;
  holder_run_ = {};
  holder_epoch_ = 0;
  SendJoin();
  TakeTurns(options_.timings.holder_poll);
}

// ---- holders ---------------------------------------------------------------------------------

void NodeMachine::Impl::StartHolding() {
  holder_job_.clear();
  holder_done_.clear();
  if (HolderJobs().empty()) return;
  Duration pause =
      state_.orders().empty() ? options_.timings.holder_poll : options_.timings.reconnect_max;
  // A coordinator that was left for the others' sake has its turn again at once.
  if (std::exchange(took_turn_, false)) pause = options_.timings.reconnect_first;
  Arm(kHolderTimer, pause);
}

// One that was here may have given way to one that waits for what is here: that comes first. One
// that can't be reached may stay away, while another job's waits.
void NodeMachine::Impl::TryNextJob(bool was_up) {
  const std::set<std::string> jobs = HolderJobs();
  const std::string job = std::exchange(holder_job_, {});
  if (was_up) {
    holder_done_ = jobs;
    holder_done_.erase(job);
  } else {
    holder_done_.insert(job);
  }
  if (std::includes(holder_done_.begin(), holder_done_.end(), jobs.begin(), jobs.end())) {
    holder_done_.clear();
  }
  took_turn_ = false;
  if (!jobs.empty()) Arm(kHolderTimer, options_.timings.reconnect_max);
}

// Those of which something is here, good or bad; those whose decision was told to have stopped,
// perhaps for what was here once: that it isn't any more must be heard; and those for which an
// order waits here.
std::set<std::string> NodeMachine::Impl::HolderJobs() const {
  std::set<std::string> jobs;
  for (const auto* shards : {&shards_, &bad_}) {
    for (const auto& [digest, shard] : *shards) jobs.insert(shard.job());
  }
  // Whose a copy is that can't be read, the records here tell, if anything does.
  if (!unreadable_.empty()) {
    for (const auto& record : generations_) jobs.insert(record->job());
  }
  for (const auto& order : state_.orders()) jobs.insert(order.job());
  if (state_.has_stop()) jobs.insert(state_.stop().job());
  return jobs;
}

// Copies that count as lost, and nothing else: no job is known that would say when they may go.
void NodeMachine::Impl::GiveUpNamelessDamage() {
  if (!HolderJobs().empty()) return;
  std::vector<Blake3> digests;
  for (const auto& item : unreadable_) {
    if (!item.damaged() || item.digest().empty()) continue;
    digests.push_back(FixedFromProto<Blake3>(item.digest()));
  }
  if (digests.empty()) return;
  Log(Severity::kWarning,
      fmt::format("{} damaged copies are given up: nothing here tells of which job they were",
                  digests.size()));
  ForgetUnreadable(digests);
  DeleteAll(std::move(digests), {});
}

bool NodeMachine::Impl::HoldsForOthers() const {
  const std::set<std::string> jobs = HolderJobs();
  return jobs.size() > jobs.count(holder_job_);
}

// One link serves one job. The coordinator at its other end may wait for good, for ranks that never
// come, while another job's waits for what is here.
void NodeMachine::Impl::TakeTurns(Duration turn) {
  if (HoldsForOthers()) Arm(kHolderTimer, turn);
}

// Asks for the next job's record, one at a time; after the last one waits for the next round.
void NodeMachine::Impl::PollHolder() {
  const bool may_hold = phase_ == Phase::kIdle || phase_ == Phase::kHolder ||
                        phase_ == Phase::kFailed || phase_ == Phase::kEnded;
  if (!may_hold || stopping_) return;
  if (holding_ && link_ == Link::kUp && HoldsForOthers()) {
    Do(NodeAction::Disconnect{});
    link_ = Link::kNone;
    entered_ = link_local_ = holding_ = false;
    if (phase_ == Phase::kHolder) phase_ = Phase::kIdle;
    took_turn_ = true;
  }
  if (link_ != Link::kNone) return;
  if (!holder_job_.empty()) holder_done_.insert(holder_job_);
  holder_job_.clear();
  for (const std::string& other : HolderJobs()) {
    if (holder_done_.count(other) != 0) continue;
    holder_job_ = other;
    Do(NodeAction::LocateCoordinator{holder_job_});
    return;
  }
  StartHolding();
}

}  // namespace tierkeep
