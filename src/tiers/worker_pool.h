// A fixed number of threads for blocking work: hashing, file operations, pulls. The queue has no
// bound of its own: callers bound what they submit (the core has only a few tasks in flight).
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tierkeep {

// Threads: Submit from any. Destruction runs what was submitted, then joins.
class WorkerPool {
 public:
  explicit WorkerPool(size_t threads);
  ~WorkerPool();
  void Submit(std::function<void()> work);
  // Runs body(0..n-1) over the pool's threads and the caller's; returns when all are done. May be
  // called from a pool thread: the caller always makes progress itself.
  void ParallelFor(size_t n, const std::function<void(size_t)>& body);
  size_t size() const { return threads_.size(); }

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tierkeep
