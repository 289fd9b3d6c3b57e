#include "format/ids.h"

#include <fmt/format.h>

namespace tierkeep {
namespace {

bool IsAlphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

}  // namespace

bool IsPlainName(std::string_view name, size_t bytes_max) {
  if (name.empty() || name.size() > bytes_max || !IsAlphanumeric(name[0])) return false;
  for (const char c : name) {
    if (!IsAlphanumeric(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

std::string RunId::ToString() const {
  if (none()) return "none";
  return fmt::format("{}-{}", sequence, nonce.Hex().substr(0, 8));
}

std::string SaveKey::ToString() const {
  if (occurrence > 1) {
    return fmt::format("step {} (run {}, occurrence {})", step, run.ToString(), occurrence);
  }
  return fmt::format("step {} (run {})", step, run.ToString());
}

std::string_view FrameworkName(Framework framework) {
  switch (framework) {
    case Framework::kOrbax:
      return "orbax";
    case Framework::kPytorchDistributed:
      return "pytorch.distributed";
    case Framework::kPytorch:
      return "pytorch";
  }
  return "unknown";
}

std::optional<Framework> ParseFramework(std::string_view name) {
  for (const Framework f :
       {Framework::kOrbax, Framework::kPytorchDistributed, Framework::kPytorch}) {
    if (name == FrameworkName(f)) return f;
  }
  return std::nullopt;
}

Status CheckWorldShape(const WorldShape& world) {
  if (FrameworkName(world.framework) == "unknown") {
    return Error(Code::kInvalidArgument, fmt::format("framework number {} is not known",
                                                     static_cast<int>(world.framework)));
  }
  if (world.nodes < 1 || world.nodes > kNodesMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} nodes are not within 1 and {}", world.nodes, kNodesMax));
  }
  if (world.workers_per_node < 1 || world.workers_per_node > kWorkersPerNodeMax) {
    return Error(Code::kInvalidArgument, fmt::format("{} workers a node are not within 1 and {}",
                                                     world.workers_per_node, kWorkersPerNodeMax));
  }
  if (world.data_parallelism > 0 && world.nodes % world.data_parallelism != 0) {
    return Error(Code::kInvalidArgument, fmt::format("{} partitions do not divide {} nodes",
                                                     world.data_parallelism, world.nodes));
  }
  return OkStatus();
}

}  // namespace tierkeep
