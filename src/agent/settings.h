// The agent's settings. Each is named once, in the table of settings.cc: the same name is the flag
// (--data-port), the environment variable (TIERKEEP_DATA_PORT) and the key of the YAML file
// (data-port). Later wins: default, file, environment, flag.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "io/frame_network.h"

namespace tierkeep {

struct AgentSettings {
  std::string mount;
  std::string state_dir = "/var/lib/tierkeep";
  std::string node_name;  // default: the host's name
  std::string rendezvous;
  std::string advertise = "127.0.0.1";
  std::string listen;  // default: loopback when advertise is, else all addresses
  uint16_t control_port = 4242;
  uint16_t data_port = 4243;
  std::string admin = "/run/tierkeep/agent.sock";
  std::string metrics;   // HOST:PORT; empty: none
  std::string log_file;  // empty: standard output
  std::string log_format = "text";
  std::string log_level = "info";
  std::string tls_dir;
  bool insecure = false;
  bool data_encryption = true;
  uint32_t threads = 0;  // 0: one a core
  uint32_t pull_streams = 4;
  uint64_t bandwidth_limit = 0;  // bytes a second, sending; 0: none
  Duration stop_budget = 20s;
  std::string crash_before;  // for tests: a step (agent/steps.h) that ends the agent, or empty
  std::string on_pressure = "refuse";  // or "thin"
  uint64_t save_entries_max = 1'000'000;
  uint32_t save_depth_max = 128;
  uint32_t suspect_after = 3;  // restores without a later commit; 0: never
  uint32_t max_restores = 0;   // likewise, then an older generation; 0: no limit
  Duration absent_wait = 240s;
  std::string on_absent = "stop";  // or go-on

  bool uses_tls() const { return !tls_dir.empty(); }
};

struct SettingInfo {
  std::string_view name;        // as a flag, without the dashes
  std::string_view value_name;  // "DIR"; empty for a switch, whose value is true or false
  std::string_view help;        // empty: not listed by --help
};
const std::vector<SettingInfo>& SettingTable();
// "TIERKEEP_DATA_PORT" for "data-port".
std::string SettingVariable(std::string_view name);

struct SettingSources {
  std::string yaml;       // the file's text, or empty
  std::string yaml_name;  // for errors
  std::function<std::optional<std::string>(const std::string&)> environment;
  std::map<std::string, std::string> flags;
};

struct LoadedSettings {
  AgentSettings settings;
  std::map<std::string, std::string> origin;  // setting → "default", "file", "environment", "flag"
};

// Checks every value and the whole: a required one missing, plain TCP beyond loopback without
// `insecure`, unknown keys. kInvalidArgument names setting, source, value and rule.
Result<LoadedSettings> LoadSettings(const SettingSources& sources);
// YAML that gives the same settings back, a comment saying where each came from.
std::string PrintSettings(const LoadedSettings& loaded);

struct RendezvousAddress {
  enum class Kind : uint8_t { kFile, kStatic } kind = Kind::kFile;
  std::string dir;
  std::string host;
  uint16_t port = 0;
};
Result<RendezvousAddress> ParseRendezvous(std::string_view text);
// "host:port", "[::1]:port"; nothing for any other form or a port beyond [lowest_port, 65535].
std::optional<HostPort> ParseHostPort(std::string_view text, uint16_t lowest_port);
bool IsLoopbackHost(std::string_view host);

}  // namespace tierkeep
