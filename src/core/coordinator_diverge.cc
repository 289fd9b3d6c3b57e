// Data-parallel replicas of one save that disagree: what differs is found out by the nodes that
// hold them and reported to all whom it concerns. Nothing waits for it: what the generation needs
// to be committed follows from the disagreement alone (protection.h).
#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

// Replicas that are compared value by value; of further ones only the count is told.
constexpr int kComparedMax = 4;
// Differences that the text names, over all replicas.
constexpr int kNamedMax = 8;

std::string Describe(const control::OddReplica& odd, const Disagreement& found, int* named) {
  std::string text =
      fmt::format("rank {} (node {}{}) holds other values than rank {} (node {})", odd.rank(),
                  odd.node(), odd.worker() > 0 ? fmt::format(", worker {}", odd.worker()) : "",
                  odd.reference_rank(), odd.reference_node());
  if (found.majority) {
    text += fmt::format(", which {} replicas agree on", found.equal);
  } else {
    text += ", and nobody can tell which is right";
  }
  if (!odd.unknown().empty()) return text + "; what differs is not known: " + odd.unknown();
  if (odd.total() == 0) return text;
  uint64_t told = 0;
  for (const std::string& difference : odd.differences()) {
    if (*named >= kNamedMax) break;
    text += (told == 0 ? ": " : "; ") + difference;
    ++told;
    ++*named;
  }
  if (told == 0) return text + fmt::format(": {} differences", odd.total());
  if (odd.total() > told) text += fmt::format("; and {} more", odd.total() - told);
  return text;
}

}  // namespace

void CoordinatorMachine::Impl::NoteReplicas(const Protection& protection) {
  if (comparison_) EndComparison("a newer save was complete before");
  divergence_.reset();
  ClearProblem("replicas");
  if (protection.plan.disagreements.empty()) return;
  TK_PROBE(kDivergentReplicas);
  actions_.emplace_back(CoordinatorAction::CountDivergence{});
  comparison_.emplace();
  *comparison_->found.mutable_save() = protection.record.save();
  uint32_t total = 0;
  for (const Disagreement& disagreement : protection.plan.disagreements) {
    for (const Rank rank : disagreement.odd) {
      ++total;
      if (comparison_->found.odd_size() >= kComparedMax) continue;
      control::OddReplica& odd = *comparison_->found.add_odd();
      odd.set_rank(rank);
      odd.set_worker(disagreement.worker);
      odd.set_node(members_.at(rank).node());
      odd.set_reference_rank(disagreement.reference);
      odd.set_reference_node(members_.at(disagreement.reference).node());
      odd.set_outvoted(disagreement.majority);
      comparison_->of.push_back(disagreement);
      StartComparison(protection.record, comparison_->found.odd_size() - 1);
    }
  }
  comparison_->found.set_odd_total(total);
  SetProblem("replicas", DescribeDivergence());
  if (comparison_->open.empty()) {
    EndComparison("");
  } else {
    Arm(kCompareTimer, options_.timings.compare_deadline);
  }
}

// Asks the odd replica's node, which has that replica for certain.
void CoordinatorMachine::Impl::StartComparison(const control::GenerationRecord& record, int index) {
  control::OddReplica& odd = *comparison_->found.mutable_odd(index);
  const Peer& member = members_.at(odd.rank());
  const uint32_t workers = record.world().workers_per_node();
  const auto shard_of = [&](Rank rank) -> const control::ShardInfo& {
    return record.shards(static_cast<int>(rank * workers + odd.worker()));
  };
  const control::ShardInfo& reference = shard_of(odd.reference_rank());
  std::vector<std::string> sources =
      SourcesFor(holdings_, failures_, DigestOf(reference), member.node(), odd.rank());
  if (!member.connected || sources.empty()) {
    odd.set_unknown(fmt::format("node {} is not connected",
                                member.connected ? odd.reference_node() : member.node()));
    return;
  }
  control::Envelope message = NewMessage();
  control::Compare& compare = *message.mutable_compare();
  compare.set_order(next_order_++);
  *compare.mutable_own() = shard_of(odd.rank());
  *compare.mutable_other()->mutable_shard() = reference;
  AddSources(compare.mutable_other(), std::move(sources));
  comparison_->open[compare.order()] = index;
  SendTo(member, std::move(message));
}

