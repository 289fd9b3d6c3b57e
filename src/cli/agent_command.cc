#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "agent/agent.h"
#include "agent/steps.h"
#include "cli/command.h"
#include "cli/settings_flags.h"

namespace tierkeep {
namespace {

struct AgentFlags {
  std::shared_ptr<SettingsFlags> settings;
  bool print_config = false;
  bool list_steps = false;
};

int RunAgentCommand(const AgentFlags& flags) {
  if (flags.list_steps) {
    for (const std::string& step : AllSteps()) fmt::print("{}\n", step);
    return 0;
  }
  auto loaded = LoadFrom(*flags.settings);
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
  flags->settings = AddSettingsFlags(command);
  command->add_flag("--print-config", flags->print_config,
                    "print the settings as they hold, and where each came from");
  command->add_flag("--list-steps", flags->list_steps, "print what --crash-before takes")
      ->group(kHiddenGroup);
  command->callback([flags, exit_status] { *exit_status = RunAgentCommand(*flags); });
}

}  // namespace tierkeep
