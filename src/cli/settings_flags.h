// The agent's settings as options of a subcommand: --config, and a flag for each setting.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "agent/settings.h"

namespace CLI {
class App;
}

namespace tierkeep {

// CLI11 leaves options of this group out of --help.
inline constexpr char kHiddenGroup[] = "";

struct SettingsFlags {
  std::string config;
  std::map<std::string, std::string> values;
  std::map<std::string, bool> switches;
};

// The flags are filled in while the command line is parsed.
std::shared_ptr<SettingsFlags> AddSettingsFlags(CLI::App* command);

// File, environment and flags together. Errors as of LoadSettings; kNotFound: no such file.
Result<LoadedSettings> LoadFrom(const SettingsFlags& flags);

}  // namespace tierkeep
