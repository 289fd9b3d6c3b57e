#include "io/clock.h"

#include <sys/random.h>
#include <time.h>

#include <cerrno>

#include "base/check.h"

namespace tierkeep {
namespace {

Duration ReadClock(clockid_t clock) {
  struct timespec t;
  TK_CHECK(::clock_gettime(clock, &t) == 0);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

}  // namespace

Instant SystemClock::Now() { return Instant(ReadClock(CLOCK_BOOTTIME)); }
WallTime SystemClock::WallNow() { return WallTime(ReadClock(CLOCK_REALTIME)); }

void SystemRandom::Fill(void* data, size_t n) {
  auto* out = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = ::getrandom(out, n, 0);
    // Interrupted by a signal while the kernel's pool was not ready yet (early in boot).
    if (got < 0 && errno == EINTR) continue;
    TK_CHECK_MSG(got > 0, "getrandom failed");
    out += got;
    n -= static_cast<size_t>(got);
  }
}

}  // namespace tierkeep
