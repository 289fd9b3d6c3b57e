#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/time.h"
#include "cli/admin_client.h"
#include "cli/command.h"

namespace tierkeep {
namespace {

using nlohmann::json;

struct VerifyFlags {
  std::string admin = kDefaultAdminSocket;
  bool as_json = false;
};

int RunVerify(const VerifyFlags& flags) {
  // Re-reading everything takes as long as memory needs; the agent ends its own work.
  auto answer = AskAgent(flags.admin, "POST", "/v1/verify", 1h);
  if (!answer.ok()) {
    fmt::print(stderr, "tierkeep verify: {}\n", answer.error().message());
    return 1;
  }
  const bool ok = (*answer)["ok"];
  if (flags.as_json) {
    fmt::print("{}\n", answer->dump(2));
    return ok ? 0 : 1;
  }
  size_t bad = 0;
  uint64_t bytes = 0;
  for (const json& s : (*answer)["shards"]) {
    bytes += s["bytes"].get<uint64_t>();
    bad += s["ok"] ? 0 : 1;
    fmt::print("{:<5}job {} step {} rank {} worker {}: {} read{}\n", s["ok"] ? "ok" : "BAD",
               s["job"].get<std::string>(), s["step"].dump(), s["rank"].dump(), s["worker"].dump(),
               FormatBytes(s["bytes"].get<uint64_t>()),
               s["ok"] ? "" : ": " + s["problem"].get<std::string>());
  }
  for (const json& u : (*answer)["unreadable"]) {
    fmt::print("{:<5}unreadable: {}\n", "BAD", u.get<std::string>());
  }
  fmt::print("{} copies, {} read, {} bad, {} unreadable\n", (*answer)["shards"].size(),
             FormatBytes(bytes), bad, (*answer)["unreadable"].size());
  return ok ? 0 : 1;
}

}  // namespace

void AddVerifyCommand(CLI::App& app, int* exit_status) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* command =
      app.add_subcommand("verify", "Re-read every copy on this node and say what is bad");
  command->add_option("--admin", flags->admin, "the agent's admin socket")->capture_default_str();
  command->add_flag("--json", flags->as_json, "print the agent's answer as it is");
  command->callback([flags, exit_status] { *exit_status = RunVerify(*flags); });
}

}  // namespace tierkeep
