// One control connection: sockets, TLS and framing, all non-blocking. Internal to the network.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "io/frame_network.h"
#include "io/socket_util.h"
#include "io/tls_session.h"
#include "io/unique_fd.h"

namespace tierkeep {

// Threads: one.
class FrameConnection {
 public:
  enum class Phase : uint8_t {
    kResolving,   // no socket yet
    kConnecting,  // TCP
    kHandshake,   // TLS
    kOpen,
    kFlushing,  // Close was called: what is queued goes out, what comes in is dropped
    kDraining,  // all is sent and said; waits for the peer to close, so that nothing is reset
  };
  enum class Origin : uint8_t { kAccepted, kRequested };

  FrameConnection(ConnectionId id, Origin origin, uint32_t frame_bytes_max)
      : id_(id), origin_(origin), frame_bytes_max_(frame_bytes_max) {}

  // A socket that is connected, or is connecting. `context` null: plain TCP.
  void Attach(UniqueFd fd, std::shared_ptr<SSL_CTX> context, Phase phase);
  // Gives up the socket of a failed attempt.
  void Detach();

  using FrameSink = std::function<void(std::string)>;
  // Does what the socket allows now; an error means that the connection is over. Call again soon
  // while wants_more(). `scratch` is space for reading.
  Status Advance(std::string* scratch, const FrameSink& sink);
  void QueueFrame(std::string_view frame);
  // From kOpen to kFlushing.
  void StartClosing();

  ConnectionId id() const { return id_; }
  Origin origin() const { return origin_; }
  Phase phase() const { return phase_; }
  int fd() const { return fd_.get(); }
  size_t queued_bytes() const { return out_.size() - out_at_; }
  bool wants_more() const { return wants_more_; }
  bool got_frame() const { return got_frame_; }
  bool frame_too_long() const { return frame_too_long_; }
  // Events to wait for (EPOLLIN, EPOLLOUT).
  uint32_t interest() const;

  // For the network: its own notes on the connection.
  HostPort peer;
  std::vector<SocketAddress> addresses;  // still to be tried
  int64_t connect_by_ns = 0;             // the end of all attempts together
  int64_t deadline_ns = 0;               // the timer that is set now; 0: none
  uint32_t registered = 0;               // the events that epoll waits for
  bool announced = false;                // OnAccepted or OnConnected was called

 private:
  enum class Io : uint8_t { kDone, kWouldBlock, kEof };

  Status AdvanceHandshake();
  Status AdvanceRead(std::string* scratch, const FrameSink& sink);
  Status AdvanceWrite();
  Result<Io> ReadSome(char* data, size_t bytes, size_t* n);
  Result<Io> WriteSome(const char* data, size_t bytes, size_t* n);
  Status TakeFrames(const FrameSink& sink);
  std::string Doing(std::string_view what) const;

  const ConnectionId id_;
  const Origin origin_;
  const uint32_t frame_bytes_max_;
  UniqueFd fd_;
  std::shared_ptr<SSL_CTX> context_;
  UniqueSsl ssl_;
  Phase phase_ = Phase::kResolving;
  bool handshake_wants_write_ = false;
  bool wants_more_ = false;
  bool got_frame_ = false;
  bool frame_too_long_ = false;
  std::string in_;   // the beginning of a frame
  std::string out_;  // from out_at_ on still to be sent
  size_t out_at_ = 0;
};

}  // namespace tierkeep
