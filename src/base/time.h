// Time as types. Logic never reads a clock: an Instant is handed in with each event.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tierkeep {

using Duration = std::chrono::nanoseconds;

namespace internal {
struct MonotonicTag {
  using duration = Duration;
  using rep = Duration::rep;
  using period = Duration::period;
  using time_point = std::chrono::time_point<MonotonicTag>;
  static constexpr bool is_steady = true;
};
}  // namespace internal

// A point of the machine's monotonic clock: never goes back, means nothing on another machine.
using Instant = internal::MonotonicTag::time_point;
// Wall-clock time; may jump. Used for log lines, names and the run sequence, never for deadlines.
using WallTime = std::chrono::sys_time<Duration>;

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""min;
using std::chrono_literals::operator""s;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""us;
using std::chrono_literals::operator""ns;

inline int64_t ToMillis(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}
inline double ToSeconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline uint64_t WallMillis(WallTime t) {
  return static_cast<uint64_t>(ToMillis(t.time_since_epoch()));
}

// "350 ms", "2.41 s", "3 min 20 s", "2 h 5 min": for people.
std::string FormatDuration(Duration d);
// "1.21 GiB", "17 B": binary units, three significant digits.
std::string FormatBytes(uint64_t bytes);
// UTC, "2026-11-29 17:56:30.123".
std::string FormatWallTime(WallTime t);

}  // namespace tierkeep
