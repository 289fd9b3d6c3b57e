#include "io/cgroup_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

namespace tierkeep {
namespace {

// Version 1 writes the highest number of whole pages where there is no limit.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

struct Version {
  const char* limit;
  const char* used;
  const char* droppable;  // key in memory.stat
};
constexpr Version kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};
constexpr Version kVersion2{"memory.max", "memory.current", "inactive_file"};

// Groups are files of the kernel's: their size says nothing, and a read gives all.
Result<std::string> ReadAll(const std::string& path) {
  errno = 0;
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (in.good() || (in.eof() && !in.bad())) return text.str();
  return ErrnoError(errno != 0 ? errno : EIO, "read " + path);
}

Result<uint64_t> ReadNumber(const std::string& path) {
  TK_ASSIGN_OR_RETURN(std::string text, ReadAll(path));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text == "max") return kNoLimit;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(Code::kDataLoss, fmt::format("{} holds no number", path));
  }
  return value;
}

// 0 where it isn't told.
uint64_t Droppable(const std::string& group, const Version& version) {
  const auto text = ReadAll(group + "/memory.stat");
  if (!text.ok()) return 0;
  std::istringstream lines(*text);
  std::string key;
  uint64_t value = 0;
  while (lines >> key >> value) {
    if (key == version.droppable) return value;
  }
  return 0;
}

// One group; nullopt: it has no limit, or isn't there (the root, or another part of the tree than
// the one that is mounted).
Result<std::optional<CgroupMemory>> ReadGroup(const std::string& group, const Version& version) {
  const auto limit = ReadNumber(group + "/" + version.limit);
  if (!limit.ok() && limit.error().code() == Code::kNotFound) return std::optional<CgroupMemory>();
  if (!limit.ok()) return limit.error();
  if (*limit >= kNoLimit) return std::optional<CgroupMemory>();
  CgroupMemory memory;
  memory.limit_bytes = *limit;
  memory.group = group;
  memory.limit_file = group + "/" + version.limit;
  const auto used = ReadNumber(group + "/" + version.used);
  if (!used.ok()) {
    memory.usage = used.error();
    return std::optional<CgroupMemory>(std::move(memory));
  }
  memory.used_bytes = *used;
  const uint64_t kept = *used - std::min(*used, Droppable(group, version));
  memory.free_bytes = *limit - std::min(*limit, kept);
  return std::optional<CgroupMemory>(std::move(memory));
}

struct Place {
  std::string mount;
  std::string path;  // of the process, below it
  Version version;
};

// Lines of /proc/PID/cgroup: "4:memory:/a/b", "0::/a/b".
std::vector<Place> PlacesOf(const std::string& text, const std::string& mount) {
  std::vector<Place> places;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") {
      places.push_back({mount, path, kVersion2});
      places.push_back({mount + "/unified", path, kVersion2});
    } else if (controllers.find(",memory,") != std::string::npos) {
      places.push_back({mount + "/memory", path, kVersion1});
    }
  }
  return places;
}

}  // namespace

std::vector<Result<CgroupMemory>> ReadCgroupLimits(const CgroupPaths& paths) {
  const auto text = ReadAll(paths.of_process);
  if (!text.ok() && text.error().code() == Code::kNotFound) return {};
  if (!text.ok()) return {text.error()};
  std::vector<Result<CgroupMemory>> limits;
  for (const Place& place : PlacesOf(*text, paths.mount)) {
    // Each group bounds all below it. In a container the mount often begins at its own group.
    for (std::string path = place.path;; path.erase(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      auto group = ReadGroup(place.mount + path, place.version);
      if (!group.ok()) {
        limits.emplace_back(group.error());
      } else if (*group) {
        limits.emplace_back(std::move(**group));
      }
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return limits;
}

Result<std::optional<CgroupMemory>> ReadCgroupMemory(const CgroupPaths& paths) {
  std::optional<CgroupMemory> tightest;
  for (Result<CgroupMemory>& group : ReadCgroupLimits(paths)) {
    if (!group.ok()) return group.error();
    if (!group->usage.ok()) return group->usage.error();
    if (!tightest || group->free_bytes < tightest->free_bytes) tightest = std::move(*group);
  }
  return tightest;
}

}  // namespace tierkeep
