#include "sim/sim_runtime.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/sim_network.h"

namespace tierkeep::sim {
namespace {

constexpr int64_t kMillion = 1'000'000;
// How long a thread takes to get to posted work.
constexpr Duration kHandOverMax = 200us;
constexpr Duration kTaskMax = 5ms;

Duration DelayOf(World* world, const HostSpeed& speed, Duration most) {
  return world->Between(1us, most) * speed.slow;
}

// One item after the other.
class SimOrdered : public WorkQueue {
 public:
  SimOrdered(SimRuntime* owner, const SimRuntime::Parts& parts) : owner_(owner), parts_(parts) {}
  void Submit(std::function<void()> work) override { SubmitAfter({}, std::move(work)); }
  void SubmitAfter(Duration pause, std::function<void()> work) override {
    owner_->CountSubmitted();
    busy_until_ = std::max(busy_until_, parts_.world->now() + pause +
                                            DelayOf(parts_.world, *parts_.speed, kHandOverMax));
    parts_.world->At(busy_until_, [process = parts_.process, work = std::move(work)] {
      if (process->alive()) work();
    });
  }

 private:
  SimRuntime* const owner_;
  const SimRuntime::Parts& parts_;
  Instant busy_until_{};
};

// Items beside each other, in any order.
class SimPool : public WorkQueue {
 public:
  explicit SimPool(const SimRuntime::Parts& parts) : parts_(parts) {}
  void Submit(std::function<void()> work) override { SubmitAfter({}, std::move(work)); }
  void SubmitAfter(Duration pause, std::function<void()> work) override {
    const Duration delay = pause + DelayOf(parts_.world, *parts_.speed, kTaskMax);
    parts_.world->After(delay, [process = parts_.process, work = std::move(work)] {
      if (process->alive()) work();
    });
  }

 private:
  const SimRuntime::Parts& parts_;
};

}  // namespace

// ---- clock -------------------------------------------------------------------------------------

Duration SimClock::Elapsed() const {
  const Duration passed = world_->now() - since_;
  return passed + passed / kMillion * drift_ppm_;
}

Instant SimClock::WorldTimeOf(Instant at) const {
  const Duration ahead = at - mono_base_;
  return since_ + ahead - ahead / (kMillion + drift_ppm_) * drift_ppm_;
}

void SimClock::Rebase() {
  const Duration elapsed = Elapsed();
  mono_base_ += elapsed;
  wall_base_ += elapsed;
  since_ = world_->now();
}

void SimClock::SetDrift(int64_t ppm) {
  Rebase();
  drift_ppm_ = ppm;
}

void SimClock::Sleep(Duration time) {
  Rebase();
  mono_base_ += time;
  wall_base_ += time;
}

void SimRandom::Fill(void* data, size_t n) {
  auto* out = static_cast<char*>(data);
  while (n > 0) {
    const uint64_t word = prng_.Next();
    const size_t some = std::min(n, sizeof(word));
    std::memcpy(out, &word, some);
    out += some;
    n -= some;
  }
}

// ---- loop --------------------------------------------------------------------------------------

void SimLoop::Post(std::function<void()> work) {
  busy_until_ = std::max(busy_until_, world_->now() + DelayOf(world_, *speed_, kHandOverMax));
  if (effects_) {
    work = [world = world_, checker = checker_, effects = std::exchange(effects_, nullptr),
            work = std::move(work)] {
      const uint64_t before = effects();
      work();
      if (effects() == before) return;
      world->Fail(checker, checker == Checker::kOldEpochActs
                               ? "a message of an earlier epoch had an effect"
                               : "a message of an older connection had an effect");
    };
  }
  world_->At(busy_until_, [process = process_, work = std::move(work)] {
    if (process->alive()) work();
  });
}

void SimLoop::SetTimer(TimerKey key, Instant at, std::function<void()> fire) {
  Timer& timer = timers_[key];
  timer = {at, std::move(fire), ++timers_set_};
  Arm(key, timer);
}

void SimLoop::Arm(TimerKey key, const Timer& timer) {
  const Instant when = std::max(clock_->WorldTimeOf(timer.at), world_->now()) + 1us;
  world_->At(when, [self = self_, key, number = timer.number] {
    if (*self != nullptr) (*self)->Fire(key, number);
  });
}

void SimLoop::Fire(TimerKey key, uint64_t number) {
  const auto it = timers_.find(key);
  if (it == timers_.end() || it->second.number != number || !process_->alive()) return;
  if (it->second.at > clock_->Now()) return Arm(key, it->second);
  auto fire = std::move(it->second.fire);
  timers_.erase(it);
  fire();
}

void SimLoop::CancelTimersOf(uint64_t owner) {
  std::erase_if(timers_, [owner](const auto& t) { return t.first.first == owner; });
}

void SimLoop::ClockMoved() {
  for (auto& [key, timer] : timers_) {
    timer.number = ++timers_set_;
    Arm(key, timer);
  }
}

// ---- runtime -----------------------------------------------------------------------------------

std::unique_ptr<WorkQueue> SimRuntime::StartOrdered() {
  return std::make_unique<SimOrdered>(this, parts_);
}

std::unique_ptr<WorkQueue> SimRuntime::StartPool(size_t) {
  return std::make_unique<SimPool>(parts_);
}

Result<std::unique_ptr<DirWatch>> SimRuntime::Watch(const std::string& path,
                                                    DirWatch::Callback callback) {
  return parts_.mount->Watch(parts_.process, path, std::move(callback));
}

Result<std::unique_ptr<FrameNetwork>> SimRuntime::Listen(const FrameNetworkOptions&,
                                                         FrameHandler* handler) {
  return parts_.network->Listen(parts_.host, parts_.process, handler, this);
}

}  // namespace tierkeep::sim
