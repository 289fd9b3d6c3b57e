#include "core/restore_candidates.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/mutation.h"
#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// Fills one candidate's places. Holders are keyed by manifest digest, never by logical equality:
// an equal replica's shard may stand in as a whole, chunks of two are never mixed.
class PlaceFiller {
 public:
  PlaceFiller(const RestoreQuestion& question, const Candidate& candidate)
      : question_(question),
        candidate_(candidate),
        workers_(question.world.workers_per_node),
        width_(question.world.nodes / question.world.replicas()) {}

  Filled Fill() {
    Filled filled;
    const std::optional<Place> disagreeing = FindDisagreement();
    if (disagreeing && !TK_MUTATION(kMixReplicas)) {
      TK_PROBE(kOneRowForAll);
      filled.problem = fmt::format(
          "{}: the replicas of rank {} hold different values; one consistent partition is used "
          "for all",
          candidate_.save.ToString(), disagreeing->first);
      if (!FillFromOneRow(&filled)) {
        filled.missing = fmt::format("replicas of rank {} disagree and no partition is complete",
                                     disagreeing->first);
      }
      return filled;
    }
    FillEach(&filled);
    if (!filled.missing.empty() && question_.world.replicas() > 1) {
      Filled row;
      if (FillFromOneRow(&row, /*own_where_equal=*/true)) return row;
    }
    return filled;
  }

 private:
  const control::ShardInfo* Reachable(const Blake3& digest, Rank rank) const {
    const control::ShardInfo* shard = question_.holdings->Find(digest);
    if (shard == nullptr) return nullptr;
    const std::string& node = question_.nodes[rank];
    if (question_.holdings->Has(node, digest)) return shard;
    const bool sources =
        !SourcesFor(*question_.holdings, *question_.failures, digest, node, rank).empty();
    return sources ? shard : nullptr;
  }

  const control::ShardInfo* Recorded(Place place) const {
    return candidate_.record ? EntryOf(*candidate_.record, place.first, place.second) : nullptr;
  }

  // What the rank itself saved there. Two different shards under one name make it unusable, unless
  // the record says which one counts.
  const control::ShardInfo* Own(Place place, Rank receiver) const {
    if (const auto* recorded = Recorded(place); recorded && recorded->rank() == place.first) {
      if (const auto* shard = Reachable(DigestOf(*recorded), receiver)) return shard;
    }
    const auto known = candidate_.shards.find(place);
    if (known == candidate_.shards.end()) return nullptr;
    const control::ShardInfo* best = nullptr;
    std::set<std::string> logicals;
    for (const Blake3& digest : known->second) {
      const auto* shard = Reachable(digest, receiver);
      if (shard == nullptr || !FitsRecord(place, *shard)) continue;
      logicals.insert(shard->logical());
      const bool equal = !shard->logical().empty() && logicals.size() == 1;
      if (best != nullptr && !equal) return nullptr;
      if (best == nullptr) best = shard;
    }
    return best;
  }

  // With a record, only its very shard or a logically equal one may serve a place.
  bool FitsRecord(Place place, const control::ShardInfo& shard) const {
    if (!candidate_.record) return true;
    const auto* recorded = Recorded(place);
    if (recorded == nullptr) recorded = RecordedEqual(place);
    if (recorded == nullptr) return false;
    if (recorded->digest() == shard.digest()) return true;
    return !shard.logical().empty() && shard.logical() == recorded->logical();
  }

  // What no part of the record tells of is like any other replica's, where those are equal.
  const control::ShardInfo* RecordedEqual(Place place) const {
    if (!candidate_.record->equal()) return nullptr;
    for (Rank rank = place.first % width_; rank < question_.world.nodes; rank += width_) {
      if (const auto* recorded = Recorded({rank, place.second})) return recorded;
    }
    return nullptr;
  }

