#include "core/restore_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/mutation.h"
#include "core/restore_candidates.h"
#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// "orbax, 4 nodes, 1 worker each, 2 partitions"
std::string Describe(const WorldShape& world) {
  std::string text = fmt::format("{}, {} nodes, {} workers each", FrameworkName(world.framework),
                                 world.nodes, world.workers_per_node);
  if (world.replicas() > 1) text += fmt::format(", {} partitions", world.replicas());
  return text;
}

class Chooser {
 public:
  explicit Chooser(const RestoreQuestion& question)
      : question_(question), candidates_(FindCandidates(question)) {}

  RestoreAnswer Choose() {
    FindTwins();
    ReadOrders();
    const Candidate* chosen = Pick();
    NoteOtherWorlds(chosen);
    if (FindBlocking(chosen)) return std::move(answer_);
    FindNewerAway(chosen);
    if (chosen != nullptr) {
      answer_.kind = RestoreAnswer::Kind::kGeneration;
      answer_.restores = RestoresOf(*chosen);
      Number();
      answer_.reason = fmt::format("newest complete generation: {}", chosen->save.ToString());
    } else {
      answer_.better_may_exist = true;
      answer_.lost = record_seen_;
      answer_.reason = skipped_.empty() ? "no checkpoint exists in the cluster" : "";
    }
    for (const std::string& text : skipped_) {
      answer_.reason += (answer_.reason.empty() ? "" : "; ") + text;
    }
    return std::move(answer_);
  }

 private:
  void ReadOrders() {
    away_ = question_.absent;
    away_unnamed_ = question_.absent_unnamed;
    for (const auto& order : question_.orders) {
      if (order.has_without()) {
        without_.insert(order.without());
        away_.erase(order.without());
      }
      if (order.has_without_absent()) {
        away_.clear();
        away_unnamed_ = 0;
      }
    }
  }

  // The newest complete one that nobody asked to skip. One that was restored too often comes after
  // all others.
  const Candidate* Pick() {
    std::vector<const Candidate*> exhausted;
    for (const Candidate& candidate : candidates_) {
      if (IsSkipped(candidate)) {
        Note(candidate.save.ToString() + " is skipped, as asked");
        continue;
      }
      if (question_.restores_max > 0 && RestoresOf(candidate) >= question_.restores_max) {
        exhausted.push_back(&candidate);
        continue;
      }
      if (!Try(candidate)) continue;
      for (const Candidate* other : exhausted) {
        if (!FillPlaces(question_, *other).missing.empty()) continue;
        answer_.problems.push_back(
            fmt::format("{} is passed over: it was restored {} times without a later commit",
                        other->save.ToString(), RestoresOf(*other)));
      }
      return &candidate;
    }
    for (const Candidate* candidate : exhausted) {
      if (!Try(*candidate)) continue;
      answer_.problems.push_back(
          fmt::format("{} was restored {} times without a later commit, and there is no other",
                      candidate->save.ToString(), RestoresOf(*candidate)));
      return candidate;
    }
    return nullptr;
  }

  uint32_t RestoresOf(const Candidate& candidate) const {
    const auto restores = question_.restores.find(candidate.save);
    return restores == question_.restores.end() ? 0 : restores->second;
  }

  bool IsSkipped(const Candidate& candidate) const {
    return IsSkipped(candidate.save.run, candidate.record ? candidate.record->save_number() : 0,
                     candidate.save.step);
  }
  bool IsSkipped(const RunId& run, uint64_t save_number, tierkeep::Step step) const {
    if (TK_MUTATION(kIgnoreSkip)) return false;
    const auto names_it = [&](const control::RestoreOrder& order) {
      if (order.has_skip_step()) return order.skip_step() == step;
      return order.has_skip() && order.skip().save_number() == save_number &&
             order.skip().run() == run.ToString();
    };
    return std::any_of(question_.orders.begin(), question_.orders.end(), names_it) ||
           std::any_of(question_.skipped.begin(), question_.skipped.end(),
                       [&](const control::RestoreOrder& order) {
                         return run.sequence < order.after() && names_it(order);
                       });
  }

