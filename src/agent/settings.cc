#include "agent/settings.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <charconv>

#include "agent/steps.h"
#include "base/log.h"

namespace tierkeep {
namespace {

// How one setting is read and shown.
struct Setting {
  SettingInfo info;
  std::function<Status(AgentSettings&, std::string_view)> set;
  std::function<std::string(const AgentSettings&)> show;
};

Status Bad(std::string_view rule) { return Error(Code::kInvalidArgument, std::string(rule)); }

template <typename T>
Status ParseNumber(std::string_view text, uint64_t lowest, uint64_t highest, T& out) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest ||
      value > highest) {
    return Bad(fmt::format("must be a whole number from {} to {}", lowest, highest));
  }
  out = static_cast<T>(value);
  return OkStatus();
}

Status ParseSwitch(std::string_view text, bool& out) {
  if (text == "true" || text == "on" || text == "yes" || text == "1") {
    out = true;
  } else if (text == "false" || text == "off" || text == "no" || text == "0") {
    out = false;
  } else {
    return Bad("must be on or off");
  }
  return OkStatus();
}

Setting Text(std::string_view name, std::string_view value, std::string_view help,
             std::string AgentSettings::*field) {
  return {{name, value, help},
          [field](AgentSettings& s, std::string_view text) {
            s.*field = text;
            return OkStatus();
          },
          [field](const AgentSettings& s) { return s.*field; }};
}

Setting Choice(std::string_view name, std::string_view value, std::string_view help,
               std::string AgentSettings::*field, std::vector<std::string_view> allowed) {
  Setting out = Text(name, value, help, field);
  out.set = [field, allowed = std::move(allowed)](AgentSettings& s,
                                                  std::string_view text) -> Status {
    for (const std::string_view a : allowed) {
      if (a == text) {
        s.*field = text;
        return OkStatus();
      }
    }
    return Bad(fmt::format("must be one of: {}", fmt::join(allowed, ", ")));
  };
  return out;
}

template <typename T>
Setting Number(std::string_view name, std::string_view help, uint64_t lowest, uint64_t highest,
               T AgentSettings::*field) {
  return {{name, "N", help},
          [=](AgentSettings& s, std::string_view text) {
            return ParseNumber(text, lowest, highest, s.*field);
          },
          [field](const AgentSettings& s) { return fmt::format("{}", s.*field); }};
}

Setting Seconds(std::string_view name, std::string_view help, uint64_t lowest, uint64_t highest,
                Duration AgentSettings::*field) {
  return {{name, "SECONDS", help},
          [=](AgentSettings& s, std::string_view text) -> Status {
            uint64_t seconds = 0;
            TK_RETURN_IF_ERROR(ParseNumber(text, lowest, highest, seconds));
            s.*field = std::chrono::seconds(seconds);
            return OkStatus();
          },
          [field](const AgentSettings& s) { return fmt::format("{}", ToMillis(s.*field) / 1000); }};
}

Setting Switch(std::string_view name, std::string_view value, std::string_view help,
               bool AgentSettings::*field) {
  return {{name, value, help},
          [field](AgentSettings& s, std::string_view text) { return ParseSwitch(text, s.*field); },
          [field](const AgentSettings& s) { return std::string(s.*field ? "on" : "off"); }};
}

