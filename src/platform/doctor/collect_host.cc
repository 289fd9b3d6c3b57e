// The machine: mount, memory, pages, limits.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/cgroup_memory.h"
#include "io/dir_watch.h"
#include "io/unique_fd.h"
#include "platform/doctor/collect.h"
#include "tiers/ram/store.h"

namespace tierkeep::doctor {
namespace {

constexpr uint64_t kSystemFileBytesMax = 16u << 20;

// A file of /proc or /sys: their sizes are 0, so it is read to its end. Empty: not there.
std::string ReadSystemFile(const std::string& path) {
  std::string out;
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return out;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) {
    out.append(buffer, n);
    if (out.size() > kSystemFileBytesMax) break;
  }
  std::fclose(file);
  return out;
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

// The parts point into `text`, which must outlive them.
std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<std::string_view> Split(std::string&& text, char at) = delete;

// mountinfo writes blanks and the like as \040.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                               (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool IsAbove(const std::string& point, const std::string& path) {
  if (point == "/") return true;
  return path == point || (path.starts_with(point) && path[point.size()] == '/');
}

// The path without links; as far as it exists.
std::string RealPath(const std::string& path) {
  char real[PATH_MAX];
  if (::realpath(path.c_str(), real) != nullptr) return real;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return path;
  return RealPath(path.substr(0, slash)) + path.substr(slash);
}

std::string Nonce(RandomSource* random) {
  uint64_t number = 0;
  random->Fill(&number, sizeof(number));
  return fmt::format(".tierkeep-doctor-{:016x}", number);
}

std::string ProcessDir(std::optional<int> pid, const SystemPaths& paths) {
  return pid ? fmt::format("{}/{}", paths.proc, *pid) : paths.proc + "/self";
}

std::optional<int> PeerPid(const std::string& socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.size() >= sizeof(address.sun_path)) return std::nullopt;
  socket.copy(address.sun_path, socket.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0 ||
      credentials.pid <= 0) {
    return std::nullopt;
  }
  return credentials.pid;
}

void ProbeFile(Dir& dir, const std::string& path, MountFacts& facts) {
  {
    const auto file = dir.CreateFile(path, 0600);
    if (!file.ok()) {
      facts.immutable = file.error();
      return;
    }
  }
  const auto writers = dir.ProbeWriters(path);
  facts.leases = writers.ok() && *writers != LeaseResult::kUnsupported;
  facts.immutable = dir.SetImmutable(path, true);
  if (facts.immutable.ok()) facts.immutable = dir.SetImmutable(path, false);
  (void)dir.Unlink(path);
}

}  // namespace

std::optional<MountEntry> FindMount(std::string_view mountinfo, const std::string& path) {
  std::optional<MountEntry> best;
  for (const std::string_view line : Split(mountinfo, '\n')) {
    const auto fields = Split(line, ' ');
    size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") ++dash;
    if (dash + 3 >= fields.size()) continue;
    MountEntry entry{Unescape(fields[4]), std::string(fields[dash + 1]),
                     fmt::format("{},{}", fields[5], fields[dash + 3])};
    if (!IsAbove(entry.point, path)) continue;
    if (!best || entry.point.size() >= best->point.size()) best = std::move(entry);
  }
  return best;
}

AgentFacts ReadAgent(const Result<nlohmann::json>& answer, const std::string& socket) {
  AgentFacts facts;
  if (!answer.ok()) {
    const Code code = answer.error().code();
    if (code != Code::kUnavailable && code != Code::kNotFound) facts.answer = answer.error();
    return facts;
  }
  // Not trusted to be of our version: what has another form is left out.
  try {
    facts.node = answer->at("node").get<std::string>();
    const auto& network = answer->at("network");
    facts.control_port = network.at("control_port").get<uint16_t>();
    facts.data_port = network.at("data_port").get<uint16_t>();
    if (answer->at("job").is_object()) facts.job = answer->at("job").at("name").get<std::string>();
    if (const auto sizing = answer->find("sizing");
        sizing != answer->end() && sizing->is_object()) {
      const auto optional = [&](const char* name) -> std::optional<uint64_t> {
        const auto value = sizing->find(name);
        if (value == sizing->end() || value->is_null()) return std::nullopt;
        return value->get<uint64_t>();
      };
      facts.sizing = {sizing->at("advised_bytes").get<uint64_t>(),
                      sizing->at("volume_bytes").get<uint64_t>(), optional("memory_limit_bytes"),
                      optional("advised_memory_limit_bytes")};
    }
    const auto clocks = answer->value("clock_skew_seconds", nlohmann::json::object());
    for (const auto& member : answer->at("members")) {
      AgentFacts::Member one{member.at("node").get<std::string>(), {}, {}};
      const std::string data = member.at("data").get<std::string>();
      const size_t colon = data.rfind(':');
      if (colon == std::string::npos) continue;
      one.data = {data.substr(0, colon),
                  static_cast<uint16_t>(ParseNumber(data.substr(colon + 1)).value_or(0))};
      const auto clock = clocks.find(one.node);
      if (clock != clocks.end() && clock->is_number()) {
        one.clock_skew_seconds = clock->get<double>();
      }
      facts.members.push_back(std::move(one));
    }
  } catch (const nlohmann::json::exception& e) {
    facts.answer = Error(Code::kUnknown, fmt::format("its status has another form: {}", e.what()));
    return facts;
  }
  facts.running = true;
  facts.pid = PeerPid(socket);
  return facts;
}

