#include "platform/doctor/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tierkeep::doctor {
namespace {

// Room for the control connections of a job of a few thousand nodes, and for files being hashed.
constexpr uint64_t kOpenFilesAdvised = 8192;
// Below it, an agent that serves 64 peers and hashes with all cores may fail to open a file.
constexpr uint64_t kOpenFilesMin = 512;
constexpr uint64_t kMapCountMin = 65530;  // the kernel's default
constexpr uint64_t kInotifyInstancesMin = 8;
constexpr Duration kExpirySoon = 14 * 24h;
constexpr Duration kSkewWarned = 1s;
constexpr Duration kSkewWrong = 5min;  // certificates and backups' names go by the clock
constexpr double kMemoryShareMax = 0.9;

Finding Ok(std::string check, std::string text) {
  return {std::move(check), Verdict::kOk, std::move(text), ""};
}
Finding Warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Verdict::kWarning, std::move(text), std::move(remedy)};
}
Finding Problem(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Verdict::kProblem, std::move(text), std::move(remedy)};
}

// "size=1g,huge=within_size" → "within_size" for "huge".
std::string OptionOf(const std::string& options, std::string_view name) {
  size_t at = 0;
  while (at <= options.size()) {
    const size_t end = std::min(options.find(',', at), options.size());
    const std::string_view option(options.data() + at, end - at);
    if (option.starts_with(name) && option.size() > name.size() && option[name.size()] == '=') {
      return std::string(option.substr(name.size() + 1));
    }
    at = end + 1;
  }
  return "";
}

std::string Days(Duration d) {
  return fmt::format("{} days", std::chrono::duration_cast<std::chrono::hours>(d).count() / 24);
}

std::string Signed(Duration d) {
  return fmt::format("{} {}", FormatDuration(d < Duration(0) ? -d : d),
                     d < Duration(0) ? "behind" : "ahead");
}

}  // namespace

Findings CheckAgent(const AgentFacts& agent) {
  if (!agent.answer.ok()) {
    return {Problem("agent",
                    "something is at the admin socket that doesn't answer as an agent: " +
                        agent.answer.error().ToString(),
                    "look at the agent's log; end and start it if it hangs")};
  }
  if (!agent.running) {
    return {Ok("agent", "not running: only the machine and the settings are looked at")};
  }
  return {Ok("agent", fmt::format("node {} answers, {}", agent.node,
                                  agent.job.empty() ? "no job" : "job " + agent.job))};
}

Findings CheckMount(const MountFacts& mount) {
  if (!mount.opened.ok()) {
    return {
        Problem("mount", mount.opened.error().ToString(),
                fmt::format("make it and mount it: mount -t tmpfs -o size=SIZE,huge=within_size "
                            "tmpfs {}",
                            mount.path))};
  }
  Findings out;
  if (!mount.layout.ok()) {
    out.push_back(Problem(
        "mount",
        "rename and hard links don't work between client/ and store/: " +
            mount.layout.error().ToString(),
        fmt::format(
            "client/ and store/ must be ordinary directories of one mount, {}, writable for "
            "the agent; give the job a bind mount of {}/client instead of mounting anything "
            "there",
            mount.path, mount.path)));
  } else {
    out.push_back(
        Ok("mount", fmt::format("{} is {}, {} of {} free; renames and links work{}", mount.path,
                                mount.file_system, FormatBytes(mount.space.free_bytes),
                                FormatBytes(mount.space.total_bytes),
                                mount.made_by_agent ? "" : " (no agent was here yet)")));
  }
  if (mount.file_system != "tmpfs" && mount.file_system != "ramfs") {
    out.push_back(Warning("mount",
                          fmt::format("{} is on {}, not in RAM: saves are as slow as that",
                                      mount.path, mount.file_system),
                          "mount a tmpfs there"));
  }
  if (!mount.immutable.ok()) {
    out.push_back(Warning(
        "immutable", "restored files can't be made immutable: " + mount.immutable.error().message(),
        "run the agent with CAP_LINUX_IMMUTABLE on a tmpfs of Linux 6.6 or later; without it what "
        "was restored is read again before it counts as a copy"));
  } else if (mount.layout.ok()) {
    out.push_back(Ok("immutable", "restored files can be made immutable"));
  }
  if (!mount.leases) {
    out.push_back(Warning("leases", "writers that still have a save open can't be found",
                          "use a tmpfs, and an agent that runs as root or owns the files"));
  }
  return out;
}

