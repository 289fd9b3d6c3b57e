// Gathers facts from this machine and its neighbours. Blocking; what is tried is removed again, and
// the job's files are never touched. Threads: any.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/clock.h"
#include "platform/doctor/facts.h"

namespace tierkeep::doctor {

// Where the kernel shows itself; tests put a tree of their own there.
struct SystemPaths {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

// `answer` is that of GET /v1/status, `socket` where it was asked.
AgentFacts ReadAgent(const Result<nlohmann::json>& answer, const std::string& socket);

MountFacts CollectMount(const std::string& mount, const SystemPaths& paths, RandomSource* random);
// Of the process `pid`, or of this one.
MemoryFacts CollectMemory(std::optional<int> pid, const SystemPaths& paths);
HugePageFacts CollectHugePages(const SystemPaths& paths);
LimitFacts CollectLimits(std::optional<int> pid, const std::string& volume,
                         const SystemPaths& paths);
StateDirFacts CollectStateDir(const std::string& path, const SystemPaths& paths,
                              RandomSource* random);

PortFacts CollectPort(const std::string& name, const HostPort& at, uint16_t of_agent);
// Tries all at once, at most a few seconds each; with TLS the peer must accept our certificate too.
std::vector<Status> ReachAll(const std::vector<HostPort>& addresses,
                             const std::shared_ptr<TlsContext>& tls);
// A stream to a control or data port says first whether it accepts us; then it is left alone.
RendezvousFacts CollectRendezvous(const AgentSettings& settings, const AgentFacts& agent,
                                  const std::shared_ptr<TlsContext>& tls, Clock* clock,
                                  RandomSource* random);

// The file system that `path` is on, from /proc/self/mountinfo's text: the last mount of the
// longest mount point above it.
struct MountEntry {
  std::string point;
  std::string file_system;
  std::string options;  // the mount's and the file system's, with commas between
};
std::optional<MountEntry> FindMount(std::string_view mountinfo, const std::string& path);

}  // namespace tierkeep::doctor
