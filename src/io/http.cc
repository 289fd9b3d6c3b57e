#include "io/http.h"

#include <httplib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "io/unique_fd.h"

namespace tierkeep {
namespace {

constexpr size_t kBodyBytesMax = 1u << 20;
constexpr size_t kServerThreads = 2;
constexpr time_t kSocketTimeoutSeconds = 10;

// Whether a live process accepts connections there.
bool Answers(const std::string& path) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (fd.get() < 0 || path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

class LibraryServer : public HttpServer {
 public:
  LibraryServer(HttpHandler handler, std::string unlink_path)
      : handler_(std::move(handler)), unlink_path_(std::move(unlink_path)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kServerThreads); };
    server_.set_payload_max_length(kBodyBytesMax);
    // One request a connection: the library polls idle connections every 10 ms otherwise.
    server_.set_keep_alive_max_count(1);
    server_.set_read_timeout(kSocketTimeoutSeconds);
    server_.set_write_timeout(kSocketTimeoutSeconds);
    const auto serve = [this](const httplib::Request& in, httplib::Response& out) {
      const size_t question = in.target.find('?');
      HttpResponse answer =
          handler_({in.method, in.path,
                    question == std::string::npos ? "" : in.target.substr(question + 1), in.body});
      out.status = answer.status;
      out.set_content(std::move(answer.body), answer.content_type.c_str());
    };
    server_.Get(".*", serve);
    server_.Post(".*", serve);
  }

  ~LibraryServer() override {
    // Stop has no effect before the accept loop runs; it is entered soon, since bind succeeded.
    while (thread_.joinable() && !server_.is_running()) std::this_thread::yield();
    server_.stop();
    if (thread_.joinable()) thread_.join();
    if (!unlink_path_.empty()) ::unlink(unlink_path_.c_str());
  }

  Status BindUnix() {
    server_.set_address_family(AF_UNIX);
    // Made with the mode that it keeps: nobody else can connect in between.
    const mode_t before = ::umask(0177);
    const bool bound = server_.bind_to_port(unlink_path_, 80);
    const int error = errno;
    ::umask(before);
    if (!bound) {
      const std::string path = std::exchange(unlink_path_, "");
      return ErrnoError(error, "listen on " + path);
    }
    return OkStatus();
  }

  Status BindTcp(const HostPort& at) {
    errno = 0;
    if (at.port == 0) {
      const int port = server_.bind_to_any_port(at.host);
      if (port <= 0) return ErrnoError(errno ? errno : EADDRNOTAVAIL, "listen on " + at.host);
      port_ = static_cast<uint16_t>(port);
      return OkStatus();
    }
    if (!server_.bind_to_port(at.host, at.port)) {
      return ErrnoError(errno ? errno : EADDRINUSE, "listen on " + at.ToString());
    }
    port_ = at.port;
    return OkStatus();
  }

  void Start() {
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }

  uint16_t port() const override { return port_; }

 private:
  const HttpHandler handler_;
  std::string unlink_path_;
  uint16_t port_ = 0;
  httplib::Server server_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::ListenUnix(const std::string& path,
                                                           HttpHandler handler) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Error(Code::kInvalidArgument, "the socket's path has more than 107 bytes: " + path);
  }
  struct stat there {};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode)) {
      return Error(Code::kAlreadyExists, path + " is there and is not a socket");
    }
    if (Answers(path)) {
      return Error(Code::kAlreadyExists, "another process listens on " + path);
    }
    if (::unlink(path.c_str()) != 0) return ErrnoError(errno, "remove the old socket " + path);
  }
  auto server = std::make_unique<LibraryServer>(std::move(handler), path);
  TK_RETURN_IF_ERROR(server->BindUnix());
  server->Start();
  return std::unique_ptr<HttpServer>(std::move(server));
}

Result<std::unique_ptr<HttpServer>> HttpServer::ListenTcp(const HostPort& at, HttpHandler handler) {
  auto server = std::make_unique<LibraryServer>(std::move(handler), "");
  TK_RETURN_IF_ERROR(server->BindTcp(at));
  server->Start();
  return std::unique_ptr<HttpServer>(std::move(server));
}

Result<HttpResponse> HttpOverUnix(const std::string& socket_path, const std::string& method,
                                  const std::string& path, const std::string& body,
                                  Duration deadline) {
  httplib::Client client(socket_path);
  client.set_address_family(AF_UNIX);
  client.set_connection_timeout(deadline);
  client.set_read_timeout(deadline);
  client.set_write_timeout(deadline);
  const httplib::Result result =
      method == "POST" ? client.Post(path, body, "application/octet-stream") : client.Get(path);
  if (!result) {
    if (result.error() == httplib::Error::Connection) {
      return Error(Code::kUnavailable, "nobody listens on " + socket_path);
    }
    return Error(Code::kDeadlineExceeded,
                 "no whole answer from " + socket_path + " within " + FormatDuration(deadline));
  }
  HttpResponse out;
  out.status = result->status;
  out.content_type = result->get_header_value("Content-Type");
  out.body = result->body;
  return out;
}

}  // namespace tierkeep
