#include "io/http.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "io/socket_util.h"
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
  // What a process that was killed leaves behind.
  void LeaveSocket() {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un address {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }

  TempDir temp_;
  std::string path_ = temp_.Path("admin.sock");
};

TEST_F(HttpTest, AnswersOverTheUnixSocketOnly) {
  const mode_t before = ::umask(0);
  auto server = HttpServer::ListenUnix(path_, Echo);
  ::umask(before);
  ASSERT_TRUE(server.ok()) << server.error().ToString();
  struct stat s {};
  ASSERT_EQ(::stat(path_.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600u);
  EXPECT_EQ((*server)->port(), 0);
  auto got = HttpOverUnix(path_, "GET", "/v1/status?a=b", "", 30s);
  ASSERT_TRUE(got.ok()) << got.error().ToString();
  EXPECT_EQ(got->status, 200);
  EXPECT_EQ(got->content_type, "text/plain");
  EXPECT_EQ(got->body, "GET /v1/status [a=b] ");
  got = HttpOverUnix(path_, "POST", "/v1/verify", "hello", 30s);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->body, "POST /v1/verify [] hello");
  got = HttpOverUnix(path_, "GET", "/missing", "", 30s);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->status, 404);
}

TEST_F(HttpTest, CarriesLargeBodies) {
  auto server = HttpServer::ListenUnix(path_, [](const HttpRequest& r) {
    return HttpResponse{200, "text/plain", r.body + r.body};
  });
  ASSERT_TRUE(server.ok());
  const std::string body(1 << 20, 'x');
  const auto got = HttpOverUnix(path_, "POST", "/", body, 30s);
  ASSERT_TRUE(got.ok()) << got.error().ToString();
  EXPECT_EQ(got->status, 200);
  EXPECT_TRUE(got->body == body + body);
}

TEST_F(HttpTest, TooLargeABodyIsRefused) {
  auto server = HttpServer::ListenUnix(path_, Echo);
  ASSERT_TRUE(server.ok());
  const auto got = HttpOverUnix(path_, "POST", "/", std::string((1u << 20) + 1, 'x'), 30s);
  ASSERT_TRUE(got.ok()) << got.error().ToString();
  EXPECT_EQ(got->status, 413);
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
  struct stat s {};
  EXPECT_NE(::lstat(path_.c_str(), &s), 0);  // removed at the end

  ASSERT_NO_FATAL_FAILURE(LeaveSocket());
  {
    auto server = HttpServer::ListenUnix(path_, Echo);
    ASSERT_TRUE(server.ok()) << server.error().ToString();
    EXPECT_TRUE(HttpOverUnix(path_, "GET", "/", "", 30s).ok());
    // A file that took the socket's place meanwhile isn't removed.
    ASSERT_TRUE(temp_.dir().Unlink("admin.sock").ok());
    std::ofstream(path_) << "a file";
  }
  const auto on_file = HttpServer::ListenUnix(path_, Echo);
  ASSERT_FALSE(on_file.ok());
  EXPECT_THAT(on_file.error().message(), HasSubstr("not a socket"));
}

TEST_F(HttpTest, OfManyThatStartAtOnceOneServes) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_NO_FATAL_FAILURE(LeaveSocket());
    constexpr size_t kServers = 4;
    std::array<std::unique_ptr<HttpServer>, kServers> servers;
    std::latch start(kServers);
    {
      std::vector<std::jthread> threads;
      for (auto& server : servers) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          auto made = HttpServer::ListenUnix(path_, Echo);
          if (made.ok()) server = std::move(*made);
        });
      }
    }
    EXPECT_EQ(std::count_if(servers.begin(), servers.end(), [](auto& s) { return s != nullptr; }),
              1);
    EXPECT_TRUE(HttpOverUnix(path_, "GET", "/", "", 30s).ok());
  }
}

