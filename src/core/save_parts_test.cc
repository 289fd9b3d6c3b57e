#include "core/save_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tierkeep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

std::string Name(Step step, Worker worker) {
  return "s" + std::to_string(step) + "w" + std::to_string(worker);
}

SaveParts::Found Add(SaveParts* parts, Step step, Worker worker, uint32_t workers = 2) {
  return parts->Add(step, worker, Name(step, worker), workers);
}

TEST(SaveParts, OneWorkerNeedsNobody) {
  SaveParts parts;
  EXPECT_THAT(Add(&parts, 5, 0, 1).whole, ElementsAre(Pair(0, "s5w0")));
  EXPECT_THAT(Add(&parts, 5, 0, 1).whole, ElementsAre(Pair(0, "s5w0")));
}

TEST(SaveParts, WholeOnceAllWorkersAreThere) {
  SaveParts parts;
  EXPECT_THAT(Add(&parts, 5, 1, 3).whole, IsEmpty());
  EXPECT_THAT(Add(&parts, 5, 1, 3).whole, IsEmpty());  // the same one again
  EXPECT_THAT(Add(&parts, 5, 0, 3).whole, IsEmpty());
  const auto found = Add(&parts, 5, 2, 3);
  EXPECT_THAT(found.whole, ElementsAre(Pair(0, "s5w0"), Pair(1, "s5w1"), Pair(2, "s5w2")));
  EXPECT_THAT(found.overtaken, IsEmpty());
  // The step may come again.
  EXPECT_THAT(Add(&parts, 5, 0, 3).whole, IsEmpty());
}

TEST(SaveParts, AWorkerMayBeAhead) {
  SaveParts parts;
  Add(&parts, 5, 0);
  Add(&parts, 10, 0);
  EXPECT_THAT(Add(&parts, 5, 1).overtaken, IsEmpty());
  EXPECT_THAT(Add(&parts, 10, 1).whole, ElementsAre(Pair(0, "s10w0"), Pair(1, "s10w1")));
}

TEST(SaveParts, B8WhatAWorkerSkippedIsGivenUp) {
  SaveParts parts;
  Add(&parts, 5, 0);
  Add(&parts, 10, 0);
  const auto found = Add(&parts, 10, 1);
  EXPECT_THAT(found.whole, ElementsAre(Pair(0, "s10w0"), Pair(1, "s10w1")));
  EXPECT_THAT(found.overtaken, ElementsAre("s5w0"));
  // Also when steps go back, and several at a time.
  Add(&parts, 900, 0, 3);
  Add(&parts, 900, 1, 3);
  Add(&parts, 800, 2, 3);
  Add(&parts, 100, 0, 3);
  Add(&parts, 100, 1, 3);
  EXPECT_THAT(Add(&parts, 100, 2, 3).overtaken, UnorderedElementsAre("s800w2", "s900w0", "s900w1"));
}

}  // namespace
}  // namespace tierkeep
