// What the suite knows beforehand: which missing guard each checker is to notice, and which
// schedules come first. Demands are part of the proof; hints only save time: where one doesn't
// show it any more, all the other schedules follow.
#pragma once

#include <string>
#include <vector>

#include "base/mutation.h"
#include "sim/checkers.h"

namespace tierkeep::sim {

struct Demand {
  Checker checker;
  Mutation mutation;
};

struct Hint {
  Mutation mutation;
  std::vector<std::string> schedules;  // "--seed N" or "--scenario NAME"
};

const std::vector<Demand>& Demands();
const std::vector<Hint>& Hints();

}  // namespace tierkeep::sim
