// From a finished save in the volume to a shard in the store, with one pass over its bytes.
//
// Take: one rename moves client/<name> to store/staged/<staged_name>/data; from then on no path of
// the job leads there. Hash: waits for open writers (within a limit), walks the tree (no links
// followed, one file system, TreeLimits), reads OCDBT items' small nodes to cut chunks at value
// boundaries, hashes all chunks in parallel by pread, computes the logical digest with data
// parallelism, and lets the store adopt the result.
//
// Refused (kFailedPrecondition, naming entry and rule): devices, pipes, sockets, trees over the
// limits, mounts inside, and files or saves that are nearly all hole (more than 1 GiB of holes and
// less than a 64th allocated): reading holes is only slow, every copy of them would be real memory.
// A save that keeps changing or keeps its writers is kFailedPrecondition, too. Files with more than
// one link are copied (their other name may lead anywhere). A refused save stays in staged/ until
// the caller deletes it.
//
// Durability: an adopted shard outlives job and agent (RAM), the promise *staged*.
// Threads: any, several saves at once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "format/manifest.h"
#include "io/clock.h"
#include "tiers/ram/store.h"
#include "tiers/worker_pool.h"

namespace tierkeep {

struct StageOptions {
  TreeLimits limits;
  Duration writers_limit = 30s;  // longest wait for open writers to close
};

struct StagedShard {
  Blake3 digest;
  Manifest manifest;
  Duration hash_time{};
};

// One save on its way from staged/ to a shard, in steps: between two of them nothing is held, so
// that nobody need block while the save's writers are waited for. Threads: one at a time.
class StageJob {
 public:
  virtual ~StageJob() = default;
  // nullopt: call again after pause().
  virtual std::optional<Result<StagedShard>> Advance() = 0;
  virtual Duration pause() const = 0;
};

class Stager {
 public:
  Stager(Store* store, WorkerPool* pool, Clock* clock, StageOptions options, Logger logger);

  // `name` in the volume → store/staged/<staged_name>/data. kNotFound: it's gone (the client took
  // it away); kFailedPrecondition: a link or special file of that name.
  Status Take(std::string_view name, std::string_view staged_name);
  // Hashes and adopts. `cancelled` (may be null) is read between chunks and before each step. This
  // must outlive the job.
  std::unique_ptr<StageJob> Start(std::string_view staged_name, const ShardIdentity& identity,
                                  std::shared_ptr<const std::atomic<bool>> cancelled);
  // All of it on this thread, pauses too.
  Result<StagedShard> HashAndAdopt(std::string_view staged_name, const ShardIdentity& identity,
                                   const std::atomic<bool>* cancelled);

 private:
  Store* store_;
  WorkerPool* pool_;
  Clock* clock_;
  StageOptions options_;
  Logger logger_;
};

}  // namespace tierkeep
