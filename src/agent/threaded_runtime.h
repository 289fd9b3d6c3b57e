// The runtime of the real agent.
#pragma once

#include "agent/event_loop.h"
#include "agent/runtime.h"

namespace tierkeep {

class ThreadedRuntime : public Runtime {
 public:
  // `loop` must outlive this and be run by somebody.
  explicit ThreadedRuntime(EventLoop* loop) : loop_(loop) {}

  Loop& loop() override { return *loop_; }
  std::unique_ptr<WorkQueue> StartOrdered() override;
  std::unique_ptr<WorkQueue> StartPool(size_t threads) override;
  Result<std::unique_ptr<DirWatch>> Watch(const std::string& path,
                                          DirWatch::Callback callback) override;
  Result<std::unique_ptr<FrameNetwork>> Listen(const FrameNetworkOptions& options,
                                               FrameHandler* handler) override;

 private:
  EventLoop* loop_;
};

// A blocking Puller on a thread of the tasks.
class ThreadedPulls : public PullStarter {
 public:
  explicit ThreadedPulls(Puller* puller) : puller_(puller) {}
  void Start(WorkQueue& tasks, PullRequest request,
             std::shared_ptr<const std::atomic<bool>> cancelled,
             std::function<void(PullResult)> done) override;
  void StartListing(WorkQueue& tasks, PullRequest request, const Blake3& logical,
                    std::function<void(Result<std::vector<LogicalLine>>)> done) override;

 private:
  Puller* puller_;
};

}  // namespace tierkeep
