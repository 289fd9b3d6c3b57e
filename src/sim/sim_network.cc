#include "sim/sim_network.h"

#include <algorithm>
#include <charconv>

#include "control.pb.h"
#include "sim/sim_runtime.h"

namespace tierkeep::sim {
namespace {

constexpr size_t kOldFramesMax = 64;
constexpr Duration kConnectDeadline = 5s;
constexpr Duration kUnreadMin = 5s;  // where no newer connection comes
constexpr Duration kUnreadMax = 60s;
constexpr uint32_t kFirstFrameFactor = 10;
constexpr Duration kSlowCloseMax = 200ms;

}  // namespace

std::string HostName(size_t host) { return "n" + std::to_string(host); }

size_t HostOf(std::string_view name) {
  size_t host = SIZE_MAX;
  if (!name.starts_with('n')) return host;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), host);
  return error == std::errc() && end == name.data() + name.size() ? host : SIZE_MAX;
}

// ---- one process's -----------------------------------------------------------------------------

SimFrameNetwork::SimFrameNetwork(SimNetwork* network, size_t host,
                                 std::shared_ptr<SimProcess> process, FrameHandler* handler,
                                 SimRuntime* runtime, uint16_t port)
    : network_(network),
      host_(host),
      process_(std::move(process)),
      handler_(handler),
      runtime_(runtime),
      port_(port) {
  network_->listening_[{host_, port_}] = this;
}

SimFrameNetwork::~SimFrameNetwork() {
  network_->listening_.erase({host_, port_});
  for (auto& [id, place] : network_->ends_) {
    SimNetwork::End& end = place.first->ends[static_cast<size_t>(place.second)];
    if (end.network == this) end.network = nullptr;
  }
}

void SimFrameNetwork::Send(ConnectionId connection, std::string frame) {
  ++frames_sent_;
  network_->Send(connection, std::move(frame));
}

SimNetwork::Greeting SimNetwork::GreetingOf(const std::string& frame) {
  control::Envelope message;
  if (!message.ParseFromString(frame)) return {};
  const control::AgentLink& link = message.join().link();
  return {message.job(), link.agent(), message.join().agent_boot(), link.life()};
}

// ---- all together ------------------------------------------------------------------------------

std::unique_ptr<FrameNetwork> SimNetwork::Listen(size_t host, std::shared_ptr<SimProcess> process,
                                                 FrameHandler* handler, SimRuntime* runtime) {
  return std::make_unique<SimFrameNetwork>(this, host, std::move(process), handler, runtime,
                                           next_port_++);
}

Duration SimNetwork::Latency(size_t a, size_t b) {
  return world_->Between(20us, 500us) * std::max(slow_[a], slow_[b]);
}

ConnectionId SimNetwork::Connect(SimFrameNetwork* network, const HostPort& to) {
  auto connection = std::make_shared<Connection>();
  End& end = connection->ends[0];
  end.network = network;
  end.process = network->process_;
  end.host = network->host_;
  end.id = next_id_++;
  ends_[end.id] = {connection, 0};
  const size_t target = HostOf(to.host);
  const bool known = target < slow_.size();
  if (!known || !Reaches(end.host, target) || world_->Chance(rates_.refused)) {
    if (known && Reaches(end.host, target)) world_->Fault("connection refused");
    Break(connection, kConnectDeadline);
    return end.id;
  }
  world_->After(Latency(end.host, target), [this, connection, to] { Establish(connection, to); });
  return end.id;
}

void SimNetwork::Establish(const ConnectionPtr& connection, const HostPort& to) {
  if (connection->broken || connection->ends[0].closed) return;
  const size_t target = HostOf(to.host);
  const auto listener = listening_.find({target, to.port});
  if (listener == listening_.end() || !listener->second->process_->alive()) {
    return Break(connection, 1ms);
  }
  End& end = connection->ends[1];
  end.network = listener->second;
  end.process = end.network->process_;
  end.host = target;
  end.id = next_id_++;
  ends_[end.id] = {connection, 1};
  const End& from = connection->ends[0];
  world_->Trace("connection {} from n{} to n{}", from.id, from.host, target);
  end.network->handler_->OnAccepted(end.id, {HostName(from.host), 1});
  world_->After(Latency(from.host, target), [connection] {
    End& first = connection->ends[0];
    if (connection->broken || first.closed || !first.process->alive()) return;
    first.network->handler_->OnConnected(first.id);
  });
  for (std::string& frame : std::exchange(connection->unsent, {})) {
    Send(from.id, std::move(frame));
  }
}

