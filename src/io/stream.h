// Blocking byte streams for bulk data, each used by one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "base/digest.h"
#include "base/result.h"
#include "base/time.h"
#include "io/frame_network.h"
#include "io/tls.h"

namespace tierkeep {

class Stream {
 public:
  virtual ~Stream() = default;  // closes
  // All of it, or an error; kDeadlineExceeded when no byte moves for the stall limit.
  virtual Status WriteAll(ByteSpan data) = 0;
  virtual Status ReadExactly(MutableByteSpan out) = 0;
  // From any thread: every call in progress and to come fails at once.
  virtual void Shutdown() = 0;
};

struct StreamOptions {
  std::shared_ptr<TlsContext> tls;  // null: plain TCP
  Duration connect_deadline = 5s;
  Duration stall_limit = 10s;  // longest time without a byte moving
  int socket_buffer_bytes = 16 << 20;
};

Result<std::unique_ptr<Stream>> ConnectStream(const HostPort& to, const StreamOptions& options);

class StreamListener {
 public:
  virtual ~StreamListener() = default;
  virtual uint16_t port() const = 0;
  // Next connection, its handshake not yet done (it happens at the first read or write, within
  // the stall limit, so that a slow peer holds only its own thread). kCancelled after Shutdown.
  virtual Result<std::unique_ptr<Stream>> Accept() = 0;
  virtual void Shutdown() = 0;
};
Result<std::unique_ptr<StreamListener>> ListenStreams(const std::string& host, uint16_t port,
                                                      const StreamOptions& options);

}  // namespace tierkeep
