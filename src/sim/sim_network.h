// Control connections between simulated hosts: whole frames in order, as TCP gives them.
//
// A frame that is lost breaks its connection. What is sent into a cut direction waits; if the cut
// is mended in time it arrives late, perhaps after the frames of newer connections, else the
// connection breaks. Frames that a member may have to send again (not those that begin or end its
// part in a run) also come twice, the second time after later ones. A connection is overtaken when
// whoever dialed has lost it and dials anew, while what was sent over it lies unread at the other
// end, to be read behind the newer one's frames; whoever closes one may be told of a moment longer
// what it brings. A process that dies closes its
// connections; a machine that goes down is just silent. Frames of earlier epochs are kept and now
// and then arrive once more, which no member may heed. Threads: one.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/frame_network.h"
#include "sim/sim_fs.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct NetworkRates {  // per million frames, connections
  uint32_t lost = 0;
  uint32_t late = 0;  // by up to `late_by`
  Duration late_by = 3s;
  uint32_t replayed = 0;    // of an earlier epoch
  uint32_t duplicated = 0;  // of this one, after up to `late_by`
  uint32_t refused = 0;
  uint32_t overtaken = 0;  // per million frames of who dialed
};

class SimRuntime;

std::string HostName(size_t host);
size_t HostOf(std::string_view name);  // SIZE_MAX: no host's name

class SimNetwork {
 public:
  SimNetwork(World* world, size_t hosts) : world_(world), slow_(hosts, 1) {}

  std::unique_ptr<FrameNetwork> Listen(size_t host, std::shared_ptr<SimProcess> process,
                                       FrameHandler* handler, SimRuntime* runtime);
  void set_rates(const NetworkRates& rates) { rates_ = rates; }
  void set_slow(size_t host, uint32_t factor) { slow_[host] = factor; }

  // One direction. Data connections ask, too.
  void Cut(size_t from, size_t to);
  void MendAll();
  bool IsCut(size_t from, size_t to) const { return cut_.contains({from, to}); }
  bool Reaches(size_t a, size_t b) const { return !IsCut(a, b) && !IsCut(b, a); }
  Duration Latency(size_t a, size_t b);
  // Breaks one of the host's control connections, if it has any.
  bool BreakOne(size_t host);
  // After SimProcess::Kill. `silent`: the whole machine is gone.
  void OnDead(const SimProcess* process, bool silent);

 private:
  friend class SimFrameNetwork;
  struct End {
    class SimFrameNetwork* network = nullptr;  // null once its process is gone
    std::shared_ptr<SimProcess> process;
    size_t host = 0;
    ConnectionId id = 0;
    bool closed = false;  // reported, or not to be
    // What is on its way here.
    Instant last_arrival{};
    std::deque<std::string> stalled;
  };
  // What whoever dialed said first.
  struct Greeting {
    std::string job, agent, boot;
    uint64_t life = 0;
  };
  struct Connection {
    std::array<End, 2> ends;
    std::vector<std::string> unsent;  // until it is accepted
    bool broken = false;
    bool closing = false;  // by whoever accepted it
    std::optional<Greeting> greeting;
    bool asked = false;      // whether it is to be overtaken
    bool greeted = false;    // it was handed over
    bool overtaken = false;  // what comes to ends[1] is kept
    bool read_soon = false;  // a newer one was read
    std::deque<std::string> unread;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;
  struct OldFrame {
    size_t from, to;
    uint64_t epoch;
    std::string job, frame;
  };

  static Greeting GreetingOf(const std::string& frame);
  ConnectionId Connect(SimFrameNetwork* network, const HostPort& to);
  void Establish(const ConnectionPtr& connection, const HostPort& to);
  void Send(ConnectionId id, std::string frame);
  void Close(ConnectionId id);
  void Deliver(const ConnectionPtr& connection, int to, std::string frame);
  void HandOver(const ConnectionPtr& connection, int to, std::string frame);
  bool MayOvertake(Connection& connection, int side);
  void Overtake(const ConnectionPtr& connection);
  void OnNewer(const Connection& newer);
  void ReadOvertaken(const ConnectionPtr& connection);
  void ExpectNoEffect(const Connection& older);
  void Mended(const ConnectionPtr& connection, int to);
  void Break(const ConnectionPtr& connection, Duration notice_max);
  void Report(const ConnectionPtr& connection, int side, Duration delay, Code code,
              std::string why);
  void MayRepeat(const ConnectionPtr& connection, int to, const std::string& frame, Duration delay);
  void Remember(const End& from, const End& to, const std::string& frame);
  void MayReplay(const ConnectionPtr& connection, int to, const std::string& newest);

  World* const world_;
  NetworkRates rates_;
  std::vector<uint32_t> slow_;
  std::set<std::pair<size_t, size_t>> cut_;
  std::map<std::pair<size_t, uint16_t>, SimFrameNetwork*> listening_;
  std::map<ConnectionId, std::pair<ConnectionPtr, int>> ends_;
  std::vector<OldFrame> old_;
  std::vector<ConnectionPtr> overtaken_;
  ConnectionId next_id_ = 1;
  uint16_t next_port_ = 20000;
};

// One process's.
class SimFrameNetwork : public FrameNetwork {
 public:
  SimFrameNetwork(SimNetwork* network, size_t host, std::shared_ptr<SimProcess> process,
                  FrameHandler* handler, SimRuntime* runtime, uint16_t port);
  ~SimFrameNetwork() override;
  uint16_t port() const override { return port_; }
  ConnectionId Connect(const HostPort& to) override { return network_->Connect(this, to); }
  void Send(ConnectionId connection, std::string frame) override;
  void Close(ConnectionId connection) override { network_->Close(connection); }
  uint64_t rejected_frames() const override { return 0; }
  uint64_t frames_sent() const { return frames_sent_; }

 private:
  friend class SimNetwork;
  SimNetwork* const network_;
  const size_t host_;
  const std::shared_ptr<SimProcess> process_;
  FrameHandler* const handler_;
  SimRuntime* const runtime_;
  const uint16_t port_;
  uint64_t frames_sent_ = 0;
};

}  // namespace tierkeep::sim
