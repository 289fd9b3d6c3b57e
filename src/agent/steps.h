// The steps of an agent: each action of its machines, announced just before it is carried out. With
// --log-level debug they are in the log. For tests an agent can be made to end before one of them,
// as `kill -9` at that moment would: every such end must lose nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "core/events.h"

namespace tierkeep {

// "node.PlaceLink" or "coordinator.Send", as core/action_names.h has them.
std::vector<std::string> AllSteps();

// The `count`-th time that `step` comes, from 1.
struct CrashPoint {
  std::string step;
  uint64_t count = 1;
};
// "node.PlaceLink" or "node.PlaceLink:3". kInvalidArgument: there is no such step, or no number.
Result<CrashPoint> ParseCrashPoint(std::string_view text);

// Threads: any.
class Steps {
 public:
  Steps(Logger logger, std::optional<CrashPoint> crash)
      : logger_(std::move(logger)), crash_(std::move(crash)) {}

  // Doesn't return if this is where the agent is to end.
  void Announce(const NodeAction::Any& action);
  void Announce(const CoordinatorAction::Any& action);

 private:
  void Announce(std::string_view machine, std::string_view action);

  const Logger logger_;
  const std::optional<CrashPoint> crash_;
  std::atomic<uint64_t> seen_{0};
};

}  // namespace tierkeep
