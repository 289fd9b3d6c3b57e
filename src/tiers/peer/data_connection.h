// The asking end of a data connection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "format/data_wire.h"
#include "io/stream.h"

namespace tierkeep {

// Threads: one, but Shutdown from any. After an error it is good for nothing more, save for those
// that say otherwise.
class DataConnection {
 public:
  // The token is shown with the first request. Errors: ConnectStream's.
  static Result<std::unique_ptr<DataConnection>> Open(const HostPort& to, std::string_view token,
                                                      const StreamOptions& options);

  // The bytes, not checked against `digest`. kNotFound: the peer doesn't have it, and the
  // connection goes on. kDataLoss: it answered nonsense.
  Result<std::string> FetchManifest(const Blake3& digest);
  // The logical listing of that shard, not checked. Errors as above, and those of ListLogically.
  Result<std::string> FetchListing(const Blake3& digest);
  // The peer's promise to send chunks [first, first + count), `bytes` in all, which then are read
  // with Read. Errors as above.
  Status RequestChunks(const Blake3& digest, uint64_t first, uint64_t count, uint64_t bytes);
  Status Read(MutableByteSpan out) { return stream_->ReadExactly(out); }

  void Shutdown() { stream_->Shutdown(); }

 private:
  DataConnection(std::unique_ptr<Stream> stream, std::string preamble)
      : stream_(std::move(stream)), preamble_(std::move(preamble)) {}
  // The length of the body that follows.
  Result<uint64_t> Ask(const DataRequest& request);
  Result<std::string> FetchBody(DataOp op, const Blake3& digest, uint64_t bytes_max);

  const std::unique_ptr<Stream> stream_;
  std::string preamble_;  // until it was sent
};

}  // namespace tierkeep