Findings CheckMemory(const MemoryFacts& memory, const MountFacts& mount) {
  Findings out;
  const uint64_t volume = mount.space.total_bytes;
  if (!mount.opened.ok()) return {Ok("memory", FormatBytes(memory.total) + " in all")};
  const std::string sizes = fmt::format("the volume may take {} of {} of memory",
                                        FormatBytes(volume), FormatBytes(memory.total));
  if (volume > memory.total) {
    out.push_back(Problem("memory", sizes + ": it can't be filled",
                          "mount it with a size= below the machine's memory"));
  } else if (static_cast<double>(volume) > kMemoryShareMax * static_cast<double>(memory.total)) {
    out.push_back(Warning("memory", sizes + ": little is left for the job",
                          "leave at least a tenth for the job and the system"));
  } else {
    out.push_back(
        Ok("memory", sizes + fmt::format(", {} available", FormatBytes(memory.available))));
  }
  const std::string whose = memory.of_agent ? "the agent's" : "this shell's";
  for (const MemoryFacts::Limit& limit : memory.limits) {
    const std::string text =
        fmt::format("{} control group may use {} ({} used now, {})", whose,
                    FormatBytes(limit.limit), FormatBytes(limit.used), limit.where);
    if (limit.limit < volume) {
      out.push_back(Warning(
          "cgroup", text + fmt::format(", less than the volume's {}", FormatBytes(volume)),
          "pages belong to the group that wrote them first: the job's for saves, the agent's for "
          "copies and restores; raise the limit by what that group will hold"));
    } else {
      out.push_back(Ok("cgroup", text));
    }
  }
  if (memory.limits.empty()) out.push_back(Ok("cgroup", "no limit on " + whose + " memory"));
  return out;
}

Findings CheckSizing(const AgentFacts& agent) {
  if (!agent.sizing) return {};
  const AgentFacts::Sizing& sizing = *agent.sizing;
  Findings out;
  const auto judge = [&](const std::string& what, uint64_t has, uint64_t advised,
                         const std::string& remedy) {
    const std::string text = fmt::format("{} has {}, and the last save advises {}", what,
                                         FormatBytes(has), FormatBytes(advised));
    out.push_back(has < advised ? Warning("sizing", text, remedy) : Ok("sizing", text));
  };
  judge("the volume", sizing.volume_bytes, sizing.advised_bytes,
        fmt::format("mount it with size={} or more; until then saves may stay unprotected",
                    sizing.advised_bytes));
  if (sizing.limit_bytes && sizing.advised_limit_bytes) {
    judge("the agent's control group", *sizing.limit_bytes, *sizing.advised_limit_bytes,
          fmt::format("raise its limit to {} bytes", *sizing.advised_limit_bytes));
  }
  return out;
}

Findings CheckHugePages(const HugePageFacts& pages, const MountFacts& mount) {
  if (!mount.opened.ok() || mount.file_system != "tmpfs") {
    return {Ok("huge-pages", "only a tmpfs has them")};
  }
  const std::string huge = OptionOf(mount.options, "huge");
  const std::string kernel = fmt::format("Linux {}.{}", pages.kernel_major, pages.kernel_minor);
  if (pages.shmem_enabled.empty()) {
    return {Warning("huge-pages", kernel + " has no huge pages for tmpfs: copies are slower",
                    "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")};
  }
  if (pages.shmem_enabled == "deny") {
    return {Warning("huge-pages", "the system denies huge pages to every tmpfs: copies are slower",
                    "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled")};
  }
  if (pages.shmem_enabled == "force") {
    return {Ok("huge-pages", "the system forces huge pages on every tmpfs")};
  }
  if (huge == "always") {
    return {Warning("huge-pages", "huge=always takes 2 MiB for each small file",
                    fmt::format("mount -o remount,huge=within_size {}", mount.path))};
  }
  if (huge != "within_size") {
    return {Warning("huge-pages",
                    fmt::format("{} is mounted with huge={}: copies are up to twice as slow",
                                mount.path, huge.empty() ? "never" : huge),
                    fmt::format("mount -o remount,huge=within_size {}", mount.path))};
  }
  const bool for_written_files =
      pages.kernel_major > 6 || (pages.kernel_major == 6 && pages.kernel_minor >= 14);
  return {
      Ok("huge-pages", fmt::format("huge=within_size; {} gives large pages to {}", kernel,
                                   for_written_files ? "all large files"
                                                     : "copies (from 6.14 on, to saves as well)"))};
}

