// The agent's seams in simulated time: clock, random numbers, loop, queues, watches.
//
// All belong to one life of a process: what is planned for a process that has died never runs.
// Threads: one.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/runtime.h"
#include "io/clock.h"
#include "sim/sim_fs.h"
#include "sim/world.h"

namespace tierkeep::sim {

// A host's clocks: monotonic time that drifts and, after the host slept, is ahead; wall time that
// jumps either way. Goes on through lives of the agent.
class SimClock : public Clock {
 public:
  explicit SimClock(World* world) : world_(world) {}
  Instant Now() override { return mono_base_ + Elapsed(); }
  WallTime WallNow() override { return wall_base_ + Elapsed(); }
  // About when, in the world's time, this clock will show `at`.
  Instant WorldTimeOf(Instant at) const;

  void SetDrift(int64_t ppm);
  void JumpWall(Duration by) { wall_base_ += by; }
  void Sleep(Duration time);  // monotonic and wall time ahead at once

 private:
  Duration Elapsed() const;
  void Rebase();

  World* const world_;
  Instant since_ = Instant(1000s);  // world time of the bases
  Instant mono_base_ = Instant(500s);
  WallTime wall_base_ = WallTime(std::chrono::seconds(1'764'000'000));
  int64_t drift_ppm_ = 0;
};

class SimRandom : public RandomSource {
 public:
  explicit SimRandom(uint64_t seed) : prng_(seed) {}
  void Fill(void* data, size_t n) override;

 private:
  Prng prng_;
};

// How long things take on a host: `slow` times as long as usual.
struct HostSpeed {
  uint32_t slow = 1;
};

class SimLoop : public Loop {
 public:
  SimLoop(World* world, SimClock* clock, const HostSpeed* speed,
          std::shared_ptr<SimProcess> process)
      : world_(world), clock_(clock), speed_(speed), process_(std::move(process)) {}
  void Post(std::function<void()> work) override;
  void SetTimer(TimerKey key, Instant at, std::function<void()> fire) override;
  void CancelTimer(TimerKey key) override { timers_.erase(key); }
  void CancelTimersOf(uint64_t owner) override;
  // The clock was moved: due timers fire.
  void ClockMoved();
  // The next work that is posted must have no effect: no work elsewhere, no frame.
  void ExpectNoEffect(Checker checker, std::function<uint64_t()> effects) {
    checker_ = checker;
    effects_ = std::move(effects);
  }

 private:
  struct Timer {
    Instant at;
    std::function<void()> fire;
    uint64_t number;
  };
  void Arm(TimerKey key, const Timer& timer);
  void Fire(TimerKey key, uint64_t number);

  World* const world_;
  SimClock* const clock_;
  const HostSpeed* const speed_;
  const std::shared_ptr<SimProcess> process_;
  Instant busy_until_{};
  uint64_t timers_set_ = 0;
  std::function<uint64_t()> effects_;
  Checker checker_{};  // of that
  std::map<TimerKey, Timer> timers_;
  // Events outlive us.
  const std::shared_ptr<SimLoop*> self_ = std::make_shared<SimLoop*>(this);

 public:
  ~SimLoop() override { *self_ = nullptr; }
};

class SimNetwork;

class SimRuntime : public Runtime {
 public:
  struct Parts {
    World* world;
    SimClock* clock;
    const HostSpeed* speed;
    std::shared_ptr<SimProcess> process;
    SimFs* mount;
    SimNetwork* network;
    size_t host;
  };
  explicit SimRuntime(Parts parts)
      : parts_(std::move(parts)), loop_(parts_.world, parts_.clock, parts_.speed, parts_.process) {}

  Loop& loop() override { return loop_; }
  SimLoop& sim_loop() { return loop_; }
  // Grows with all that the loop causes elsewhere. Timers don't count: a member that is heard is
  // alive, whatever it says.
  uint64_t effects() const { return submitted_; }
  void CountSubmitted() { ++submitted_; }
  std::unique_ptr<WorkQueue> StartOrdered() override;
  std::unique_ptr<WorkQueue> StartPool(size_t threads) override;
  // `path` is relative to the mount.
  Result<std::unique_ptr<DirWatch>> Watch(const std::string& path,
                                          DirWatch::Callback callback) override;
  Result<std::unique_ptr<FrameNetwork>> Listen(const FrameNetworkOptions& options,
                                               FrameHandler* handler) override;

 private:
  const Parts parts_;
  SimLoop loop_;
  uint64_t submitted_ = 0;
};

}  // namespace tierkeep::sim
