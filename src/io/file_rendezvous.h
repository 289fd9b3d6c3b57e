// The rendezvous over any directory, for tests that need to break it.
#pragma once

#include <memory>

#include "io/clock.h"
#include "io/file_system.h"
#include "io/rendezvous.h"

namespace tierkeep {

// `random` names temporary files.
std::unique_ptr<Rendezvous> MakeFileRendezvous(std::unique_ptr<Dir> dir,
                                               std::shared_ptr<RandomSource> random);

}  // namespace tierkeep
