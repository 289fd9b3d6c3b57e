#include "core/memory_budget.h"

#include <algorithm>

namespace tierkeep {
namespace {

constexpr uint64_t kMiB = 1u << 20;

uint64_t Lacking(uint64_t wanted, uint64_t available) {
  return wanted > available ? wanted - available : 0;
}

}  // namespace

uint64_t BytesNeeded(const GenerationBytes& generation) {
  const uint64_t reserve = generation.kept > 0 ? generation.own : 0;
  return 2 * (generation.own + generation.kept) + reserve;
}

uint64_t LimitNeeded(const GenerationBytes& generation) { return 2 * generation.kept; }

uint64_t AdvisedBytes(uint64_t bytes) { return (bytes + bytes / 20 + kMiB - 1) / kMiB * kMiB; }

bool Fits(const GenerationBytes& generation, const MemoryRoom& room) {
  return room.problem.empty() && BytesNeeded(generation) <= room.total_bytes &&
         (!room.limit_bytes || LimitNeeded(generation) <= *room.limit_bytes);
}

uint64_t ShortBytes(const MemoryRoom& room, const PullDemand& demand) {
  const uint64_t pulled = demand.bytes + demand.under_way_bytes;
  if (!room.problem.empty()) return pulled + demand.reserve_bytes;
  uint64_t lacking = Lacking(pulled + demand.reserve_bytes, room.free_bytes);
  // The job's save is not charged to us.
  if (room.limit_free_bytes) lacking = std::max(lacking, Lacking(pulled, *room.limit_free_bytes));
  return lacking;
}

}  // namespace tierkeep
