#include "io/tls.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <cstdlib>
#include <fstream>

#include "io/clock.h"
#include "io/tls_testutil.h"

namespace tierkeep {
namespace {

template <typename R>
Code CodeOf(const R& result) {
  return result.has_value() ? Code::kOk : result.error().code();
}

class TlsContextTest : public testing::Test {
 protected:
  TestTls tls_;
};

TEST_F(TlsContextTest, KnowsWhenItExpires) {
  const auto context = tls_.Make("node");
  const WallTime now = SystemClock().WallNow();
  EXPECT_GT(context->NotAfter(), now + 3500s);
  EXPECT_LT(context->NotAfter(), now + 3700s);
}

TEST_F(TlsContextTest, ReloadsWhenFilesChange) {
  const auto context = tls_.Make("node");
  const auto before = context->Server();
  EXPECT_EQ(context->Server(), before);
  EXPECT_EQ(context->Client(), context->Client());
  tls_.authority.Issue(tls_.temp.Path("node"), "node", {std::chrono::seconds(-10), 2h});
  EXPECT_NE(context->Server(), before);
  EXPECT_GT(context->NotAfter(), SystemClock().WallNow() + Duration(100min));
  EXPECT_TRUE(context->last_reload().ok());
}

TEST_F(TlsContextTest, KeepsWhatItHasWhileNewFilesAreBad) {
  const auto context = tls_.Make("node");
  const auto before = context->Server();
  // Half of a replacement: the new certificate with the old key.
  tls_.authority.Issue(tls_.temp.Path("new"), "new");
  ASSERT_TRUE(tls_.temp.dir().Rename("new/tls.crt", "node/tls.crt").ok());
  EXPECT_EQ(context->Server(), before);
  EXPECT_EQ(CodeOf(context->last_reload()), Code::kInvalidArgument);
  ASSERT_TRUE(tls_.temp.dir().Rename("new/tls.key", "node/tls.key").ok());
  const auto after = context->Server();
  EXPECT_NE(after, before);
  EXPECT_TRUE(context->last_reload().ok());
  ASSERT_TRUE(tls_.temp.dir().Unlink("node/ca.crt").ok());
  EXPECT_EQ(context->Server(), after);
  EXPECT_EQ(CodeOf(context->last_reload()), Code::kNotFound);
}

TEST_F(TlsContextTest, BadDirectoriesAreNamed) {
  EXPECT_EQ(CodeOf(TlsContext::Load(tls_.temp.Path("none"))), Code::kNotFound);
  for (const char* file : {"tls.crt", "tls.key", "ca.crt"}) {
    tls_.authority.Issue(tls_.temp.Path("bad"), "bad");
    ASSERT_TRUE(
        tls_.temp.dir().WriteFileAtomically(std::string("bad/") + file, "no PEM", 0600).ok());
    const auto loaded = TlsContext::Load(tls_.temp.Path("bad"));
    ASSERT_EQ(CodeOf(loaded), Code::kInvalidArgument) << file;
    EXPECT_NE(loaded.error().message().find(file), std::string::npos) << loaded.error().ToString();
  }
}

TEST(MakeTestCertsTest, TheScriptMakesUsableDirectories) {
  TempDir temp;
  const std::string command =
      std::string(TIERKEEP_SOURCE_DIR "/scripts/make-test-certs.sh ") + temp.path() + " a b";
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const char* name : {"a", "b"}) {
    const auto context = TlsContext::Load(temp.Path(name));
    ASSERT_TRUE(context.ok()) << context.error().ToString();
    EXPECT_GT((*context)->NotAfter(), SystemClock().WallNow() + Duration(24h));
  }
}

}  // namespace
}  // namespace tierkeep
