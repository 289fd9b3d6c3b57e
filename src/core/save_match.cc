#include "core/save_match.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutation.h"
#include "format/messages.h"

namespace tierkeep {

SaveMatcher::Drops SaveMatcher::Staged(Rank rank, const control::SaveStaged& staged, Instant now) {
  const SaveKey key = FromProto(staged.save());
  if (rank >= nodes_ || IsPast(rank, key, staged.ordinal())) return {};
  Save& save = saves_[key];
  save.staged[rank] = staged;
  Drops drops;
  if (save.staged.size() < nodes_ || active_ == key) {
    Bound(rank, &drops);
  } else {
    drops = Complete(key, now);
  }
  DropSkipped(rank, key, &drops);
  return drops;
}

// Each node's order is its own. Where nobody has both, steps tell: a job that goes back to an
// earlier one within a run has said so by then. (Of a save that every node has somebody does.)
bool SaveMatcher::IsBefore(const std::pair<const SaveKey, Save>& a,
                           const std::pair<const SaveKey, Save>& b) {
  for (const auto& [rank, staged] : a.second.staged) {
    const auto other = b.second.staged.find(rank);
    if (other != b.second.staged.end()) return staged.ordinal() < other->second.ordinal();
  }
  return a.first.step < b.first.step;
}

// A node reports its saves in their order: the ones before this that it didn't report, it skipped.
void SaveMatcher::NoteSkipped(Rank rank, const SaveKey& key) {
  const auto reported = saves_.find(key);
  if (reported == saves_.end()) return;
  for (auto& other : saves_) {
    if (other.first == key || active_ == other.first) continue;
    if (other.second.staged.count(rank) == 0 && IsBefore(other, *reported)) {
      other.second.skipped = true;
    }
    const bool first = reported->second.staged.size() == 1 && active_ != key;
    const bool others = other.second.staged.size() > other.second.staged.count(rank);
    if (first && others && IsBefore(*reported, other)) reported->second.skipped = true;
  }
}

bool SaveMatcher::AllHaveLater(const Save& save) const {
  const auto has_later = [this](Rank rank, uint64_t ordinal) {
    return std::any_of(saves_.begin(), saves_.end(), [&](const auto& other) {
      const auto staged = other.second.staged.find(rank);
      return staged != other.second.staged.end() && staged->second.ordinal() > ordinal;
    });
  };
  return std::all_of(save.staged.begin(), save.staged.end(), [&](const auto& entry) {
    return has_later(entry.first, entry.second.ordinal());
  });
}

void SaveMatcher::DropSkipped(Rank rank, const SaveKey& key, Drops* drops) {
  if (saves_.size() < 2) return;
  NoteSkipped(rank, key);
  std::vector<SaveKey> gone;
  for (const auto& [other, save] : saves_) {
    if (save.skipped && active_ != other && AllHaveLater(save)) gone.push_back(other);
  }
  for (const SaveKey& other : gone) {
    TK_PROBE(kSaveSkipped);
    Drop(other, "some node skipped it, and those that have it have a later one", drops);
  }
}

// While some node is away no save becomes complete, and each node's memory would fill with them.
// The oldest stays for a node that is merely slow, so that one that is always behind still lets
// saves become complete; the newest for one that comes back.
void SaveMatcher::Bound(Rank rank, Drops* drops) {
  std::vector<std::pair<uint64_t, SaveKey>> waiting;  // by the rank's own order
  for (const auto& [key, save] : saves_) {
    const auto staged = save.staged.find(rank);
    if (staged != save.staged.end() && active_ != key) {
      waiting.emplace_back(staged->second.ordinal(), key);
    }
  }
  std::sort(waiting.begin(), waiting.end());
  for (size_t i = 1; i + 1 < waiting.size(); ++i) {
    Drop(waiting[i].second, "newer saves wait for the same nodes", drops);
  }
}

SaveMatcher::Drops SaveMatcher::Failed(Rank rank, const SaveKey& save, const std::string& error) {
  Drops drops;
  const auto known = std::find(dropped_.begin(), dropped_.end(), save);
  if (known != dropped_.end() || committed_ == save) return drops;
  Drop(save, "rank " + std::to_string(rank) + " could not take it: " + error, &drops);
  return drops;
}

SaveMatcher::Drops SaveMatcher::Rejoined(Rank rank, const std::set<SaveKey>& has) {
  Drops drops;
  std::vector<SaveKey> lost;
  for (const auto& [key, save] : saves_) {
    // A complete save may have copies elsewhere already: that is for its protection to judge.
    if (active_ != key && save.staged.count(rank) != 0 && has.count(key) == 0) lost.push_back(key);
  }
  for (const SaveKey& key : lost) {
    Drop(key, "rank " + std::to_string(rank) + " lost it", &drops);
  }
  return drops;
}

bool SaveMatcher::IsPast(Rank rank, const SaveKey& save, uint64_t ordinal) const {
  if (committed_ == save) return true;
  const auto committed = committed_ordinal_.find(rank);
  if (committed != committed_ordinal_.end() && ordinal <= committed->second) return true;
  return std::find(dropped_.begin(), dropped_.end(), save) != dropped_.end();
}

std::map<Rank, control::SaveStaged> SaveMatcher::ActiveShards() const {
  TK_CHECK(active_.has_value());
  return saves_.at(*active_).staged;
}

SaveMatcher::Drops SaveMatcher::Complete(const SaveKey& key, Instant now) {
  Drops drops;
  if (active_ && TK_MUTATION(kTwoUncommitted)) return drops;
  const auto complete = saves_.find(key);
  std::vector<SaveKey> passed_over;
  for (const auto& other : saves_) {
    if (active_ != other.first && IsBefore(other, *complete)) passed_over.push_back(other.first);
  }
  for (const SaveKey& other : passed_over) {
    TK_PROBE(kSaveSkipped);
    Drop(other, "some node skipped it and a newer save is complete", &drops);
  }
  if (!active_) {
    active_ = key;
    stalled_ = false;
    return drops;
  }
  const bool newer = IsBefore(*saves_.find(*active_), *complete);
  const bool long_without = overtaken_since_ && now - *overtaken_since_ >= overtaken_max_;
  if (!newer || (long_without && !stalled_)) {
    Drop(key, newer ? "the save before it is seen through first" : "a newer save is complete",
         &drops);
    return drops;
  }
  TK_PROBE(kSaveOvertaken);
  if (!overtaken_since_ && !stalled_) overtaken_since_ = now;
  Drop(*active_, "a newer save is complete", &drops);
  active_ = key;
  stalled_ = false;
  return drops;
}

SaveMatcher::Drops SaveMatcher::DropActive(std::string reason) {
  Drops drops;
  if (active_) Drop(*active_, std::move(reason), &drops);
  return drops;
}

void SaveMatcher::Drop(const SaveKey& save, std::string reason, Drops* drops) {
  const SaveKey key = save;  // `save` may live in what is erased below
  if (active_ == key) active_.reset();
  saves_.erase(key);
  dropped_.push_back(key);
  if (dropped_.size() > kDroppedMax) dropped_.pop_front();
  drops->push_back({key, std::move(reason)});
}

void SaveMatcher::ActiveCommitted() {
  TK_CHECK(active_.has_value());
  const Save committed = saves_.at(*active_);
  for (const auto& [rank, staged] : committed.staged) {
    committed_ordinal_[rank] = std::max(committed_ordinal_[rank], staged.ordinal());
  }
  committed_ = active_;
  saves_.erase(*active_);
  active_.reset();
  overtaken_since_.reset();
  stalled_ = false;
}

void SaveMatcher::AlreadyCommitted(const control::GenerationRecord& record) {
  TK_CHECK(saves_.empty() && !active_);
  const uint32_t workers = record.world().workers_per_node();
  for (Rank rank = 0; rank < nodes_; ++rank) {
    committed_ordinal_[rank] = record.shards(static_cast<int>(rank * workers)).ordinal();
  }
  committed_ = FromProto(record.save());
}

std::optional<SaveKey> SaveMatcher::NewestStaged(Rank rank) const {
  std::optional<SaveKey> newest;
  uint64_t ordinal = 0;
  for (const auto& [key, save] : saves_) {
    const auto staged = save.staged.find(rank);
    if (staged == save.staged.end() || staged->second.ordinal() < ordinal) continue;
    ordinal = staged->second.ordinal();
    newest = key;
  }
  return newest;
}

}  // namespace tierkeep
