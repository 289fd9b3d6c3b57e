// Where a job's coordinator is found: one small opaque record a job with a version, replaced by
// compare-and-swap. Consensus is the backing service's (a shared file system, a Lease, etcd).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tierkeep {

struct VersionedRecord {
  std::string bytes;
  std::string version;  // opaque, changes with every write
};

// Threads: any. Calls may block up to a few seconds: not on the core's thread.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // nullopt: certainly no record. Unreadable is an error, never nullopt.
  virtual Result<std::optional<VersionedRecord>> Read(std::string_view job) = 0;
  // Writes if the record's version is still `expected` (empty: no record yet); returns the new
  // version. kAborted: somebody else wrote. On return the record is durable and visible to all.
  virtual Result<std::string> CompareAndSwap(std::string_view job, std::string_view expected,
                                             std::string_view bytes) = 0;
};

// file:DIR, on a file system that all nodes share: write, link and rename under an exclusive lock
// file (no fcntl lock is trusted across hosts; a lock file whose owner died is broken only after
// `lock_stale` and with a check that it didn't change meanwhile).
Result<std::unique_ptr<Rendezvous>> OpenFileRendezvous(const std::string& dir);
// static:HOST:PORT: the coordinator is always there; the record is kept in the coordinator's own
// --state-dir and served by nobody else, so it doesn't survive the loss of that host. Agents whose
// control address isn't HOST:PORT read a fixed record with only the address.
struct StaticRendezvousOptions {
  std::string host;
  uint16_t port = 0;
  bool local = false;     // this agent is the one at HOST:PORT
  std::string state_dir;  // where the local one keeps its records
};
Result<std::unique_ptr<Rendezvous>> OpenStaticRendezvous(const StaticRendezvousOptions& options);

}  // namespace tierkeep
