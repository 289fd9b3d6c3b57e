// The loop of the real agent: the thread that calls Run.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "agent/runtime.h"
#include "base/time.h"
#include "io/clock.h"

namespace tierkeep {

class EventLoop : public Loop {
 public:
  explicit EventLoop(Clock* clock) : clock_(clock) {}

  // Runs until Stop, and may be run again; sleeps without polling while nothing is due.
  void Run();
  // Threads: any. Work posted before Stop still runs.
  void Post(std::function<void()> work) override;
  void Stop();

  void SetTimer(TimerKey key, Instant at, std::function<void()> fire) override;
  void CancelTimer(TimerKey key) override;
  void CancelTimersOf(uint64_t owner) override;

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
