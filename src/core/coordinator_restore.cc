// The one restore decision for the whole job, and its fallbacks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

// Each failed decision takes a copy or a source out of the question, so they end by themselves;
// this only bounds what a broken agent can do.
constexpr uint64_t kDecisionsMax = 64;
constexpr int kOwnFailuresMax = 2;
constexpr int kPrepareTimeoutsMax = 2;
constexpr int kSlowNamedMax = 32;

}  // namespace

void CoordinatorMachine::Impl::StartRestore() {
  for (const auto& [rank, peer] : members_) SendRunStart(peer, peer.join.released());
  for (const auto& [node, holder] : holders_) SendRunStart(holder, true);
  prepare_open_.clear();
  if (!continuing_) {
    Decide();
    return;
  }
  bool all_released = true;
  for (auto& [rank, peer] : members_) {
    if (peer.join.released()) continue;
    prepare_open_.insert(rank);
    all_released = false;
  }
  if (!FindReleasedChoice()) return;
  if (!choice_) {
    Decide();
  } else if (all_released) {
    StartRunning();
  } else {
    // What some were released with holds for the rest.
    TK_PROBE(kResumeMidRestore);
    Announce();
  }
}

RestoreQuestion CoordinatorMachine::Impl::Question() const {
  RestoreQuestion question{.job = job(),
                           .world = FromProto(settings_.world()),
                           .holdings = &holdings_,
                           .failures = &failures_};
  question.nodes = NodesByRank();
  const auto add = [&](const Peer& peer) {
    const control::Join& join = peer.join;
    if (join.has_last_run() && join.has_last_restored() && !join.last_restored().none()) {
      const control::GenerationRecord& from = join.last_restored().generation();
      Branch& branch = question.branches.emplace_back();
      branch.run = FromProto(join.last_run());
      *branch.restored.mutable_save() = from.save();
      branch.restored.set_save_number(from.save_number());
      *branch.restored.mutable_parent_run() = from.parent_run();
      branch.restored.set_parent_save_number(from.parent_save_number());
    }
  };
  ForEachPeer(add);
  question.orders = OpenOrders();
  question.skipped = SkippedBefore();
  question.restores = Restores();
  question.restores_max = options_.restore.restores_max;
  question.recorded = OpenMark();
  Absent absent = AbsentNodes();
  question.absent = std::move(absent.nodes);
  question.absent_unnamed = absent.unnamed;
  return question;
}

// Nodes of earlier runs that are neither members nor here as holders may have the only copy. A run
// in the rendezvous that nobody here was released in has such nodes too, or one before it.
bool CoordinatorMachine::Impl::WaitForHolders(const RestoreAnswer& answer) {
  if (waited_for_holders_) return false;
  bool known = previous_run_.none();
  // Whoever was part of the newest run and still has a record of it knows what was committed; one
  // whose memory was lost may have shards again, but no record before the next commit.
  uint64_t newest = 0;
  uint64_t witnessed = 0;
  ForEachPeer([&](const Peer& peer) {
    known = known || peer.join.last_run().sequence() >= previous_run_.sequence;
    newest = std::max<uint64_t>(newest, peer.join.last_run().sequence());
    if (!peer.join.inventory().generations().empty()) {
      witnessed = std::max<uint64_t>(witnessed, peer.join.last_run().sequence());
    }
  });
  const Absent absent = AbsentNodes();
  const bool better_may_exist = answer.better_may_exist || witnessed < newest;
  if (known && (absent.none() || !better_may_exist)) return false;
  if (!waiting_for_holders_) {
    Log(Severity::kInfo,
        fmt::format("Waiting up to {} for {}, which may hold a newer checkpoint",
                    FormatDuration(options_.timings.holder_grace),
                    absent.nodes.empty() ? "a node of run " + previous_run_.ToString()
                                         : "node " + *absent.nodes.begin()));
    GiveHoldersTime(options_.timings.holder_grace);
  }
  TK_PROBE(kWaitedForHolders);
  waiting_for_holders_ = true;
  return true;
}

// In parts: of the time that passes while this host stands still, suspended or moved to another
// machine, at most one part counts. Nobody could come meanwhile.
void CoordinatorMachine::Impl::GiveHoldersTime(Duration wait) {
  holder_parts_left_ = kHolderParts;
  holder_part_ = wait / kHolderParts;
  Arm(kHolderTimer, holder_part_);
}

bool CoordinatorMachine::Impl::HoldersHadTheirTime() {
  if (--holder_parts_left_ <= 0) return true;
  Arm(kHolderTimer, holder_part_);
  return false;
}

// The job is told, and starts again: nothing is given up that an operator doesn't give up.
void CoordinatorMachine::Impl::Stop(const RestoreAnswer& answer, const std::string& reason) {
  const std::string text = "the restore decision stops: " + reason;
  RejectMembers(text, &answer.stop);
  EndRun(text);
}

