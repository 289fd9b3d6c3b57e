// Clocks as a seam: the agent stamps events with them; logic never reads one.
#pragma once

#include "base/time.h"

namespace tierkeep {

// Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() = 0;  // monotonic, counts suspended time (CLOCK_BOOTTIME)
  virtual WallTime WallNow() = 0;
};

class SystemClock : public Clock {
 public:
  Instant Now() override;
  WallTime WallNow() override;
};

// 128 random bits from the kernel, for ids and tokens.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual void Fill(void* data, size_t n) = 0;
};

class SystemRandom : public RandomSource {
 public:
  void Fill(void* data, size_t n) override;
};

}  // namespace tierkeep