Findings CheckLimits(const LimitFacts& limits) {
  Findings out;
  const std::string whose = limits.of_agent ? "the agent" : "this shell";
  const std::string files = fmt::format("{} may open {} files (hard limit {})", whose,
                                        limits.open_files, limits.open_files_hard);
  const std::string raise =
      fmt::format("raise it to {}: LimitNOFILE= in the unit, or ulimit -n", kOpenFilesAdvised);
  if (limits.open_files < kOpenFilesMin) {
    out.push_back(Problem("open-files", files + ": transfers will fail", raise));
  } else if (limits.open_files < std::min(kOpenFilesAdvised, limits.open_files_hard) ||
             limits.open_files < kOpenFilesMin * 2) {
    out.push_back(Warning("open-files", files + ": too few to coordinate a large job", raise));
  } else {
    out.push_back(Ok("open-files", files));
  }
  if (limits.map_count != 0 && limits.map_count < kMapCountMin) {
    out.push_back(
        Warning("map-count",
                fmt::format("vm.max_map_count is {}, below the kernel's default", limits.map_count),
                fmt::format("sysctl vm.max_map_count={}", kMapCountMin)));
  } else if (limits.map_count != 0) {
    out.push_back(Ok("map-count", fmt::format("vm.max_map_count is {}", limits.map_count)));
  }
  const std::string inotify = fmt::format("{} inotify instances and {} watches a user",
                                          limits.inotify_instances, limits.inotify_watches);
  if (limits.watch && !limits.watch->ok()) {
    out.push_back(Problem("inotify",
                          "the volume can't be watched: " + limits.watch->error().ToString(),
                          "sysctl fs.inotify.max_user_instances=512"));
  } else if (limits.inotify_instances != 0 && limits.inotify_instances < kInotifyInstancesMin) {
    out.push_back(
        Warning("inotify", inotify + " are allowed", "sysctl fs.inotify.max_user_instances=512"));
  } else {
    out.push_back(
        Ok("inotify", inotify + " are allowed" + (limits.watch ? ", and one works" : "")));
  }
  return out;
}

Findings CheckPort(const PortFacts& port) {
  const std::string where = fmt::format("{} {}", port.name, port.at.ToString());
  switch (port.state) {
    case PortFacts::State::kAnyFree:
      return {Ok("ports", port.name + ": any free port")};
    case PortFacts::State::kFree:
      return {Ok("ports", where + " is free")};
    case PortFacts::State::kOurs:
      return {Ok("ports", where + " is the running agent's")};
    case PortFacts::State::kTaken:
      return {
          Problem("ports", where + " is taken by another process",
                  fmt::format("end it (ss -ltnp 'sport = :{}' names it), or give --{} another port",
                              port.at.port, port.name))};
    case PortFacts::State::kError:
      break;
  }
  return {Problem("ports",
                  fmt::format("{} can't be listened on: {}", where, port.error.error().ToString()),
                  "--listen must be an address of this machine")};
}

Findings CheckPeer(const PeerFacts& peer) {
  const std::string who = fmt::format("{} at {}", peer.who, peer.at.ToString());
  if (peer.reached.ok()) return {Ok("peers", who + " answers")};
  if (peer.reached.error().code() == Code::kUnauthenticated) {
    return {Problem("peers",
                    fmt::format("{} and we refuse each other's certificates: {}", who,
                                peer.reached.error().message()),
                    "all agents need certificates of one authority, valid now")};
  }
  return {
      Problem("peers", fmt::format("{} can't be reached: {}", who, peer.reached.error().ToString()),
              "start the agent there, and let its ports through firewalls and network policies")};
}