MountFacts CollectMount(const std::string& mount, const SystemPaths& paths, RandomSource* random) {
  MountFacts facts;
  facts.path = mount;
  auto dir = OpenPosixDir(mount);
  if (!dir.ok()) {
    facts.opened = dir.error().With("mount");
    return facts;
  }
  if (const auto entry =
          FindMount(ReadSystemFile(paths.proc + "/self/mountinfo"), RealPath(mount))) {
    facts.file_system = entry->file_system;
    facts.options = entry->options;
  }
  if (const auto space = (*dir)->Space(); space.ok()) facts.space = *space;
  std::vector<std::string> made;
  for (const char* name : {"client", "store"}) {
    if ((*dir)->MakeDir(name, 0755).ok()) made.push_back(name);
  }
  facts.made_by_agent = made.empty();
  const std::string nonce = Nonce(random);
  facts.layout = ProbeMount(**dir, {"client/" + nonce, "store/" + nonce, "store/" + nonce + "-2"});
  ProbeFile(**dir, "store/" + nonce, facts);
  for (const std::string& name : made) (void)(*dir)->RemoveDir(name);
  return facts;
}

MemoryFacts CollectMemory(std::optional<int> pid, const SystemPaths& paths) {
  MemoryFacts facts;
  facts.of_agent = pid.has_value();
  const std::string meminfo = ReadSystemFile(paths.proc + "/meminfo");
  for (const std::string_view line : Split(meminfo, '\n')) {
    const auto kib = [&](std::string_view name) -> std::optional<uint64_t> {
      if (!line.starts_with(name)) return std::nullopt;
      return ParseNumber(line.substr(name.size()));
    };
    if (const auto n = kib("MemTotal:")) facts.total = *n * 1024;
    if (const auto n = kib("MemAvailable:")) facts.available = *n * 1024;
  }
  for (const auto& group : ReadCgroupLimits(
           {.of_process = ProcessDir(pid, paths) + "/cgroup", .mount = paths.sys + "/fs/cgroup"})) {
    if (!group.ok()) continue;
    facts.limits.push_back({group->limit_file, group->limit_bytes, group->used_bytes});
  }
  return facts;
}

HugePageFacts CollectHugePages(const SystemPaths& paths) {
  HugePageFacts facts;
  // "always within_size advise never [deny] force"
  const std::string text =
      ReadSystemFile(paths.sys + "/kernel/mm/transparent_hugepage/shmem_enabled");
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    facts.shmem_enabled = text.substr(open + 1, close - open - 1);
  }
  utsname name{};
  if (::uname(&name) == 0) {
    (void)std::sscanf(name.release, "%d.%d", &facts.kernel_major, &facts.kernel_minor);
  }
  return facts;
}

LimitFacts CollectLimits(std::optional<int> pid, const std::string& volume,
                         const SystemPaths& paths) {
  LimitFacts facts;
  facts.of_agent = pid.has_value();
  rlimit own{};
  if (::getrlimit(RLIMIT_NOFILE, &own) == 0) {
    facts.open_files = own.rlim_cur;
    facts.open_files_hard = own.rlim_max;
  }
  if (pid) {
    const std::string limits = ReadSystemFile(ProcessDir(pid, paths) + "/limits");
    for (const std::string_view line : Split(limits, '\n')) {
      constexpr std::string_view kName = "Max open files";
      if (!line.starts_with(kName)) continue;
      const auto fields = Split(line.substr(kName.size()), ' ');
      if (fields.size() < 2) continue;
      facts.open_files = ParseNumber(fields[0]).value_or(UINT64_MAX);  // "unlimited"
      facts.open_files_hard = ParseNumber(fields[1]).value_or(UINT64_MAX);
    }
  }
  const auto setting = [&](const char* name) {
    return ParseNumber(ReadSystemFile(fmt::format("{}/sys/{}", paths.proc, name))).value_or(0);
  };
  facts.map_count = setting("vm/max_map_count");
  facts.inotify_instances = setting("fs/inotify/max_user_instances");
  facts.inotify_watches = setting("fs/inotify/max_user_watches");
  const auto watch = DirWatch::Start(volume, [](const DirChange&) {});
  // Before the agent's first start there is nothing to watch.
  if (watch.ok()) facts.watch = OkStatus();
  if (!watch.ok() && watch.error().code() != Code::kNotFound) facts.watch = watch.error();
  return facts;
}

StateDirFacts CollectStateDir(const std::string& path, const SystemPaths& paths,
                              RandomSource* random) {
  StateDirFacts facts;
  facts.path = path;
  if (const auto entry =
          FindMount(ReadSystemFile(paths.proc + "/self/mountinfo"), RealPath(path))) {
    facts.in_memory = entry->file_system == "tmpfs" || entry->file_system == "ramfs";
  }
  auto dir = OpenPosixDir(path);
  if (!dir.ok() && dir.error().code() == Code::kNotFound) {
    facts.exists = false;
    // The agent makes the last part of it.
    const size_t slash = path.rfind('/');
    dir = OpenPosixDir(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
  }
  if (!dir.ok()) {
    facts.writable = dir.error();
    return facts;
  }
  const std::string probe = Nonce(random);
  const auto file = (*dir)->CreateFile(probe, 0600);
  if (!file.ok()) facts.writable = file.error();
  if (file.ok()) facts.writable = (*dir)->Unlink(probe);
  return facts;
}

}  // namespace tierkeep::doctor
