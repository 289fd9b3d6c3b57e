#include "io/http.h"

#include <fcntl.h>
#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "io/socket_util.h"
#include "io/unique_fd.h"

namespace tierkeep {
namespace {

constexpr size_t kBodyBytesMax = 1u << 20;
constexpr size_t kServerThreads = 2;
// Connections that wait for a thread; more are closed at once.
constexpr size_t kWaitingMax = 64;
// For a whole request to arrive, and again for the answer to leave.
constexpr auto kTransferLimit = std::chrono::seconds(10);
// For the client to close after its answer.
constexpr auto kDrainLimit = std::chrono::seconds(1);
constexpr int kAcceptPauseMs = 100;

// A connection as the library wants to see it. The library's own server polls idle connections,
// gives a slow client its limit anew for each byte, and ends for good when accept fails once; so
// only its parser is used.
class RequestStream : public httplib::Stream {
 public:
  RequestStream(int fd, int stop_fd, std::chrono::seconds read_limit)
      : fd_(fd), stop_fd_(stop_fd), read_by_(Clock::now() + read_limit) {}

  bool is_readable() const override { return begin_ < end_ || Wait(POLLIN, read_by_); }
  bool is_writable() const override { return Wait(POLLOUT, WriteBy()); }

  ssize_t read(char* out, size_t size) override {
    if (begin_ == end_) {
      if (!Wait(POLLIN, read_by_)) return -1;
      const ssize_t n = ::recv(fd_, buffer_.data(), buffer_.size(), 0);
      if (n <= 0) return n;
      begin_ = 0;
      end_ = static_cast<size_t>(n);
    }
    const size_t n = std::min(size, end_ - begin_);
    std::memcpy(out, buffer_.data() + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* data, size_t size) override {
    if (!Wait(POLLOUT, WriteBy())) return -1;
    return ::send(fd_, data, size, MSG_NOSIGNAL);
  }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  using Clock = std::chrono::steady_clock;

  // The answer's time begins with its first byte: the handler may have taken long.
  Clock::time_point WriteBy() const {
    if (!write_by_) write_by_ = Clock::now() + kTransferLimit;
    return *write_by_;
  }

  // False when the time is over, or, for reading, when the server stops.
  bool Wait(short events, Clock::time_point by) const {
    for (;;) {
      const auto left = by - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      struct pollfd fds[2] = {{fd_, events, 0}, {stop_fd_, POLLIN, 0}};
      const int n = ::poll(fds, events == POLLIN ? 2 : 1, static_cast<int>(left / 1ms) + 1);
      if (n < 0 && errno != EINTR) return false;
      if (n > 0 && fds[0].revents != 0) return true;
      if (n > 0) return false;
    }
  }

  const int fd_;
  const int stop_fd_;
  const Clock::time_point read_by_;
  mutable std::optional<Clock::time_point> write_by_;
  std::array<char, 4096> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Turns one connection's bytes into a request for the handler and the answer into bytes.
class Dispatcher : public httplib::Server {
 public:
  explicit Dispatcher(HttpHandler handler) : handler_(std::move(handler)) {
    set_payload_max_length(kBodyBytesMax);
    const auto serve = [this](const httplib::Request& in, httplib::Response& out) {
      const size_t question = in.target.find('?');
      const HttpResponse answer =
          handler_({in.method, in.path,
                    question == std::string::npos ? "" : in.target.substr(question + 1), in.body});
      out.status = answer.status;
      out.set_content(answer.body, answer.content_type);
    };
    Get(".*", serve);
    Post(".*", serve);
  }

  void Serve(RequestStream& stream) {
    bool closed = false;
    (void)process_request(stream, /*close_connection=*/true, closed, nullptr);
  }

 private:
  const HttpHandler handler_;
};

// A socket file that this process made; removed at the end if it is still the same.
class SocketFile {
 public:
  SocketFile() = default;
  SocketFile(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {
    struct stat st {};
    if (::lstat(path_.c_str(), &st) == 0) inode_ = st.st_ino;
  }
  SocketFile(SocketFile&& other) noexcept
      : path_(std::exchange(other.path_, "")),
        inode_(other.inode_),
        lock_(std::move(other.lock_)) {}
  ~SocketFile() {
    struct stat st {};
    if (path_.empty() || ::lstat(path_.c_str(), &st) != 0 || st.st_ino != inode_) return;
    ::unlink(path_.c_str());
  }

 private:
  std::string path_;
  ino_t inode_ = 0;
  UniqueFd lock_;
};

class ThreadedServer : public HttpServer {
 public:
  ThreadedServer(UniqueFd listener, UniqueFd stop, SocketFile file, uint16_t port,
                 HttpHandler handler)
      : listener_(std::move(listener)),
        stop_(std::move(stop)),
        file_(std::move(file)),
        port_(port),
        dispatcher_(std::move(handler)) {
    acceptor_ = std::thread([this] { AcceptLoop(); });
    for (std::thread& worker : workers_) worker = std::thread([this] { WorkLoop(); });
  }

  ~ThreadedServer() override {
    const uint64_t one = 1;
    TK_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    acceptor_.join();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  uint16_t port() const override { return port_; }

 private:
  void AcceptLoop() {
    DescriptorReserve reserve;
    int timeout_ms = -1;
    for (;;) {
      struct pollfd fds[2] = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      const int n = ::poll(fds, timeout_ms < 0 ? 2 : 1, timeout_ms);
      if (n > 0 && fds[0].revents != 0) return;
      timeout_ms = -1;
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd.valid()) {
        if (IsOutOfDescriptors(errno) && !reserve.ShedOne(listener_.get())) {
          timeout_ms = kAcceptPauseMs;
        }
        continue;
      }
      const std::lock_guard lock(mutex_);
      if (waiting_.size() >= kWaitingMax) continue;
      waiting_.push_back(std::move(fd));
      work_.notify_one();
    }
  }

  void WorkLoop() {
    for (;;) {
      UniqueFd fd;
      {
        std::unique_lock lock(mutex_);
        work_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_) return;
        fd = std::move(waiting_.front());
        waiting_.pop_front();
      }
      RequestStream stream(fd.get(), stop_.get(), kTransferLimit);
      dispatcher_.Serve(stream);
      FinishSending(fd.get());
    }
  }

  // What a client still sends (a body that was refused, say) must not reset the connection before
  // it has read the answer.
  void FinishSending(int fd) {
    ::shutdown(fd, SHUT_WR);
    char rest[4096];
    RequestStream drain(fd, stop_.get(), kDrainLimit);
    for (size_t total = 0; total < 4 * kBodyBytesMax;) {
      const ssize_t n = drain.read(rest, sizeof(rest));
      if (n <= 0) return;
      total += static_cast<size_t>(n);
    }
  }

  const UniqueFd listener_;
  const UniqueFd stop_;
  const SocketFile file_;
  const uint16_t port_;
  Dispatcher dispatcher_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<UniqueFd> waiting_;
  bool stopping_ = false;
  std::thread acceptor_;
  std::array<std::thread, kServerThreads> workers_;
};

Result<std::unique_ptr<HttpServer>> StartServer(UniqueFd listener, SocketFile file, uint16_t port,
                                                HttpHandler handler) {
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoError(errno, "start an HTTP server");
  return std::unique_ptr<HttpServer>(std::make_unique<ThreadedServer>(
      std::move(listener), std::move(stop), std::move(file), port, std::move(handler)));
}

Result<struct sockaddr_un> UnixAddress(const std::string& path) {
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Error(Code::kInvalidArgument,
                 "the socket's path is empty or has more than 107 bytes: " + EscapeForLog(path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Whether a live process listens there. One whose queue is full (EAGAIN) does.
bool Answers(const struct sockaddr_un& address) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(fd.get(), reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)) ==
             0 ||
         errno == EAGAIN;
}

// Held as long as the socket is served: of two processes that start at once, both finding an old
// socket, one would else remove the other's new one. The file stays, for removing it would race
// likewise.
Result<UniqueFd> LockSocket(const std::string& path) {
  const std::string lock = path + ".lock";
  UniqueFd fd(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd.valid()) return ErrnoError(errno, "open " + EscapeForLog(lock));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(Code::kAlreadyExists, "another process listens on " + EscapeForLog(path));
  }
  return fd;
}

Status RemoveOldSocket(const std::string& path, const struct sockaddr_un& address) {
  const std::string shown = EscapeForLog(path);
  struct stat there {};
  if (::lstat(path.c_str(), &there) != 0) return OkStatus();  // bind will say what is wrong
  if (!S_ISSOCK(there.st_mode)) {
    return Error(Code::kAlreadyExists, shown + " is there and is not a socket");
  }
  if (Answers(address)) {
    return Error(Code::kAlreadyExists, "another process listens on " + shown);
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return ErrnoError(errno, "remove the old socket " + shown);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::ListenUnix(const std::string& path,
                                                           HttpHandler handler) {
  TK_ASSIGN_OR_RETURN(const struct sockaddr_un address, UnixAddress(path));
  TK_ASSIGN_OR_RETURN(UniqueFd lock, LockSocket(path));
  TK_RETURN_IF_ERROR(RemoveOldSocket(path, address));
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The file gets the socket's mode when it is made (man 7 unix), so that nobody else can connect
  // in between, and without a change of the whole process's umask.
  if (!fd.valid() || ::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const struct sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, "listen on " + EscapeForLog(path));
  }
  SocketFile file(path, std::move(lock));
  if (::listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoError(errno, "listen on " + EscapeForLog(path));
  }
  return StartServer(std::move(fd), std::move(file), 0, std::move(handler));
}

Result<std::unique_ptr<HttpServer>> HttpServer::ListenTcp(const HostPort& at, HttpHandler handler) {
  TK_ASSIGN_OR_RETURN(UniqueFd fd, tierkeep::ListenTcp(at.host, at.port, 0));
  const uint16_t port = LocalPort(fd.get());
  return StartServer(std::move(fd), SocketFile(), port, std::move(handler));
}

Result<HttpResponse> HttpOverUnix(const std::string& socket_path, const std::string& method,
                                  const std::string& path, const std::string& body,
                                  Duration deadline) {
  TK_RETURN_IF_ERROR(UnixAddress(socket_path));
  httplib::Client client(socket_path);
  client.set_address_family(AF_UNIX);
  client.set_connection_timeout(deadline);
  client.set_read_timeout(deadline);
  client.set_write_timeout(deadline);
  const httplib::Result result =
      method == "POST" ? client.Post(path, body, "application/octet-stream") : client.Get(path);
  if (!result) {
    const std::string shown = EscapeForLog(socket_path);
    if (result.error() == httplib::Error::Connection) {
      return Error(Code::kUnavailable, "nobody listens on " + shown);
    }
    return Error(Code::kDeadlineExceeded,
                 "no whole answer from " + shown + " within " + FormatDuration(deadline));
  }
  HttpResponse out;
  out.status = result->status;
  out.content_type = result->get_header_value("Content-Type");
  out.body = result->body;
  return out;
}

}  // namespace tierkeep
