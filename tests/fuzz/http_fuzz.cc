// Requests to the admin socket, byte for byte, and what the server makes of them. Connections are
// real, on a Unix socket in a folder of this process.

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/check.h"
#include "fuzz_target.h"
#include "io/http.h"
#include "io/unique_fd.h"

namespace tierkeep::fuzz {
namespace {

constexpr char kBody[] = "the answer";

class Server {
 public:
  Server() {
    TK_CHECK(::mkdtemp(folder_) != nullptr);
    path_ = std::string(folder_) + "/s";
    auto server = HttpServer::ListenUnix(path_, [this](const HttpRequest& r) {
      TK_CHECK(r.method == "GET" || r.method == "POST" || r.method == "HEAD");
      TK_CHECK(r.body.size() <= 1 << 20);
      ++handled_;
      return HttpResponse{200, "text/plain", kBody};
    });
    TK_CHECK(server.ok());
    server_ = std::move(*server);
  }
  ~Server() {
    server_.reset();
    ::rmdir(folder_);
  }
  const std::string& path() const { return path_; }
  int handled() const { return handled_; }

 private:
  char folder_[32] = "/tmp/tierkeep-fuzz-XXXXXX";
  std::string path_;
  std::atomic<int> handled_{0};
  std::unique_ptr<HttpServer> server_;
};

UniqueFd ConnectTo(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  TK_CHECK(::connect(fd.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

}  // namespace

void RunOne(std::string_view input) {
  static Server server;
  input = input.substr(0, 1 << 16);
  const int before = server.handled();
  const UniqueFd fd = ConnectTo(server.path());
  // The server may have answered and closed before all is sent.
  if (!input.empty()) (void)::send(fd.get(), input.data(), input.size(), MSG_NOSIGNAL);
  ::shutdown(fd.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
    TK_CHECK(answer.size() < 1 << 16);
  }
  // At most one request a connection; one that was handled is answered as the handler said.
  TK_CHECK(server.handled() - before <= 1);
  TK_CHECK(answer.empty() || answer.starts_with("HTTP/1."));
  const bool ok = answer.starts_with("HTTP/1.1 200");
  TK_CHECK(!ok || server.handled() == before + 1);
}

std::vector<std::string> Seeds() {
  return {"GET /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "GET /metrics?x=%41&y HTTP/1.0\r\nAccept-Encoding: gzip\r\nRange: bytes=0-3\r\n\r\n",
          "POST /v1/verify HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
          "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
          "POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 70"
          "\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nvalue\r\n--b--\r\n",
          "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
          "Content-Length: 9\r\nExpect: 100-continue\r\n\r\na=1&b=%2f",
          "HEAD / HTTP/1.1\r\nConnection: keep-alive\r\n\r\n",
          "OPTIONS * HTTP/1.1\r\n\r\n"};
}

}  // namespace tierkeep::fuzz