void CoordinatorMachine::Impl::Say(const RestoreAnswer& answer) {
  for (const std::string& note : answer.notes) Log(Severity::kWarning, note);
  for (const auto& order : OpenOrders()) {
    Log(Severity::kWarning, "This restore decision was made as asked: " + ToString(order));
  }
  for (const std::string& problem : answer.problems) {
    Log(Severity::kError, problem);
    problems_.Set("restore " + problem, problem);
  }
}

void CoordinatorMachine::Impl::Decide() {
  if (state_ != State::kRestoring) return;
  const RestoreAnswer answer = ChooseRestore(Question());
  if (answer.kind == RestoreAnswer::Kind::kBlocked) {
    // A good copy, or an order to do without, may come with an agent that has no rank.
    if (WaitForHolders(answer)) return;
    TK_PROBE(kRestoreBlocked);
    Stop(answer, answer.reason);
    return;
  }
  if (WaitForAbsent(answer) || WaitForHolders(answer)) return;
  if (std::exchange(waiting_for_holders_, false)) Disarm(kHolderTimer);
  waiting_for_absent_ = false;
  ClearProblem("waiting");
  Say(answer);
  control::RestoreChoice choice;
  choice.set_decision(++decision_);
  choice.set_reason(answer.reason);
  *choice.mutable_orders() = orders_;
  *choice.mutable_skipped() = SkippedFrom(answer);
  if (answer.kind == RestoreAnswer::Kind::kGeneration) {
    TK_PROBE_IF(kOlderGeneration, answer.better_may_exist);
    *choice.mutable_generation() = answer.generation;
    JudgeRestores(&choice, answer.restores);
    Log(Severity::kInfo,
        fmt::format("We will restore in-cluster checkpoint: {}", answer.generation.save().step()));
  } else {
    choice.set_none(true);
    Log(Severity::kInfo, "No valid checkpoints found anywhere");
    if (answer.lost) {
      const std::string text = "checkpoints existed, and none can be restored: " + answer.reason;
      problems_.Set("lost", text);
      Log(Severity::kError, text);
    }
  }
  SetChoice(std::move(choice));
  waits_for_sources_.clear();
  problems_.ErasePrefix("source ");
  for (const auto& [rank, peer] : members_) prepare_open_.insert(rank);
  Announce();
}

void CoordinatorMachine::Impl::Announce() {
  Arm(kPrepareTimer, options_.timings.prepare_deadline);
  const std::set<Rank> open = prepare_open_;
  for (const Rank rank : open) {
    if (state_ == State::kRestoring) SendRestore(members_.at(rank));
  }
}

void CoordinatorMachine::Impl::SendRestore(const Peer& member) {
  TK_CHECK(choice_.has_value());
  control::Envelope message = NewMessage();
  if (!AddChoice(message.mutable_restore()->mutable_choice(), member.rank())) {
    EndRun(
        fmt::format("which shards node {} is to go on from isn't known any more", member.node()));
    return;
  }
  if (!choice_->none()) {
    for (auto& shard : ShardsOfRank(choice_->generation(), member.rank())) {
      auto* wanted = message.mutable_restore()->add_wanted();
      AddSources(wanted,
                 SourcesFor(holdings_, failures_, DigestOf(shard), member.node(), member.rank()));
      *wanted->mutable_shard() = std::move(shard);
    }
  }
  SendTo(member, std::move(message));
}

void CoordinatorMachine::Impl::OnPrepared(Peer* member, const control::RestorePrepared& m) {
  if (!choice_ || m.decision() != decision_) return;
  if (!m.ok()) {
    NoteFailure(member, m);
    return;
  }
  if (!choice_->none()) {
    for (const auto& shard : ShardsOfRank(choice_->generation(), member->rank())) {
      holdings_.AddVerified(member->node(), shard);
    }
  }
  // Bad copies may have been replaced on the way: what is held now was just said.
  prepare_open_.erase(member->rank());
  member->failures = 0;
  if (state_ == State::kRunning) {
    if (!member->join.released()) {
      member->join.set_released(true);
      *member->join.mutable_in_run() = ToProto(run_);
      SendRelease(*member);
      ResumeMember(member);
    }
    return;
  }
  ReleaseIfAllPrepared();
}

// A source that is away, or wasn't heard since it was asked whether it is here, says nothing of its
// copy: that may be the last one, and its agent may only be starting again.
bool CoordinatorMachine::Impl::IsSilent(const std::string& node) const {
  const auto silent = [&](const auto& table) {
    const auto peer = table.ByNode(node);
    if (peer == table.end()) return false;
    const Duration patience = options_.timings.ping_interval + options_.timings.retry_pause;
    return !peer->second.connected || now_ - peer->second.heard > patience;
  };
  return silent(members_) || silent(pending_) || silent(holders_);
}

// With which of the wanted shards it failed isn't told: it counts for each that the source has.
void CoordinatorMachine::Impl::NoteSourceFailed(const std::string& receiver,
                                                const std::string& source,
                                                const std::vector<Blake3>& wanted) {
  for (const Blake3& digest : wanted) {
    if (holdings_.Has(source, digest)) ++failures_[{receiver, source, digest}];
  }
}

