#include "format/replicator_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/escape_name.h"
#include "format/decimal.h"
#include "format/volume_names.h"
#include "format/yaml_map.h"

namespace tierkeep {
namespace {

constexpr size_t kTextBytesMax = 64 << 10;
constexpr size_t kValueBytesMax = 4096;
constexpr uint32_t kAdvisedIntervalMinutes = 30;
constexpr std::string_view kEnvironmentNames[] = {"JOBSET_NAME", "JOB_NAME", "NODE_RANK",
                                                  "NNODES",      "POD_NAME", "HOSTNAME"};

template <typename... Args>
Error Bad(std::string_view key, std::string_view value, fmt::format_string<Args...> rule,
          Args&&... args) {
  return Error(Code::kInvalidArgument,
               fmt::format("{}: {} '{}': it must {}", kConfigName, key, EscapeName(value, 80),
                           fmt::format(rule, std::forward<Args>(args)...)));
}

// ---- environment -------------------------------------------------------------------------------

bool IsWord(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The name after a '$', and how much of `text` it takes; as Python's os.path.expandvars cuts it.
struct Reference {
  std::string_view name;
  size_t bytes = 0;
};
std::optional<Reference> ReadReference(std::string_view text) {
  if (text.starts_with('{')) {
    const size_t end = text.find('}');
    if (end == std::string_view::npos) return std::nullopt;
    return Reference{text.substr(1, end - 1), end + 1};
  }
  size_t end = 0;
  while (end < text.size() && IsWord(text[end])) ++end;
  if (end == 0) return std::nullopt;
  return Reference{text.substr(0, end), end};
}

// Once, not again inside what was put in. Names that aren't on the list stay as they are.
std::string Expand(std::string_view text, const EnvironmentLookup& environment) {
  std::string out;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    out += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar + 1);
    const auto reference = ReadReference(text);
    std::optional<std::string> value;
    if (reference && environment &&
        std::find(std::begin(kEnvironmentNames), std::end(kEnvironmentNames), reference->name) !=
            std::end(kEnvironmentNames)) {
      value = environment(reference->name);
    }
    if (value) {
      out += *value;
      text.remove_prefix(reference->bytes);
    } else {
      out += '$';
    }
    if (out.size() > kValueBytesMax) break;  // refused by the caller
  }
  return out;
}

// ---- typed access ------------------------------------------------------------------------------

class Values {
 public:
  Values(std::map<std::string, YamlValue> values, const EnvironmentLookup& environment)
      : values_(std::move(values)), environment_(environment) {}

  // nullptr: absent, or there without a value.
  const YamlValue* Find(std::string_view key) const {
    const auto found = values_.find(std::string(key));
    if (found == values_.end() || found->second.kind == YamlValue::Kind::kNull) return nullptr;
    return &found->second;
  }

  Result<std::optional<std::string>> Text(std::string_view key) const {
    const YamlValue* value = Find(key);
    if (value == nullptr) return std::optional<std::string>();
    if (value->kind != YamlValue::Kind::kScalar) return NotOne(key, "be one value");
    TK_ASSIGN_OR_RETURN(std::string text, Expanded(key, value->text));
    return std::optional(std::move(text));
  }

  Result<std::string> RequiredText(std::string_view key) const {
    TK_ASSIGN_OR_RETURN(auto text, Text(key));
    if (!text) return Bad(key, "", "be given");
    return *std::move(text);
  }

  Result<std::optional<uint32_t>> Number(std::string_view key, uint32_t min, uint32_t max) const {
    TK_ASSIGN_OR_RETURN(const auto text, Text(key));
    if (!text) return std::optional<uint32_t>();
    TK_ASSIGN_OR_RETURN(const uint32_t number, ToNumber(key, *text, min, max));
    return std::optional(number);
  }

  Result<uint32_t> RequiredNumber(std::string_view key, uint32_t min, uint32_t max) const {
    TK_ASSIGN_OR_RETURN(const std::string text, RequiredText(key));
    return ToNumber(key, text, min, max);
  }

  // As Number; "30.0" counts as 30, since the key is any number to its writers.
  Result<std::optional<uint32_t>> Minutes(std::string_view key) const {
    TK_ASSIGN_OR_RETURN(const auto text, Text(key));
    if (!text) return std::optional<uint32_t>();
    std::string_view whole = *text;
    const size_t dot = whole.find('.');
    if (dot != std::string_view::npos && dot + 1 < whole.size() &&
        whole.find_first_not_of('0', dot + 1) == std::string_view::npos) {
      whole = whole.substr(0, dot);
    }
    TK_ASSIGN_OR_RETURN(const uint32_t number, ToNumber(key, whole, 1, UINT32_MAX));
    return std::optional(number);
  }

