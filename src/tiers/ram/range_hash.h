// XXH3-128 over byte ranges of files: many threads, each reading by pread into a buffer that stays
// in the cache. (A map would take half the time, but a file that is cut short under it, or memory
// that the hardware has lost, is SIGBUS; with pread it is an error.)
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

// Each thread's buffer. Large enough for the kernel to copy whole runs of a huge page: of 128 KiB
// to 8 MiB, 1 to 2 MiB cost least, a fifth less than 256 KiB (bench/stage_bench.cc).
inline constexpr size_t kHashBufferBytes = 1u << 20;

// Fills in every digest. Ranges that follow each other in one file should stand so in `ranges`, as
// each thread takes a run of them and opens a file once for it. `pool` null: the caller alone.
// Errors: the first one met; a file shorter than a range is kDataLoss; kCancelled once `cancelled`
// (may be null) is set, which is read between ranges.
Status HashRanges(Dir& dir, const std::string& root, WorkerPool* pool, std::span<HashRange> ranges,
                  const std::atomic<bool>* cancelled);

}  // namespace tierkeep
