#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/admin_client.h"
#include "cli/command.h"
#include "cli/settings_flags.h"
#include "platform/doctor/doctor.h"

namespace tierkeep {
namespace {

struct DoctorFlags {
  std::shared_ptr<SettingsFlags> settings;
  std::vector<std::string> peers;
  bool as_json = false;
};

int Usage(const std::string& text) {
  fmt::print(stderr, "tierkeep doctor: {}\n", text);
  return 2;
}

int RunDoctor(const DoctorFlags& flags) {
  const auto loaded = LoadFrom(*flags.settings);
  if (!loaded.ok()) return Usage(loaded.error().message());
  doctor::Request request;
  request.settings = loaded->settings;
  for (const std::string& text : flags.peers) {
    const auto at = ParseRendezvous("static:" + text);
    if (!at.ok()) return Usage(fmt::format("--peer \"{}\" must be HOST:PORT", text));
    request.peers.push_back({at->host, at->port});
  }
  const auto status = AskAgent(request.settings.admin, "GET", "/v1/status", 5s);
  request.status = &status;
  const doctor::Findings findings = doctor::Examine(request);
  if (flags.as_json) {
    fmt::print("{}\n", doctor::ReportJson(findings).dump(2, ' ', false,
                                                         nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{}", doctor::ReportText(findings));
  }
  return doctor::Worst(findings) == doctor::Verdict::kProblem ? 1 : 0;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, int* exit_status) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Look whether this machine and its neighbours have what an agent needs");
  command->add_option("--peer", flags->peers, "another agent's control or data port, to be tried")
      ->type_name("HOST:PORT");
  command->add_flag("--json", flags->as_json, "print the findings for scripts");
  flags->settings = AddSettingsFlags(command);
  command->footer(
      "Takes the agent's own settings, from the same flags, environment and file, and works with "
      "the agent running or not. Changes nothing. Exit status: 0 no problem, 1 problems, 2 bad "
      "usage.");
  command->callback([flags, exit_status] { *exit_status = RunDoctor(*flags); });
}

}  // namespace tierkeep
