// Matches what nodes have staged into saves of the whole job, one at a time: the active save is the
// newest that every node has; what a newer complete one overtakes is dropped by all.
//
// Threads: one.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "control.pb.h"
#include "format/ids.h"

namespace tierkeep {

class SaveMatcher {
 public:
  // `overtaken_max`: for so long after the first one was overtaken may newer saves take the place
  // of the active one without any commit; then one is seen through, and what becomes complete
  // meanwhile is dropped. So a burst leaves its newest save, and saves that come faster than they
  // can be protected don't leave the job without any.
  SaveMatcher(uint32_t nodes, Duration overtaken_max)
      : nodes_(nodes), overtaken_max_(overtaken_max) {}

  struct Dropped {
    SaveKey save;
    std::string reason;
  };
  // What all nodes must give up now, in order. The active save may be among it.
  using Drops = std::vector<Dropped>;

  // Repeated reports of the same are fine.
  Drops Staged(Rank rank, const control::SaveStaged& staged, Instant now);
  Drops Failed(Rank rank, const SaveKey& save, const std::string& error);
  // The rank came back and has only these staged: what it had reported before and lost is dropped.
  Drops Rejoined(Rank rank, const std::set<SaveKey>& has);
  // Whether a report of this save comes too late: it was dropped, or something newer is committed.
  bool IsPast(Rank rank, const SaveKey& save, uint64_t ordinal) const;

  // Complete, being protected, not committed yet.
  std::optional<SaveKey> active() const { return active_; }
  // By rank. Only for the active save.
  std::map<Rank, control::SaveStaged> ActiveShards() const;
  // The active save can't be protected: the next complete one may take its place at once.
  void ActiveStalled() { stalled_ = true; }
  Drops DropActive(std::string reason);
  void ActiveCommitted();
  // Of the same run, by a coordinator before this one. Nothing may be staged yet.
  void AlreadyCommitted(const control::GenerationRecord& record);
  // The newest save that the rank has staged, of those that are neither committed nor dropped.
  std::optional<SaveKey> NewestStaged(Rank rank) const;

 private:
  struct Save {
    std::map<Rank, control::SaveStaged> staged;
    bool skipped = false;  // some node has a later one and not this: it will never be complete
  };
  Drops Complete(const SaveKey& save, Instant now);
  // At most two saves of a rank wait for others, beside the one that is being protected.
  void Bound(Rank rank, Drops* drops);
  // A skipped save isn't waited for: it goes once all who have it have a later one, which is worth
  // as much to a restore. `key` was reported by `rank` just now.
  void DropSkipped(Rank rank, const SaveKey& key, Drops* drops);
  void NoteSkipped(Rank rank, const SaveKey& key);
  bool AllHaveLater(const Save& save) const;
  static bool IsBefore(const std::pair<const SaveKey, Save>& a,
                       const std::pair<const SaveKey, Save>& b);
  void Drop(const SaveKey& save, std::string reason, Drops* drops);
  static constexpr size_t kDroppedMax = 256;

  const uint32_t nodes_;
  const Duration overtaken_max_;
  std::map<SaveKey, Save> saves_;
  std::optional<SaveKey> active_;
  bool stalled_ = false;
  std::optional<Instant> overtaken_since_;  // since the last commit
  std::deque<SaveKey> dropped_;
  std::map<Rank, uint64_t> committed_ordinal_;
  std::optional<SaveKey> committed_;
};

}  // namespace tierkeep