namespace {

void CheckExpiry(const std::string& what, const std::optional<WallTime>& not_after, WallTime now,
                 Findings& out) {
  if (!not_after) return;
  const Duration left = *not_after - now;
  const std::string when = FormatWallTime(*not_after).substr(0, 16) + " UTC";
  if (left <= Duration(0)) {
    out.push_back(Problem("tls", fmt::format("{} expired on {}", what, when),
                          "issue a new one; agents take it up without a restart"));
  } else if (left < kExpirySoon) {
    out.push_back(Warning("tls", fmt::format("{} expires in {}, on {}", what, Days(left), when),
                          "issue a new one; agents take it up without a restart"));
  }
}

}  // namespace

Findings CheckTls(const TlsFacts& tls, WallTime now) {
  if (tls.dir.empty()) {
    if (tls.loopback_only) return {Ok("tls", "none: plain TCP within this machine")};
    return {Warning("tls",
                    "plain TCP between machines: anyone on the network may read and forge "
                    "checkpoints",
                    "give --tls-dir with certificates of one authority for all agents")};
  }
  Findings out;
  const TlsFileFacts& files = tls.files;
  for (const Status* file : {&files.certificate, &files.key, &files.authority}) {
    if (file->ok()) continue;
    out.push_back(
        Problem("tls", file->error().ToString(),
                fmt::format("{} needs tls.crt, tls.key and ca.crt, readable for the agent, "
                            "as cert-manager lays them out",
                            tls.dir)));
  }
  if (files.key_matches.has_value() && !*files.key_matches) {
    out.push_back(Problem("tls", tls.dir + "/tls.key isn't the key of tls.crt",
                          "put the two of one issue there"));
  }
  CheckExpiry(tls.dir + "/tls.crt", files.not_after, now, out);
  CheckExpiry(tls.dir + "/ca.crt", files.authority_not_after, now, out);
  if (files.not_before && *files.not_before > now) {
    out.push_back(Problem("tls",
                          fmt::format("{}/tls.crt is valid only from {} UTC on", tls.dir,
                                      FormatWallTime(*files.not_before).substr(0, 16)),
                          "set this machine's clock, or wait"));
  }
  // Expiry breaks the chain too, and was said already.
  const bool said = std::any_of(out.begin(), out.end(),
                                [](const Finding& f) { return f.verdict == Verdict::kProblem; });
  if (!files.chain.ok() && !said) {
    out.push_back(Problem("tls",
                          fmt::format("{}/tls.crt isn't vouched for by {}/ca.crt: {}", tls.dir,
                                      tls.dir, files.chain.error().message()),
                          "all agents need certificates for server and client use, of the one "
                          "authority in ca.crt"));
  }
  if ((files.key_mode & 077) != 0) {
    out.push_back(Warning(
        "tls",
        fmt::format("{}/tls.key has mode {:04o}: others may read it", tls.dir, files.key_mode),
        fmt::format("chmod 600 {}/tls.key", tls.dir)));
  }
  if (out.empty() || std::none_of(out.begin(), out.end(), [](const Finding& f) {
        return f.verdict == Verdict::kProblem;
      })) {
    std::string names;
    for (const std::string& name : files.names) names += (names.empty() ? "" : ", ") + name;
    out.insert(out.begin(),
               Ok("tls", fmt::format("{}{}, valid for {} more; data is {}encrypted", files.subject,
                                     names.empty() ? "" : " (" + names + ")",
                                     files.not_after ? Days(*files.not_after - now) : "?",
                                     tls.data_encryption ? "" : "not ")));
  }
  return out;
}

namespace {

void CheckSkew(const std::string& whose, Duration ahead, Findings& out) {
  const Duration size = ahead < Duration(0) ? -ahead : ahead;
  const std::string text = fmt::format("the clock of {} is {} of ours", whose, Signed(ahead));
  const std::string remedy = "let chrony or ntpd keep the clocks of all machines together";
  if (size > kSkewWrong) {
    out.push_back(Problem("clock", text, remedy));
  } else if (size > kSkewWarned) {
    out.push_back(Warning("clock", text, remedy));
  }
}

}  // namespace