  // Whether what is known of the column's replicas is all that there is. A lost one that no record
  // tells of may have had other values than those that are here: then rows must not be mixed.
  bool ColumnIsKnown(Place place) const {
    if (candidate_.record && candidate_.record->equal()) return true;
    for (Rank rank = place.first % width_; rank < question_.world.nodes; rank += width_) {
      const Place other{rank, place.second};
      const bool known =
          candidate_.record ? Recorded(other) != nullptr : candidate_.shards.count(other) != 0;
      if (!known) return false;
    }
    return true;
  }

  std::vector<const control::ShardInfo*> ColumnShards(Rank column, Worker worker) const {
    std::vector<const control::ShardInfo*> shards;
    for (Rank rank = column; rank < question_.world.nodes; rank += width_) {
      if (const auto* recorded = Recorded({rank, worker})) shards.push_back(recorded);
      const auto known = candidate_.shards.find({rank, worker});
      if (known == candidate_.shards.end()) continue;
      for (const Blake3& digest : known->second) {
        if (const auto* shard = question_.holdings->Find(digest)) shards.push_back(shard);
      }
    }
    return shards;
  }

  std::optional<Place> FindDisagreement() const {
    if (question_.world.replicas() == 1) return std::nullopt;
    for (Rank column = 0; column < width_; ++column) {
      for (Worker worker = 0; worker < workers_; ++worker) {
        const std::string* first = nullptr;
        for (const auto* shard : ColumnShards(column, worker)) {
          if (shard->logical().empty()) continue;
          if (first == nullptr) first = &shard->logical();
          if (*first != shard->logical()) return Place{column, worker};
        }
      }
    }
    return std::nullopt;
  }

  const control::ShardInfo* StandIn(Place place) const {
    if (question_.world.replicas() == 1 || !ColumnIsKnown(place)) return nullptr;
    const auto shards = ColumnShards(place.first % width_, place.second);
    for (const auto* shard : shards) {
      if (shard->logical().empty()) return nullptr;  // equality isn't known
    }
    for (const auto* shard : shards) {
      const auto* found = Reachable(DigestOf(*shard), place.first);
      if (found == nullptr) continue;
      TK_PROBE(kReplicaStandsIn);
      return found;
    }
    return nullptr;
  }

  void FillEach(Filled* filled) const {
    for (Rank rank = 0; rank < question_.world.nodes; ++rank) {
      for (Worker worker = 0; worker < workers_; ++worker) {
        const Place place{rank, worker};
        const control::ShardInfo* shard = Own(place, rank);
        // A record may name an equal replica's shard for this place.
        if (shard == nullptr && Recorded(place)) {
          shard = Reachable(DigestOf(*Recorded(place)), rank);
        }
        if (shard == nullptr) shard = StandIn(place);
        if (shard == nullptr) {
          filled->shards.clear();
          const bool unknown = candidate_.record && Recorded(place) == nullptr;
          filled->missing =
              unknown ? fmt::format("nobody here knows which shard of rank {} worker {} it is",
                                    rank, worker)
                      : fmt::format("no copy of rank {} worker {} is left", rank, worker);
          return;
        }
        filled->shards.push_back(*shard);
      }
    }
  }

  // What the rank itself saved, when that is known without doubt.
  const std::string* LogicalOf(Rank rank, Worker worker) const {
    if (const auto* recorded = Recorded({rank, worker}); recorded && recorded->rank() == rank) {
      return &recorded->logical();
    }
    const auto known = candidate_.shards.find({rank, worker});
    if (known == candidate_.shards.end() || known->second.size() != 1) return nullptr;
    const auto* shard = question_.holdings->Find(*known->second.begin());
    return shard == nullptr ? nullptr : &shard->logical();
  }

