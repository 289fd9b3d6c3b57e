// A coordinator with many simulated members, to count and time what it does: real
// CoordinatorMachine, real encoding and checks of every message; members only answer as the
// protocol asks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/coordinator.h"
#include "core/events.h"

namespace tierkeep {

// What one round took. Bytes are those of encoded messages, without frames and TLS.
struct CoordinatorLoadRound {
  uint64_t messages_in = 0;
  uint64_t messages_out = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  // Of decoding, deciding and encoding, as the clock that was given measures it; 0 without one.
  uint64_t busy_ns = 0;
};

class CoordinatorLoad {
 public:
  // `peers`: copies of each shard on other nodes. `clock_ns` is read around the coordinator's work.
  CoordinatorLoad(uint32_t nodes, uint32_t peers, std::function<uint64_t()> clock_ns = {});
  ~CoordinatorLoad();

  // A new coordinator gathers all members and starts the run; its restore decision is announced,
  // prepared by all and released. The first time there is no checkpoint; later the newest save.
  struct Start {
    CoordinatorLoadRound gather;   // joins in, until the run is fixed
    CoordinatorLoadRound restore;  // RunStart and decision out, answers in, release out
  };
  Start StartRun();
  // Every member stages a step; copies are ordered and held, the generation is committed by all.
  CoordinatorLoadRound Save(uint64_t step);

  bool all_released() const;        // by the last StartRun
  uint64_t committed_step() const;  // recorded by all members; 0: none
  uint64_t restored_step() const;   // of the last run; 0: none

 private:
  struct Member;
  struct Message {
    ConnectionId from = 0;
    std::string bytes;
  };
  uint64_t Now() const { return clock_ns_ ? clock_ns_() : 0; }
  void Run(const std::function<bool()>& done);
  void Feed(const CoordinatorEvent::Any& event);
  void CarryOut(CoordinatorActions actions);
  void Deliver(ConnectionId to, const std::string& bytes);
  void Answer(Member* member, control::Envelope message);
  control::Envelope JoinOf(const Member& member) const;

  const uint32_t nodes_;
  const uint32_t peers_;
  const std::function<uint64_t()> clock_ns_;
  std::unique_ptr<CoordinatorMachine> machine_;
  std::vector<std::unique_ptr<Member>> members_;
  std::optional<control::RendezvousRecord> record_;
  uint64_t record_version_ = 0;
  std::deque<CoordinatorEvent::Any> events_;
  std::deque<Message> inbox_;
  std::map<TimerId, Instant> timers_;
  Instant now_{1000s};
  uint64_t lives_ = 0;
  CoordinatorLoadRound round_;
  CoordinatorLoadRound gathered_;
};

}  // namespace tierkeep
