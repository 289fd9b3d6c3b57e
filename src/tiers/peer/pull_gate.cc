#include "tiers/peer/pull_gate.h"

#include "base/check.h"

namespace tierkeep {

void PullGate::Enter(PullPriority priority) {
  const std::lock_guard lock(mutex_);
  ++active_[static_cast<size_t>(priority)];
}

void PullGate::Leave(PullPriority priority) {
  const std::lock_guard lock(mutex_);
  uint32_t& active = active_[static_cast<size_t>(priority)];
  TK_CHECK(active > 0);
  if (--active == 0) changed_.notify_all();
}

bool PullGate::HasTurn(PullPriority priority) const {
  for (size_t i = 0; i < static_cast<size_t>(priority); ++i) {
    if (active_[i] > 0) return false;
  }
  return true;
}

bool PullGate::WaitForTurn(PullPriority priority, Duration limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return HasTurn(priority); });
}

}  // namespace tierkeep