  // Partitions whose values most replicas share come first, then the lowest: the odd one out is
  // likelier to be wrong than all the others.
  std::vector<uint32_t> RowsByAgreement() const {
    std::vector<uint32_t> rows(question_.world.replicas());
    std::vector<uint32_t> outvoted(rows.size(), 0);
    for (Rank column = 0; column < width_; ++column) {
      for (Worker worker = 0; worker < workers_; ++worker) {
        std::map<std::string, uint32_t> votes;
        uint32_t most = 0;
        for (uint32_t row = 0; row < rows.size(); ++row) {
          const auto* logical = LogicalOf(row * width_ + column, worker);
          if (logical != nullptr && !logical->empty()) most = std::max(most, ++votes[*logical]);
        }
        for (uint32_t row = 0; row < rows.size(); ++row) {
          const auto* logical = LogicalOf(row * width_ + column, worker);
          outvoted[row] += logical == nullptr || votes[*logical] < most ? 1 : 0;
        }
      }
    }
    for (uint32_t row = 0; row < rows.size(); ++row) rows[row] = row;
    std::stable_sort(rows.begin(), rows.end(),
                     [&](uint32_t a, uint32_t b) { return outvoted[a] < outvoted[b]; });
    return rows;
  }

  bool FillFromOneRow(Filled* filled, bool own_where_equal = false) const {
    for (const uint32_t row : RowsByAgreement()) {
      filled->shards.clear();
      if (TakeRow(row, own_where_equal, filled)) return true;
    }
    filled->shards.clear();
    return false;
  }

  bool TakeRow(uint32_t row, bool own_where_equal, Filled* filled) const {
    for (Rank rank = 0; rank < question_.world.nodes; ++rank) {
      for (Worker worker = 0; worker < workers_; ++worker) {
        const auto* shard = Own({row * width_ + rank % width_, worker}, rank);
        if (shard == nullptr) return false;
        // What the rank has itself needn't be fetched.
        const auto* own = own_where_equal ? Own({rank, worker}, rank) : nullptr;
        const bool equal = own && !own->logical().empty() && own->logical() == shard->logical();
        filled->shards.push_back(equal ? *own : *shard);
      }
    }
    return true;
  }

  const RestoreQuestion& question_;
  const Candidate& candidate_;
  const uint32_t workers_;
  const uint32_t width_;  // ranks of one partition
};

struct Group {
  std::map<Place, std::set<Blake3>> shards;
  // Parts of a record, or the whole, by what they are parts of.
  std::map<std::string, std::vector<const control::GenerationRecord*>> records;
  uint64_t ordinal = 0;
};

std::map<SaveKey, Group> GroupBySave(const RestoreQuestion& question) {
  std::map<SaveKey, Group> groups;
  for (const auto& [digest, shard] : question.holdings->shards()) {
    if (FromProto(shard.world()) != question.world) continue;
    Group& group = groups[FromProto(shard.save())];
    group.shards[{shard.rank(), shard.worker()}].insert(digest);
    group.ordinal = std::max(group.ordinal, shard.ordinal());
  }
  std::set<const control::GenerationRecord*> seen;
  for (const auto& [node, records] : question.holdings->records()) {
    for (const auto& pointer : records) {
      const control::GenerationRecord& record = *pointer;
      if (!seen.insert(&record).second || FromProto(record.world()) != question.world) continue;
      Group& group = groups[FromProto(record.save())];
      std::string content = record.committed() ? "0" : "1";  // committed ones first
      content += fmt::format("-{}-{}", record.save_number(), WholeKey(record));
      group.ordinal = std::max<uint64_t>(group.ordinal, record.ordinal());
      for (const auto& shard : record.shards()) {
        group.ordinal = std::max<uint64_t>(group.ordinal, shard.ordinal());
      }
      group.records[std::move(content)].push_back(&record);
    }
  }
  return groups;
}

// A generation that a later run began from counts as that run's save 0: told by the nodes that were
// released, and by the records of what that run saved.
class Branches {
 public:
  explicit Branches(const RestoreQuestion& question) {
    for (const Branch& branch : question.branches) {
      Raise(&by_save_[FromProto(branch.restored.save())], branch.run);
    }
    for (const auto& [node, records] : question.holdings->records()) {
      for (const auto& record : records) {
        const GenerationId parent{FromProto(record->parent_run()), record->parent_save_number()};
        if (!parent.run.none()) Raise(&by_id_[parent], FromProto(record->save().run()));
      }
    }
  }

