// Fetches shards from peers: the one mechanism of replication, rebuild and restore.
//
// Work is dealt by core/transfer.h: chunk ranges over parallel connections to all sources at once,
// each chunk received straight into the destination's pages and verified before it counts; what a
// source can't serve, serves wrongly or stalls on goes to the others; a source that sent bytes that
// don't match is not asked again and is named in the result.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "format/ocdbt_logical.h"
#include "io/clock.h"
#include "io/frame_network.h"
#include "tiers/peer/transfer_options.h"
#include "tiers/ram/store.h"

namespace tierkeep {

struct PullSource {
  std::string node;
  HostPort address;
  std::string token;
};

enum class PullPriority : uint8_t { kRestore, kReplicate, kRebuild };

struct PullRequest {
  Blake3 digest;
  std::vector<PullSource> sources;  // best first; none or all failing is kUnavailable
  PullPriority priority = PullPriority::kReplicate;
};

struct PullResult {
  Status status;
  uint64_t bytes_pulled = 0;             // over the network, also of failed tries
  std::vector<std::string> bad_sources;  // unreachable, stalling or serving wrong bytes
  Duration took{};
};

struct PullerOptions {
  DataPortOptions port;                // TLS and stall limit
  uint32_t streams = 4;                // connections a shard, over all its sources
  uint64_t request_bytes = 32u << 20;  // chunks asked for at once
  // First wait after a source failed; doubled with each further failure, six in a row give it up.
  Duration backoff_first = 100ms;
  // How much longer than another source would need a chunk may take before that one takes over.
  Duration late_after = 500ms;
};

// How long a source may take to make a listing: it reads its small values again.
inline constexpr Duration kListingDeadline = 30s;

class Puller {
 public:
  Puller(Store* store, Clock* clock, PullerOptions options, Logger logger);
  ~Puller();
  // Blocking. A shard already held (and not suspect) is success with no bytes. No space is
  // kResourceExhausted and leaves nothing behind. Threads: any, several at once.
  PullResult Pull(const PullRequest& request, const std::atomic<bool>* cancelled);
  // The lines that `logical`, the shard's logical digest, covers, from the first source that tells
  // them truly: to find out where replicas differ. Blocking, within kListingDeadline a source.
  Result<std::vector<LogicalLine>> Listing(const PullRequest& request, const Blake3& logical);
  uint64_t bytes_pulled() const;  // over the network, of all pulls so far

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tierkeep
