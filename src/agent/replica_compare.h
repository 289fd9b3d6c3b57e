// Where a shard of this node and its data-parallel replica on another differ, value by value.
#pragma once

#include <atomic>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "control.pb.h"
#include "format/ocdbt_logical.h"
#include "tiers/ram/store.h"

namespace tierkeep {

struct CompareContext {
  const std::atomic<bool>* cancelled;
  Logger logger;
};
struct OtherReplica {
  control::ShardInfo shard;
  Result<std::vector<LogicalLine>> lines;  // as its holder told and its logical digest proved
};

// Blocking: makes the own listing. Errors: as of ListLogically, or those of `other`, naming whose
// shard it is. Threads: any.
Result<LogicalDifference> CompareWithReplica(Store* store, const control::ShardInfo& own,
                                             OtherReplica other, const CompareContext& context);

}  // namespace tierkeep
