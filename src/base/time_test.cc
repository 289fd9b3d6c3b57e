#include "base/time.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

TEST(FormatDuration, PicksTheUnitThatPeopleUse) {
  EXPECT_EQ(FormatDuration(0ns), "0 ns");
  EXPECT_EQ(FormatDuration(17us), "17 us");
  EXPECT_EQ(FormatDuration(350ms), "350 ms");
  EXPECT_EQ(FormatDuration(2410ms), "2.41 s");
  EXPECT_EQ(FormatDuration(41230ms), "41.2 s");
  EXPECT_EQ(FormatDuration(200s), "3 min 20 s");
  EXPECT_EQ(FormatDuration(125min), "2 h 5 min");
  EXPECT_EQ(FormatDuration(-350ms), "-350 ms");
}

TEST(FormatDuration, RoundsIntoTheNextUnitInsteadOfPrintingAThousand) {
  EXPECT_EQ(FormatDuration(999499ns), "999 us");
  EXPECT_EQ(FormatDuration(999999ns), "1 ms");
  EXPECT_EQ(FormatDuration(999999us), "1.00 s");
  EXPECT_EQ(FormatDuration(9999ms), "10.0 s");
  EXPECT_EQ(FormatDuration(59999ms), "1 min 0 s");
  EXPECT_EQ(FormatDuration(1h - 1ms), "1 h 0 min");
}

TEST(FormatDuration, ExtremesDoNotOverflow) {
  EXPECT_EQ(FormatDuration(Duration::max()), "2562047 h 47 min");
  EXPECT_EQ(FormatDuration(Duration::min()), "-2562047 h 47 min");
}

TEST(FormatBytes, ThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "0.98 KiB");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(1299227607), "1.21 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{250} << 30), "250 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{999} << 20), "999 MiB");
  EXPECT_EQ(FormatBytes((uint64_t{1000} << 20) - 1), "0.98 GiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(FormatWallTime, UtcWithMilliseconds) {
  using namespace std::chrono;
  const WallTime t = sys_days(2026y / November / 29) + 17h + 56min + 30s + 123ms + 999us;
  EXPECT_EQ(FormatWallTime(t), "2026-11-29 17:56:30.123");
  EXPECT_EQ(FormatWallTime(sys_days(2024y / February / 29) + 0ns), "2024-02-29 00:00:00.000");
  EXPECT_EQ(FormatWallTime(WallTime(-1ms)), "1969-12-31 23:59:59.999");
  EXPECT_EQ(WallMillis(WallTime(1234567us)), 1234u);
}

}  // namespace
}  // namespace tierkeep
