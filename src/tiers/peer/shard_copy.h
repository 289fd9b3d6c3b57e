// Writes one shard as plain files into a directory that isn't the store's: what a person asked for.
//
// Every chunk is verified against the manifest, and the manifest against the shard's name, before
// a byte of it is written.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/file_system.h"
#include "tiers/peer/puller.h"
#include "tiers/ram/store.h"

namespace tierkeep {

struct ShardCopyRequest {
  Blake3 digest;
  Store* store = nullptr;           // looked at first
  std::vector<PullSource> sources;  // then these, in order
  DataPortOptions port;             // TLS and stall limit for them
  Dir* target = nullptr;
  std::string path;                              // below `target`; must not exist
  const std::atomic<bool>* cancelled = nullptr;  // may be null; read between chunks
};

struct ShardCopy {
  std::shared_ptr<const Manifest> manifest;
  std::string from;  // node name; empty: this node's store
};

// Blocking. Modes and links are the manifest's; owners too where we may set them. The files are
// synced. What a failed try wrote is removed; the error names every place that was tried.
// kNotFound: nobody has the shard. Threads: any.
Result<ShardCopy> CopyShard(const ShardCopyRequest& request);

}  // namespace tierkeep
