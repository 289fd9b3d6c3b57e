#include "io/frame_network.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>
#include <variant>

#include "base/check.h"
#include "base/log.h"
#include "io/frame_connection.h"

namespace tierkeep {
namespace {

using Phase = FrameConnection::Phase;
using Origin = FrameConnection::Origin;

constexpr Duration kCloseLimit = 1s;
constexpr Duration kAcceptPause = 100ms;
constexpr uint64_t kWakeTag = 0;
constexpr uint64_t kListenerTag = 1;
constexpr ConnectionId kFirstId = 2;

int64_t NowNs() {
  struct timespec now;
  TK_CHECK(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

struct ConnectCommand {
  HostPort to;
};
struct ResolvedCommand {
  Result<std::vector<SocketAddress>> addresses;
};
struct SendCommand {
  std::string frame;
};
struct CloseCommand {};
struct Command {
  ConnectionId id;
  std::variant<ConnectCommand, ResolvedCommand, SendCommand, CloseCommand> what;
};

// Work for the network's thread. Shared with threads that look up names, which may outlive the
// network: a name service can block for longer than anybody wants to wait for at shutdown.
class CommandQueue {
 public:
  explicit CommandQueue(UniqueFd wake) : wake_(std::move(wake)) {}

  void Push(Command command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    if (commands_.size() == 1) Wake();
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    Wake();
  }
  // Empties the queue; false after Stop.
  bool Take(std::vector<Command>* out) {
    const std::lock_guard lock(mutex_);
    uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof(count));
    out->swap(commands_);
    return !stopped_;
  }
  int wake_fd() const { return wake_.get(); }

 private:
  void Wake() {
    const uint64_t one = 1;
    TK_CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  }

  std::mutex mutex_;
  std::vector<Command> commands_;
  bool stopped_ = false;
  const UniqueFd wake_;
};

class EpollFrameNetwork : public FrameNetwork {
 public:
  EpollFrameNetwork(const FrameNetworkOptions& options, FrameHandler* handler, UniqueFd listener,
                    UniqueFd epoll, std::shared_ptr<CommandQueue> queue)
      : options_(options),
        handler_(handler),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        queue_(std::move(queue)),
        port_(LocalPort(listener_.get())),
        scratch_(64 << 10, '\0'),
        thread_([this] { Run(); }) {}

  ~EpollFrameNetwork() override {
    TK_CHECK_MSG(std::this_thread::get_id() != thread_.get_id(),
                 "a network can't be destroyed by its own handler");
    queue_->Stop();
    thread_.join();
  }

  uint16_t port() const override { return port_; }
  ConnectionId Connect(const HostPort& to) override {
    const ConnectionId id = next_id_++;
    queue_->Push({id, ConnectCommand{to}});
    return id;
  }
  void Send(ConnectionId connection, std::string frame) override {
    TK_CHECK(frame.size() <= options_.frame_bytes_max);
    queue_->Push({connection, SendCommand{std::move(frame)}});
  }
  void Close(ConnectionId connection) override { queue_->Push({connection, CloseCommand{}}); }
  uint64_t rejected_frames() const override { return rejected_; }

 private:
  using Connections = std::map<ConnectionId, std::unique_ptr<FrameConnection>>;

  void Run();
  bool RunCommands();
  void Do(ConnectionId id, ConnectCommand command);
  void Do(ConnectionId id, ResolvedCommand command);
  void Do(ConnectionId id, SendCommand command);
  void Do(ConnectionId id, CloseCommand command);
  void TryNextAddress(FrameConnection& connection, Error last);
  void AcceptAll();
  void AddAccepted(UniqueFd fd, const SocketAddress& peer);
  bool MakeRoom();
  void Service(FrameConnection& connection);
  void AfterProgress(FrameConnection& connection);
  void Announce(FrameConnection& connection);
  void ExpireTimers();
  void EnforceQueueLimit();
  void SetDeadline(FrameConnection& connection, int64_t deadline_ns);
  void Register(FrameConnection& connection);
  void ListenFor(uint32_t events);
  void Drop(FrameConnection& connection, const Error& why);
  FrameConnection* Find(ConnectionId id);
  int TimeoutMs() const;
  std::shared_ptr<SSL_CTX> Context(Origin origin) {
    if (!options_.tls) return nullptr;
    return origin == Origin::kAccepted ? options_.tls->Server() : options_.tls->Client();
  }

  const FrameNetworkOptions options_;
  FrameHandler* const handler_;
  const UniqueFd listener_;
  const UniqueFd epoll_;
  const std::shared_ptr<CommandQueue> queue_;
  const uint16_t port_;
  std::atomic<ConnectionId> next_id_{kFirstId};
  std::atomic<uint64_t> rejected_{0};

  // The network's thread only.
  std::string scratch_;
  Connections connections_;
  std::set<std::pair<int64_t, ConnectionId>> timers_;  // kListenerTag: listen again
  std::set<ConnectionId> again_;                       // have more to do without an event
  std::set<ConnectionId> unproven_;                    // accepted, no frame yet; oldest first
  uint64_t queued_bytes_ = 0;                          // over all connections
  DescriptorReserve reserve_;

  std::thread thread_;  // last: it uses all the others
};

void EpollFrameNetwork::Run() {
  while (RunCommands()) {
    struct epoll_event events[256];
    const int n = ::epoll_wait(epoll_.get(), events, std::size(events), TimeoutMs());
    TK_CHECK_MSG(n >= 0 || errno == EINTR, "epoll_wait failed");
    std::set<ConnectionId> ready;
    ready.swap(again_);
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u64 == kListenerTag) {
        AcceptAll();
      } else if (events[i].data.u64 != kWakeTag) {
        ready.insert(events[i].data.u64);
      }
    }
    for (const ConnectionId id : ready) {
      if (FrameConnection* connection = Find(id)) Service(*connection);
    }
    ExpireTimers();
  }
  while (!connections_.empty()) {
    Drop(*connections_.begin()->second, Error(Code::kCancelled, "the network is shut down"));
  }
}

int EpollFrameNetwork::TimeoutMs() const {
  if (!again_.empty()) return 0;
  if (timers_.empty()) return -1;
  const int64_t left_ns = std::max<int64_t>(timers_.begin()->first - NowNs(), 0);
  return static_cast<int>(std::min<int64_t>((left_ns + 999999) / 1000000, 1 << 30));
}

bool EpollFrameNetwork::RunCommands() {
  std::vector<Command> commands;
  if (!queue_->Take(&commands)) {
    // Connections that were asked for and not even begun are reported as well.
    for (Command& command : commands) {
      if (std::holds_alternative<ConnectCommand>(command.what)) {
        handler_->OnClosed(command.id, Error(Code::kCancelled, "the network is shut down"));
      }
    }
    return false;
  }
  for (Command& command : commands) {
    std::visit([&](auto& what) { Do(command.id, std::move(what)); }, command.what);
  }
  return true;
}

FrameConnection* EpollFrameNetwork::Find(ConnectionId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void EpollFrameNetwork::SetDeadline(FrameConnection& connection, int64_t deadline_ns) {
  if (connection.deadline_ns != 0) timers_.erase({connection.deadline_ns, connection.id()});
  connection.deadline_ns = deadline_ns;
  if (deadline_ns != 0) timers_.insert({deadline_ns, connection.id()});
}

void EpollFrameNetwork::Register(FrameConnection& connection) {
  const uint32_t wanted = connection.interest();
  if (wanted == connection.registered) return;
  struct epoll_event event {};
  event.events = wanted;
  event.data.u64 = connection.id();
  const int operation = connection.registered == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), operation, connection.fd(), &event) == 0) {
    connection.registered = wanted;
    return;
  }
  // Out of kernel memory or watches: without events the connection would hang silently.
  Drop(connection, ErrnoError(errno, "watch a connection"));
}

