#include "tiers/ram/shard_state.h"

#include "format/record.h"

namespace tierkeep {
namespace {

constexpr unsigned kSuspect = 1;
constexpr unsigned kLinked = 2;
constexpr unsigned kGuarded = 4;

}  // namespace

std::string EncodeShardState(const ShardState& state) {
  const unsigned bits = (state.suspect ? kSuspect : 0) | (state.linked ? kLinked : 0) |
                        (state.guarded ? kGuarded : 0);
  return EncodeRecord(RecordKind::kShardState, std::string(1, static_cast<char>(bits)));
}

ShardState DecodeShardState(std::string_view bytes) {
  constexpr ShardState kCareful{.suspect = true, .linked = true, .guarded = false};
  const auto payload = DecodeRecord(RecordKind::kShardState, bytes);
  if (!payload.ok() || payload->size() != 1) return kCareful;
  const auto bits = static_cast<unsigned char>(payload->front());
  if (bits > (kSuspect | kLinked | kGuarded)) return kCareful;
  return {(bits & kSuspect) != 0, (bits & kLinked) != 0, (bits & kGuarded) != 0};
}

}  // namespace tierkeep
