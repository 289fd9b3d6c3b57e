// A generation's record, whole or in parts: of a large job each node has the entries of those
// shards only that it keeps, or whose keepers it stands beside.
//
// A slot is a place (rank, worker) of the record's world, counted rank by rank.
//
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "control.pb.h"
#include "format/control_fwd.h"
#include "format/ids.h"

namespace tierkeep {

inline SharedRecord Shared(control::GenerationRecord record) {
  return std::make_shared<const control::GenerationRecord>(std::move(record));
}

uint32_t SlotsOf(const control::GenerationRecord& record);
uint32_t SlotOf(const control::GenerationRecord& record, Rank rank, Worker worker);
// Of `record.shards(index)`.
uint32_t SlotAt(const control::GenerationRecord& record, int index);
// Null: this part of the record doesn't say.
const control::ShardInfo* EntryAt(const control::GenerationRecord& record, uint32_t slot);
const control::ShardInfo* EntryOf(const control::GenerationRecord& record, Rank rank,
                                  Worker worker);
bool IsWhole(const control::GenerationRecord& record);
// What it says of the save, with neither its shards nor what makes it a part. No shard is copied.
control::GenerationRecord WithoutShards(const control::GenerationRecord& record);
// The same with what makes it a part: shards and their slots are to be added.
control::GenerationRecord HeaderOf(const control::GenerationRecord& record);

// As many shards as places, or, of a part, one for each of its places.
Status CheckSlots(const control::GenerationRecord& record);

// What is equal for two records exactly when they are, or are parts of, one whole.
std::string WholeKey(const control::GenerationRecord& record);

// Cuts parts out of one record, which must outlive it; what it doesn't tell they don't either. The
// time of each follows from the part's size, not from the record's.
class RecordCutter {
 public:
  explicit RecordCutter(const control::GenerationRecord& record);
  control::GenerationRecord Part(const std::set<uint32_t>& slots) const;

 private:
  const control::GenerationRecord& record_;
  control::GenerationRecord header_;
};

struct AssembledRecord {
  // Whole if that could be proven; else a part with all that is known for certain.
  control::GenerationRecord record;
  std::string contradiction;  // for people; what is in doubt isn't in the record
};

// Puts parts with one WholeKey together, at least one. `held` tells the only shard known of the
// record's save that the slot's own rank saved, or null: it may fill a slot that no part tells of,
// and what it makes whole is proven by the record's digest.
AssembledRecord Assemble(const std::vector<const control::GenerationRecord*>& parts,
                         const std::function<const control::ShardInfo*(uint32_t slot)>& held);

}  // namespace tierkeep
