#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/time.h"
#include "cli/admin_client.h"
#include "cli/command.h"

namespace tierkeep {
namespace {

using nlohmann::json;

struct StatusFlags {
  std::string admin = kDefaultAdminSocket;
  bool as_json = false;
  bool watch = false;
};

std::string Show(const json& value, std::string_view none = "-") {
  if (value.is_null()) return std::string(none);
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

std::string ShowStep(const json& generation) {
  if (generation["step"].is_null()) return "none";
  return fmt::format("step {} (run {}, save {})", Show(generation["step"]), Show(generation["run"]),
                     Show(generation["save"]));
}

void Line(std::string& out, std::string_view name, const std::string& value) {
  out += fmt::format("{:<12}{}\n", name, value);
}

// What a rank has staged and the job could not commit yet.
std::string Lag(const json& rank) {
  if (!rank["connected"]) return "away";
  if (rank["staged"].is_null()) return "-";
  if (rank["staged"] == rank["committed"]) return "none";
  return fmt::format("step {} not committed", Show(rank["staged"]));
}

// A line a member: what of its data is held on this node and, on the coordinator's node, how far it
// is.
std::string MembersTable(const json& status) {
  constexpr std::string_view kRow = "{:<7}{:<18}{:<23}{:<11}{:<12}{:<11}{:<11}{}\n";
  std::string out = "\n" + fmt::format(fmt::runtime(kRow), "RANK", "NODE", "DATA PORT", "COPY HERE",
                                       "BYTES HERE", "STAGED", "COMMITTED", "LAG");
  for (const json& m : status["members"]) {
    std::string steps;
    uint64_t bytes = 0;
    for (const json& s : status["store"]["shards"]) {
      if (m["rank"].is_null() || s["rank"] != m["rank"]) continue;
      steps += (steps.empty() ? "" : ",") + Show(s["step"]) + (s["suspect"] ? "?" : "");
      bytes += s["bytes"].get<uint64_t>();
    }
    json progress = {{"staged", nullptr}, {"committed", nullptr}, {"connected", true}};
    for (const json& r : status["ranks"]) {
      if (r["rank"] == m["rank"]) progress = r;
    }
    out +=
        fmt::format(fmt::runtime(kRow), Show(m["rank"], "holder"), Show(m["node"]), Show(m["data"]),
                    steps.empty() ? "-" : steps, bytes > 0 ? FormatBytes(bytes) : "-",
                    Show(progress["staged"]), Show(progress["committed"]), Lag(progress));
  }
  if (status["ranks"].empty()) out += "(the coordinator's node shows every rank's steps)\n";
  return out;
}

std::string JobLine(const json& job) {
  return fmt::format("{} ({}, rank {} of {}{})", Show(job["name"]), Show(job["framework"]),
                     Show(job["rank"]), Show(job["nodes"]),
                     job["data_parallelism"].get<int>() > 1
                         ? fmt::format(", {} data-parallel replicas", Show(job["data_parallelism"]))
                         : "");
}

// What the volume should hold, and whether it does.
std::string SizeLine(const json& sizing) {
  const auto bytes = [&](const char* name) { return FormatBytes(sizing[name].get<uint64_t>()); };
  std::string out =
      fmt::format("a save takes {} and {} of peers' copies; advised: {}, {}",
                  bytes("own_save_bytes"), bytes("peers_save_bytes"), bytes("advised_bytes"),
                  sizing["fits"].get<bool>() ? "and it has " + bytes("volume_bytes")
                                             : "TOO SMALL with " + bytes("volume_bytes"));
  if (!sizing["memory_limit_bytes"].is_null()) {
    out += fmt::format("; agent's memory limit advised: {}, is {}",
                       bytes("advised_memory_limit_bytes"), bytes("memory_limit_bytes"));
  }
  return out;
}

std::string Table(const json& status) {
  std::string out;
  Line(out, "node",
       fmt::format("{}, {}{}", Show(status["node"]), Show(status["phase"]),
                   status["coordinator"] ? ", coordinator" : ""));
  const json& job = status["job"];
  Line(out, "job", job.is_null() ? "none" : JobLine(job));
  Line(out, "run", fmt::format("{}, epoch {}", Show(status["run"]), Show(status["epoch"])));
  const json& age = status["last_commit_age_seconds"];
  Line(out, "staged", Show(status["tiers"]["staged"]));
  Line(out, "committed",
       age.is_null() ? Show(status["tiers"]["committed"])
                     : fmt::format("{}, {} ago", Show(status["tiers"]["committed"]),
                                   FormatDuration(std::chrono::milliseconds(
                                       static_cast<int64_t>(age.get<double>() * 1000)))));
  Line(out, "restorable",
       fmt::format("{}: {}", ShowStep(status["restorable"]), Show(status["restorable"]["why"])));
  Line(out, "memory",
       fmt::format("own {}, peers' {}, free {} of {}",
                   FormatBytes(status["store"]["own_bytes"].get<uint64_t>()),
                   FormatBytes(status["store"]["peer_bytes"].get<uint64_t>()),
                   FormatBytes(status["volume"]["free_bytes"].get<uint64_t>()),
                   FormatBytes(status["volume"]["total_bytes"].get<uint64_t>())));
  for (const json& u : status["store"]["unreadable"]) {
    Line(out, u["damaged"] ? "damaged" : "unreadable", Show(u["detail"]));
  }
  if (const json& sizing = status["sizing"]; !sizing.is_null()) Line(out, "size", SizeLine(sizing));
  if (const json& waiting = status["waiting_for_memory"]; waiting["copies"] != 0) {
    Line(out, "waiting",
         fmt::format("{} copies of {} wait for memory", Show(waiting["copies"]),
                     FormatBytes(waiting["bytes"].get<uint64_t>())));
  }
  Line(out, "network",
       fmt::format("pulled {}, served {}",
                   FormatBytes(status["network"]["bytes_pulled"].get<uint64_t>()),
                   FormatBytes(status["network"]["bytes_served"].get<uint64_t>())));
  for (const json& o : status["restore_orders"]) {
    Line(out, "asked",
         fmt::format("job {}: {}, at the next restore decision", Show(o["job"]), Show(o["order"])));
  }
  if (const json& stop = status["restore_stop"]; !stop.is_null()) {
    for (const json& text : stop["given_up"]) {
      Line(out, stop["waiting"] ? "waiting for" : "stopped at", Show(text));
    }
    Line(out, "instead", Show(stop["instead"]));
  }
  for (const json& p : status["problems"]) Line(out, "problem", Show(p));
  if (!status["missing_ranks"].empty()) Line(out, "missing", status["missing_ranks"].dump());
  if (const std::string e = Show(status["last_error"], ""); !e.empty()) Line(out, "last error", e);
  if (!status["members"].empty()) out += MembersTable(status);
  return out;
}

int RunStatus(const StatusFlags& flags) {
  for (;;) {
    auto status = AskAgent(flags.admin, "GET", "/v1/status", 10s);
    if (!status.ok()) {
      fmt::print(stderr, "tierkeep status: {}\n", status.error().message());
      return 1;
    }
    // Clear the screen only where somebody looks at one.
    if (flags.watch && isatty(STDOUT_FILENO)) fmt::print("\x1b[H\x1b[2J");
    fmt::print("{}", flags.as_json ? status->dump(2) + "\n" : Table(*status));
    std::fflush(stdout);
    if (!flags.watch) return 0;
    std::this_thread::sleep_for(1s);
  }
}

}  // namespace

void AddStatusCommand(CLI::App& app, int* exit_status) {
  auto flags = std::make_shared<StatusFlags>();
  CLI::App* command = app.add_subcommand(
      "status", "Show the job, its copies, and what would be restored now and why");
  command->add_option("--admin", flags->admin, "the agent's admin socket")->capture_default_str();
  command->add_flag("--json", flags->as_json, "print the agent's answer as it is");
  command->add_flag("--watch", flags->watch, "repeat every second");
  command->callback([flags, exit_status] { *exit_status = RunStatus(*flags); });
}

}  // namespace tierkeep