  Result<std::optional<std::vector<uint32_t>>> Numbers(std::string_view key) const {
    const YamlValue* value = Find(key);
    if (value == nullptr) return std::optional<std::vector<uint32_t>>();
    if (value->kind != YamlValue::Kind::kList) return NotOne(key, "be a list of ranks");
    std::vector<uint32_t> numbers;
    for (const std::string& item : value->items) {
      TK_ASSIGN_OR_RETURN(const std::string text, Expanded(key, item));
      TK_ASSIGN_OR_RETURN(const uint32_t number, ToNumber(key, text, 0, UINT32_MAX));
      numbers.push_back(number);
    }
    return std::optional(std::move(numbers));
  }

 private:
  Result<std::string> Expanded(std::string_view key, const std::string& text) const {
    std::string expanded = Expand(text, environment_);
    if (expanded.size() > kValueBytesMax) {
      return Bad(key, expanded, "have at most {} bytes", kValueBytesMax);
    }
    return expanded;
  }

  static Result<uint32_t> ToNumber(std::string_view key, std::string_view text, uint32_t min,
                                   uint32_t max) {
    const auto number = ParseDecimal(text, UINT32_MAX);
    if (!number) return Bad(key, text, "be a whole number in plain decimal digits");
    if (*number < min) return Bad(key, text, "be at least {}", min);
    if (*number > max) return Bad(key, text, "be at most {}", max);
    return static_cast<uint32_t>(*number);
  }

  // The value isn't shown: only scalars are.
  static Error NotOne(std::string_view key, std::string_view rule) {
    return Bad(key, "(not-shown)", "{}", rule);
  }

  std::map<std::string, YamlValue> values_;
  const EnvironmentLookup& environment_;
};

// ---- one function a group of keys --------------------------------------------------------------

Status ReadWorld(const Values& values, JobConfig* config) {
  TK_ASSIGN_OR_RETURN(config->job, values.RequiredText("job-name"));
  if (!IsValidJobName(config->job)) {
    return Bad("job-name", config->job,
               "begin with a letter or digit, go on with letters, digits, '.', '_' or '-', and "
               "have at most 128 of them");
  }
  TK_ASSIGN_OR_RETURN(const std::string framework, values.RequiredText("framework"));
  const auto known = ParseFramework(framework);
  if (!known) return Bad("framework", framework, "be orbax, pytorch.distributed or pytorch");
  WorldShape& world = config->world;
  world.framework = *known;
  TK_ASSIGN_OR_RETURN(world.nodes, values.RequiredNumber("nodes", 1, kNodesMax));
  TK_ASSIGN_OR_RETURN(config->rank, values.RequiredNumber("node-rank", 0, UINT32_MAX));
  if (config->rank >= world.nodes) {
    return Bad("node-rank", std::to_string(config->rank), "be below nodes, which is {}",
               world.nodes);
  }
  TK_ASSIGN_OR_RETURN(const auto workers, values.Number("workers-per-node", 1, kWorkersPerNodeMax));
  world.workers_per_node = workers.value_or(1);
  if (world.workers_per_node != 1 && *known != Framework::kPytorch) {
    return Bad("workers-per-node", std::to_string(*workers),
               "be 1 with framework {}, which saves one directory a node", framework);
  }
  TK_ASSIGN_OR_RETURN(const auto partitions,
                      values.Number("assume-data-parallelism", 1, UINT32_MAX));
  if (partitions && world.nodes % *partitions != 0) {
    return Bad("assume-data-parallelism", std::to_string(*partitions), "divide nodes, which is {}",
               world.nodes);
  }
  world.data_parallelism = partitions.value_or(0);
  return OkStatus();
}

Status ReadPeers(const Values& values, ParsedConfig* parsed) {
  JobConfig& config = parsed->config;
  const uint32_t others = config.world.nodes - 1;
  TK_ASSIGN_OR_RETURN(config.peer_ranks, values.Numbers("peer-ranks"));
  TK_ASSIGN_OR_RETURN(config.peers_per_node, values.Number("peers-per-node", 0, UINT32_MAX));
  if (config.peer_ranks) {
    std::vector<Rank> sorted = *config.peer_ranks;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; i < sorted.size(); ++i) {
      const std::string value = std::to_string(sorted[i]);
      if (sorted[i] > others) {
        return Bad("peer-ranks", value, "be below nodes, which is {}", config.world.nodes);
      }
      if (sorted[i] == config.rank) return Bad("peer-ranks", value, "not be the node's own rank");
      if (i > 0 && sorted[i] == sorted[i - 1]) return Bad("peer-ranks", value, "be given once");
    }
    if (config.peers_per_node) {
      parsed->warnings.emplace_back(
          "Both peer-ranks and peers-per-node are given: peer-ranks holds.");
    }
  } else if (config.peers_per_node) {
    if (*config.peers_per_node > others) {
      parsed->warnings.push_back(
          fmt::format("peers-per-node is {}, but there are only {} other nodes: these are used.",
                      *config.peers_per_node, others));
    }
  } else if (config.world.data_parallelism <= 1) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: peer-ranks or peers-per-node must be given unless "
                             "assume-data-parallelism is above 1",
                             kConfigName));
  }
  return OkStatus();
}

