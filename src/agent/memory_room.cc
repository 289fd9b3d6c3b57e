#include "agent/memory_room.h"

namespace tierkeep {

MemoryRoom SeeMemory(Store& store, const MemoryLimit& memory_limit) {
  MemoryRoom room;
  const auto space = store.Space();
  if (!space.ok()) {
    room.problem = space.error().ToString();
    return room;
  }
  room.total_bytes = space->total_bytes;
  room.free_bytes = space->free_bytes;
  if (!memory_limit) return room;
  const auto limit = memory_limit();
  if (!limit.ok()) {
    room.problem = limit.error().ToString();
  } else if (*limit) {
    room.limit_bytes = (*limit)->limit_bytes;
    room.limit_free_bytes = (*limit)->free_bytes;
  }
  return room;
}

}  // namespace tierkeep
