// XXH3-128 over byte ranges of files, at memory speed: many threads, each reading by pread into a
// buffer that stays in its core's cache. (A map would be as fast, but a file that its owner cuts
// short under a map is SIGBUS.)
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "io/file_system.h"
#include "tiers/worker_pool.h"

namespace tierkeep {

struct HashRange {
  const std::string* path = nullptr;  // relative to `root`
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Xxh128 digest;  // filled in
};

// Each thread's buffer: small enough for the second-level cache of any core that runs training, and
// large enough that the system call's cost vanishes (bench/hash_bench.cc has the numbers).
inline constexpr size_t kHashBufferBytes = 256u << 10;

// Fills in every digest. Ranges that follow each other in one file should stand so in `ranges`, as
// each thread takes a run of them and opens a file once for it. `pool` null: the caller alone.
// Errors: the first one met; a file shorter than a range is kDataLoss; kCancelled once `cancelled`
// (may be null) is set, which is read between ranges.
Status HashRanges(Dir& dir, const std::string& root, WorkerPool* pool, std::span<HashRange> ranges,
                  const std::atomic<bool>* cancelled);

}  // namespace tierkeep
