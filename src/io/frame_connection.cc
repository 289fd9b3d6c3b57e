#include "io/frame_connection.h"

#include <openssl/err.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/log.h"

namespace tierkeep {
namespace {

constexpr size_t kHeaderBytes = 4;
// Read at one go, so that one busy peer doesn't keep others waiting.
constexpr size_t kReadBudget = 1 << 20;
// Sent bytes are cut off from the front of the queue at this size.
constexpr size_t kCompactBytes = 1 << 20;

uint32_t DecodeLength(const char* header) {
  uint32_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    length = length << 8 | static_cast<unsigned char>(header[i]);
  }
  return length;
}

// Gives memory back when a rare large frame has passed.
void Trim(std::string* buffer) {
  if (buffer->empty() && buffer->capacity() > (64 << 10)) std::string().swap(*buffer);
}

}  // namespace

void FrameConnection::Attach(UniqueFd fd, std::shared_ptr<SSL_CTX> context, Phase phase) {
  fd_ = std::move(fd);
  context_ = std::move(context);
  phase_ = phase;
  // A quiet time is normal here: whether a peer is alive is the keep-alive's question, and unsent
  // data may wait longer than that.
  SetTcpOptions(fd_.get(), 30s);
  if (!context_) return;
  ssl_ =
      NewTlsSession(context_.get(),
                    origin_ == Origin::kAccepted ? TlsRole::kServer : TlsRole::kClient, fd_.get());
  SetTlsNonBlocking(ssl_.get());
  SSL_set_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);  // thousands of them may be idle
}

void FrameConnection::Detach() {
  ssl_.reset();
  fd_.Reset();
  registered = 0;
  phase_ = Phase::kResolving;
}

std::string FrameConnection::Doing(std::string_view what) const {
  return std::string(what) + " " + EscapeForLog(peer.ToString());
}

uint32_t FrameConnection::interest() const {
  switch (phase_) {
    case Phase::kResolving:
      return 0;
    case Phase::kConnecting:
      return EPOLLOUT;
    case Phase::kHandshake:
      return handshake_wants_write_ ? EPOLLOUT : EPOLLIN;
    case Phase::kOpen:
    case Phase::kFlushing:
      return EPOLLIN | (queued_bytes() > 0 ? EPOLLOUT : 0u);
    case Phase::kDraining:
      return EPOLLIN;
  }
  return 0;
}

void FrameConnection::QueueFrame(std::string_view frame) {
  TK_CHECK(frame.size() <= frame_bytes_max_);
  const auto length = static_cast<uint32_t>(frame.size());
  for (int shift = 24; shift >= 0; shift -= 8) out_ += static_cast<char>(length >> shift & 0xff);
  out_ += frame;
}

void FrameConnection::StartClosing() {
  TK_CHECK(phase_ == Phase::kOpen);
  phase_ = Phase::kFlushing;
  std::string().swap(in_);
}

Status FrameConnection::Advance(std::string* scratch, const FrameSink& sink) {
  wants_more_ = false;
  if (phase_ == Phase::kResolving) return OkStatus();
  if (phase_ == Phase::kConnecting) {
    int error = 0;
    socklen_t size = sizeof(error);
    if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return ErrnoError(error, Doing("connect to"));
    phase_ = ssl_ ? Phase::kHandshake : Phase::kOpen;
  }
  if (phase_ == Phase::kHandshake) TK_RETURN_IF_ERROR(AdvanceHandshake());
  if (phase_ == Phase::kHandshake) return OkStatus();
  // Writing first: in kOpen both go on; in kFlushing the end of writing changes the phase. But an
  // error in writing mustn't hide what the peer said before it closed.
  const Status written = AdvanceWrite();
  TK_RETURN_IF_ERROR(AdvanceRead(scratch, sink));
  return written;
}

Status FrameConnection::AdvanceHandshake() {
  ERR_clear_error();
  const int rc = SSL_do_handshake(ssl_.get());
  if (rc == 1) {
    phase_ = Phase::kOpen;
    return OkStatus();
  }
  const int kind = SSL_get_error(ssl_.get(), rc);
  handshake_wants_write_ = kind == SSL_ERROR_WANT_WRITE;
  if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return OkStatus();
  return TlsError(ssl_.get(), rc, Doing("TLS handshake with"));
}

