// What the restore decision depends on besides copies: operators' orders, how often a generation
// was restored, and what the rendezvous knows of generations whose holders are away.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

// A record is rewritten with each commit: of a very large job it names some nodes only.
constexpr int kMarkNodesMax = 1024;

bool Older(const control::GenerationMark& a, const control::GenerationMark& b) {
  return std::pair(a.run().sequence(), a.save_number()) <
         std::pair(b.run().sequence(), b.save_number());
}

std::string JoinNames(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string text;
  for (int i = 0; i < names.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > 8) text += fmt::format(" and {} more", names.size() - 8);
  return text;
}

}  // namespace

// ---- orders ----------------------------------------------------------------------------------

void CoordinatorMachine::Impl::TakeOrders(const control::Join& join) {
  if (!AddOrders(&orders_, join.orders())) return;
  // One that was away brings orders that have had their decision: they must not wait for the next.
  RestoreOrders open;
  for (const auto& order : OpenOrders()) {
    if (HasOrder(join.orders(), order)) *open.Add() = order;
  }
  if (!open.empty()) SpreadOrders(open, join.node());
}

// Every member keeps them: any of them may be lost before the job starts again.
void CoordinatorMachine::Impl::SpreadOrders(const RestoreOrders& orders, const std::string& from) {
  if (state_ != State::kRestoring && state_ != State::kRunning) return;
  control::Envelope message = NewMessage();
  *message.mutable_restore_orders()->mutable_orders() = orders;
  for (const auto& [rank, peer] : members_) {
    if (peer.node() != from) SendTo(peer, message);
  }
}

void CoordinatorMachine::Impl::OnOrders(const Peer& from, const control::RestoreOrders& m) {
  RestoreOrders given = m.orders();
  for (auto& order : given) {
    // Given now, whatever the clock of its host says: no decision until now has dealt with it.
    order.set_after(std::max<uint64_t>(order.after(), run_.sequence));
    if (state_ == State::kRunning && choice_) RaiseAbove(choice_->orders(), &order);
    Log(Severity::kWarning, fmt::format("Asked on node {}: {}, at the next restore decision",
                                        from.node(), ToString(order)));
  }
  AddOrders(&orders_, given);
  SpreadOrders(given, from.node());
  if (waiting_for_holders_) Decide();
}

// Without those that have had their decision: a run that was released knew of them, or began after
// they were given and, their agent being away, did not.
RestoreOrders CoordinatorMachine::Impl::OpenOrders() const {
  RestoreOrders open;
  for (const auto& order : orders_) {
    RestoreOrders one;
    *one.Add() = order;
    bool done = false;
    const auto released = [&](uint64_t sequence, const control::RestoreChoice& from) {
      done = done || sequence > order.after();
      for (const auto& other : from.orders()) {
        done = done || (other.after() >= order.after() && HasOrder(one, other));
      }
    };
    ForEachPeer([&](const Peer& peer) {
      released(peer.join.last_run().sequence(), peer.join.last_restored());
    });
    if (state_ == State::kRunning && choice_) released(run_.sequence, *choice_);
    if (!done) *open.Add() = order;
  }
  return open;
}

// What the runs that peers were released in were asked to skip. The orders are done; what they
// named may still be there, until a commit.
RestoreOrders CoordinatorMachine::Impl::SkippedBefore() const {
  RestoreOrders skipped;
  if (TK_MUTATION(kForgetBranches)) return skipped;
  ForEachPeer([&](const Peer& peer) {
    RestoreOrders of_job;
    for (const auto& order : peer.join.last_restored().skipped()) {
      if (order.job() == job()) *of_job.Add() = order;
    }
    AddOrders(&skipped, of_job);
  });
  return skipped;
}

