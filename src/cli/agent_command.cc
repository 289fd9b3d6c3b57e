#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "agent/agent.h"
#include "agent/settings.h"
#include "cli/command.h"

namespace tierkeep {
namespace {

struct AgentFlags {
  std::string config;
  bool print_config = false;
  std::map<std::string, std::string> values;
  std::map<std::string, bool> switches;
};

Result<SettingSources> SourcesOf(const AgentFlags& flags) {
  SettingSources sources;
  if (!flags.config.empty()) {
    std::ifstream file(flags.config);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) return Error(Code::kNotFound, "config " + flags.config + " can't be read");
    sources.yaml = text.str();
    sources.yaml_name = flags.config;
  }
  sources.environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
  sources.flags = flags.values;
  for (const auto& [name, on] : flags.switches) {
    if (on) sources.flags[name] = "true";
  }
  return sources;
}

int RunAgentCommand(const AgentFlags& flags) {
  auto sources = SourcesOf(flags);
  if (!sources.ok()) {
    fmt::print(stderr, "tierkeep agent: {}\n", sources.error().message());
    return 2;
  }
  auto loaded = LoadSettings(*sources);
  if (!loaded.ok()) {
    fmt::print(stderr, "tierkeep agent: {}\n", loaded.error().message());
    return 2;
  }
  if (flags.print_config) {
    fmt::print("{}", PrintSettings(*loaded));
    return 0;
  }
  // Before any thread is made, so that all inherit it: one thread waits for them.
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  const Status ran = RunAgent(loaded->settings);
  if (!ran.ok()) {
    fmt::print(stderr, "tierkeep agent: {}\n", ran.error().ToString());
    return 1;
  }
  return 0;
}

}  // namespace

void AddAgentCommand(CLI::App& app, int* exit_status) {
  auto flags = std::make_shared<AgentFlags>();
  CLI::App* command = app.add_subcommand("agent", "Run the service of one node");
  command->add_option("--config", flags->config, "YAML file with these settings as keys");
  command->add_flag("--print-config", flags->print_config,
                    "print the settings as they hold, and where each came from");
  for (const SettingInfo& s : SettingTable()) {
    const std::string name(s.name);
    const std::string help = fmt::format("{} [{}]", s.help, SettingVariable(s.name));
    if (s.value_name.empty()) {
      command->add_flag("--" + name, flags->switches[name], help);
    } else {
      command
          ->add_option_function<std::string>(
              "--" + name, [flags, name](const std::string& v) { flags->values[name] = v; }, help)
          ->type_name(std::string(s.value_name));
    }
  }
  command->callback([flags, exit_status] { *exit_status = RunAgentCommand(*flags); });
}

}  // namespace tierkeep
