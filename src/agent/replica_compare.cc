#include "agent/replica_compare.h"

#include <fmt/format.h>

#include <utility>

#include "format/messages.h"
#include "format/store_names.h"
#include "tiers/ram/save_hash.h"

namespace tierkeep {
namespace {

// Told to the coordinator, each at most a few hundred bytes.
constexpr size_t kToldMax = 8;

std::string SideName(const control::ShardInfo& shard) {
  return fmt::format("rank {}'s", shard.rank());
}

Result<std::vector<LogicalLine>> OwnLines(Store* store, const control::ShardInfo& own,
                                          const CompareContext& context) {
  const Blake3 digest = FixedFromProto<Blake3>(own.digest());
  const auto held = store->Find(digest);
  if (!held) return Error(Code::kNotFound, "it is no longer here");
  TK_ASSIGN_OR_RETURN(const std::string listing,
                      ListLogically(store->root(), ShardDataPath(digest), *held->manifest,
                                    context.cancelled, context.logger));
  return DecodeLogicalListing(listing, FixedFromProto<Blake3>(own.logical()));
}

}  // namespace

Result<LogicalDifference> CompareWithReplica(Store* store, const control::ShardInfo& own,
                                             OtherReplica other, const CompareContext& context) {
  if (!other.lines.ok()) return other.lines.error().With(SideName(other.shard) + " shard");
  auto own_lines = OwnLines(store, own, context);
  if (!own_lines.ok()) return own_lines.error().With(SideName(own) + " shard");
  return CompareReplicas({SideName(own), std::move(*own_lines)},
                         {SideName(other.shard), std::move(*other.lines)}, kToldMax);
}

}  // namespace tierkeep
