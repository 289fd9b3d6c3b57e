#include "io/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace tierkeep {
namespace {

// Behind each BIO. OpenSSL's own socket BIO would write(2), which raises SIGPIPE.
struct SocketState {
  int fd = -1;
  int flags = 0;            // MSG_DONTWAIT or 0
  int send_flags = 0;       // MSG_MORE or 0
  int64_t deadline_ns = 0;  // CLOCK_MONOTONIC; 0: none
  int last_errno = 0;
};

SocketState* StateOf(BIO* bio) { return static_cast<SocketState*>(BIO_get_data(bio)); }

bool IsRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// False, with errno EAGAIN, when the deadline passes first.
bool WaitUntilDeadline(const SocketState& state, short events) {
  while (state.deadline_ns != 0) {
    struct timespec now;
    TK_CHECK(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    const int64_t left_ns = state.deadline_ns - (int64_t{now.tv_sec} * 1000000000 + now.tv_nsec);
    if (left_ns <= 0) break;
    struct pollfd fd = {state.fd, events, 0};
    const int n = ::poll(&fd, 1, static_cast<int>(std::min<int64_t>(left_ns / 1000000 + 1, 1000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the call that follows will say what is wrong
  }
  errno = EAGAIN;
  return state.deadline_ns == 0;
}

int SocketWrite(BIO* bio, const char* data, int n) {
  SocketState* state = StateOf(bio);
  BIO_clear_retry_flags(bio);
  ssize_t sent = -1;
  do {
    if (!WaitUntilDeadline(*state, POLLOUT)) break;
    sent = ::send(state->fd, data, static_cast<size_t>(n),
                  MSG_NOSIGNAL | state->flags | state->send_flags);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    state->last_errno = errno;
    if (IsRetry(errno)) BIO_set_retry_write(bio);
  }
  return static_cast<int>(sent);
}

int SocketRead(BIO* bio, char* data, int n) {
  SocketState* state = StateOf(bio);
  BIO_clear_retry_flags(bio);
  ssize_t got = -1;
  do {
    if (!WaitUntilDeadline(*state, POLLIN)) break;
    got = ::recv(state->fd, data, static_cast<size_t>(n), state->flags);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    state->last_errno = errno;
    if (IsRetry(errno)) BIO_set_retry_read(bio);
  }
  if (got == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(got);
}

long SocketControl(BIO* bio, int command, long, void*) {
  switch (command) {
    case BIO_CTRL_FLUSH:
      return 1;
    case BIO_CTRL_EOF:
      return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    default:
      return 0;
  }
}

int SocketDestroy(BIO* bio) {
  delete StateOf(bio);
  BIO_set_data(bio, nullptr);
  return 1;
}

// Made once; OpenSSL keeps method tables for the life of the process.
const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tierkeep socket");
    TK_CHECK(made != nullptr);
    TK_CHECK(BIO_meth_set_write(made, SocketWrite) == 1);
    TK_CHECK(BIO_meth_set_read(made, SocketRead) == 1);
    TK_CHECK(BIO_meth_set_ctrl(made, SocketControl) == 1);
    TK_CHECK(BIO_meth_set_destroy(made, SocketDestroy) == 1);
    return made;
  }();
  return method;
}

bool IsCertificateAlert(int reason) {
  // TLS alerts are reasons from 1000 on: https://www.rfc-editor.org/rfc/rfc8446#section-6
  const int alert = reason - SSL_AD_REASON_OFFSET;
  // 51: a signature that doesn't verify, as of an authority of the same name but another key.
  return (alert >= 42 && alert <= 46) || alert == 48 || alert == 49 || alert == 51 || alert == 116;
}

}  // namespace

UniqueSsl NewTlsSession(SSL_CTX* context, TlsRole role, int fd) {
  UniqueSsl ssl(SSL_new(context));
  TK_CHECK_MSG(ssl != nullptr, "SSL_new: out of memory");
  BIO* bio = BIO_new(SocketMethod());
  TK_CHECK_MSG(bio != nullptr, "BIO_new: out of memory");
  BIO_set_data(bio, new SocketState{.fd = fd});
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl.get(), bio, bio);  // takes the one reference
  if (role == TlsRole::kServer) {
    SSL_set_accept_state(ssl.get());
  } else {
    SSL_set_connect_state(ssl.get());
  }
  return ssl;
}

void SetTlsNonBlocking(SSL* ssl) { StateOf(SSL_get_rbio(ssl))->flags = MSG_DONTWAIT; }

void SetTlsMoreFollows(SSL* ssl, bool more) {
  StateOf(SSL_get_wbio(ssl))->send_flags = more ? MSG_MORE : 0;
}

void SetTlsDeadline(SSL* ssl, int64_t monotonic_ns) {
  StateOf(SSL_get_rbio(ssl))->deadline_ns = monotonic_ns;
}

Error TlsError(SSL* ssl, int rc, const std::string& what) {
  const int kind = SSL_get_error(ssl, rc);
  const unsigned long code = ERR_peek_error();
  const int reason = ERR_GET_REASON(code);
  ERR_clear_error();
  const long verify = SSL_get_verify_result(ssl);
  if (verify != X509_V_OK) {
    return Error(Code::kUnauthenticated, what + ": the peer's certificate is refused: " +
                                             X509_verify_cert_error_string(verify));
  }
  switch (kind) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Error(Code::kDeadlineExceeded, what + ": no byte moved for too long");
    case SSL_ERROR_ZERO_RETURN:
      return Error(Code::kUnavailable, what + ": closed by the peer");
    case SSL_ERROR_SYSCALL: {
      const int error = StateOf(SSL_get_rbio(ssl))->last_errno;
      if (error == 0) return Error(Code::kUnavailable, what + ": closed by the peer");
      return ErrnoError(error, what);
    }
    default:
      break;
  }
  const char* text = ERR_reason_error_string(code);
  const std::string message = what + ": " + (text != nullptr ? text : "TLS failed");
  if (reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return Error(Code::kUnavailable, what + ": closed by the peer");
  }
  if (IsCertificateAlert(reason) || reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    return Error(Code::kUnauthenticated, message);
  }
  if (SSL_is_init_finished(ssl)) return Error(Code::kDataLoss, message);
  return Error(Code::kUnavailable, message);
}

}  // namespace tierkeep
