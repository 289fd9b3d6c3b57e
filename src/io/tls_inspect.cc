#include "io/tls_inspect.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <time.h>

#include <cerrno>
#include <memory>

#include "base/log.h"

namespace tierkeep {
namespace {

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* p) const {
    Free(p);
  }
};
using BioPtr = std::unique_ptr<BIO, Deleter<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, Deleter<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

int NoPassphrase(char*, int, int, void*) { return 0; }

Result<BioPtr> Open(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return ErrnoError(errno, "TLS file " + EscapeForLog(path));
  BioPtr bio(BIO_new_file(path.c_str(), "r"));
  ERR_clear_error();
  if (!bio)
    return Error(Code::kPermissionDenied, "TLS file " + EscapeForLog(path) + ": unreadable");
  return bio;
}

Error NotA(const std::string& path, std::string_view what) {
  ERR_clear_error();
  return Error(Code::kInvalidArgument,
               fmt::format("TLS file {}: no {} in PEM form", EscapeForLog(path), what));
}

// Every certificate of the file, in order.
Result<std::vector<CertificatePtr>> ReadCertificates(const std::string& path) {
  TK_ASSIGN_OR_RETURN(const BioPtr bio, Open(path));
  std::vector<CertificatePtr> certificates;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(next);
  }
  if (certificates.empty()) return NotA(path, "certificate");
  ERR_clear_error();  // the end of the file
  return certificates;
}

Result<KeyPtr> ReadKey(const std::string& path) {
  TK_ASSIGN_OR_RETURN(const BioPtr bio, Open(path));
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  if (!key) return NotA(path, "private key without a passphrase");
  return key;
}

std::optional<WallTime> TimeOf(const ASN1_TIME* time) {
  struct tm parts {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return std::nullopt;
  return WallTime(std::chrono::seconds(::timegm(&parts)));
}

std::string SubjectOf(X509* certificate) {
  BioPtr out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_ONELINE);
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &text);
  return EscapeForLog(std::string_view(text, static_cast<size_t>(bytes)));
}

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const std::unique_ptr<GENERAL_NAMES, Deleter<GENERAL_NAMES_free>> all(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; all && i < sk_GENERAL_NAME_num(all.get()); ++i) {
    BioPtr out(BIO_new(BIO_s_mem()));
    GENERAL_NAME_print(out.get(), sk_GENERAL_NAME_value(all.get(), i));
    char* text = nullptr;
    const long bytes = BIO_get_mem_data(out.get(), &text);
    names.push_back(EscapeForLog(std::string_view(text, static_cast<size_t>(bytes))));
  }
  return names;
}

// What both ends do when they meet: the chain to an authority, within everybody's validity.
Status VerifyChain(const std::vector<CertificatePtr>& own,
                   const std::vector<CertificatePtr>& authorities, WallTime now) {
  const std::unique_ptr<X509_STORE, Deleter<X509_STORE_free>> store(X509_STORE_new());
  for (const auto& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  STACK_OF(X509)* rest = sk_X509_new_null();
  for (size_t i = 1; i < own.size(); ++i) sk_X509_push(rest, own[i].get());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch());
  std::string why;
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const std::unique_ptr<X509_STORE_CTX, Deleter<X509_STORE_CTX_free>> context(
        X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), own.front().get(), rest);
    X509_STORE_CTX_set_time(context.get(), 0, seconds.count());
    X509_STORE_CTX_set_purpose(context.get(), purpose);
    if (X509_verify_cert(context.get()) == 1) continue;
    why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
    break;
  }
  sk_X509_free(rest);
  ERR_clear_error();
  if (why.empty()) return OkStatus();
  return Error(Code::kUnauthenticated, why);
}

}  // namespace

TlsFileFacts InspectTlsFiles(const std::string& dir, WallTime now) {
  TlsFileFacts facts;
  const auto own = ReadCertificates(dir + "/tls.crt");
  const auto key = ReadKey(dir + "/tls.key");
  const auto authorities = ReadCertificates(dir + "/ca.crt");
  if (!own.ok()) facts.certificate = own.error();
  if (!key.ok()) facts.key = key.error();
  if (!authorities.ok()) facts.authority = authorities.error();
  struct stat st;
  if (::stat((dir + "/tls.key").c_str(), &st) == 0) facts.key_mode = st.st_mode & 07777;
  if (authorities.ok()) {
    facts.authority_not_after = TimeOf(X509_get0_notAfter(authorities->front().get()));
  }
  if (!own.ok()) return facts;
  X509* certificate = own->front().get();
  facts.subject = SubjectOf(certificate);
  facts.names = NamesOf(certificate);
  facts.not_before = TimeOf(X509_get0_notBefore(certificate));
  facts.not_after = TimeOf(X509_get0_notAfter(certificate));
  if (key.ok()) {
    facts.key_matches = X509_check_private_key(certificate, key->get()) == 1;
    ERR_clear_error();
  }
  if (authorities.ok()) facts.chain = VerifyChain(*own, *authorities, now);
  return facts;
}

}  // namespace tierkeep
