// What a node's memory must hold, and whether one more copy may be pulled now (docs/memory.md).
//
// Sizes are bytes of shards; a volume's own bookkeeping comes on top, which AdvisedBytes allows
// for. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tierkeep {

// What to do when newer saves can't be protected for lack of memory.
enum class OnPressure : uint8_t {
  kRefuse,  // they stay unprotected; the last committed generation keeps all of its copies
  kThin,    // peers' copies of the last committed generation go first, its owners' own stay
};

// A node's memory as its agent sees it at one moment.
struct MemoryRoom {
  uint64_t total_bytes = 0;  // of the RAM volume's mount
  uint64_t free_bytes = 0;
  // Of the control groups that pay for what the agent writes, so for pulled copies and not for the
  // job's saves: the tightest of them; unset where there is no limit.
  std::optional<uint64_t> limit_bytes = {};
  std::optional<uint64_t> limit_free_bytes = {};
  // Why it is not known: then nothing is taken for free.
  std::string problem = {};
};

// One generation on one node.
struct GenerationBytes {
  uint64_t own = 0;   // the shards of its own rank
  uint64_t kept = 0;  // copies of other ranks' shards
};

// What keeps the last committed generation whole until the next one is committed: both of them,
// and, where copies are pulled, the room for the save after that, which the job may begin to write
// while they are on their way.
uint64_t BytesNeeded(const GenerationBytes& generation);
// Of which the agent's control group pays for this much.
uint64_t LimitNeeded(const GenerationBytes& generation);
// A twentieth more, for manifests, directories and pages that aren't filled; in whole MiB.
uint64_t AdvisedBytes(uint64_t bytes);
bool Fits(const GenerationBytes& generation, const MemoryRoom& room);

struct PullDemand {
  uint64_t bytes = 0;            // to be pulled now
  uint64_t under_way_bytes = 0;  // of pulls that have begun: how much they have taken isn't known
  uint64_t reserve_bytes = 0;    // what the job's next save will take
};
// How much has to be given back before the pull may begin; 0: it may.
uint64_t ShortBytes(const MemoryRoom& room, const PullDemand& demand);

}  // namespace tierkeep
