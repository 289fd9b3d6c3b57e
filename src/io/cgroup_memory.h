// What the control groups of this process still let it take of memory. Pages of a tmpfs are charged
// to the group that wrote them first, and stay there; so a limit bounds what the agent can pull,
// whatever the file system has room for.
//
// Versions 1 and 2 and both at once, as mounted by systemd, container runtimes and Kubernetes.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace tierkeep {

struct CgroupMemory {
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;    // file pages that the kernel drops first count as free
  std::string group;          // its directory, for people
  std::string limit_file;     // where the limit stands
  Status usage = OkStatus();  // why used and free bytes aren't known
};

struct CgroupPaths {
  std::string of_process = "/proc/self/cgroup";
  std::string mount = "/sys/fs/cgroup";
};

// Every group that has a limit, from the process's own up to the root, or the error in its place.
std::vector<Result<CgroupMemory>> ReadCgroupLimits(const CgroupPaths& paths = {});

// The tightest of all groups from the process's own up to the root, by free bytes; nullopt where
// none has a limit. A limit that is there and can't be read is an error, not "no limit".
Result<std::optional<CgroupMemory>> ReadCgroupMemory(const CgroupPaths& paths = {});

}  // namespace tierkeep