  void Note(std::string text) {
    if (skipped_.size() < kSkippedMax) skipped_.push_back(text);
    answer_.notes.push_back(std::move(text));
  }

  // What the job saved in another shape can't be given to this one: said where it would have won.
  void NoteOtherWorlds(const Candidate* chosen) {
    for (const Candidate& other : FindOtherWorlds(question_)) {
      if (chosen != nullptr && other.order < chosen->order) continue;
      std::string text = fmt::format(
          "{} was saved by a job of another shape ({}; now {}): it can't be restored here",
          other.save.ToString(), Describe(other.world), Describe(question_.world));
      if (other.record && other.record->committed()) answer_.problems.push_back(text);
      Note(std::move(text));
    }
  }

  // Two runs with one sequence number can't be ordered: neither is trusted.
  void FindTwins() {
    std::map<uint64_t, std::set<RunId>> runs;
    for (const Candidate& candidate : candidates_) {
      runs[candidate.save.run.sequence].insert(candidate.save.run);
    }
    for (const Branch& branch : question_.branches) runs[branch.run.sequence].insert(branch.run);
    for (const auto& [sequence, ids] : runs) {
      if (ids.size() < 2) continue;
      twins_.insert(sequence);
      answer_.problems.push_back(fmt::format(
          "runs {} and {} have the same sequence number: what either saved is not restored",
          ids.begin()->ToString(), ids.rbegin()->ToString()));
    }
  }

  bool Try(const Candidate& candidate) {
    const bool committed = candidate.record && candidate.record->committed();
    if (twins_.count(candidate.save.run.sequence) != 0) return false;
    // PyTorch clients take step 0 for "no checkpoint".
    if (question_.world.framework != Framework::kOrbax && candidate.save.step == 0) return false;
    if (candidate.record) record_seen_ = true;
    if (!candidate.contradiction.empty()) answer_.problems.push_back(candidate.contradiction);
    Filled filled = FillPlaces(question_, candidate);
    if (!filled.missing.empty()) {
      if (committed) answer_.better_may_exist = true;
      if (skipped_.size() < kSkippedMax) {
        skipped_.push_back(fmt::format("{}{} is not complete: {}", committed ? "committed " : "",
                                       candidate.save.ToString(), filled.missing));
      }
      return false;
    }
    if (!filled.problem.empty()) answer_.problems.push_back(filled.problem);
    if (candidate.record) {
      answer_.generation = WithoutShards(*candidate.record);
    } else {
      answer_.generation.set_job(question_.job);
      *answer_.generation.mutable_save() = ToProto(candidate.save);
      *answer_.generation.mutable_world() = ToProto(question_.world);
    }
    for (auto& shard : filled.shards) *answer_.generation.add_shards() = std::move(shard);
    return true;
  }

  // A save that was complete but never matched to a number gets the next one of its run.
  void Number() {
    if (answer_.generation.save_number() != 0) return;
    uint64_t highest = 0;
    const std::string run = answer_.generation.save().run().SerializeAsString();
    const auto look = [&](const control::GenerationRecord& record) {
      if (record.save().run().SerializeAsString() == run) {
        highest = std::max(highest, record.save_number());
      }
      if (record.parent_run().SerializeAsString() == run) {
        highest = std::max(highest, record.parent_save_number());
      }
    };
    for (const auto& [node, records] : question_.holdings->records()) {
      for (const auto& record : records) look(*record);
    }
    for (const Branch& branch : question_.branches) {
      if (branch.restored.save().SerializeAsString() ==
          answer_.generation.save().SerializeAsString()) {
        answer_.generation.set_save_number(branch.restored.save_number());
        return;
      }
      look(branch.restored);
    }
    // Whoever holds the records of that commit may come back: two saves must not have one number.
    if (question_.recorded && question_.recorded->run().SerializeAsString() == run) {
      highest = std::max(highest, question_.recorded->save_number());
    }
    answer_.generation.set_save_number(highest + 1);
  }