// What is to stay skipped once the job was released from `answer`. A run that has nothing to go on
// from has no save 0 that would be newer than what was skipped, and a generation may be lost.
RestoreOrders CoordinatorMachine::Impl::SkippedFrom(const RestoreAnswer& answer) const {
  RestoreOrders skipped;
  for (auto& order : OpenOrders()) {
    if (!order.has_skip_step() && !order.has_skip()) continue;
    order.set_after(run_.sequence);
    *skipped.Add() = std::move(order);
  }
  // Of a later run than the one that was asked: it has served.
  const bool none = answer.kind != RestoreAnswer::Kind::kGeneration;
  const uint64_t from = answer.generation.save().run().sequence();
  RestoreOrders before;
  for (auto& order : SkippedBefore()) {
    if (none || from < order.after()) *before.Add() = std::move(order);
  }
  AddOrders(&skipped, before);
  return skipped;
}

// ---- a generation that is restored again and again -------------------------------------------

std::map<SaveKey, uint32_t> CoordinatorMachine::Impl::Restores() const {
  std::map<SaveKey, uint32_t> restores;
  ForEachPeer([&](const Peer& peer) {
    for (const auto& count : peer.join.restores()) {
      uint32_t& most = restores[FromProto(count.save())];
      most = std::max(most, count.restores());
    }
  });
  return restores;
}

void CoordinatorMachine::Impl::JudgeRestores(control::RestoreChoice* choice, uint32_t before) {
  choice->set_restores(before + 1);
  const uint32_t limit = options_.restore.suspect_after;
  ClearProblem("suspect");
  if (limit == 0 || choice->restores() < limit) return;
  const auto& generation = choice->generation();
  choice->set_suspect(fmt::format(
      "{} is suspect: it was restored {} times without a later commit; `tierkeep restore "
      "--skip {}` takes an older one at the next start",
      FromProto(generation.save()).ToString(), choice->restores(), generation.save().step()));
  problems_.Set("suspect", choice->suspect());
  Log(Severity::kError, choice->suspect());
}

// ---- who is away -----------------------------------------------------------------------------

// What the rendezvous names as newest, unless a node that is here was released in a later run: that
// run's decision has dealt with it. A run that goes on may have been decided by nobody yet.
std::optional<control::GenerationMark> CoordinatorMachine::Impl::OpenMark() const {
  if (!record_.has_newest()) return std::nullopt;
  bool later = false;
  ForEachPeer([&](const Peer& peer) {
    later = later || peer.join.last_run().sequence() > record_.newest().run().sequence();
  });
  if (later) return std::nullopt;
  return record_.newest();
}

CoordinatorMachine::Impl::Absent CoordinatorMachine::Impl::AbsentNodes() const {
  Absent absent;
  const auto mark = OpenMark();
  if (mark) absent.nodes.insert(mark->nodes().begin(), mark->nodes().end());
  // An agent that has been idle for long names nodes that have since been replaced.
  uint64_t newest = 0;
  uint32_t total = 0;
  ForEachPeer([&](const Peer& peer) {
    const uint64_t last = peer.join.last_run().sequence();
    if (last > newest) total = 0;
    newest = std::max(newest, last);
    if (last == newest) total = std::max(total, peer.join.last_nodes());
  });
  // Of a large job each node knows some others only, all of them together nearly all.
  std::set<std::string> known;
  if (mark && mark->run().sequence() == newest) {
    // Its members come first, then nodes of earlier runs.
    const auto members = std::min<int64_t>(mark->nodes_size(), mark->world().nodes());
    known.insert(mark->nodes().begin(), mark->nodes().begin() + static_cast<int>(members));
  }
  ForEachPeer([&](const Peer& peer) {
    const uint64_t last = peer.join.last_run().sequence();
    if (last != 0 && last < newest) return;
    const auto& nodes = peer.join.previous_nodes();
    absent.nodes.insert(nodes.begin(), nodes.end());
    if (last == 0 || newest == 0) return;
    known.insert(nodes.begin(), nodes.end());
    known.insert(peer.node());
  });
  if (newest != 0 && known.size() < total) {
    absent.unnamed = total - static_cast<uint32_t>(known.size());
  }
  ForEachPeer([&](const Peer& peer) { absent.nodes.erase(peer.node()); });
  return absent;
}

