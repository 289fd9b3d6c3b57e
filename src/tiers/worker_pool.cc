#include "tiers/worker_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/check.h"

namespace tierkeep {
namespace {

// One ParallelFor. Helpers hold it by shared_ptr, since a helper may start only after the loop has
// returned; it then finds no index left and doesn't touch `body`.
struct Loop {
  size_t n = 0;
  const std::function<void(size_t)>* body = nullptr;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::condition_variable all_done;
  size_t done = 0;  // guarded by mutex

  void Work() {
    size_t mine = 0;
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n; ++mine) (*body)(i);
    if (mine == 0) return;
    const std::lock_guard lock(mutex);
    done += mine;
    if (done == n) all_done.notify_all();
  }
};

}  // namespace

WorkerPool::WorkerPool(size_t threads) {
  TK_CHECK(threads > 0);
  threads_.reserve(threads);
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Submit(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void WorkerPool::ParallelFor(size_t n, const std::function<void(size_t)>& body) {
  if (n == 0) return;
  const auto loop = std::make_shared<Loop>();
  loop->n = n;
  loop->body = &body;
  const size_t helpers = std::min(n - 1, threads_.size());
  for (size_t i = 0; i < helpers; ++i) Submit([loop] { loop->Work(); });
  loop->Work();
  std::unique_lock lock(loop->mutex);
  loop->all_done.wait(lock, [&] { return loop->done == n; });
}

void WorkerPool::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;  // stopping, and all that was submitted has run
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // what it holds is released before the next wait
    lock.lock();
  }
}

}  // namespace tierkeep