  // Whether anything unreadable could hide something newer than what was chosen.
  bool FindBlocking(const Candidate* chosen) {
    std::string first;
    for (const auto& [node, items] : question_.holdings->unreadable()) {
      for (const auto& item : items) {
        const bool resolved = !item.digest().empty() ? ResolvedShard(item, chosen)
                              : item.has_run()       ? ResolvedRecord(item, chosen)
                                                     : false;
        if (resolved) continue;
        const std::string what = fmt::format("node {}, RAM tier: {}", node, item.detail());
        if (item.damaged()) {
          NoteDamaged(what);
          continue;
        }
        if (without_.count(node) != 0) {
          Note(what + " can't be read and is given up, as asked");
          continue;
        }
        if (first.empty()) first = what;
        GiveUp(node, what + " can't be read");
      }
    }
    if (first.empty()) return false;
    SayInstead(chosen);
    answer_.kind = RestoreAnswer::Kind::kBlocked;
    answer_.better_may_exist = true;
    answer_.generation.Clear();
    answer_.reason = fmt::format(
        "{} can't be read, and whether it is newer than all else isn't known; `tierkeep restore "
        "--without {}` goes on without it, from {}",
        first, answer_.stop.nodes(0), answer_.stop.instead());
    return true;
  }

  // A lost copy like that of a node whose memory is gone: what it was part of isn't complete
  // without it, as the records tell. No other try would read it, so nothing waits for it here; but
  // whoever is away may have another one.
  void NoteDamaged(const std::string& what) {
    TK_PROBE(kDamagedCopyIsLost);
    answer_.better_may_exist = true;
    answer_.lost = true;
    answer_.problems.push_back(what + ": it may have been part of something newer, and is lost");
    if (skipped_.size() < kSkippedMax) skipped_.push_back("a copy is damaged: " + what);
  }

  void GiveUp(const std::string& node, std::string what) {
    auto& stop = answer_.stop;
    if (std::find(stop.nodes().begin(), stop.nodes().end(), node) == stop.nodes().end()) {
      stop.add_nodes(node);
    }
    if (stop.given_up_size() < static_cast<int>(kSkippedMax)) stop.add_given_up(std::move(what));
  }

  void SayInstead(const Candidate* chosen) {
    answer_.stop.set_job(question_.job);
    answer_.stop.set_instead(chosen != nullptr ? chosen->save.ToString()
                                               : "no checkpoint: the job would begin anew");
  }

  // Something newer that is known to have been committed, and that only nodes that are away could
  // give.
  void FindNewerAway(const Candidate* chosen) {
    if ((away_.empty() && away_unnamed_ == 0) || TK_MUTATION(kForgetAbsent)) return;
    std::string what = NewerRecord(chosen);
    if (what.empty()) what = NewerMark(chosen);
    if (what.empty()) return;
    uint64_t more = away_unnamed_;
    for (const std::string& node : away_) {
      if (answer_.stop.nodes_size() < kStopNodesMax) {
        answer_.stop.add_nodes(node);
      } else {
        ++more;
      }
    }
    if (more > 0) what += fmt::format(", with {} more nodes away than are named", more);
    answer_.stop.add_given_up(std::move(what));
    SayInstead(chosen);
    answer_.newer_is_away = true;
  }

  std::string NewerRecord(const Candidate* chosen) const {
    for (const Candidate& candidate : candidates_) {
      if (chosen != nullptr && candidate.order <= chosen->order) break;
      if (!candidate.record || !candidate.record->committed() || IsSkipped(candidate)) continue;
      if (twins_.count(candidate.save.run.sequence) != 0) continue;
      Filled filled = FillPlaces(question_, candidate);
      if (filled.missing.empty()) continue;  // passed over for another reason
      return fmt::format("committed {} ({})", candidate.save.ToString(), filled.missing);
    }
    return {};
  }

