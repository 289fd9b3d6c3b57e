// One TLS connection over a socket: what streams and frames share. Internal to io.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using UniqueSsl = std::unique_ptr<SSL, SslDeleter>;

enum class TlsRole : uint8_t { kServer, kClient };

// An SSL on `fd` (borrowed) that sends without SIGPIPE. On a socket that isn't O_NONBLOCK its
// timeouts (SO_RCVTIMEO) show as SSL_ERROR_WANT_READ or _WRITE.
UniqueSsl NewTlsSession(SSL_CTX* context, TlsRole role, int fd);

// Makes all further calls on the session return at once instead of waiting for the socket.
void SetTlsNonBlocking(SSL* ssl);
// Says that another record follows at once, so that the kernel may put several into one segment.
void SetTlsMoreFollows(SSL* ssl, bool more);
// Until the time (CLOCK_MONOTONIC nanoseconds; 0: none) every wait of the session ends as by a
// timeout, however much the peer trickles.
void SetTlsDeadline(SSL* ssl, int64_t monotonic_ns);

// The Error of an SSL call that returned `rc`: kUnauthenticated when a certificate was refused by
// either side, kUnavailable when the connection ended, kDataLoss for a broken record. Takes the
// thread's OpenSSL errors.
Error TlsError(SSL* ssl, int rc, const std::string& what);

}  // namespace tierkeep
