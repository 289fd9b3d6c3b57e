// From a walked tree to its manifest: where the chunks are cut, their digests, and with data
// parallelism the logical digest, all from one pass over the bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "format/manifest.h"
#include "io/file_system.h"
#include "tiers/ram/tree_walk.h"
#include "tiers/worker_pool.h"

namespace tierkeep {

// A range of one file.
struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  auto operator<=>(const ByteRange&) const = default;
};

// A stored value of at least this size gets chunks of its own, so that its digest comes from
// theirs; smaller ones share chunks and are read once more, together.
inline constexpr uint64_t kOwnChunkBytesMin = 256u << 10;

// Sizes of the chunks of a file of `bytes` bytes. Each of `values` that is at least
// kOwnChunkBytesMin long, lies within the file and overlaps no earlier one begins and ends at a
// cut, with cuts every kChunkBytes from its first byte; so do the stretches between them.
std::vector<uint64_t> CutChunks(uint64_t bytes, std::vector<ByteRange> values);

struct HashedSave {
  Manifest manifest;
  uint64_t second_pass_bytes = 0;  // read again for digests of small values
};

// `tree` is what WalkTree found at `root`. With data parallelism, OCDBT items that can't be read
// leave the manifest without logical digest: the save then compares with none, and that is logged.
// Errors as of HashRanges.
Result<HashedSave> HashSave(Dir& dir, const std::string& root, const std::vector<TreeEntry>& tree,
                            const ShardIdentity& identity, WorkerPool* pool,
                            const std::atomic<bool>* cancelled, const Logger& logger);

// The logical listing (format/ocdbt_logical.h) of a shard whose tree is at `root`, for replicas
// that disagree: large values' digests come from the manifest, small ones are read again. Errors:
// kFailedPrecondition when the manifest has no logical digest, kDataLoss when the bytes are no
// longer what it was computed from, kResourceExhausted for too many keys, else the failing read's.
Result<std::string> ListLogically(Dir& dir, const std::string& root, const Manifest& manifest,
                                  const std::atomic<bool>* cancelled, const Logger& logger);

}  // namespace tierkeep