  std::string NewerMark(const Candidate* chosen) const {
    if (!question_.recorded || question_.recorded->none()) return {};
    const control::GenerationMark& mark = *question_.recorded;
    const RunId run = FromProto(mark.run());
    if (FromProto(mark.world()) != question_.world ||
        IsSkipped(run, mark.save_number(), mark.step())) {
      return {};
    }
    if (chosen != nullptr) {
      const CandidateOrder& order = chosen->order;
      if (order.sequence > run.sequence) return {};
      // An unnumbered save is newer than every numbered one of its run that is still complete.
      const bool unnumbered = order.number == 0 && order.ordinal > 0;
      const bool same_run = order.sequence == run.sequence;
      if (same_run && (unnumbered || order.number >= mark.save_number())) return {};
    }
    return fmt::format("step {} (run {}), which the rendezvous names as committed", mark.step(),
                       run.ToString());
  }

  bool ResolvedShard(const control::Unreadable& item, const Candidate* chosen) const {
    const Blake3 digest = FixedFromProto<Blake3>(item.digest());
    if (question_.holdings->Find(digest) != nullptr) return true;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.record) continue;
      for (const auto& shard : candidate.record->shards()) {
        if (shard.digest() != item.digest()) continue;
        // Known for what it is: it matters only where it would be the newest and has no substitute.
        if (IsSkipped(candidate)) return true;
        if (chosen != nullptr && candidate.order <= chosen->order) return true;
        return FillPlaces(question_, candidate).missing.empty();
      }
    }
    return false;
  }

  bool ResolvedRecord(const control::Unreadable& item, const Candidate* chosen) const {
    const RunId run = FromProto(item.run());
    for (const Candidate& candidate : candidates_) {
      if (candidate.record && candidate.save.run == run &&
          candidate.record->save_number() == item.save_number()) {
        // What it told beyond the other parts may be the reason why it isn't the one chosen.
        if (IsWhole(*candidate.record)) return true;
        if (chosen != nullptr && candidate.order <= chosen->order) return true;
      }
    }
    if (chosen == nullptr) return false;
    if (chosen->order.sequence != run.sequence) return run.sequence < chosen->order.sequence;
    // An unnumbered save is newer than every numbered one of its run that is still complete.
    return chosen->order.number == 0 || item.save_number() <= chosen->order.number;
  }

  static constexpr size_t kSkippedMax = 8;
  static constexpr int kStopNodesMax = 256;  // every member is told

  const RestoreQuestion& question_;
  const std::vector<Candidate> candidates_;
  std::set<uint64_t> twins_;
  std::set<std::string> without_;  // nodes whose unreadable parts are given up
  std::set<std::string> away_;     // absent and not given up
  uint32_t away_unnamed_ = 0;
  std::vector<std::string> skipped_;
  bool record_seen_ = false;
  RestoreAnswer answer_;
};

}  // namespace

RestoreAnswer ChooseRestore(const RestoreQuestion& question) {
  TK_CHECK(question.holdings != nullptr && question.failures != nullptr);
  TK_CHECK(question.nodes.size() == question.world.nodes);
  return Chooser(question).Choose();
}

std::vector<std::string> SourcesFor(const Holdings& holdings, const SourceFailures& failures,
                                    const Blake3& digest, const std::string& receiver,
                                    size_t turn) {
  std::vector<std::string> sources;
  for (const std::string& node : holdings.HoldersOf(digest)) {
    if (node == receiver) continue;
    const auto failed = failures.find({receiver, node, digest});
    if (failed != failures.end() && failed->second >= kSourceFailuresMax) continue;
    sources.push_back(node);
  }
  if (sources.size() > 1) {
    std::rotate(sources.begin(),
                sources.begin() + static_cast<std::ptrdiff_t>(turn % sources.size()),
                sources.end());
  }
  return sources;
}

std::vector<control::ShardInfo> ShardsOfRank(const control::GenerationRecord& record, Rank rank) {
  const uint32_t workers = record.world().workers_per_node();
  std::vector<control::ShardInfo> shards;
  for (Worker worker = 0; worker < workers; ++worker) {
    if (const auto* shard = EntryOf(record, rank, worker)) shards.push_back(*shard);
  }
  return shards;
}

}  // namespace tierkeep