Findings CheckClocks(const RendezvousFacts& rendezvous, const AgentFacts& agent) {
  Findings out;
  size_t measured = 0;
  if (rendezvous.clock_ahead) {
    CheckSkew("the rendezvous' file system", *rendezvous.clock_ahead, out);
    ++measured;
  }
  for (const AgentFacts::Member& member : agent.members) {
    if (!member.clock_skew_seconds || !std::isfinite(*member.clock_skew_seconds)) continue;
    CheckSkew("node " + member.node,
              std::chrono::duration_cast<Duration>(
                  std::chrono::duration<double>(std::clamp(*member.clock_skew_seconds, -1e9, 1e9))),
              out);
    ++measured;
  }
  if (!out.empty()) return out;
  if (measured == 0) return {Ok("clock", "nothing to compare it with yet")};
  return {Ok("clock", fmt::format("within {} of {} other{}", FormatDuration(kSkewWarned), measured,
                                  measured == 1 ? "" : "s"))};
}

Findings CheckRendezvous(const RendezvousFacts& rendezvous, const AgentFacts& agent) {
  using Kind = RendezvousAddress::Kind;
  const RendezvousAddress& at = rendezvous.address;
  if (at.kind == Kind::kStatic) {
    const std::string where = HostPort{at.host, at.port}.ToString();
    if (rendezvous.ours) {
      return {Ok("rendezvous", fmt::format("{} is this agent: it coordinates, and the job can't be "
                                           "coordinated without this machine",
                                           where))};
    }
    if (rendezvous.usable.ok()) return {Ok("rendezvous", where + " answers")};
    return {Problem("rendezvous",
                    fmt::format("the coordinator's address {} can't be reached: {}", where,
                                rendezvous.usable.error().ToString()),
                    "start the agent there, and let its port through")};
  }
  if (!rendezvous.usable.ok()) {
    return {Problem("rendezvous", rendezvous.usable.error().ToString(),
                    fmt::format("{} must be an existing directory of a file system that all nodes "
                                "share, writable for every agent, with hard links",
                                at.dir))};
  }
  Findings out = {Ok("rendezvous", at.dir + " can be read and written")};
  for (const RendezvousFacts::Record& record : rendezvous.records) {
    if (!record.read.ok()) {
      out.push_back(
          Problem("rendezvous",
                  fmt::format("the record of job {} can't be read: {}", record.job,
                              record.read.error().ToString()),
                  "no start of that job can be coordinated until it is repaired or removed"));
      continue;
    }
    const std::string text = fmt::format(
        "job {}: node {} at {}, epoch {}{}", record.job, record.node, record.coordinator.ToString(),
        record.epoch, record.age ? ", written " + FormatDuration(*record.age) + " ago" : "");
    if (record.reached && !record.reached->ok() && record.job == agent.job) {
      out.push_back(Problem(
          "rendezvous", text + ", which can't be reached: " + record.reached->error().ToString(),
          "without its coordinator nothing is committed; start the agent there"));
    } else {
      out.push_back(
          Ok("rendezvous",
             text + (record.reached && !record.reached->ok() ? " (not running now)" : "")));
    }
  }
  return out;
}

Findings CheckStateDir(const StateDirFacts& state) {
  if (!state.writable.ok()) {
    return {Problem("state-dir", state.writable.error().ToString(),
                    fmt::format("{} must be a directory that the agent can write", state.path))};
  }
  if (state.in_memory) {
    return {Warning("state-dir", state.path + " is in RAM: after a reboot the agent is a stranger",
                    "put it on a disk of the host")};
  }
  return {Ok("state-dir", state.path + (state.exists ? " can be written" : " can be made"))};
}

Findings CheckBucket() {
  return {Ok("bucket", "not configured: this version keeps no backups outside the cluster's RAM")};
}

}  // namespace tierkeep::doctor
