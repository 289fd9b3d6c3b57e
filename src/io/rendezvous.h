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
  std::string version;  // opaque, never empty, changes with every write
};

// Threads: any. Calls may block up to a few seconds: not on the core's thread. Job names with a
// '/', a zero byte or a leading dot are kInvalidArgument; records are at most 1 MiB.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // nullopt: certainly no record. Unreadable is an error, never nullopt.
  virtual Result<std::optional<VersionedRecord>> Read(std::string_view job) = 0;
  // Writes if the record's version is still `expected` (empty: no record yet); returns the new
  // version. kAborted: somebody else wrote. On return the record is durable and visible to all.
  // After any other error the record may or may not have been written: read again.
  virtual Result<std::string> CompareAndSwap(std::string_view job, std::string_view expected,
                                             std::string_view bytes) = 0;
};

// file:DIR, an existing directory on a file system that all nodes share (it is not created: where
// the shared file system isn't mounted, each node would find a rendezvous of its own).
//
// DIR/<job>/<counter>.record, the highest counter counts. Version N + 1 is written and synced under
// another name and then hard-linked to its own, which only one of any number of writers can do. So
// there is no lock that a dead writer could leave behind, and none that could be broken while its
// owner, merely slow, goes on to write. The last few records are kept (docs/formats.md).
Result<std::unique_ptr<Rendezvous>> OpenFileRendezvous(const std::string& dir);

// static:HOST:PORT: the coordinator is always there; the record is kept in the coordinator's own
// --state-dir and served by nobody else, so it doesn't survive the loss of that host. Agents whose
// control address isn't HOST:PORT read a fixed record, the text "HOST:PORT" with version "static",
// and may not write (kFailedPrecondition).
struct StaticRendezvousOptions {
  std::string host;
  uint16_t port = 0;
  bool local = false;     // this agent is the one at HOST:PORT
  std::string state_dir;  // where the local one keeps its records, in rendezvous/
};
Result<std::unique_ptr<Rendezvous>> OpenStaticRendezvous(const StaticRendezvousOptions& options);

}  // namespace tierkeep
