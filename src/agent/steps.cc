#include "agent/steps.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "core/action_names.h"
#include "format/decimal.h"

namespace tierkeep {
namespace {

constexpr std::string_view kNode = "node";
constexpr std::string_view kCoordinator = "coordinator";

}  // namespace

std::vector<std::string> AllSteps() {
  std::vector<std::string> steps;
  for (const auto name : NodeActionNames()) steps.push_back(fmt::format("{}.{}", kNode, name));
  for (const auto name : CoordinatorActionNames()) {
    steps.push_back(fmt::format("{}.{}", kCoordinator, name));
  }
  return steps;
}

Result<CrashPoint> ParseCrashPoint(std::string_view text) {
  CrashPoint point;
  const size_t colon = text.find(':');
  point.step = text.substr(0, colon);
  if (colon != std::string_view::npos) {
    const auto count = ParseDecimal(text.substr(colon + 1));
    if (!count || *count == 0) return Error(Code::kInvalidArgument, "must be STEP or STEP:N");
    point.count = *count;
  }
  const std::vector<std::string> steps = AllSteps();
  if (std::find(steps.begin(), steps.end(), point.step) == steps.end()) {
    return Error(Code::kInvalidArgument, "is no step (tierkeep agent --list-steps names them)");
  }
  return point;
}

void Steps::Announce(const NodeAction::Any& action) { Announce(kNode, ActionName(action)); }

void Steps::Announce(const CoordinatorAction::Any& action) {
  Announce(kCoordinator, ActionName(action));
}

void Steps::Announce(std::string_view machine, std::string_view action) {
  logger_.Debug("step {}.{}", machine, action);
  if (!crash_ || crash_->step != fmt::format("{}.{}", machine, action)) return;
  if (seen_.fetch_add(1) + 1 != crash_->count) return;
  logger_.Warning("ending before step {}.{}, as --crash-before says", machine, action);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();  // the signal is on its way
}

}  // namespace tierkeep
