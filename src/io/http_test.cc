#include "io/http.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>

#include "io/temp_dir_testutil.h"

namespace tierkeep {
namespace {

using ::testing::HasSubstr;

HttpResponse Echo(const HttpRequest& r) {
  return {r.path == "/missing" ? 404 : 200, "text/plain",
          r.method + " " + r.path + " [" + r.query + "] " + r.body};
}

class HttpTest : public ::testing::Test {
 protected:
  TempDir temp_;
  std::string path_ = temp_.Path("admin.sock");
};

TEST_F(HttpTest, AnswersOverTheUnixSocketOnly) {
  auto server = HttpServer::ListenUnix(path_, Echo);
  ASSERT_TRUE(server.ok()) << server.error().ToString();
  struct stat s {};
  ASSERT_EQ(::stat(path_.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  auto got = HttpOverUnix(path_, "GET", "/v1/status?a=b", "", 30s);
  ASSERT_TRUE(got.ok()) << got.error().ToString();
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->body, "GET /v1/status [a=b] ");
  got = HttpOverUnix(path_, "POST", "/v1/verify", "hello", 30s);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->body, "POST /v1/verify [] hello");
  got = HttpOverUnix(path_, "GET", "/missing", "", 30s);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->status, 404);
}

TEST_F(HttpTest, TooLargeABodyIsRefused) {
  auto server = HttpServer::ListenUnix(path_, Echo);
  ASSERT_TRUE(server.ok());
  const auto got = HttpOverUnix(path_, "POST", "/", std::string((1u << 20) + 1, 'x'), 30s);
  // Refused in the answer, or by closing while the body is still being sent.
  if (got.ok()) {
    EXPECT_EQ(got->status, 413);
  }
  EXPECT_TRUE(HttpOverUnix(path_, "GET", "/", "", 30s).ok());
}

TEST_F(HttpTest, ReplacesAnOldSocketButNeverALiveOneOrAFile) {
  {
    auto server = HttpServer::ListenUnix(path_, Echo);
    ASSERT_TRUE(server.ok());
    const auto second = HttpServer::ListenUnix(path_, Echo);
    ASSERT_FALSE(second.ok());
    EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
    EXPECT_TRUE(HttpOverUnix(path_, "GET", "/", "", 30s).ok());
  }
  const auto gone = HttpOverUnix(path_, "GET", "/", "", 30s);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code(), Code::kUnavailable);
  { std::ofstream(path_) << "a file"; }
  const auto on_file = HttpServer::ListenUnix(path_, Echo);
  ASSERT_FALSE(on_file.ok());
  EXPECT_THAT(on_file.error().message(), HasSubstr("not a socket"));
}

TEST_F(HttpTest, TcpTakesAnyFreePort) {
  auto server = HttpServer::ListenTcp({"127.0.0.1", 0}, Echo);
  ASSERT_TRUE(server.ok()) << server.error().ToString();
  EXPECT_GT((*server)->port(), 0);
}

}  // namespace
}  // namespace tierkeep
