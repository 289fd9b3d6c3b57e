// A bandwidth limit shared by threads: a token bucket that lends.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/time.h"

namespace tierkeep {

// Threads: any.
class RateLimiter {
 public:
  // 0: no limit.
  explicit RateLimiter(uint64_t bytes_per_second_max) : rate_(bytes_per_second_max) {}

  // Books `bytes` and returns when they may be sent: at once when the last bookings have been paid
  // off, else later. Idle time isn't saved up, so there is no burst beyond one booking.
  Instant Book(uint64_t bytes, Instant now);
  // How much to book at once: small enough that several senders share the rate smoothly.
  uint64_t PieceBytes(uint64_t wanted) const;
  bool unlimited() const { return rate_ == 0; }

 private:
  const uint64_t rate_;
  std::mutex mutex_;
  Instant paid_until_ = Instant::min();
};

}  // namespace tierkeep
