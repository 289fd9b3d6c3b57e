#include "io/socket_util.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace tierkeep {
namespace {

void SetInt(int fd, int level, int name, int value) {
  // Tuning: a socket without it still works.
  (void)::setsockopt(fd, level, name, &value, sizeof(value));
}

// A fixed buffer turns the kernel's own tuning off, so one that the limit would cut to less than
// the tuning reaches does harm. Administrators get the size by the forcing form.
void SetBuffer(int fd, int force_name, int name, const char* limit_path, int bytes) {
  if (::setsockopt(fd, SOL_SOCKET, force_name, &bytes, sizeof(bytes)) == 0) return;
  int limit = 0;
  std::ifstream(limit_path) >> limit;
  if (limit >= std::min(bytes, 4 << 20)) SetInt(fd, SOL_SOCKET, name, bytes);
}

void SetBuffers(int fd, int bytes) {
  if (bytes <= 0) return;
  SetBuffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, "/proc/sys/net/core/wmem_max", bytes);
  SetBuffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, "/proc/sys/net/core/rmem_max", bytes);
}

struct timeval ToTimeval(Duration d) {
  const int64_t us = std::max<int64_t>(d / 1us, 1);  // zero would mean no limit
  struct timeval t {};
  t.tv_sec = us / 1000000;
  t.tv_usec = us % 1000000;
  return t;
}

}  // namespace

std::string HostPort::ToString() const {
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

HostPort SocketAddress::ToHostPort() const {
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  HostPort out;
  if (::getnameinfo(get(), bytes, host, sizeof(host), service, sizeof(service),
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
    out.host = host;
    // An IPv4 peer of a socket that listens on both.
    if (out.host.starts_with("::ffff:")) out.host.erase(0, 7);
    out.port = static_cast<uint16_t>(std::strtoul(service, nullptr, 10));
  }
  return out;
}

Result<std::vector<SocketAddress>> ResolveAddress(const HostPort& where, NameLookup lookup) {
  struct addrinfo hints {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (lookup == NameLookup::kNumericOnly ? AI_NUMERICHOST : 0);
  struct addrinfo* list = nullptr;
  const int rc =
      ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &list);
  if (rc != 0) {
    const bool later = rc == EAI_AGAIN || rc == EAI_SYSTEM || rc == EAI_MEMORY;
    return Error(later ? Code::kUnavailable : Code::kNotFound,
                 "address of " + EscapeForLog(where.ToString()) + ": " + ::gai_strerror(rc));
  }
  const std::unique_ptr<struct addrinfo, void (*)(struct addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const struct addrinfo* one = list; one != nullptr; one = one->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.bytes = one->ai_addrlen;
    out.push_back(address);
  }
  return out;
}

Result<std::vector<SocketAddress>> ResolveWithin(const HostPort& where, Duration deadline,
                                                 AddressLookup lookup) {
  auto numeric = lookup(where, NameLookup::kNumericOnly);
  if (numeric.ok()) return numeric;
  static std::atomic<int> running{0};
  if (running.fetch_add(1) >= kHangingLookupsMax) {
    --running;
    return Error(Code::kUnavailable, "address of " + EscapeForLog(where.ToString()) +
                                         ": too many names are being looked up");
  }
  auto found = std::make_shared<std::promise<Result<std::vector<SocketAddress>>>>();
  auto future = found->get_future();
  try {
    std::thread([found, where, lookup = std::move(lookup)] {
      auto addresses = lookup(where, NameLookup::kAllowed);
      --running;
      found->set_value(std::move(addresses));
    }).detach();
  } catch (const std::system_error& e) {
    --running;
    return Error(Code::kResourceExhausted,
                 std::string("start a thread for a name lookup: ") + e.what());
  }
  if (future.wait_for(deadline) != std::future_status::ready) {
    return Error(Code::kDeadlineExceeded, "address of " + EscapeForLog(where.ToString()) +
                                              ": the name service didn't answer in time");
  }
  return future.get();
}

Result<UniqueFd> NewTcpSocket(const SocketAddress& address, int buffer_bytes) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "make a socket");
  SetBuffers(fd.get(), buffer_bytes);  // before connect or listen: they fix the window's scale
  return fd;
}

Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port, int buffer_bytes) {
  const HostPort where{host.empty() ? "::" : host, port};
  TK_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                      ResolveAddress(where, NameLookup::kAllowed));
  Result<UniqueFd> fd = NewTcpSocket(addresses[0], buffer_bytes);
  if (!fd.ok() && host.empty()) {  // no IPv6 on this machine
    TK_ASSIGN_OR_RETURN(addresses, ResolveAddress({"0.0.0.0", port}, NameLookup::kNumericOnly));
    fd = NewTcpSocket(addresses[0], buffer_bytes);
  }
  if (!fd.ok()) return std::move(fd.error());
  // A restarted agent gets its port back while old connections linger.
  SetInt(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (addresses[0].storage.ss_family == AF_INET6) SetInt(fd->get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(fd->get(), addresses[0].get(), addresses[0].bytes) != 0 ||
      ::listen(fd->get(), SOMAXCONN) != 0) {
    return ErrnoError(errno, "listen on " + EscapeForLog(where.ToString()));
  }
  return fd;
}

uint16_t LocalPort(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<struct sockaddr*>(&address.storage), &address.bytes) !=
      0) {
    return 0;
  }
  return address.ToHostPort().port;
}

Status ConnectWithin(int fd, const SocketAddress& address, Duration deadline) {
  const std::string what = "connect to " + address.ToHostPort().ToString();
  if (::connect(fd, address.get(), address.bytes) == 0) return OkStatus();
  if (errno != EINPROGRESS) return ErrnoError(errno, what);
  const auto end = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    const auto left = end - std::chrono::steady_clock::now();
    if (left <= 0s) return Error(Code::kDeadlineExceeded, what + ": no answer in time");
    struct pollfd poll_fd = {fd, POLLOUT, 0};
    const int n = ::poll(&poll_fd, 1, static_cast<int>(left / 1ms) + 1);
    if (n < 0 && errno != EINTR) return ErrnoError(errno, what);
    if (n > 0) break;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return ErrnoError(error, what);
  return OkStatus();
}

void SetTcpOptions(int fd, Duration stall_limit) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(ToMillis(stall_limit)));
}

void MakeBlocking(int fd, Duration stall_limit) {
  const int flags = ::fcntl(fd, F_GETFL);
  (void)::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  const struct timeval limit = ToTimeval(stall_limit);
  (void)::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

DescriptorReserve::DescriptorReserve() : reserve_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

bool DescriptorReserve::ShedOne(int listener) {
  if (!reserve_.valid()) {
    reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!reserve_.valid()) return false;
  }
  reserve_.Reset();
  UniqueFd dropped(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  dropped.Reset();
  reserve_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return reserve_.valid();
}

bool IsOutOfDescriptors(int errno_value) {
  return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOBUFS ||
         errno_value == ENOMEM;
}

}  // namespace tierkeep
