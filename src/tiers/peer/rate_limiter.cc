#include "tiers/peer/rate_limiter.h"

#include <algorithm>

namespace tierkeep {

Instant RateLimiter::Book(uint64_t bytes, Instant now) {
  if (unlimited()) return now;
  // In two steps, for bytes * 10^9 can overflow.
  const Duration cost = std::chrono::seconds(bytes / rate_) +
                        Duration(static_cast<int64_t>(static_cast<double>(bytes % rate_) * 1e9 /
                                                      static_cast<double>(rate_)));
  const std::lock_guard lock(mutex_);
  const Instant start = std::max(now, paid_until_);
  paid_until_ = start + cost;
  return start;
}

uint64_t RateLimiter::PieceBytes(uint64_t wanted) const {
  constexpr uint64_t kPieceBytesMin = 16u << 10;
  constexpr uint64_t kPiecesPerSecond = 50;
  if (unlimited()) return wanted;
  return std::min(wanted, std::max(kPieceBytesMin, rate_ / kPiecesPerSecond));
}

}  // namespace tierkeep
