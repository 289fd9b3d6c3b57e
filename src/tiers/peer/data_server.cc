#include "tiers/peer/data_server.h"

#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "io/stream.h"
#include "tiers/peer/data_session.h"

namespace tierkeep {
namespace {

class TcpDataServer : public DataServer {
 public:
  TcpDataServer(const DataPortOptions& options, std::string token, Store* store, Clock* clock,
                Logger logger, std::unique_ptr<StreamListener> listener)
      : connections_max_(options.connections_max),
        service_(store, clock, std::move(token), std::move(logger), options.bytes_per_second_max),
        listener_(std::move(listener)) {
    service_.encrypted = options.tls != nullptr;
    service_.stall_limit = options.stall_limit;
    acceptor_ = std::thread([this] { AcceptLoop(); });
    keeper_ = std::thread([this] { KeeperLoop(); });
  }

  ~TcpDataServer() override {
    listener_->Shutdown();
    service_.Stop();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    acceptor_.join();  // no connection comes any more
    {
      const std::lock_guard lock(mutex_);
      for (Connection& c : connections_) c.session->Abort();
    }
    keeper_.join();
    TK_CHECK(connections_.empty());
  }

  uint16_t port() const override { return listener_->port(); }
  uint64_t bytes_sent() const override { return service_.bytes_sent.load(); }
  uint64_t rejected() const override { return service_.rejected.load(); }

 private:
  struct Connection {
    std::unique_ptr<DataSession> session;
    std::thread thread;
    bool finished = false;
  };

  void AcceptLoop() {
    for (;;) {
      auto stream = listener_->Accept();
      if (!stream.ok()) {
        if (stream.error().code() == Code::kCancelled) return;
        service_.logger.Error("data port: {}", stream.error().ToString());
        // Out of descriptors, say: going on at once would spin.
        if (!service_.WaitUntil(service_.clock->Now() + 100ms)) return;
        continue;
      }
      std::unique_lock lock(mutex_);
      if (connections_.size() >= connections_max_ && !stopping_) WaitForPlace(lock);
      if (stopping_) return;
      Connection& c = connections_.emplace_back();
      c.session = std::make_unique<DataSession>(&service_, std::move(*stream));
      c.thread = std::thread([this, &c] {
        c.session->Run();
        const std::lock_guard finish_lock(mutex_);
        c.finished = true;
        changed_.notify_all();
      });
      changed_.notify_all();
    }
  }

  // Members wait for each other; a stranger gives way as soon as it has had the time in which a
  // member shows its token. So no number of strangers keeps a member out for long.
  void WaitForPlace(std::unique_lock<std::mutex>& lock) {
    constexpr Duration kStrangerTime = 50ms;
    if (service_.MaySpeakOfStrangers()) {
      service_.logger.Warning("data port: {} connections are open, further ones wait",
                              connections_max_);
    }
    while (!stopping_ && connections_.size() >= connections_max_) {
      const Instant before = service_.clock->Now() - kStrangerTime;
      bool strangers = false;
      for (Connection& c : connections_) {
        if (c.finished) break;  // its place is free in a moment
        if (!c.session->IsStrangerSince(Instant::max())) continue;
        strangers = true;
        if (!c.session->IsStrangerSince(before)) continue;
        c.session->Expire();  // counted as rejected where its reading ends
        break;
      }
      if (strangers) {
        changed_.wait_for(lock, kStrangerTime / 10);
      } else {
        changed_.wait(lock);
      }
    }
  }

  // Joins finished connections and breaks off expired ones. Asleep while there is no connection.
  void KeeperLoop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (connections_.empty()) {
        if (stopping_) return;
        changed_.wait(lock);
        continue;
      }
      const Instant now = service_.clock->Now();
      std::list<Connection> finished;
      for (auto it = connections_.begin(); it != connections_.end();) {
        const auto at = it++;
        if (at->finished) {
          finished.splice(finished.end(), connections_, at);
        } else if (at->session->Expired(now)) {
          ++service_.rejected;
          at->session->Expire();
        }
      }
      if (!finished.empty()) {
        lock.unlock();
        for (Connection& c : finished) c.thread.join();
        finished.clear();  // closes and unmaps outside the lock
        lock.lock();
        changed_.notify_all();
        continue;
      }
      changed_.wait_for(lock, service_.stall_limit / 4);
    }
  }

  const uint32_t connections_max_;
  DataService service_;
  const std::unique_ptr<StreamListener> listener_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Connection> connections_;  // stable addresses: each thread knows its own
  bool stopping_ = false;
  std::thread acceptor_;
  std::thread keeper_;
};

}  // namespace

Result<std::unique_ptr<DataServer>> DataServer::Start(const DataPortOptions& options,
                                                      std::string token, Store* store, Clock* clock,
                                                      Logger logger) {
  if (token.size() != kDataTokenBytes) {
    return Error(Code::kInvalidArgument, "a data token has 32 bytes");
  }
  StreamOptions stream;
  stream.tls = options.tls;
  stream.stall_limit = options.stall_limit;
  stream.socket_buffer_bytes = kDataSocketBufferBytes;
  TK_ASSIGN_OR_RETURN(auto listener, ListenStreams(options.listen_host, options.port, stream));
  return std::unique_ptr<DataServer>(std::make_unique<TcpDataServer>(
      options, std::move(token), store, clock, std::move(logger), std::move(listener)));
}

}  // namespace tierkeep