void EpollFrameNetwork::Drop(FrameConnection& connection, const Error& why) {
  const ConnectionId id = connection.id();
  const bool report = connection.announced || connection.origin() == Origin::kRequested;
  SetDeadline(connection, 0);
  queued_bytes_ -= connection.queued_bytes();
  if (unproven_.erase(id) > 0 || connection.frame_too_long()) ++rejected_;
  again_.erase(id);
  connections_.erase(id);  // closes the socket, which leaves epoll by that
  if (report) handler_->OnClosed(id, why);
}

void EpollFrameNetwork::Do(ConnectionId id, ConnectCommand command) {
  if (!MakeRoom()) {
    return handler_->OnClosed(id, Error(Code::kResourceExhausted, "too many control connections"));
  }
  auto made = std::make_unique<FrameConnection>(id, Origin::kRequested, options_.frame_bytes_max);
  FrameConnection& connection = *made;
  connection.peer = command.to;
  connection.connect_by_ns = NowNs() + options_.connect_deadline.count();
  connections_.emplace(id, std::move(made));
  SetDeadline(connection, connection.connect_by_ns);
  Result<std::vector<SocketAddress>> numeric = ResolveAddress(command.to, NameLookup::kNumericOnly);
  if (numeric.ok()) return Do(id, ResolvedCommand{std::move(numeric)});
  try {
    std::thread([queue = queue_, id, to = std::move(command.to)] {
      queue->Push({id, ResolvedCommand{ResolveAddress(to, NameLookup::kAllowed)}});
    }).detach();
  } catch (const std::system_error& e) {
    Drop(connection, Error(Code::kResourceExhausted,
                           std::string("start a thread for a name lookup: ") + e.what()));
  }
}

