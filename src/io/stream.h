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

// Errors of both directions: kDeadlineExceeded when no byte moves for the stall limit (noticed
// after at most twice of it), kUnavailable when the peer is gone or closed early, kCancelled after
// Shutdown, kUnauthenticated when a certificate is refused. After an error the stream is useless.
class Stream {
 public:
  virtual ~Stream() = default;  // closes; what was written is still delivered
  // All of it, or an error; on return the bytes are handed to the kernel, not yet to the peer. In
  // plain TCP they go straight from the caller's memory, which may be the map of a file that
  // somebody truncates: then kDataLoss. With TLS such a map must not be given (SIGBUS).
  virtual Status WriteAll(ByteSpan data) = 0;
  // Straight into the caller's memory. Where that is a map of a file, its space must have been
  // allocated (File::Allocate), else a full file system is kResourceExhausted, with TLS SIGBUS.
  virtual Status ReadExactly(MutableByteSpan out) = 0;
  // From any thread: every call in progress and to come fails at once.
  virtual void Shutdown() = 0;
};

struct StreamOptions {
  std::shared_ptr<TlsContext> tls;  // null: plain TCP
  // For looking up the host's name, for each attempt to connect, and for the TLS handshake.
  Duration connect_deadline = 5s;
  Duration stall_limit = 10s;  // longest time without a byte moving
  int socket_buffer_bytes = 16 << 20;
};

// Tries the host's addresses in turn; the last one's error.
Result<std::unique_ptr<Stream>> ConnectStream(const HostPort& to, const StreamOptions& options);

// Threads: Accept from one, Shutdown from any.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  virtual uint16_t port() const = 0;
  // Next connection, its handshake not yet done (it happens at the first read or write, within
  // the stall limit, so that a slow peer holds only its own thread). kCancelled after Shutdown.
  // Connections that come while the process is out of descriptors are dropped.
  virtual Result<std::unique_ptr<Stream>> Accept() = 0;
  virtual void Shutdown() = 0;
};
// "" as host: all addresses; port 0: any free.
Result<std::unique_ptr<StreamListener>> ListenStreams(const std::string& host, uint16_t port,
                                                      const StreamOptions& options);

}  // namespace tierkeep
