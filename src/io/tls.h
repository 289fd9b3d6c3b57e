// Mutual TLS 1.3 from files laid out as cert-manager does: DIR/tls.crt, DIR/tls.key, DIR/ca.crt.
// Reloaded when they change; connections made before keep their old certificate until closed.
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
  static Result<std::shared_ptr<TlsContext>> Load(const std::string& dir);
  // Current contexts (a new one after files changed); the caller holds a reference.
  virtual std::shared_ptr<SSL_CTX> Server() = 0;
  virtual std::shared_ptr<SSL_CTX> Client() = 0;
  virtual WallTime NotAfter() = 0;
};

}  // namespace tierkeep