void SimNetwork::Send(ConnectionId id, std::string frame) {
  const auto it = ends_.find(id);
  if (it == ends_.end()) return;
  const auto [connection, side] = it->second;
  const End& from = connection->ends[static_cast<size_t>(side)];
  End& to = connection->ends[static_cast<size_t>(1 - side)];
  if (connection->broken || from.closed || !from.process->alive()) return;
  if (side == 0 && !connection->greeting) connection->greeting = GreetingOf(frame);
  if (world_->Chance(rates_.lost)) {
    world_->Fault("frame lost");
    return Break(connection, 3s);
  }
  if (to.process == nullptr) {
    connection->unsent.push_back(std::move(frame));
    return;
  }
  if (MayOvertake(*connection, side)) Overtake(connection);
  Duration delay = Latency(from.host, to.host);
  if (world_->Chance(rates_.late)) {
    world_->Fault("frame delayed");
    delay += world_->Between(1ms, rates_.late_by);
  }
  Remember(from, to, frame);
  if (world_->Chance(rates_.duplicated)) MayRepeat(connection, 1 - side, frame, delay);
  to.last_arrival = std::max(to.last_arrival, world_->now() + delay);
  world_->At(to.last_arrival,
             [this, connection = connection, side = side, frame = std::move(frame)]() mutable {
               Deliver(connection, 1 - side, std::move(frame));
             });
}

void SimNetwork::MayRepeat(const ConnectionPtr& connection, int to, const std::string& frame,
                           Duration delay) {
  control::Envelope message;
  if (!message.ParseFromString(frame) || message.has_join() || message.has_rejected() ||
      message.has_run_start() || message.has_run_ended()) {
    return;
  }
  world_->Fault("frame duplicated");
  world_->After(delay + world_->Between({}, rates_.late_by),
                [this, connection, to, frame] { Deliver(connection, to, frame); });
}

void SimNetwork::Deliver(const ConnectionPtr& connection, int to, std::string frame) {
  End& end = connection->ends[static_cast<size_t>(to)];
  const End& from = connection->ends[static_cast<size_t>(1 - to)];
  if (connection->broken || end.closed || !end.process->alive()) return;
  if (to == 1 && connection->overtaken) return connection->unread.push_back(std::move(frame));
  if (!IsCut(from.host, end.host) && end.stalled.empty()) {
    if (old_.empty() || !world_->Chance(rates_.replayed)) {
      return HandOver(connection, to, std::move(frame));
    }
    HandOver(connection, to, frame);
    return MayReplay(connection, to, frame);
  }
  if (end.stalled.empty()) {
    // The sender's kernel tries again and again, and gives up one day.
    world_->After(world_->Between(5s, 60s), [this, connection, to] {
      if (!connection->ends[static_cast<size_t>(to)].stalled.empty()) Break(connection, 3s);
    });
  }
  end.stalled.push_back(std::move(frame));
}

void SimNetwork::HandOver(const ConnectionPtr& connection, int to, std::string frame) {
  End& end = connection->ends[static_cast<size_t>(to)];
  world_->Trace("frame of {} bytes to n{} on {}", frame.size(), end.host, end.id);
  end.network->handler_->OnFrame(end.id, std::move(frame));
  if (to == 0) return;
  connection->greeted = true;
  if (!overtaken_.empty()) OnNewer(*connection);
}

void SimNetwork::Mended(const ConnectionPtr& connection, int to) {
  End& end = connection->ends[static_cast<size_t>(to)];
  while (!end.stalled.empty()) {
    if (connection->broken || end.closed || !end.process->alive()) return;
    std::string frame = std::move(end.stalled.front());
    end.stalled.pop_front();
    HandOver(connection, to, std::move(frame));
  }
}