// A newer generation is known to exist, and who holds it is away: waited for, then the decision
// stops. Only an operator, or a setting, gives it up.
bool CoordinatorMachine::Impl::WaitForAbsent(const RestoreAnswer& answer) {
  if (!answer.newer_is_away || gave_up_absent_) {
    // Whatever it was has come, or was given up.
    if (std::exchange(waiting_for_absent_, false)) waited_for_holders_ = true;
    return false;
  }
  const std::string what =
      fmt::format("{} is newer than all that is here, and node {} may hold it and is away",
                  answer.stop.given_up(0), JoinNames(answer.stop.nodes()));
  const bool go_on = options_.restore.go_on_without_absent;
  const Duration wait = go_on ? options_.timings.holder_grace : options_.restore.absent_wait;
  const std::string remedy = fmt::format(
      "`tierkeep restore --without-absent` goes on without it, from {}", answer.stop.instead());
  if (waiting_for_absent_ && waited_for_holders_) {
    const std::string none = fmt::format("{}; none came within {}", what, FormatDuration(wait));
    if (!go_on) {
      Stop(answer, none + "; " + remedy);
      return true;
    }
    gave_up_absent_ = true;
    problems_.Set("lost", none + ": it is given up");
    Log(Severity::kError, none + ": it is given up");
    return false;
  }
  TK_PROBE(kWaitedForHolders);
  waiting_ = answer.stop;
  if (!waiting_for_absent_) GiveHoldersTime(wait);
  waiting_for_holders_ = waiting_for_absent_ = true;
  waited_for_holders_ = false;
  SetProblem("waiting",
             fmt::format("{}: waiting up to {}; {}", what, FormatDuration(wait), remedy));
  return true;
}

// ---- the mark in the rendezvous --------------------------------------------------------------

// `record` was committed, or the run was released from it (null: from nothing). Until the run has a
// generation of its own, nodes of earlier runs may have copies that its members lose or lack.
void CoordinatorMachine::Impl::MarkNewest(const control::GenerationRecord* record) {
  control::GenerationMark mark;
  *mark.mutable_run() = ToProto(run_);
  *mark.mutable_world() = settings_.world();
  mark.set_none(record == nullptr);
  if (record != nullptr) {
    // Of an earlier run: it counts as save 0 of this one.
    const bool own = FromProto(record->save().run()) == run_;
    mark.set_save_number(own ? record->save_number() : 0);
    mark.set_step(record->save().step());
    std::set<std::string> others;
    if (!own) {
      others = AbsentNodes().nodes;
      others.insert(record_.newest().nodes().begin(), record_.newest().nodes().end());
      for (const auto& [node, holder] : holders_) others.insert(node);
    }
    for (const auto& [rank, peer] : members_) {
      if (mark.nodes_size() < kMarkNodesMax) mark.add_nodes(peer.node());
      others.erase(peer.node());
    }
    for (const std::string& node : others) {
      if (mark.nodes_size() < kMarkNodesMax) mark.add_nodes(node);
    }
  }
  mark_ = std::move(mark);
  actions_.emplace_back(CoordinatorAction::ReadRendezvous{});
}

// Whoever coordinates by now: only the mark is changed.
void CoordinatorMachine::Impl::WriteMark(const CoordinatorEvent::RendezvousRead& e) {
  if (!mark_ || !e.record || write_in_flight_) return;
  const control::GenerationMark mark = *std::exchange(mark_, std::nullopt);
  if (e.record->has_newest() && !Older(e.record->newest(), mark)) return;
  writing_ = *e.record;
  *writing_.mutable_newest() = mark;
  write_in_flight_ = mark_in_flight_ = true;
  actions_.emplace_back(CoordinatorAction::WriteRendezvous{writing_, e.version});
}

}  // namespace tierkeep
