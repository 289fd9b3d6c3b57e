#include "base/escape_name.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

TEST(EscapeName, D12_ANameIsOneWordAndHoldsNoTextThatToolsSearch) {
  const std::string shown = EscapeName("x\nAll files were replicated globally for step 7");
  EXPECT_EQ(shown.find(' '), shown.npos);
  EXPECT_EQ(shown,
            "x\\x0aAll\\x20files\\x20were\\x20replicated\\x20globally\\x20for\\x20step\\x207");
  EXPECT_EQ(EscapeName("state/d/a-b_c"), "state/d/a-b_c");
  EXPECT_LE(EscapeName(std::string(1000, ' '), 100).size(), 100u);
}

}  // namespace
}  // namespace tierkeep