void SimNetwork::Close(ConnectionId id) {
  const auto it = ends_.find(id);
  if (it == ends_.end()) return;
  const auto [connection, side] = it->second;
  End& end = connection->ends[static_cast<size_t>(side)];
  if (end.closed) return;
  if (side == 1) connection->closing = true;
  // What the network's thread has read by then is told still.
  const bool slow = rates_.overtaken != 0 && world_->Chance(500'000);
  Report(connection, side, slow ? world_->Between(1us, kSlowCloseMax) : Duration(1us),
         Code::kCancelled, "closed");
  if (connection->overtaken) return;  // once it is read
  End& other = connection->ends[static_cast<size_t>(1 - side)];
  if (other.process == nullptr) return;
  // After all that was sent.
  const Duration delay =
      std::max(other.last_arrival - world_->now(), Duration{}) + Latency(end.host, other.host);
  Report(connection, 1 - side, delay, Code::kUnavailable, "closed by the peer");
}

void SimNetwork::Report(const ConnectionPtr& connection, int side, Duration delay, Code code,
                        std::string why) {
  world_->After(delay, [this, connection, side, code, why = std::move(why)] {
    End& end = connection->ends[static_cast<size_t>(side)];
    if (end.closed) return;
    end.closed = true;
    end.stalled.clear();
    ends_.erase(end.id);
    if (end.process == nullptr || !end.process->alive()) return;
    end.network->handler_->OnClosed(end.id, Error(code, why));
  });
}

void SimNetwork::Break(const ConnectionPtr& connection, Duration notice_max) {
  if (connection->broken) return;
  connection->broken = true;
  for (int side : {0, 1}) {
    if (connection->ends[static_cast<size_t>(side)].process == nullptr) continue;
    Report(connection, side, world_->Between(1us, notice_max), Code::kUnavailable,
           "connection broke");
  }
}

bool SimNetwork::BreakOne(size_t host) {
  std::vector<ConnectionPtr> of_host;
  for (const auto& [id, place] : ends_) {
    const Connection& c = *place.first;
    if (!c.broken && c.ends[1].process && c.ends[static_cast<size_t>(place.second)].host == host) {
      of_host.push_back(place.first);
    }
  }
  if (of_host.empty()) return false;
  Break(of_host[world_->prng().Below(of_host.size())], 3s);
  return true;
}

void SimNetwork::OnDead(const SimProcess* process, bool silent) {
  std::vector<std::pair<ConnectionPtr, int>> of_process;
  for (const auto& [id, place] : ends_) {
    if (place.first->ends[static_cast<size_t>(place.second)].process.get() == process) {
      of_process.push_back(place);
    }
  }
  for (const auto& [connection, side] : of_process) {
    connection->ends[static_cast<size_t>(side)].closed = true;
    ends_.erase(connection->ends[static_cast<size_t>(side)].id);
    const End& other = connection->ends[static_cast<size_t>(1 - side)];
    if (other.process == nullptr || other.closed) continue;
    if (side == 0 && connection->overtaken) continue;  // once it is read
    const Duration notice = silent ? world_->Between(1s, 60s)
                                   : std::max(other.last_arrival - world_->now(), Duration{}) + 1ms;
    Report(connection, 1 - side, notice, Code::kUnavailable, "the peer is gone");
  }
}

void SimNetwork::Cut(size_t from, size_t to) {
  if (from != to) cut_.insert({from, to});
}

void SimNetwork::MendAll() {
  cut_.clear();
  std::vector<std::pair<ConnectionPtr, int>> in_order;
  for (const auto& [id, place] : ends_) {
    if (!place.first->ends[static_cast<size_t>(place.second)].stalled.empty()) {
      in_order.push_back(place);
    }
  }
  for (const auto& [connection, side] : in_order) {
    world_->After(world_->Between(1us, 200ms),
                  [this, connection = connection, side = side] { Mended(connection, side); });
  }
}

// ---- frames of earlier epochs ------------------------------------------------------------------

void SimNetwork::Remember(const End& from, const End& to, const std::string& frame) {
  if (rates_.replayed == 0 || !world_->Chance(50'000)) return;
  control::Envelope message;
  if (!message.ParseFromString(frame) || message.epoch() == 0) return;
  // Of no epoch in truth: they say nothing that is acted on, or (a join) have fences of their own.
  if (message.has_ping() || message.has_job_status() || message.has_rejected() ||
      message.has_join()) {
    return;
  }
  OldFrame old{from.host, to.host, message.epoch(), message.job(), frame};
  if (old_.size() < kOldFramesMax) {
    old_.push_back(std::move(old));
  } else {
    old_[world_->prng().Below(old_.size())] = std::move(old);
  }
}

void SimNetwork::MayReplay(const ConnectionPtr& connection, int to, const std::string& newest) {
  End& end = connection->ends[static_cast<size_t>(to)];
  const End& from = connection->ends[static_cast<size_t>(1 - to)];
  const OldFrame& old = old_[world_->prng().Below(old_.size())];
  control::Envelope now;
  if (old.from != from.host || old.to != end.host || !now.ParseFromString(newest)) return;
  if (old.job != now.job() || old.epoch >= now.epoch()) return;
  world_->Fault("old frame replayed");
  SimFrameNetwork* network = end.network;
  network->runtime_->sim_loop().ExpectNoEffect(Checker::kOldEpochActs, [network] {
    return network->runtime_->effects() + network->frames_sent_;
  });
  HandOver(connection, to, old.frame);
}

// ---- connections that are overtaken ------------------------------------------------------------

// What says the most comes first.
bool SimNetwork::MayOvertake(Connection& connection, int side) {
  if (side != 0 || connection.overtaken || rates_.overtaken == 0) return false;
  const bool first = !std::exchange(connection.asked, true);
  return world_->Chance(first ? kFirstFrameFactor * rates_.overtaken : rates_.overtaken);
}

void SimNetwork::Overtake(const ConnectionPtr& connection) {
  world_->Fault("connection overtaken");
  connection->overtaken = true;
  overtaken_.push_back(connection);
  Report(connection, 0, world_->Between(1us, 1s), Code::kUnavailable, "connection broke");
  world_->After(world_->Between(kUnreadMin, kUnreadMax),
                [this, connection] { ReadOvertaken(connection); });
}

// Something was read from it: what older ones hold is read at any time now.
void SimNetwork::OnNewer(const Connection& newer) {
  for (const ConnectionPtr& older : overtaken_) {
    const bool same_hosts = older->ends[0].host == newer.ends[0].host &&
                            older->ends[1].network == newer.ends[1].network;
    if (!same_hosts || older->ends[0].id >= newer.ends[0].id) continue;
    if (std::exchange(older->read_soon, true)) continue;
    world_->After(world_->Between(1us, 1s), [this, older] { ReadOvertaken(older); });
  }
}

void SimNetwork::ReadOvertaken(const ConnectionPtr& connection) {
  if (std::erase(overtaken_, connection) == 0) return;
  connection->overtaken = false;
  for (std::string& frame : std::exchange(connection->unread, {})) {
    const End& end = connection->ends[1];
    if (connection->broken || end.closed || !end.process->alive()) return;
    world_->Count("frames of overtaken connections");
    ExpectNoEffect(*connection);
    HandOver(connection, 1, std::move(frame));
  }
  Report(connection, 1, 1us, Code::kUnavailable, "closed by the peer");
}

// Unless no newer connection of the same agent speaks to that coordinator, and as long as one does.
void SimNetwork::ExpectNoEffect(const Connection& older) {
  SimFrameNetwork* network = older.ends[1].network;
  const auto is_newer = [&](const Connection& other) {
    if (!older.greeting || !other.greeting || !other.greeted || other.closing) return false;
    const Greeting& first = *older.greeting;
    const Greeting& second = *other.greeting;
    // A start that could not write down which it is can't be told from the one before.
    const bool ordered = first.life != second.life || first.boot == second.boot;
    return other.ends[1].network == network && older.ends[0].id < other.ends[0].id &&
           first.job == second.job && first.agent == second.agent && ordered &&
           !other.ends[1].closed;
  };
  for (const auto& [id, place] : ends_) {
    if (place.second != 1 || !is_newer(*place.first)) continue;
    network->runtime_->sim_loop().ExpectNoEffect(
        Checker::kOldConnectionActs, [network, newer = place.first]() -> uint64_t {
          if (newer->closing || newer->ends[1].closed) return 0;
          return network->runtime_->effects() + network->frames_sent_;
        });
    return;
  }
}

}  // namespace tierkeep::sim
