#include "base/check.h"

#include <gtest/gtest.h>

#include <string>

namespace tierkeep {
namespace {

TEST(CheckDeathTest, AFailedCheckNamesPlaceConditionAndDetail) {
  const int copies = 0;
  EXPECT_DEATH(TK_CHECK(copies > 0), "check_test.cc:[0-9]+: CHECK failed: copies > 0\n");
  EXPECT_DEATH(TK_CHECK_MSG(copies > 0, std::string("shard ") + "ab"),
               "CHECK failed: copies > 0: shard ab");
}

TEST(Check, DetailIsNotBuiltWhenTheCheckHolds) {
  int built = 0;
  const auto detail = [&] {
    ++built;
    return std::string("detail");
  };
  TK_CHECK_MSG(built == 0, detail());
  EXPECT_EQ(built, 0);
}

}  // namespace
}  // namespace tierkeep
