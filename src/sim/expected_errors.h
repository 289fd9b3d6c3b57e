// Lines of ERROR severity that the faults of a schedule explain. Any other fails the run: an agent
// that complains without reason, or of something that should not have come to it.
#pragma once

#include <string_view>

#include "sim/world.h"

namespace tierkeep::sim {

// Whether a fault that was put in before now explains that an agent says this.
bool IsExplained(const World& world, std::string_view text);

}  // namespace tierkeep::sim