Result<FrameConnection::Io> FrameConnection::ReadSome(char* data, size_t bytes, size_t* n) {
  if (ssl_) {
    ERR_clear_error();
    const int rc = SSL_read_ex(ssl_.get(), data, bytes, n);
    if (rc == 1) return Io::kDone;
    const int kind = SSL_get_error(ssl_.get(), rc);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return Io::kWouldBlock;
    if (kind == SSL_ERROR_ZERO_RETURN) return Io::kEof;
    return TlsError(ssl_.get(), rc, Doing("receive from"));
  }
  for (;;) {
    const ssize_t got = ::recv(fd_.get(), data, bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Io::kWouldBlock;
    if (got < 0) return ErrnoError(errno, Doing("receive from"));
    *n = static_cast<size_t>(got);
    return got == 0 ? Io::kEof : Io::kDone;
  }
}

Result<FrameConnection::Io> FrameConnection::WriteSome(const char* data, size_t bytes, size_t* n) {
  if (ssl_) {
    ERR_clear_error();
    const int rc = SSL_write_ex(ssl_.get(), data, bytes, n);
    if (rc == 1) return Io::kDone;
    const int kind = SSL_get_error(ssl_.get(), rc);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE) return Io::kWouldBlock;
    return TlsError(ssl_.get(), rc, Doing("send to"));
  }
  for (;;) {
    const ssize_t sent = ::send(fd_.get(), data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return Io::kWouldBlock;
    if (sent < 0) return ErrnoError(errno, Doing("send to"));
    *n = static_cast<size_t>(sent);
    return Io::kDone;
  }
}

Status FrameConnection::AdvanceRead(std::string* scratch, const FrameSink& sink) {
  for (size_t budget = kReadBudget;;) {
    size_t n = 0;
    TK_ASSIGN_OR_RETURN(const Io io, ReadSome(scratch->data(), scratch->size(), &n));
    if (io == Io::kWouldBlock) return OkStatus();
    if (io == Io::kEof) {
      const bool cut = !in_.empty();
      return Error(Code::kUnavailable, Doing("connection with") + ": closed by the peer" +
                                           (cut ? " within a frame" : ""));
    }
    if (phase_ == Phase::kOpen) {
      in_.append(*scratch, 0, n);
      TK_RETURN_IF_ERROR(TakeFrames(sink));
    }
    if (n >= budget) {
      // TLS may hold decrypted bytes, of which epoll knows nothing.
      wants_more_ = true;
      return OkStatus();
    }
    budget -= n;
  }
}

Status FrameConnection::TakeFrames(const FrameSink& sink) {
  size_t at = 0;
  while (in_.size() - at >= kHeaderBytes) {
    const uint32_t length = DecodeLength(in_.data() + at);
    if (length > frame_bytes_max_) {
      frame_too_long_ = true;
      return Error(Code::kInvalidArgument, Doing("frame from") + ": too long");
    }
    if (in_.size() - at - kHeaderBytes < length) break;
    got_frame_ = true;
    sink(in_.substr(at + kHeaderBytes, length));
    at += kHeaderBytes + length;
  }
  in_.erase(0, at);
  Trim(&in_);
  return OkStatus();
}

Status FrameConnection::AdvanceWrite() {
  while (queued_bytes() > 0) {
    size_t n = 0;
    TK_ASSIGN_OR_RETURN(const Io io, WriteSome(out_.data() + out_at_, queued_bytes(), &n));
    if (io == Io::kWouldBlock) return OkStatus();
    out_at_ += n;
    if (out_at_ >= kCompactBytes || out_at_ == out_.size()) {
      out_.erase(0, out_at_);
      out_at_ = 0;
      Trim(&out_);
    }
  }
  if (phase_ == Phase::kFlushing) {
    if (ssl_) {
      ERR_clear_error();
      (void)SSL_shutdown(ssl_.get());
      ERR_clear_error();
    }
    ::shutdown(fd_.get(), SHUT_WR);
    phase_ = Phase::kDraining;
  }
  return OkStatus();
}

}  // namespace tierkeep
