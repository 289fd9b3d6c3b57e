#include "io/tls_testutil.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <atomic>
#include <functional>

#include "base/check.h"

namespace tierkeep {
namespace {

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  TK_CHECK(extension != nullptr);
  TK_CHECK(X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

X509* NewCertificate(EVP_PKEY* key, const std::string& name, TestAuthority::Validity validity) {
  static std::atomic<long> serial{1};
  X509* certificate = X509_new();
  TK_CHECK(certificate != nullptr);
  TK_CHECK(X509_set_version(certificate, X509_VERSION_3) == 1);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), validity.from.count());
  X509_gmtime_adj(X509_getm_notAfter(certificate), validity.to.count());
  X509_NAME* subject = X509_get_subject_name(certificate);
  TK_CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                      0) == 1);
  TK_CHECK(X509_set_pubkey(certificate, key) == 1);
  return certificate;
}

std::string Pem(const std::function<int(BIO*)>& write) {
  BIO* bio = BIO_new(BIO_s_mem());
  TK_CHECK(write(bio) == 1);
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(bytes));
  BIO_free(bio);
  return text;
}

std::string CertificatePem(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

TestAuthority::TestAuthority() : key_(EVP_EC_gen("P-256")) {
  TK_CHECK(key_ != nullptr);
  certificate_ = NewCertificate(key_, "test authority", {});
  TK_CHECK(X509_set_issuer_name(certificate_, X509_get_subject_name(certificate_)) == 1);
  AddExtension(certificate_, certificate_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_, certificate_, NID_key_usage, "critical,keyCertSign,cRLSign");
  TK_CHECK(X509_sign(certificate_, key_, EVP_sha256()) > 0);
}

TestAuthority::~TestAuthority() {
  X509_free(certificate_);
  EVP_PKEY_free(key_);
}

void TestAuthority::Issue(const std::string& dir, const std::string& name,
                          Validity validity) const {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  TK_CHECK(key != nullptr);
  X509* certificate = NewCertificate(key, name, validity);
  TK_CHECK(X509_set_issuer_name(certificate, X509_get_subject_name(certificate_)) == 1);
  AddExtension(certificate, certificate_, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(certificate, certificate_, NID_key_usage, "critical,digitalSignature");
  AddExtension(certificate, certificate_, NID_ext_key_usage, "serverAuth,clientAuth");
  TK_CHECK(X509_sign(certificate, key_, EVP_sha256()) > 0);
  const size_t slash = dir.rfind('/');
  const Result<std::unique_ptr<Dir>> parent = OpenPosixDir(dir.substr(0, slash));
  TK_CHECK_MSG(parent.ok(), parent.error().ToString());
  const std::string last = dir.substr(slash + 1);
  TK_CHECK((*parent)->MakeDirs(last, 0700).ok());
  const auto write = [&](const std::string& file, const std::string& content) {
    const Status written = (*parent)->WriteFileAtomically(last + "/" + file, content, 0600);
    TK_CHECK_MSG(written.ok(), written.error().ToString());
  };
  write("tls.crt", CertificatePem(certificate));
  write("tls.key", Pem([&](BIO* bio) {
          return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
        }));
  write("ca.crt", CertificatePem(certificate_));
  X509_free(certificate);
  EVP_PKEY_free(key);
}

TestTls::TestTls() = default;

std::shared_ptr<TlsContext> TestTls::Make(const std::string& name,
                                          TestAuthority::Validity validity) {
  authority.Issue(temp.Path(name), name, validity);
  Result<std::shared_ptr<TlsContext>> context = TlsContext::Load(temp.Path(name));
  TK_CHECK_MSG(context.ok(), context.error().ToString());
  return std::move(*context);
}

}  // namespace tierkeep