const std::vector<Setting>& Settings() {
  using S = AgentSettings;
  static const std::vector<Setting> table = {
      Text("mount", "DIR", "RAM volume's mount, with client/ (the job's side) and store/ in it",
           &S::mount),
      Text("state-dir", "DIR", "the agent's memory, on a disk that survives a reboot",
           &S::state_dir),
      Text("node-name", "NAME", "this node's name in logs and status (default: host name)",
           &S::node_name),
      Text("rendezvous", "WHERE", "file:DIR on a shared file system, or static:HOST:PORT",
           &S::rendezvous),
      Text("advertise", "HOST", "address under which other agents reach this one", &S::advertise),
      Text("listen", "HOST",
           "address to listen on (default: loopback if advertise is, else every address)",
           &S::listen),
      Number("control-port", "port for control connections; 0: any free", 0, 65535,
             &S::control_port),
      Number("data-port", "port for bulk data; 0: any free", 0, 65535, &S::data_port),
      Text("admin", "PATH", "Unix socket of the admin API", &S::admin),
      Text("metrics", "HOST:PORT",
           "where to serve /metrics and status over HTTP (default: nowhere)", &S::metrics),
      Text("log-file", "PATH", "append the log here (default: standard output)", &S::log_file),
      Choice("log-format", "FORMAT", "text or json", &S::log_format, {"text", "json"}),
      Choice("log-level", "LEVEL", "debug, info, warning or error", &S::log_level,
             {"debug", "info", "warning", "error"}),
      Text("tls-dir", "DIR", "mutual TLS from DIR/tls.crt, DIR/tls.key and DIR/ca.crt",
           &S::tls_dir),
      Switch("insecure", "",
             "allow plain TCP beyond loopback: anyone on the network may then read "
             "and forge checkpoints",
             &S::insecure),
      Switch("data-encryption", "on|off",
             "with TLS, encrypt bulk data too; off: only control is, a token admits to data",
             &S::data_encryption),
      Number("threads", "threads for hashing and copying; 0: one a core", 0, 1024, &S::threads),
      Number("pull-streams", "connections a pulled shard is spread over", 1, 64, &S::pull_streams),
      Number("bandwidth-limit", "bytes a second that this node sends at most; 0: no limit", 0,
             UINT64_MAX, &S::bandwidth_limit),
      Seconds("stop-budget", "longest time between SIGTERM and exit", 1, 3600, &S::stop_budget),
      {{"crash-before", "STEP[:N]", ""},
       [](S& s, std::string_view text) -> Status {
         if (!text.empty()) TK_RETURN_IF_ERROR(ParseCrashPoint(text));
         s.crash_before = text;
         return OkStatus();
       },
       [](const S& s) { return s.crash_before; }},
      Choice("on-pressure", "refuse|thin",
             "when newer saves can't be protected for lack of memory: refuse leaves them "
             "unprotected; thin first gives up peers' copies of the last committed one",
             &S::on_pressure, {"refuse", "thin"}),
      Number("save-entries-max", "a save with more files and directories is refused", 1,
             100'000'000, &S::save_entries_max),
      Number("save-depth-max", "a save with deeper directories is refused", 1, 4096,
             &S::save_depth_max),
      Number("suspect-after",
             "report a checkpoint that was restored so often without a later commit; 0: never", 0,
             1'000'000, &S::suspect_after),
      Number("max-restores",
             "restore a checkpoint so often without a later commit, then an older one; 0: no limit",
             0, 1'000'000, &S::max_restores),
      Seconds("absent-wait",
              "how long a restore waits for nodes that are away and may hold a newer checkpoint", 1,
              3600, &S::absent_wait),
      Choice("on-absent", "stop|go-on",
             "when none of them came: stop and tell the job, or give that checkpoint up",
             &S::on_absent, {"stop", "go-on"}),
  };
  return table;
}

const Setting* FindSetting(std::string_view name) {
  for (const Setting& s : Settings()) {
    if (s.info.name == name) return &s;
  }
  return nullptr;
}

Status Apply(LoadedSettings& loaded, std::string_view name, std::string_view value,
             std::string_view origin, std::string_view source) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: unknown setting \"{}\" (tierkeep agent --help lists them)",
                             source, EscapeForLog(name, 64)));
  }
  if (Status s = setting->set(loaded.settings, value); !s.ok()) {
    return s.error().With(fmt::format("{}: {} \"{}\"", source, name, EscapeForLog(value, 128)));
  }
  loaded.origin[std::string(name)] = origin;
  return OkStatus();
}

Status ApplyYaml(LoadedSettings& loaded, const SettingSources& sources) {
  if (sources.yaml.empty()) return OkStatus();
  try {
    const YAML::Node root = YAML::Load(sources.yaml);
    if (!root.IsMap()) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{}: must be a map of settings", sources.yaml_name));
    }
    for (const auto& item : root) {
      if (!item.second.IsScalar()) {
        return Error(Code::kInvalidArgument,
                     fmt::format("{}: {} must have a plain value", sources.yaml_name,
                                 EscapeForLog(item.first.Scalar(), 64)));
      }
      TK_RETURN_IF_ERROR(
          Apply(loaded, item.first.Scalar(), item.second.Scalar(), "file", sources.yaml_name));
    }
  } catch (const YAML::Exception& e) {
    return Error(Code::kInvalidArgument, fmt::format("{}: {}", sources.yaml_name, e.what()));
  }
  return OkStatus();
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "";
  return name;
}

