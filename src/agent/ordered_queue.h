// Work run one after the other on one thread: file operations whose order is a promise.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "agent/runtime.h"

namespace tierkeep {

// Threads: Submit from any. Destruction runs what was submitted, then joins.
class OrderedQueue : public WorkQueue {
 public:
  OrderedQueue() : thread_([this] { Run(); }) {}
  ~OrderedQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  OrderedQueue(const OrderedQueue&) = delete;
  OrderedQueue& operator=(const OrderedQueue&) = delete;

  void Submit(std::function<void()> work) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }
  void SubmitAfter(Duration pause, std::function<void()> work) override {
    Submit([pause, work = std::move(work)] {
      std::this_thread::sleep_for(pause);
      work();
    });
  }

 private:
  void Run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all above
};

}  // namespace tierkeep
