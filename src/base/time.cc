#include "base/time.h"

#include <fmt/format.h>

namespace tierkeep {

std::string FormatDuration(Duration d) {
  if (d < Duration::zero()) {
    // -min() overflows; one nanosecond less doesn't show.
    return "-" + FormatDuration(d == Duration::min() ? Duration::max() : -d);
  }
  using std::chrono::duration_cast;
  // Each limit lies half a printed unit below the next form, so that nothing prints as "60.00 s".
  if (d < 1us) return fmt::format("{} ns", d.count());
  if (d < 999500ns) return fmt::format("{} us", (d.count() + 500) / 1000);
  if (d < 999500us) return fmt::format("{} ms", (d.count() + 500000) / 1000000);
  if (d < 9995ms) return fmt::format("{:.2f} s", ToSeconds(d));
  if (d < 59950ms) return fmt::format("{:.1f} s", ToSeconds(d));
  const int64_t seconds = duration_cast<std::chrono::seconds>(d).count() +
                          (d % std::chrono::seconds(1) >= 500ms ? 1 : 0);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // The next unit begins at 999.5, so that three digits are always enough.
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string FormatWallTime(WallTime t) {
  using namespace std::chrono;  // NOLINT: a dozen of its names in five lines
  const auto day = floor<days>(t);
  const year_month_day date(day);
  const hh_mm_ss time(floor<milliseconds>(t - day));
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count());
}

}  // namespace tierkeep
