#include "io/stream.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/check.h"
#include "base/log.h"
#include "io/socket_util.h"
#include "io/tls_session.h"

namespace tierkeep {
namespace {

int64_t MonotonicNs() {
  struct timespec now;
  TK_CHECK(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// The socket that both kinds of stream have.
class SocketStream : public Stream {
 public:
  SocketStream(UniqueFd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}

  void Shutdown() override {
    cancelled_ = true;
    ::shutdown(fd_.get(), SHUT_RDWR);  // wakes whoever waits in send or recv
  }

 protected:
  int fd() const { return fd_.get(); }
  bool cancelled() const { return cancelled_; }
  Error Cancelled() const {
    return Error(Code::kCancelled, "the stream with " + peer_ + " was shut down");
  }
  std::string Doing(std::string_view what) const { return std::string(what) + " " + peer_; }

 private:
  const UniqueFd fd_;
  const std::string peer_;
  std::atomic<bool> cancelled_{false};
};

class PlainStream : public SocketStream {
 public:
  using SocketStream::SocketStream;

  Status WriteAll(ByteSpan data) override {
    while (!data.empty()) {
      const ssize_t n = ::send(fd(), data.data(), data.size(), MSG_NOSIGNAL);
      if (n >= 0) {
        data = data.subspan(static_cast<size_t>(n));
        continue;
      }
      if (errno == EINTR) continue;
      if (errno == EFAULT) {
        return Error(Code::kDataLoss, Doing("send to") + ": the file under the map was truncated",
                     EFAULT);
      }
      return Failed("send to");
    }
    return OkStatus();
  }

  Status ReadExactly(MutableByteSpan out) override {
    while (!out.empty()) {
      const ssize_t n = ::recv(fd(), out.data(), out.size(), MSG_WAITALL);
      if (n > 0) {
        out = out.subspan(static_cast<size_t>(n));
        continue;
      }
      if (n == 0) {
        if (cancelled()) return Cancelled();
        return Error(Code::kUnavailable, Doing("receive from") + ": closed by the peer");
      }
      if (errno == EINTR) continue;
      if (errno == EFAULT) {
        return Error(Code::kResourceExhausted,
                     Doing("receive from") + ": no space for the file under the map", EFAULT);
      }
      return Failed("receive from");
    }
    return OkStatus();
  }

 private:
  Error Failed(std::string_view what) const {
    const int error = errno;
    if (cancelled()) return Cancelled();
    if (error == EAGAIN || error == EWOULDBLOCK) {
      return Error(Code::kDeadlineExceeded, Doing(what) + ": no byte moved for too long");
    }
    return ErrnoError(error, Doing(what));
  }
};

class TlsStream : public SocketStream {
 public:
  TlsStream(UniqueFd fd, std::string peer, std::shared_ptr<SSL_CTX> context, TlsRole role,
            Duration handshake_limit)
      : SocketStream(std::move(fd), std::move(peer)),
        context_(std::move(context)),
        ssl_(NewTlsSession(context_.get(), role, SocketStream::fd())),
        handshake_limit_(handshake_limit) {
    // Many records come with one recv this way.
    SSL_set_read_ahead(ssl_.get(), 1);
    SSL_set_default_read_buffer_len(ssl_.get(), 64 << 10);
  }

  ~TlsStream() override {
    if (!usable_ || !SSL_is_init_finished(ssl_.get())) return;
    SetTlsNonBlocking(ssl_.get());
    (void)SSL_shutdown(ssl_.get());  // says that nothing was cut off, if there is room to say it
    ERR_clear_error();
  }

  Status Handshake() {
    if (SSL_is_init_finished(ssl_.get())) return OkStatus();
    // As a whole, so that a peer can't stretch it byte by byte.
    SetTlsDeadline(ssl_.get(), MonotonicNs() + handshake_limit_.count());
    ERR_clear_error();
    const int rc = SSL_do_handshake(ssl_.get());
    SetTlsDeadline(ssl_.get(), 0);
    if (rc != 1) return Failed(rc, "TLS handshake with");
    return OkStatus();
  }

  Status WriteAll(ByteSpan data) override {
    TK_RETURN_IF_ERROR(Ready());
    while (!data.empty()) {
      ERR_clear_error();
      size_t n = 0;
      SetTlsMoreFollows(ssl_.get(), data.size() > SSL3_RT_MAX_PLAIN_LENGTH);
      const int rc = SSL_write_ex(ssl_.get(), data.data(), data.size(), &n);
      if (rc != 1) return Failed(rc, "send to");
      data = data.subspan(n);
    }
    return OkStatus();
  }

  Status ReadExactly(MutableByteSpan out) override {
    TK_RETURN_IF_ERROR(Ready());
    while (!out.empty()) {
      ERR_clear_error();
      size_t n = 0;
      const int rc = SSL_read_ex(ssl_.get(), out.data(), out.size(), &n);
      if (rc != 1) return Failed(rc, "receive from");
      out = out.subspan(n);
    }
    return OkStatus();
  }

 private:
  Status Ready() {
    if (cancelled()) return Cancelled();
    if (!usable_)
      return Error(Code::kUnavailable, Doing("use the stream with") + " after an error");
    return Handshake();
  }
  Error Failed(int rc, std::string_view what) {
    usable_ = false;
    Error error = TlsError(ssl_.get(), rc, Doing(what));
    return cancelled() ? Cancelled() : std::move(error);
  }

  const std::shared_ptr<SSL_CTX> context_;
  const UniqueSsl ssl_;
  const Duration handshake_limit_;
  bool usable_ = true;
};

class TcpStreamListener : public StreamListener {
 public:
  TcpStreamListener(UniqueFd fd, UniqueFd stop, const StreamOptions& options)
      : fd_(std::move(fd)),
        stop_(std::move(stop)),
        options_(options),
        port_(LocalPort(fd_.get())) {}

  uint16_t port() const override { return port_; }

  Result<std::unique_ptr<Stream>> Accept() override {
    int timeout_ms = -1;
    for (;;) {
      // With a timeout: out of descriptors, even of the reserve; look again in a while.
      struct pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {fd_.get(), POLLIN, 0}};
      const int n = ::poll(fds, timeout_ms < 0 ? 2 : 1, timeout_ms);
      if (n < 0 && errno != EINTR) return ErrnoError(errno, "wait for a connection");
      if (n > 0 && fds[0].revents != 0) {
        return Error(Code::kCancelled, "the listener was shut down");
      }
      timeout_ms = -1;
      SocketAddress peer;
      peer.bytes = sizeof(peer.storage);
      UniqueFd fd(::accept4(fd_.get(), reinterpret_cast<struct sockaddr*>(&peer.storage),
                            &peer.bytes, SOCK_CLOEXEC));
      if (fd.valid()) return Wrap(std::move(fd), peer);
      // All else is the failure of one connection, or nothing to accept.
      if (IsOutOfDescriptors(errno) && !reserve_.ShedOne(fd_.get())) timeout_ms = 100;
    }
  }

  void Shutdown() override {
    const uint64_t one = 1;
    TK_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  }

 private:
  std::unique_ptr<Stream> Wrap(UniqueFd fd, const SocketAddress& peer) {
    SetTcpOptions(fd.get(), options_.stall_limit);
    MakeBlocking(fd.get(), options_.stall_limit);
    std::string name = peer.ToHostPort().ToString();
    if (!options_.tls) return std::make_unique<PlainStream>(std::move(fd), std::move(name));
    return std::make_unique<TlsStream>(std::move(fd), std::move(name), options_.tls->Server(),
                                       TlsRole::kServer, options_.stall_limit);
  }

  const UniqueFd fd_;
  const UniqueFd stop_;
  const StreamOptions options_;
  const uint16_t port_;
  DescriptorReserve reserve_;
};

Result<UniqueFd> ConnectSocket(const HostPort& to, const StreamOptions& options) {
  TK_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                      ResolveWithin(to, options.connect_deadline));
  Status last;
  for (const SocketAddress& address : addresses) {
    Result<UniqueFd> fd = NewTcpSocket(address, options.socket_buffer_bytes);
    if (!fd.ok()) return fd;
    last = ConnectWithin(fd->get(), address, options.connect_deadline);
    if (last.ok()) return fd;
  }
  return std::move(last.error());
}

}  // namespace

Result<std::unique_ptr<Stream>> ConnectStream(const HostPort& to, const StreamOptions& options) {
  TK_ASSIGN_OR_RETURN(UniqueFd fd, ConnectSocket(to, options));
  SetTcpOptions(fd.get(), options.stall_limit);
  MakeBlocking(fd.get(), options.stall_limit);
  std::string name = EscapeForLog(to.ToString());
  if (!options.tls) {
    return std::unique_ptr<Stream>(std::make_unique<PlainStream>(std::move(fd), std::move(name)));
  }
  auto stream = std::make_unique<TlsStream>(std::move(fd), std::move(name), options.tls->Client(),
                                            TlsRole::kClient, options.connect_deadline);
  TK_RETURN_IF_ERROR(stream->Handshake());
  return std::unique_ptr<Stream>(std::move(stream));
}

Result<std::unique_ptr<StreamListener>> ListenStreams(const std::string& host, uint16_t port,
                                                      const StreamOptions& options) {
  TK_ASSIGN_OR_RETURN(UniqueFd fd, ListenTcp(host, port, options.socket_buffer_bytes));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoError(errno, "listen for streams");
  return std::unique_ptr<StreamListener>(
      std::make_unique<TcpStreamListener>(std::move(fd), std::move(stop), options));
}

}  // namespace tierkeep
