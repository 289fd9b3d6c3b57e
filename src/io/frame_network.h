// Control connections: whole frames in order, each way, over TCP or mutual TLS 1.3. A frame is a
// 4-byte big-endian length and that many bytes (docs/protocol.md, "Control").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "io/tls.h"

namespace tierkeep {

using ConnectionId = uint64_t;  // never reused within a process

struct HostPort {
  std::string host;
  uint16_t port = 0;
  auto operator<=>(const HostPort&) const = default;
  std::string ToString() const;  // "[::1]:4242" for IPv6
};

// Called on the network's own thread, one call at a time.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;
  // With TLS once the peer has proved to be a member.
  virtual void OnAccepted(ConnectionId connection, const HostPort& peer) = 0;
  // With TLS the peer may still refuse our certificate: then OnClosed (kUnauthenticated) follows.
  virtual void OnConnected(ConnectionId connection) = 0;
  virtual void OnFrame(ConnectionId connection, std::string frame) = 0;
  // Exactly once for every accepted or requested connection; nothing follows for this id.
  // kCancelled: closed by Close or by the network's destruction; kInvalidArgument: the peer's frame
  // was too long; kResourceExhausted: it read too slowly or there are too many connections.
  virtual void OnClosed(ConnectionId connection, const Error& why) = 0;
};

struct FrameNetworkOptions {
  std::string listen_host = "0.0.0.0";  // "": all addresses, IPv6 too
  uint16_t listen_port = 0;             // 0: any free
  std::shared_ptr<TlsContext> tls;      // null: plain TCP
  uint32_t frame_bytes_max = 64u << 20;
  // Accepted and requested. When they are reached, a newcomer takes the place of the oldest
  // accepted connection that hasn't sent a frame yet, or is dropped.
  uint32_t connections_max = 8192;
  uint64_t queued_bytes_max = 256u << 20;  // over all connections; then the slowest is closed
  // Name lookup, connection and handshake together.
  Duration connect_deadline = 5s;
  // An accepted connection must finish its handshake and first frame in this time.
  Duration first_frame_deadline = 10s;
};

// Threads: any may call Connect, Send and Close, the handler's calls included. Frames that are too
// long close their connection and never reach the handler. They are counted as rejected, and so are
// accepted connections that end without a whole frame: a refused handshake, silence, half a frame.
// An idle network uses no processor time. Destruction closes everything without flushing and
// reports it.
class FrameNetwork {
 public:
  virtual ~FrameNetwork() = default;
  virtual uint16_t port() const = 0;                     // where it listens
  virtual ConnectionId Connect(const HostPort& to) = 0;  // outcome: OnConnected or OnClosed
  // Queued, also before OnConnected; lost if it closes. At most frame_bytes_max bytes (checked).
  virtual void Send(ConnectionId connection, std::string frame) = 0;
  virtual void Close(ConnectionId connection) = 0;  // after what is queued, within a second
  virtual uint64_t rejected_frames() const = 0;
};

// Listens before it returns; `handler` must outlive it.
Result<std::unique_ptr<FrameNetwork>> StartFrameNetwork(const FrameNetworkOptions& options,
                                                        FrameHandler* handler);

}  // namespace tierkeep
