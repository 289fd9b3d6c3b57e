#include "core/restore_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "core/restore_candidates.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

class Chooser {
 public:
  explicit Chooser(const RestoreQuestion& question)
      : question_(question), candidates_(FindCandidates(question)) {}

  RestoreAnswer Choose() {
    FindTwins();
    const Candidate* chosen = nullptr;
    for (const Candidate& candidate : candidates_) {
      if (Try(candidate)) {
        chosen = &candidate;
        break;
      }
    }
    if (std::string blocked = FindBlocking(chosen); !blocked.empty()) {
      answer_.kind = RestoreAnswer::Kind::kBlocked;
      answer_.reason = std::move(blocked);
      answer_.generation.Clear();
      return std::move(answer_);
    }
    if (chosen != nullptr) {
      answer_.kind = RestoreAnswer::Kind::kGeneration;
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
      answer_.generation = *candidate.record;
    } else {
      answer_.generation.set_job(question_.job);
      *answer_.generation.mutable_save() = ToProto(candidate.save);
      *answer_.generation.mutable_world() = ToProto(question_.world);
    }
    answer_.generation.clear_shards();
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
      for (const auto& record : records) look(record);
    }
    for (const Branch& branch : question_.branches) {
      if (branch.restored.save().SerializeAsString() ==
          answer_.generation.save().SerializeAsString()) {
        answer_.generation.set_save_number(branch.restored.save_number());
        return;
      }
      look(branch.restored);
    }
    answer_.generation.set_save_number(highest + 1);
  }

  // The first unreadable thing that could hide something newer than what was chosen.
  std::string FindBlocking(const Candidate* chosen) const {
    for (const auto& [node, items] : question_.holdings->unreadable()) {
      for (const auto& item : items) {
        const bool resolved = !item.digest().empty() ? ResolvedShard(item, chosen)
                              : item.has_run()       ? ResolvedRecord(item, chosen)
                                                     : false;
        if (!resolved) {
          return fmt::format(
              "node {}, RAM tier: {} can't be read, and whether it is newer than "
              "all else isn't known",
              node, item.detail());
        }
      }
    }
    return {};
  }

  bool ResolvedShard(const control::Unreadable& item, const Candidate* chosen) const {
    const Blake3 digest = FixedFromProto<Blake3>(item.digest());
    if (question_.holdings->Find(digest) != nullptr) return true;
    for (const Candidate& candidate : candidates_) {
      if (!candidate.record) continue;
      for (const auto& shard : candidate.record->shards()) {
        if (shard.digest() != item.digest()) continue;
        // Known for what it is: it matters only where it would be the newest and has no substitute.
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
        return true;
      }
    }
    if (chosen == nullptr) return false;
    if (chosen->order.sequence != run.sequence) return run.sequence < chosen->order.sequence;
    // An unnumbered save is newer than every numbered one of its run that is still complete.
    return chosen->order.number == 0 || item.save_number() <= chosen->order.number;
  }

  static constexpr size_t kSkippedMax = 8;

  const RestoreQuestion& question_;
  const std::vector<Candidate> candidates_;
  std::set<uint64_t> twins_;
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
    const auto failed = failures.find({receiver, node});
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
    shards.push_back(record.shards(static_cast<int>(rank * workers + worker)));
  }
  return shards;
}

}  // namespace tierkeep
