#include <CLI/CLI.hpp>

#include "base/command_line.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Tierkeep keeps large training jobs alive: checkpoints in RAM, in peers' RAM, restored "
      "verified after a failure."};
  app.require_subcommand(1);
  app.set_version_flag("--version", TIERKEEP_VERSION);
  app.footer("Exit status: 0 done, 1 failed, 2 bad usage. Each command takes --help.");
  int exit_status = 0;
  tierkeep::AddAgentCommand(app, &exit_status);
  tierkeep::AddRestoreCommand(app, &exit_status);
  tierkeep::AddStatusCommand(app, &exit_status);
  tierkeep::AddVerifyCommand(app, &exit_status);
  tierkeep::AddDoctorCommand(app, &exit_status);
  if (const auto ended = tierkeep::ParseCommandLine(app, argc, argv)) return *ended;
  return exit_status;
}
