// What the agent's parts run on: threads, inotify and sockets in the agent (threaded_runtime.h),
// one thread and simulated time in the simulator. No policy lives behind it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/time.h"
#include "io/dir_watch.h"
#include "io/frame_network.h"
#include "tiers/peer/puller.h"

namespace tierkeep {

// Runs posted work in order and fires timers, one at a time: the only thread that touches the
// core's machines.
class Loop {
 public:
  virtual ~Loop() = default;
  virtual void Post(std::function<void()> work) = 0;  // any thread

  // Loop thread only. A key has at most one timer: setting it again moves it.
  using TimerKey = std::pair<uint64_t, uint32_t>;  // owner, timer
  virtual void SetTimer(TimerKey key, Instant at, std::function<void()> fire) = 0;
  virtual void CancelTimer(TimerKey key) = 0;
  virtual void CancelTimersOf(uint64_t owner) = 0;
};

// Work beside the loop, which may block on files and services. Threads: Submit from any.
// Destruction runs what was submitted, then joins.
class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  virtual void Submit(std::function<void()> work) = 0;
  // Not before `pause` has passed. May keep a thread of the queue busy meanwhile.
  virtual void SubmitAfter(Duration pause, std::function<void()> work) = 0;
};

// Pulls in the background.
class PullStarter {
 public:
  virtual ~PullStarter() = default;
  // Works on `tasks`. `done` is called exactly once, on any thread, soon after `cancelled` is set
  // at the latest, and before `tasks` is gone.
  virtual void Start(WorkQueue& tasks, PullRequest request,
                     std::shared_ptr<const std::atomic<bool>> cancelled,
                     std::function<void(PullResult)> done) = 0;
  // As Puller::Listing; `done` is called as above, on a thread that may block.
  virtual void StartListing(WorkQueue& tasks, PullRequest request, const Blake3& logical,
                            std::function<void(Result<std::vector<LogicalLine>>)> done) = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual Loop& loop() = 0;
  // One after the other, in order: file operations whose order is a promise.
  virtual std::unique_ptr<WorkQueue> StartOrdered() = 0;
  // Beside each other.
  virtual std::unique_ptr<WorkQueue> StartPool(size_t threads) = 0;
  // As DirWatch::Start and StartFrameNetwork.
  virtual Result<std::unique_ptr<DirWatch>> Watch(const std::string& path,
                                                  DirWatch::Callback callback) = 0;
  virtual Result<std::unique_ptr<FrameNetwork>> Listen(const FrameNetworkOptions& options,
                                                       FrameHandler* handler) = 0;
};

}  // namespace tierkeep
