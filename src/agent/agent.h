// The process on each node: puts store, tiers, control plane, node machine and admin API together.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/settings.h"
#include "base/result.h"

namespace tierkeep {

// Runs until SIGTERM or SIGINT (which must be blocked in every thread before the call), then leaves
// in order within settings.stop_budget. Everything is resumable at any instant, so an exit after
// the budget is no error. Errors: what kept it from starting, with the remedy.
Status RunAgent(const AgentSettings& settings);

}  // namespace tierkeep
