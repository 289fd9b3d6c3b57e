// Which generation the whole job goes on from (docs/ARCHITECTURE.md, "Restore"): the newest by
// (run sequence, order within the run) of which every rank can get a verified shard of its own, in
// a world of the same shape, committed or not. Never the highest step: after a roll-back an
// abandoned later step must not win.
//
// Pure functions: any thread.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "control.pb.h"
#include "core/holdings.h"
#include "format/ids.h"
#include "format/restore_orders.h"

namespace tierkeep {

// A run that was released from this generation: the generation then counts as save 0 of that run,
// so that what its own run saved after it can't win.
struct Branch {
  RunId run;
  control::GenerationRecord restored;
};

// A receiver that may not get that shard from that source.
struct SourceOfShard {
  std::string receiver;
  std::string source;
  Blake3 digest;
  auto operator<=>(const SourceOfShard&) const = default;
};

// How often it failed: after kSourceFailuresMax the source counts for that shard no more. Not after
// the first few: bytes may have been flipped on the way while the copy is good, and it may be the
// last one. Nor for other shards: one bad copy says nothing of an older checkpoint's.
using SourceFailures = std::map<SourceOfShard, int>;
inline constexpr int kSourceFailuresMax = 5;

struct RestoreQuestion {
  std::string job;
  WorldShape world;
  std::vector<std::string> nodes = {};  // node names by rank: the receivers
  const Holdings* holdings = nullptr;
  std::vector<Branch> branches = {};
  const SourceFailures* failures = nullptr;
  RestoreOrders orders = {};  // of this job
  // What released runs were asked to skip: no save of a run below `after` is chosen that it names.
  RestoreOrders skipped = {};
  // How often jobs were released from a save without a later commit. One at `restores_max` (0: no
  // limit) is passed over while there is another.
  std::map<SaveKey, uint32_t> restores = {};
  uint32_t restores_max = 0;
  // The newest generation that the rendezvous knows of, unless somebody here knows of a later run.
  std::optional<control::GenerationMark> recorded = {};
  std::set<std::string> absent = {};  // nodes of earlier runs that aren't here
  uint32_t absent_unnamed = 0;        // so many more, whose names nobody here knows
};

struct RestoreAnswer {
  enum class Kind : uint8_t {
    kGeneration,
    kNone,     // start without a checkpoint
    kBlocked,  // something unreadable may be the newest: stop, delete nothing
  };
  Kind kind = Kind::kNone;
  // Numbered, its shards complete by (rank, worker).
  control::GenerationRecord generation;
  std::string reason;  // for people
  // A holder that isn't here could change the answer for the better.
  bool better_may_exist = false;
  // There was a generation, and nothing of it can be restored.
  bool lost = false;
  std::vector<std::string> problems;  // to be reported as errors
  std::vector<std::string> notes;     // to be logged as warnings
  uint32_t restores = 0;              // of `generation` until now, without a later commit
  // Something newer than the answer is known to have been committed, and all who could give it are
  // away, named in `stop`.
  bool newer_is_away = false;
  // Where kBlocked or newer_is_away: what going on without those nodes would mean.
  control::RestoreStop stop;
};

RestoreAnswer ChooseRestore(const RestoreQuestion& question);

// Nodes from which `receiver` may pull the shard, best first, itself excluded. `turn` (the
// receiver's rank) rotates them, so that many receivers spread over many holders.
std::vector<std::string> SourcesFor(const Holdings& holdings, const SourceFailures& failures,
                                    const Blake3& digest, const std::string& receiver, size_t turn);

// The rank's shards by worker; fewer where the record is a part that doesn't tell of all.
std::vector<control::ShardInfo> ShardsOfRank(const control::GenerationRecord& record, Rank rank);

}  // namespace tierkeep