void EpollFrameNetwork::Do(ConnectionId id, ResolvedCommand command) {
  FrameConnection* connection = Find(id);
  if (connection == nullptr) return;  // closed or expired while the name was looked up
  if (!command.addresses.ok()) return Drop(*connection, command.addresses.error());
  connection->addresses = std::move(*command.addresses);
  std::reverse(connection->addresses.begin(), connection->addresses.end());  // taken from the back
  TryNextAddress(*connection, Error(Code::kNotFound, "no address"));
}

void EpollFrameNetwork::TryNextAddress(FrameConnection& connection, Error last) {
  while (!connection.addresses.empty()) {
    const SocketAddress address = connection.addresses.back();
    Result<UniqueFd> fd = NewTcpSocket(address, 0);
    if (!fd.ok()) return Drop(connection, fd.error());
    // Each address gets an equal share of the time that is left.
    const int64_t now = NowNs();
    const auto attempts = static_cast<int64_t>(connection.addresses.size());
    SetDeadline(connection, now + (connection.connect_by_ns - now) / attempts);
    connection.addresses.pop_back();
    const int rc = ::connect(fd->get(), address.get(), address.bytes);
    if (rc == 0 || errno == EINPROGRESS) {
      connection.Attach(std::move(*fd), Context(Origin::kRequested), Phase::kConnecting);
      return Register(connection);
    }
    last = ErrnoError(errno, "connect to " + EscapeForLog(connection.peer.ToString()));
  }
  Drop(connection, last);
}

void EpollFrameNetwork::Do(ConnectionId id, SendCommand command) {
  FrameConnection* connection = Find(id);
  if (connection == nullptr) return;
  if (connection->phase() == Phase::kFlushing || connection->phase() == Phase::kDraining) return;
  const size_t before = connection->queued_bytes();
  connection->QueueFrame(command.frame);
  queued_bytes_ += connection->queued_bytes() - before;
  if (queued_bytes_ > options_.queued_bytes_max) EnforceQueueLimit();
  // Sent with all else that is queued by then, once the commands are done.
  if (Find(id) != nullptr && connection->phase() == Phase::kOpen) again_.insert(id);
}

void EpollFrameNetwork::Do(ConnectionId id, CloseCommand) {
  FrameConnection* connection = Find(id);
  if (connection == nullptr) return;
  switch (connection->phase()) {
    case Phase::kOpen:
      connection->StartClosing();
      SetDeadline(*connection, NowNs() + kCloseLimit.count());
      again_.insert(id);
      return;
    case Phase::kFlushing:
    case Phase::kDraining:
      return;
    default:
      Drop(*connection, Error(Code::kCancelled, "closed before it was connected"));
  }
}

void EpollFrameNetwork::EnforceQueueLimit() {
  while (queued_bytes_ > options_.queued_bytes_max) {
    const auto slowest = std::max_element(
        connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
          return a.second->queued_bytes() < b.second->queued_bytes();
        });
    TK_CHECK(slowest != connections_.end() && slowest->second->queued_bytes() > 0);
    Drop(*slowest->second, Error(Code::kResourceExhausted, "the peer reads too slowly"));
  }
}

void EpollFrameNetwork::ListenFor(uint32_t events) {
  struct epoll_event event {};
  event.events = events;
  event.data.u64 = kListenerTag;
  TK_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0);
}

void EpollFrameNetwork::AcceptAll() {
  // Bounded, so that a flood of connections doesn't keep the others waiting.
  for (int i = 0; i < 64; ++i) {
    SocketAddress peer;
    peer.bytes = sizeof(peer.storage);
    UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<struct sockaddr*>(&peer.storage),
                          &peer.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      AddAccepted(std::move(fd), peer);
    } else if (errno == EAGAIN) {
      return;
    } else if (IsOutOfDescriptors(errno) && !reserve_.ShedOne(listener_.get())) {
      // The listener stays readable: waiting for it would be a busy loop.
      ListenFor(0);
      timers_.insert({NowNs() + kAcceptPause.count(), kListenerTag});
      return;
    }  // else the failure of one connection
  }
}

