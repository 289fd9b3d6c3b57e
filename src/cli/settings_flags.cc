#include "cli/settings_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace tierkeep {

std::shared_ptr<SettingsFlags> AddSettingsFlags(CLI::App* command) {
  auto flags = std::make_shared<SettingsFlags>();
  command->add_option("--config", flags->config, "YAML file with these settings as keys");
  for (const SettingInfo& s : SettingTable()) {
    const std::string name(s.name);
    const std::string help = fmt::format("{} [{}]", s.help, SettingVariable(s.name));
    if (s.value_name.empty()) {
      command->add_flag("--" + name, flags->switches[name], help);
    } else {
      CLI::Option* option = command->add_option_function<std::string>(
          "--" + name, [flags, name](const std::string& v) { flags->values[name] = v; }, help);
      option->type_name(std::string(s.value_name));
      if (s.help.empty()) option->group(kHiddenGroup);
    }
  }
  return flags;
}

Result<LoadedSettings> LoadFrom(const SettingsFlags& flags) {
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
  return LoadSettings(sources);
}

}  // namespace tierkeep
