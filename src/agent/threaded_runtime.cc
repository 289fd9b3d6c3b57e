#include "agent/threaded_runtime.h"

#include <thread>

#include "agent/ordered_queue.h"
#include "tiers/worker_pool.h"

namespace tierkeep {
namespace {

class PoolQueue : public WorkQueue {
 public:
  explicit PoolQueue(size_t threads) : pool_(threads) {}
  void Submit(std::function<void()> work) override { pool_.Submit(std::move(work)); }
  void SubmitAfter(Duration pause, std::function<void()> work) override {
    pool_.Submit([pause, work = std::move(work)] {
      std::this_thread::sleep_for(pause);
      work();
    });
  }

 private:
  WorkerPool pool_;
};

}  // namespace

std::unique_ptr<WorkQueue> ThreadedRuntime::StartOrdered() {
  return std::make_unique<OrderedQueue>();
}

std::unique_ptr<WorkQueue> ThreadedRuntime::StartPool(size_t threads) {
  return std::make_unique<PoolQueue>(threads);
}

Result<std::unique_ptr<DirWatch>> ThreadedRuntime::Watch(const std::string& path,
                                                         DirWatch::Callback callback) {
  return DirWatch::Start(path, std::move(callback));
}

Result<std::unique_ptr<FrameNetwork>> ThreadedRuntime::Listen(const FrameNetworkOptions& options,
                                                              FrameHandler* handler) {
  return StartFrameNetwork(options, handler);
}

void ThreadedPulls::Start(WorkQueue& tasks, PullRequest request,
                          std::shared_ptr<const std::atomic<bool>> cancelled,
                          std::function<void(PullResult)> done) {
  tasks.Submit([puller = puller_, request = std::move(request), cancelled = std::move(cancelled),
                done = std::move(done)] { done(puller->Pull(request, cancelled.get())); });
}

void ThreadedPulls::StartListing(WorkQueue& tasks, PullRequest request, const Blake3& logical,
                                 std::function<void(Result<std::vector<LogicalLine>>)> done) {
  tasks.Submit([puller = puller_, request = std::move(request), logical, done = std::move(done)] {
    done(puller->Listing(request, logical));
  });
}

}  // namespace tierkeep
