// One thread that runs posted work in order and fires timers: the only thread that touches the
// core's machines.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "base/time.h"
#include "io/clock.h"

namespace tierkeep {

class EventLoop {
 public:
  explicit EventLoop(Clock* clock) : clock_(clock) {}

  // Runs until Stop; sleeps without polling while nothing is due.
  void Run();
  // Threads: any. Work posted before Stop still runs.
  void Post(std::function<void()> work);
  void Stop();

  // Loop thread only. A key has at most one timer: setting it again moves it.
  using TimerKey = std::pair<uint64_t, uint32_t>;  // owner, timer
  void SetTimer(TimerKey key, Instant at, std::function<void()> fire);
  void CancelTimer(TimerKey key);
  void CancelTimersOf(uint64_t owner);

 private:
  struct Timer {
    Instant at;
    std::function<void()> fire;
  };
  void FireDue(Instant now);

  Clock* clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::map<TimerKey, Timer> timers_;  // loop thread only; a handful
};

}  // namespace tierkeep
