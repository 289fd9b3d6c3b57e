// Order among pulls of one node.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/time.h"
#include "tiers/peer/puller.h"

namespace tierkeep {

// Pulls of a less urgent kind wait, between two requests, while a more urgent one is going on.
// Threads: any.
class PullGate {
 public:
  void Enter(PullPriority priority);
  void Leave(PullPriority priority);
  // Whether no more urgent pull is going on; waits for that at most `limit`.
  bool WaitForTurn(PullPriority priority, Duration limit);

 private:
  bool HasTurn(PullPriority priority) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<uint32_t, 3> active_{};  // by priority
};

}  // namespace tierkeep