bool EpollFrameNetwork::MakeRoom() {
  if (connections_.size() < options_.connections_max) return true;
  if (unproven_.empty()) return false;
  Drop(*Find(*unproven_.begin()),
       Error(Code::kResourceExhausted, "too many control connections, and this one said nothing"));
  return true;
}

void EpollFrameNetwork::AddAccepted(UniqueFd fd, const SocketAddress& peer) {
  if (!MakeRoom()) return;
  const ConnectionId id = next_id_++;
  auto made = std::make_unique<FrameConnection>(id, Origin::kAccepted, options_.frame_bytes_max);
  FrameConnection& connection = *made;
  connection.peer = peer.ToHostPort();
  connection.Attach(std::move(fd), Context(Origin::kAccepted),
                    options_.tls ? Phase::kHandshake : Phase::kOpen);
  connections_.emplace(id, std::move(made));
  unproven_.insert(id);
  SetDeadline(connection, NowNs() + options_.first_frame_deadline.count());
  Announce(connection);
  Register(connection);
}

void EpollFrameNetwork::Announce(FrameConnection& connection) {
  if (connection.announced || connection.phase() != Phase::kOpen) return;
  connection.announced = true;
  if (connection.origin() == Origin::kAccepted) {
    handler_->OnAccepted(connection.id(), connection.peer);
  } else {
    SetDeadline(connection, 0);
    handler_->OnConnected(connection.id());
  }
}

void EpollFrameNetwork::Service(FrameConnection& connection) {
  const bool was_connecting = connection.phase() == Phase::kConnecting;
  const size_t before = connection.queued_bytes();
  const Status advanced = connection.Advance(&scratch_, [&](std::string frame) {
    Announce(connection);
    handler_->OnFrame(connection.id(), std::move(frame));
  });
  queued_bytes_ -= before - connection.queued_bytes();
  if (advanced.ok()) return AfterProgress(connection);
  if (was_connecting && connection.phase() == Phase::kConnecting) {
    connection.Detach();
    return TryNextAddress(connection, advanced.error());
  }
  // What the peer closes after our Close is the end that was asked for.
  const bool closing = connection.phase() == Phase::kDraining;
  Drop(connection, closing ? Error(Code::kCancelled, "closed here") : advanced.error());
}

void EpollFrameNetwork::AfterProgress(FrameConnection& connection) {
  Announce(connection);
  if (connection.got_frame() && unproven_.erase(connection.id()) > 0 &&
      connection.phase() == Phase::kOpen) {
    SetDeadline(connection, 0);
  }
  if (connection.wants_more()) again_.insert(connection.id());
  Register(connection);
}

void EpollFrameNetwork::ExpireTimers() {
  while (!timers_.empty() && timers_.begin()->first <= NowNs()) {
    const ConnectionId id = timers_.begin()->second;
    timers_.erase(timers_.begin());
    if (id == kListenerTag) {
      ListenFor(EPOLLIN);
      continue;
    }
    FrameConnection* connection = Find(id);
    TK_CHECK(connection != nullptr);
    connection->deadline_ns = 0;
    const std::string peer = EscapeForLog(connection->peer.ToString());
    if (connection->phase() == Phase::kConnecting && !connection->addresses.empty()) {
      connection->Detach();
      TryNextAddress(*connection, Error(Code::kDeadlineExceeded, "connect to " + peer));
    } else if (connection->phase() == Phase::kFlushing || connection->phase() == Phase::kDraining) {
      Drop(*connection, Error(Code::kCancelled, "closed here"));
    } else if (connection->origin() == Origin::kAccepted) {
      Drop(*connection, Error(Code::kDeadlineExceeded, "no frame from " + peer + " in time"));
    } else {
      Drop(*connection, Error(Code::kDeadlineExceeded, "connect to " + peer + ": not in time"));
    }
  }
}

}  // namespace

Result<std::unique_ptr<FrameNetwork>> StartFrameNetwork(const FrameNetworkOptions& options,
                                                        FrameHandler* handler) {
  TK_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(options.listen_host, options.listen_port, 0));
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoError(errno, "start the control network");
  const auto watch = [&](int fd, uint64_t tag) {
    struct epoll_event event {};
    event.events = EPOLLIN;
    event.data.u64 = tag;
    return ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (!watch(listener.get(), kListenerTag) || !watch(wake.get(), kWakeTag)) {
    return ErrnoError(errno, "start the control network");
  }
  auto queue = std::make_shared<CommandQueue>(std::move(wake));
  return std::unique_ptr<FrameNetwork>(std::make_unique<EpollFrameNetwork>(
      options, handler, std::move(listener), std::move(epoll), std::move(queue)));
}

}  // namespace tierkeep