  CandidateOrder OrderOf(const SaveKey& save, uint64_t ordinal, uint64_t number) const {
    CandidateOrder order{save.run.sequence, ordinal, number};
    if (TK_MUTATION(kForgetBranches)) return order;
    const auto by_save = by_save_.find(save);
    if (by_save != by_save_.end()) order = std::max(order, CandidateOrder{by_save->second, 0, 0});
    const auto by_id = by_id_.find({save.run, number});
    if (by_id != by_id_.end()) order = std::max(order, CandidateOrder{by_id->second, 0, 0});
    return order;
  }

 private:
  static void Raise(uint64_t* sequence, const RunId& run) {
    *sequence = std::max(*sequence, run.sequence);
  }
  std::map<SaveKey, uint64_t> by_save_;
  std::map<GenerationId, uint64_t> by_id_;
};

}  // namespace

std::vector<Candidate> FindCandidates(const RestoreQuestion& question) {
  const Branches branches(question);
  std::vector<Candidate> candidates;
  for (auto& [save, group] : GroupBySave(question)) {
    if (group.records.empty()) {
      candidates.push_back({save, std::nullopt, group.shards,
                            branches.OrderOf(save, group.ordinal, 0), question.world});
    }
    for (const auto& [content, parts] : group.records) {
      AssembledRecord whole = Assemble(parts, [&](uint32_t slot) {
        const uint32_t workers = question.world.workers_per_node;
        const auto known = group.shards.find({slot / workers, slot % workers});
        const bool one = known != group.shards.end() && known->second.size() == 1;
        return one ? question.holdings->Find(*known->second.begin()) : nullptr;
      });
      const uint64_t number = whole.record.save_number();
      candidates.push_back({save, std::move(whole.record), group.shards,
                            branches.OrderOf(save, group.ordinal, number), question.world,
                            std::move(whole.contradiction)});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     if (TK_MUTATION(kNewestByStep)) return b.save.step < a.save.step;
                     return b.order < a.order;
                   });
  return candidates;
}

std::vector<Candidate> FindOtherWorlds(const RestoreQuestion& question) {
  std::set<WorldShape> worlds;
  for (const auto& [digest, shard] : question.holdings->shards()) {
    worlds.insert(FromProto(shard.world()));
  }
  for (const auto& [node, records] : question.holdings->records()) {
    for (const auto& record : records) worlds.insert(FromProto(record->world()));
  }
  worlds.erase(question.world);
  std::vector<Candidate> newest;
  for (const WorldShape& world : worlds) {
    RestoreQuestion other = question;
    other.world = world;
    auto candidates = FindCandidates(other);
    if (!candidates.empty()) newest.push_back(std::move(candidates.front()));
  }
  return newest;
}

AssembledRecord AssembleFor(const Holdings& holdings,
                            const std::vector<const control::GenerationRecord*>& parts) {
  std::map<uint32_t, const control::ShardInfo*> held;  // null: not one alone
  const control::GenerationRecord& any = *parts.front();
  for (const auto& [digest, shard] : holdings.shards()) {
    if (FromProto(shard.save()) != FromProto(any.save())) continue;
    if (FromProto(shard.world()) != FromProto(any.world())) continue;
    const auto [it, added] = held.emplace(SlotOf(any, shard.rank(), shard.worker()), &shard);
    if (!added) it->second = nullptr;
  }
  return Assemble(parts, [&](uint32_t slot) -> const control::ShardInfo* {
    const auto found = held.find(slot);
    return found == held.end() ? nullptr : found->second;
  });
}

Filled FillPlaces(const RestoreQuestion& question, const Candidate& candidate) {
  return PlaceFiller(question, candidate).Fill();
}

}  // namespace tierkeep
