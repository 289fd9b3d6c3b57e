// Certificates made in the test itself, good ones and bad ones.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "io/temp_dir_testutil.h"
#include "io/tls.h"

typedef struct evp_pkey_st EVP_PKEY;
typedef struct x509_st X509;

namespace tierkeep {

// A certificate authority with its own key. A failure ends the process: tests can't go on.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();

  struct Validity {
    std::chrono::seconds from{-3600};  // from now
    std::chrono::seconds to{3600};
  };
  // Writes tls.crt, tls.key and ca.crt (this authority's) below `dir`, made where its parent
  // exists.
  void Issue(const std::string& dir, const std::string& name, Validity validity) const;
  void Issue(const std::string& dir, const std::string& name) const { Issue(dir, name, {}); }

 private:
  EVP_PKEY* key_;
  X509* certificate_;
};

// An authority and a context that it vouches for, in a directory of its own.
struct TestTls {
  TestTls();
  std::shared_ptr<TlsContext> Make(const std::string& name, TestAuthority::Validity validity = {});
  TempDir temp;
  TestAuthority authority;
};

}  // namespace tierkeep