Status CheckWhole(AgentSettings& s) {
  const auto missing = [](std::string_view name) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{0} is required: give --{0}, {1} or the file's key {0}", name,
                             SettingVariable(name)));
  };
  if (s.mount.empty()) return missing("mount");
  if (s.rendezvous.empty()) return missing("rendezvous");
  if (s.state_dir.empty()) return missing("state-dir");
  if (s.node_name.empty()) s.node_name = HostName();
  if (s.node_name.empty()) return missing("node-name");
  TK_RETURN_IF_ERROR(ParseRendezvous(s.rendezvous));
  if (!s.metrics.empty() && !ParseHostPort(s.metrics, 0)) {
    return Error(Code::kInvalidArgument,
                 fmt::format("metrics \"{}\" must be HOST:PORT with a port from 0 to 65535",
                             EscapeForLog(s.metrics, 128)));
  }
  const bool loopback = IsLoopbackHost(s.advertise);
  if (s.listen.empty()) s.listen = loopback ? s.advertise : "0.0.0.0";
  if (s.listen == "localhost") s.listen = "127.0.0.1";
  if (!s.uses_tls() && !s.insecure && !(loopback && IsLoopbackHost(s.listen))) {
    return Error(Code::kInvalidArgument,
                 fmt::format("advertise {} is not a loopback address: give tls-dir for mutual TLS, "
                             "or insecure for plain TCP on a network that you trust",
                             s.advertise));
  }
  return OkStatus();
}

}  // namespace

const std::vector<SettingInfo>& SettingTable() {
  static const std::vector<SettingInfo> infos = [] {
    std::vector<SettingInfo> out;
    for (const Setting& s : Settings()) out.push_back(s.info);
    return out;
  }();
  return infos;
}

std::string SettingVariable(std::string_view name) {
  std::string out = "TIERKEEP_";
  for (const char c : name) out += c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return out;
}

Result<LoadedSettings> LoadSettings(const SettingSources& sources) {
  LoadedSettings loaded;
  for (const Setting& s : Settings()) loaded.origin[std::string(s.info.name)] = "default";
  TK_RETURN_IF_ERROR(ApplyYaml(loaded, sources));
  for (const Setting& s : Settings()) {
    const std::string variable = SettingVariable(s.info.name);
    if (!sources.environment) break;
    if (const auto value = sources.environment(variable)) {
      TK_RETURN_IF_ERROR(Apply(loaded, s.info.name, *value, "environment", variable));
    }
  }
  for (const auto& [name, value] : sources.flags) {
    TK_RETURN_IF_ERROR(Apply(loaded, name, value, "flag", "--" + name));
  }
  TK_RETURN_IF_ERROR(CheckWhole(loaded.settings));
  return loaded;
}

std::string PrintSettings(const LoadedSettings& loaded) {
  std::string out;
  for (const Setting& s : Settings()) {
    if (s.info.help.empty() && s.show(loaded.settings).empty()) continue;
    YAML::Emitter value;
    value << YAML::DoubleQuoted << s.show(loaded.settings);
    out += fmt::format("{}: {}  # {}\n", s.info.name, value.c_str(),
                       loaded.origin.at(std::string(s.info.name)));
  }
  return out;
}

std::optional<HostPort> ParseHostPort(std::string_view text, uint16_t lowest_port) {
  const size_t colon = text.rfind(':');
  HostPort out;
  if (colon == std::string_view::npos || colon == 0 ||
      !ParseNumber(text.substr(colon + 1), lowest_port, 65535, out.port).ok()) {
    return std::nullopt;
  }
  out.host = text.substr(0, colon);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  return out;
}

Result<RendezvousAddress> ParseRendezvous(std::string_view text) {
  RendezvousAddress out;
  if (text.starts_with("file:") && text.size() > 5) {
    out.kind = RendezvousAddress::Kind::kFile;
    out.dir = text.substr(5);
    return out;
  }
  if (text.starts_with("static:")) {
    if (const auto at = ParseHostPort(text.substr(7), 1)) {
      out.kind = RendezvousAddress::Kind::kStatic;
      out.host = at->host;
      out.port = at->port;
      return out;
    }
  }
  return Error(Code::kInvalidArgument,
               fmt::format("rendezvous \"{}\" must be file:DIR or static:HOST:PORT",
                           EscapeForLog(text, 128)));
}

bool IsLoopbackHost(std::string_view host) {
  if (host == "localhost" || host == "::1" || host == "[::1]") return true;
  // 127.0.0.0/8 in full dotted form.
  if (!host.starts_with("127.")) return false;
  int dots = 0;
  for (const char c : host) {
    if (c == '.') {
      ++dots;
    } else if (c < '0' || c > '9') {
      return false;
    }
  }
  return dots == 3;
}

}  // namespace tierkeep