TEST_F(HttpTest, BadPathsAreErrors) {
  const auto too_long = HttpServer::ListenUnix("/" + std::string(200, 'x'), Echo);
  ASSERT_FALSE(too_long.ok());
  EXPECT_EQ(too_long.error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(HttpServer::ListenUnix(temp_.Path("none/admin.sock"), Echo).ok());
  EXPECT_FALSE(HttpOverUnix("/" + std::string(200, 'x'), "GET", "/", "", 1s).ok());
}

TEST_F(HttpTest, AnAnswerThatTakesTooLongIsADeadline) {
  std::atomic<bool> done{false};
  auto server = HttpServer::ListenUnix(path_, [&](const HttpRequest&) {
    done.wait(false);
    return HttpResponse{};
  });
  ASSERT_TRUE(server.ok());
  const auto got = HttpOverUnix(path_, "GET", "/", "", 100ms);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code(), Code::kDeadlineExceeded);
  done = true;
  done.notify_all();
}

class RawClient {
 public:
  explicit RawClient(uint16_t port) {
    const SocketAddress address =
        (*ResolveAddress({"127.0.0.1", port}, NameLookup::kNumericOnly))[0];
    fd_ = std::move(*NewTcpSocket(address, 0));
    EXPECT_TRUE(ConnectWithin(fd_.get(), address, 30s).ok());
    MakeBlocking(fd_.get(), 30s);
  }
  void Send(std::string_view text) {
    EXPECT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(fd_.get(), buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }

 private:
  UniqueFd fd_;
};

TEST_F(HttpTest, ServesOverTcpOnAnyFreePort) {
  auto server = HttpServer::ListenTcp({"127.0.0.1", 0}, Echo);
  ASSERT_TRUE(server.ok()) << server.error().ToString();
  ASSERT_GT((*server)->port(), 0);
  RawClient client((*server)->port());
  client.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = client.ReadAll();
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("GET /metrics [] "));
  const auto taken = HttpServer::ListenTcp({"127.0.0.1", (*server)->port()}, Echo);
  ASSERT_FALSE(taken.ok());  // two agents can't share a port unnoticed
  EXPECT_EQ(taken.error().code(), Code::kAlreadyExists);
}

TEST_F(HttpTest, BadRequestsGetAnAnswerOrAreClosed) {
  auto server = HttpServer::ListenTcp({"127.0.0.1", 0}, Echo);
  ASSERT_TRUE(server.ok());
  for (const std::string& bad :
       {std::string("nonsense\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("DELETE / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"),
        "GET /" + std::string(9000, 'x') + " HTTP/1.1\r\n\r\n",
        std::string("\0\xff\0\r\n\r\n", 7)}) {
    RawClient client((*server)->port());
    client.Send(bad);
    EXPECT_THAT(client.ReadAll(), testing::Not(HasSubstr("200 OK"))) << bad.substr(0, 40);
  }
  RawClient good((*server)->port());
  good.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(good.ReadAll(), HasSubstr("200 OK"));
}

TEST_F(HttpTest, DestructionDoesNotWaitForClientsThatSayNothing) {
  auto server = HttpServer::ListenTcp({"127.0.0.1", 0}, Echo);
  ASSERT_TRUE(server.ok());
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(std::make_unique<RawClient>((*server)->port()));
  clients[0]->Send("GET / HTT");
  const auto before = std::chrono::steady_clock::now();
  server->reset();
  // Far less than the time a client has for its request.
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(8));
  for (const auto& client : clients) EXPECT_EQ(client->ReadAll(), "");
}

TEST_F(HttpTest, ManyClientsAtOnceAreServed) {
  auto server = HttpServer::ListenUnix(path_, Echo);
  ASSERT_TRUE(server.ok());
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const auto got = HttpOverUnix(path_, "GET", "/", "", 30s);
        served += got.ok() && got->status == 200 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 400);
}

}  // namespace
}  // namespace tierkeep
