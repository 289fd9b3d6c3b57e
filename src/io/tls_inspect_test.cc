#include "io/tls_inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "io/clock.h"
#include "io/tls_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TlsInspect : public ::testing::Test {
 protected:
  TlsFileFacts Inspect(const std::string& name) {
    return InspectTlsFiles(temp_.Path(name), SystemClock().WallNow());
  }
  void Put(const std::string& path, const std::string& text) {
    std::ofstream(temp_.Path(path), std::ios::trunc) << text;
  }
  TempDir temp_;
  TestAuthority authority_;
};

TEST_F(TlsInspect, AGoodDirectoryIsGoodInEveryPart) {
  authority_.Issue(temp_.Path("node0"), "node0");
  const TlsFileFacts facts = Inspect("node0");
  EXPECT_TRUE(facts.certificate.ok() && facts.key.ok() && facts.authority.ok());
  EXPECT_TRUE(facts.key_matches.value());
  EXPECT_TRUE(facts.chain.ok()) << facts.chain.error().ToString();
  EXPECT_THAT(facts.subject, HasSubstr("node0"));
  EXPECT_LT(facts.not_before.value(), facts.not_after.value());
  EXPECT_TRUE(facts.authority_not_after.has_value());
}

TEST_F(TlsInspect, ExpiredAndStrangersCertificatesDoNotVerify) {
  authority_.Issue(temp_.Path("old"), "old", {.from = -7200s, .to = -3600s});
  EXPECT_THAT(Inspect("old").chain.error().message(), HasSubstr("expired"));
  TestAuthority other;
  authority_.Issue(temp_.Path("mine"), "mine");
  other.Issue(temp_.Path("theirs"), "theirs");
  fs::copy_file(temp_.Path("theirs/tls.crt"), temp_.Path("mine/tls.crt"),
                fs::copy_options::overwrite_existing);
  const TlsFileFacts facts = Inspect("mine");
  EXPECT_FALSE(facts.chain.ok());
  EXPECT_FALSE(facts.key_matches.value());
}

TEST_F(TlsInspect, EachBadFileIsNamed) {
  authority_.Issue(temp_.Path("n"), "n");
  Put("n/tls.key", "no key");
  EXPECT_EQ(Inspect("n").key.error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(Inspect("n").key_matches.has_value());
  EXPECT_TRUE(Inspect("n").chain.ok());
  ASSERT_EQ(::chmod(temp_.Path("n/tls.key").c_str(), 0644), 0);
  EXPECT_EQ(Inspect("n").key_mode, 0644U);
  fs::remove(temp_.Path("n/ca.crt"));
  EXPECT_EQ(Inspect("n").authority.error().code(), Code::kNotFound);
  Put("n/tls.crt", "");
  EXPECT_EQ(Inspect("n").certificate.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Inspect("none").certificate.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tierkeep
