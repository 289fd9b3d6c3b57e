// A subcommand of `tierkeep`: registers its options and returns what to run. Exit status: 0 done,
// 1 failed, 2 bad usage.
#pragma once

namespace CLI {
class App;
}

namespace tierkeep {

// Each adds one subcommand to `app`; the callback stores its exit status in `*exit_status`.
void AddAgentCommand(CLI::App& app, int* exit_status);
void AddRestoreCommand(CLI::App& app, int* exit_status);
void AddStatusCommand(CLI::App& app, int* exit_status);
void AddVerifyCommand(CLI::App& app, int* exit_status);
void AddDoctorCommand(CLI::App& app, int* exit_status);

}  // namespace tierkeep