// The member could not get what it needs. True: those that have it can't be heard now, and it is to
// ask them again once they can; another decision would give up what they have.
bool CoordinatorMachine::Impl::WaitForSources(const Peer& member,
                                              const control::RestorePrepared& m) {
  std::vector<Blake3> wanted;
  for (const auto& shard : ShardsOfRank(choice_->generation(), member.rank())) {
    wanted.push_back(DigestOf(shard));
  }
  std::set<std::string> silent;
  for (const std::string& source : std::set(m.bad_sources().begin(), m.bad_sources().end())) {
    if (IsSilent(source)) {
      silent.insert(source);
    } else {
      NoteSourceFailed(member.node(), source, wanted);
    }
  }
  if (silent.empty() || !m.bad_shards().empty()) return false;
  TK_PROBE(kWaitedForSource);
  SetProblem("source " + member.node(),
             fmt::format("node {} can't be restored before node {} is heard again", member.node(),
                         *silent.begin()));
  waits_for_sources_[member.rank()] = std::move(silent);
  Arm(kRetryTimer, options_.timings.retry_pause);
  return true;
}

void CoordinatorMachine::Impl::AskSourcesAgain() {
  std::vector<Rank> again;
  for (const auto& [rank, sources] : waits_for_sources_) {
    const bool silent = std::any_of(sources.begin(), sources.end(),
                                    [&](const auto& node) { return IsSilent(node); });
    if (!silent) again.push_back(rank);
  }
  for (const Rank rank : again) {
    waits_for_sources_.erase(rank);
    const auto member = members_.find(rank);
    if (member == members_.end()) continue;
    ClearProblem("source " + member->second.node());
    if (choice_ && !member->second.join.released()) SendRestore(member->second);
  }
  if (!waits_for_sources_.empty()) Arm(kRetryTimer, options_.timings.retry_pause);
}

void CoordinatorMachine::Impl::NoteFailure(Peer* member, const control::RestorePrepared& m) {
  Log(Severity::kError, fmt::format("Node {} could not prepare checkpoint {}: {}", member->node(),
                                    choice_->generation().save().step(), m.error()));
  for (const std::string& bad : m.bad_shards()) {
    holdings_.RemoveCopy(member->node(), FixedFromProto<Blake3>(bad));
  }
  TK_PROBE_IF(kSecondSourceFailed, m.bad_sources_size() > 1);
  if (WaitForSources(*member, m)) return;
  if (m.short_bytes() > 0 && MakeRoomToRestore(*member, m.short_bytes())) {
    SendRestore(*member);
    return;
  }
  if (m.bad_shards().empty() && m.bad_sources().empty()) ++member->failures;
  if (member->failures > kOwnFailuresMax || decision_ >= kDecisionsMax) {
    const std::string reason = fmt::format("node {} can't prepare its part of the checkpoint: {}",
                                           member->node(), m.error());
    if (state_ == State::kRestoring) RejectMembers(reason);
    EndRun(reason);
    return;
  }
  if (state_ == State::kRestoring && !SomeReleased()) {
    Decide();
    return;
  }
  // The others are released: nothing but this very generation will do.
  if (++member->failures > kOwnFailuresMax) {
    EndRun(fmt::format("node {} can't get the checkpoint that the others run from: {}",
                       member->node(), m.error()));
    return;
  }
  SendRestore(*member);
}

void CoordinatorMachine::Impl::PrepareDeadline() {
  if (state_ != State::kRestoring || !choice_) return;
  std::string slow;
  int named = 0;
  for (const Rank rank : prepare_open_) {
    if (++named > kSlowNamedMax) continue;
    slow += (slow.empty() ? "" : ", ") + members_.at(rank).node();
  }
  if (named > kSlowNamedMax) slow += fmt::format(" and {} more", named - kSlowNamedMax);
  const std::string reason = fmt::format("node {} did not prepare checkpoint {} within {}", slow,
                                         choice_->generation().save().step(),
                                         FormatDuration(options_.timings.prepare_deadline));
  Log(Severity::kError, reason);
  if (++prepare_timeouts_ >= kPrepareTimeoutsMax) {
    RejectMembers(reason);
    EndRun(reason);
    return;
  }
  if (SomeReleased()) {
    Announce();
  } else {
    Decide();
  }
}

// Of a run that goes on: what they were released with holds.
bool CoordinatorMachine::Impl::SomeReleased() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& entry) { return entry.second.join.released(); });
}

void CoordinatorMachine::Impl::ReleaseIfAllPrepared() {
  if (!prepare_open_.empty() && !TK_MUTATION(kReleaseEarly)) return;
  Disarm(kPrepareTimer);
  for (auto& [rank, peer] : members_) {
    if (peer.join.released()) continue;
    SendRelease(peer);
    peer.join.set_released(true);
    *peer.join.mutable_in_run() = ToProto(run_);
  }
  StartRunning();
}

void CoordinatorMachine::Impl::SendRelease(const Peer& member) {
  control::Envelope message = NewMessage();
  message.mutable_release()->set_decision(decision_);
  SendTo(member, std::move(message));
}

}  // namespace tierkeep