Status ReadBackup(const Values& values, ParsedConfig* parsed) {
  JobConfig& config = parsed->config;
  TK_ASSIGN_OR_RETURN(config.backup_interval_minutes, values.Minutes("backup-interval-minutes"));
  TK_ASSIGN_OR_RETURN(config.backup_interval_steps,
                      values.Number("backup-interval-steps", 1, UINT32_MAX));
  if (config.backup_interval_minutes && config.backup_interval_steps) {
    return Bad("backup-interval-steps", std::to_string(*config.backup_interval_steps),
               "not be given beside backup-interval-minutes, which is {}",
               *config.backup_interval_minutes);
  }
  if (!config.backup_interval_minutes && !config.backup_interval_steps) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{}: backup-interval-minutes or backup-interval-steps must be given",
                             kConfigName));
  }
  if (config.backup_interval_minutes && *config.backup_interval_minutes < kAdvisedIntervalMinutes) {
    parsed->warnings.push_back(
        fmt::format("backup-interval-minutes is {}: at least {} are advised.",
                    *config.backup_interval_minutes, kAdvisedIntervalMinutes));
  }
  return OkStatus();
}

bool IsMasterUrl(std::string_view url) {
  constexpr std::string_view kScheme = "tcp://";
  if (!url.starts_with(kScheme)) return false;
  url.remove_prefix(kScheme.size());
  const size_t colon = url.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || url[0] == '-') return false;
  const auto is_host = [](char c) {
    return IsWord(c) || c == '.' || c == '-' || c == ':' || c == '[' || c == ']' || c == '%';
  };
  if (!std::all_of(url.begin(), url.begin() + static_cast<ptrdiff_t>(colon), is_host)) return false;
  const auto port = ParseDecimal(url.substr(colon + 1), 65535);
  return port.has_value() && *port > 0;
}

Status ReadMaster(const Values& values, JobConfig* config) {
  TK_ASSIGN_OR_RETURN(const auto port, values.Number("master-port", 1, 65535));
  if (port) config->master_port = static_cast<uint16_t>(*port);
  TK_ASSIGN_OR_RETURN(const auto master, values.Text("master"));
  if (!master || master->empty()) return OkStatus();
  if (!IsMasterUrl(*master)) return Bad("master", *master, "have the form tcp://host:port");
  config->master = *master;
  return OkStatus();
}

}  // namespace

Result<ParsedConfig> ParseReplicatorConfig(std::string_view text,
                                           const EnvironmentLookup& environment) {
  const auto in_file = [](const Error& e) { return e.With(kConfigName); };
  if (text.size() > kTextBytesMax) {
    return in_file(Error(Code::kInvalidArgument,
                         fmt::format("{} bytes, more than {}", text.size(), kTextBytesMax)));
  }
  auto map = ParseYamlMap(text);
  if (!map.ok()) return in_file(map.error());
  const Values values(*std::move(map), environment);
  ParsedConfig parsed;
  TK_RETURN_IF_ERROR(ReadWorld(values, &parsed.config));
  TK_RETURN_IF_ERROR(ReadPeers(values, &parsed));
  TK_RETURN_IF_ERROR(ReadBackup(values, &parsed));
  TK_RETURN_IF_ERROR(ReadMaster(values, &parsed.config));
  return parsed;
}

}  // namespace tierkeep
