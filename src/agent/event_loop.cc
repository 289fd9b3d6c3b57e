#include "agent/event_loop.h"

#include <optional>
#include <vector>

namespace tierkeep {

void EventLoop::Run() {
  for (;;) {
    std::optional<Instant> next;
    for (const auto& [key, timer] : timers_) {
      if (!next || timer.at < *next) next = timer.at;
    }
    std::deque<std::function<void()>> work;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return stopping_ || !queue_.empty(); };
      if (!next) {
        wake_.wait(lock, ready);
      } else if (const Instant now = clock_->Now(); *next > now) {
        wake_.wait_for(lock, *next - now, ready);
      }
      work.swap(queue_);
      if (work.empty() && stopping_) {
        stopping_ = false;
        return;
      }
    }
    for (auto& w : work) w();
    FireDue(clock_->Now());
  }
}

void EventLoop::FireDue(Instant now) {
  std::vector<TimerKey> due;
  for (const auto& [key, timer] : timers_) {
    if (timer.at <= now) due.push_back(key);
  }
  for (const TimerKey& key : due) {
    const auto it = timers_.find(key);
    // One that fired before it may have cancelled or moved this one.
    if (it == timers_.end() || it->second.at > now) continue;
    auto fire = std::move(it->second.fire);
    timers_.erase(it);
    fire();
  }
}

void EventLoop::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void EventLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
}

void EventLoop::SetTimer(TimerKey key, Instant at, std::function<void()> fire) {
  timers_[key] = {at, std::move(fire)};
}

void EventLoop::CancelTimer(TimerKey key) { timers_.erase(key); }

void EventLoop::CancelTimersOf(uint64_t owner) {
  std::erase_if(timers_, [owner](const auto& t) { return t.first.first == owner; });
}

}  // namespace tierkeep
