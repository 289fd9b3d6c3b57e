// Control connections: whole frames in order, each way, over TCP or mutual TLS 1.3.
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
  virtual void OnAccepted(ConnectionId connection, const HostPort& peer) = 0;
  virtual void OnConnected(ConnectionId connection) = 0;
  virtual void OnFrame(ConnectionId connection, std::string frame) = 0;
  // Exactly once for every accepted or requested connection; nothing follows for this id.
  virtual void OnClosed(ConnectionId connection, const Error& why) = 0;
};

struct FrameNetworkOptions {
  std::string listen_host = "0.0.0.0";
  uint16_t listen_port = 0;         // 0: any free
  std::shared_ptr<TlsContext> tls;  // null: plain TCP
  uint32_t frame_bytes_max = 64u << 20;
  uint32_t connections_max = 8192;
  uint64_t queued_bytes_max = 256u << 20;  // over all connections; then the slowest is closed
  Duration connect_deadline = 5s;
  // An accepted connection must finish its handshake and first frame in this time.
  Duration first_frame_deadline = 10s;
};

// Threads: any may call Connect, Send and Close. Bad frames (length over the limit) close their
// connection and are counted; they never reach the handler.
class FrameNetwork {
 public:
  virtual ~FrameNetwork() = default;
  virtual uint16_t port() const = 0;                     // where it listens
  virtual ConnectionId Connect(const HostPort& to) = 0;  // outcome: OnConnected or OnClosed
  virtual void Send(ConnectionId connection, std::string frame) = 0;  // queued; lost if it closes
  virtual void Close(ConnectionId connection) = 0;  // after what is queued, within a second
  virtual uint64_t rejected_frames() const = 0;
};

// Listens before it returns; `handler` must outlive it.
Result<std::unique_ptr<FrameNetwork>> StartFrameNetwork(const FrameNetworkOptions& options,
                                                        FrameHandler* handler);

}  // namespace tierkeep
