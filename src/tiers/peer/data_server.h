// Serves manifests and chunk ranges of held shards to peers. Wire form: docs/protocol.md, "Data".
//
// A connection first shows this agent's data token (32 random bytes that members get from the
// coordinator over the control connection); a wrong one closes it after a delay-free, constant-time
// comparison. Then any number of requests, answered in order: the manifest of a digest, or chunks
// [first, first + count) of a digest as one run of raw bytes behind a small header.
//
// Threads: one a connection, up to the limit. Bytes go from a map of the file by send(2): the
// kernel copies, so a file cut short under the map is an error, never SIGBUS; with TLS they are
// pread into a buffer first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "io/clock.h"
#include "tiers/peer/transfer_options.h"
#include "tiers/ram/store.h"

namespace tierkeep {

class DataServer {
 public:
  virtual ~DataServer() = default;  // closes all connections and joins
  static Result<std::unique_ptr<DataServer>> Start(const DataPortOptions& options,
                                                   std::string token, Store* store, Clock* clock,
                                                   Logger logger);
  virtual uint16_t port() const = 0;
  virtual uint64_t bytes_sent() const = 0;
  virtual uint64_t rejected() const = 0;  // connections and requests refused
};

}  // namespace tierkeep
