#include "io/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <mutex>

#include "base/check.h"
#include "base/log.h"

namespace tierkeep {
namespace {

// What tells a changed file from the one that was read.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  int64_t changed_ns = 0;
  auto operator<=>(const FileStamp&) const = default;
};
using Stamps = std::array<FileStamp, 3>;

struct Loaded {
  std::shared_ptr<SSL_CTX> server;
  std::shared_ptr<SSL_CTX> client;
  WallTime not_after;
};

// A key with a passphrase fails instead of asking on the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

Error FileProblem(const std::string& path, Code code) {
  const unsigned long openssl_error = ERR_peek_last_error();
  ERR_clear_error();
  const char* text = openssl_error != 0 ? ERR_reason_error_string(openssl_error) : nullptr;
  return Error(code, "TLS file " + EscapeForLog(path) + ": " + (text ? text : "can't be used"));
}

class FileTlsContext : public TlsContext {
 public:
  explicit FileTlsContext(const std::string& dir)
      : certificate_(dir + "/tls.crt"), key_(dir + "/tls.key"), authority_(dir + "/ca.crt") {}

  Status Start() {
    const std::lock_guard lock(mutex_);
    TK_ASSIGN_OR_RETURN(stamps_, ReadStamps());
    TK_ASSIGN_OR_RETURN(loaded_, LoadFiles());
    return OkStatus();
  }

  std::shared_ptr<SSL_CTX> Server() override {
    const std::lock_guard lock(mutex_);
    Refresh();
    return loaded_.server;
  }
  std::shared_ptr<SSL_CTX> Client() override {
    const std::lock_guard lock(mutex_);
    Refresh();
    return loaded_.client;
  }
  WallTime NotAfter() override {
    const std::lock_guard lock(mutex_);
    return loaded_.not_after;
  }
  Status last_reload() override {
    const std::lock_guard lock(mutex_);
    return last_reload_;
  }

 private:
  // Stamps are taken before the files are read: a file that changes in between differs next time.
  void Refresh() {
    Result<Stamps> now = ReadStamps();
    if (now.ok() && *now == stamps_) return;
    if (!now.ok()) {
      last_reload_ = std::move(now.error());
      return;
    }
    stamps_ = *now;
    Result<Loaded> fresh = LoadFiles();
    if (fresh.ok()) {
      loaded_ = std::move(*fresh);
      last_reload_ = OkStatus();
    } else {
      last_reload_ = std::move(fresh.error());
    }
  }

  Result<Stamps> ReadStamps() const {
    Stamps stamps;
    size_t i = 0;
    for (const std::string* path : {&certificate_, &key_, &authority_}) {
      struct stat st;
      if (::stat(path->c_str(), &st) != 0) {
        return ErrnoError(errno, "TLS file " + EscapeForLog(*path));
      }
      stamps[i++] = {st.st_dev, st.st_ino, st.st_size,
                     int64_t{st.st_ctim.tv_sec} * 1000000000 + st.st_ctim.tv_nsec};
    }
    return stamps;
  }

  Result<Loaded> LoadFiles() const {
    Loaded loaded;
    TK_ASSIGN_OR_RETURN(loaded.server, MakeContext(TLS_server_method()));
    TK_ASSIGN_OR_RETURN(loaded.client, MakeContext(TLS_client_method()));
    struct tm expiry {};
    const X509* own = SSL_CTX_get0_certificate(loaded.server.get());
    TK_CHECK(own != nullptr);
    if (ASN1_TIME_to_tm(X509_get0_notAfter(own), &expiry) != 1) {
      return FileProblem(certificate_, Code::kInvalidArgument);
    }
    loaded.not_after = WallTime(std::chrono::seconds(::timegm(&expiry)));
    return loaded;
  }

  Result<std::shared_ptr<SSL_CTX>> MakeContext(const SSL_METHOD* method) const {
    ERR_clear_error();
    const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(method), SSL_CTX_free);
    TK_CHECK_MSG(context != nullptr, "SSL_CTX_new: out of memory");
    SSL_CTX* raw = context.get();
    TK_CHECK(SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) == 1);
    // AES-128-GCM is the fastest by far where the processor has AES instructions.
    TK_CHECK(SSL_CTX_set_ciphersuites(raw,
                                      "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                      "TLS_CHACHA20_POLY1305_SHA256") == 1);
    SSL_CTX_set_options(raw, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_COMPRESSION);
    // Nothing is resumed: each connection proves both certificates anew, and no ticket is sent.
    SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
    TK_CHECK(SSL_CTX_set_num_tickets(raw, 0) == 1);
    SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    SSL_CTX_set_default_passwd_cb(raw, NoPassphrase);
    if (SSL_CTX_use_certificate_chain_file(raw, certificate_.c_str()) != 1) {
      return FileProblem(certificate_, Code::kInvalidArgument);
    }
    if (SSL_CTX_use_PrivateKey_file(raw, key_.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(raw) != 1) {
      return FileProblem(key_, Code::kInvalidArgument);
    }
    if (SSL_CTX_load_verify_file(raw, authority_.c_str()) != 1) {
      return FileProblem(authority_, Code::kInvalidArgument);
    }
    return context;
  }

  const std::string certificate_;
  const std::string key_;
  const std::string authority_;
  std::mutex mutex_;
  Stamps stamps_;
  Loaded loaded_;
  Status last_reload_;
};

}  // namespace

Result<std::shared_ptr<TlsContext>> TlsContext::Load(const std::string& dir) {
  auto context = std::make_shared<FileTlsContext>(dir);
  TK_RETURN_IF_ERROR(context->Start());
  return std::shared_ptr<TlsContext>(std::move(context));
}

}  // namespace tierkeep