void CoordinatorMachine::Impl::OnCompared(Peer* member, const control::Compared& m) {
  const auto asked =
      comparison_ ? comparison_->open.find(m.order()) : std::map<uint64_t, int>::iterator();
  if (!comparison_ || asked == comparison_->open.end() ||
      comparison_->found.odd(asked->second).rank() != member->rank()) {
    ++dropped_messages_;
    return;
  }
  control::OddReplica& odd = *comparison_->found.mutable_odd(asked->second);
  comparison_->open.erase(asked);
  if (!m.ok()) {
    odd.set_unknown(m.error().empty() ? "no reason was given" : m.error());
  } else if (m.total() == 0) {
    odd.set_unknown("compared value by value they are equal");
  } else {
    odd.set_total(m.total());
    *odd.mutable_differences() = m.differences();
  }
  if (comparison_->open.empty()) EndComparison("");
}

void CoordinatorMachine::Impl::CompareDeadline() {
  if (!comparison_) return;
  EndComparison(fmt::format("there was no answer within {}",
                            FormatDuration(options_.timings.compare_deadline)));
}

std::string CoordinatorMachine::Impl::DescribeDivergence() const {
  const control::Divergence& found = comparison_->found;
  std::string text =
      fmt::format("Data-parallel replicas disagree at step {}: ", found.save().step());
  int named = 0;
  for (int i = 0; i < found.odd_size(); ++i) {
    if (i > 0) text += "; ";
    text += Describe(found.odd(i), comparison_->of[static_cast<size_t>(i)], &named);
  }
  if (found.odd_total() > static_cast<uint32_t>(found.odd_size())) {
    text += fmt::format("; and {} more replicas differ",
                        found.odd_total() - static_cast<uint32_t>(found.odd_size()));
  }
  return text + ". The save is committed only once real copies of every shard exist";
}

// `open_because`: why what is still open stays unknown.
void CoordinatorMachine::Impl::EndComparison(const std::string& open_because) {
  for (const auto& [order, index] : comparison_->open) {
    comparison_->found.mutable_odd(index)->set_unknown(open_because);
  }
  Disarm(kCompareTimer);
  comparison_->found.set_text(DescribeDivergence());
  divergence_ = std::move(comparison_->found);
  comparison_.reset();
  problems_.Set("replicas", divergence_->text());
  Log(Severity::kError, divergence_->text());
  TellDivergence(*divergence_);
}

// Into replicator.errors of the nodes that it names.
void CoordinatorMachine::Impl::TellDivergence(const control::Divergence& divergence) {
  std::set<Rank> concerned;
  for (const auto& odd : divergence.odd()) {
    concerned.insert({odd.rank(), odd.reference_rank()});
  }
  control::Envelope message = NewMessage();
  *message.mutable_divergence() = divergence;
  for (const Rank rank : concerned) {
    const auto member = members_.find(rank);
    if (member != members_.end()) SendTo(member->second, message);
  }
}

// Said as loudly as the disagreement itself: until a later save can be protected, a crash falls
// back to what was committed before, or to one row of this.
void CoordinatorMachine::Impl::SayUncommitted(const Protection& protection,
                                              const std::string& why) {
  const std::string text = fmt::format(
      "step {} stays uncommitted: its replicas disagree, and the real copies that it needs can't "
      "be "
      "made: {}",
      protection.record.save().step(), why);
  problems_.Set("unprotected", text);
  Log(Severity::kError, text);
  control::Divergence told =
      comparison_ ? comparison_->found : divergence_.value_or(control::Divergence());
  if (told.odd().empty()) return;
  told.set_text(text);
  TellDivergence(told);
}

}  // namespace tierkeep
