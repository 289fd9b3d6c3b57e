// Mutual TLS 1.3 from files laid out as cert-manager does: DIR/tls.crt, DIR/tls.key, DIR/ca.crt.
// Reloaded when they change; connections made before keep their old certificate until closed.
//
// Both ends show a certificate and check the other's chain against ca.crt. Names aren't compared:
// agents have addresses of all sorts, and whoever has a certificate of this authority is a member.
// So the authority must issue for one cluster's agents only (docs/protocol.md, "Control").
// scripts/make-test-certs.sh makes such directories.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"

typedef struct ssl_ctx_st SSL_CTX;

namespace tierkeep {

// Threads: any.
class TlsContext {
 public:
  virtual ~TlsContext() = default;
  // kNotFound, kPermissionDenied: a file can't be read; kInvalidArgument: one is no PEM, or the key
  // isn't the certificate's.
  static Result<std::shared_ptr<TlsContext>> Load(const std::string& dir);
  // Current contexts (a new one after files changed); the caller holds a reference. Looks at the
  // files each time; while new ones can't be used the old stay, and last_reload() says why.
  virtual std::shared_ptr<SSL_CTX> Server() = 0;
  virtual std::shared_ptr<SSL_CTX> Client() = 0;
  // When our own certificate expires.
  virtual WallTime NotAfter() = 0;
  // The outcome of the latest attempt to read changed files.
  virtual Status last_reload() = 0;
};

}  // namespace tierkeep
