// replicator.yaml, which the training job writes.

#include <fmt/format.h>

#include <set>

#include "base/check.h"
#include "base/log.h"
#include "format/replicator_config.h"
#include "format/volume_names.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

std::optional<std::string> Environment(std::string_view name) {
  const std::set<std::string_view> listed = {"JOBSET_NAME", "JOB_NAME", "NODE_RANK",
                                             "NNODES",      "POD_NAME", "HOSTNAME"};
  TK_CHECK(listed.contains(name));
  if (name == "NODE_RANK") return "1";
  if (name == "NNODES") return "4";
  if (name == "POD_NAME") return std::nullopt;
  return "job-a";
}

std::string Render(const JobConfig& c) {
  std::string text = fmt::format(
      "job-name: '{}'\nframework: {}\nnodes: {}\nnode-rank: {}\nworkers-per-node: {}\n", c.job,
      FrameworkName(c.world.framework), c.world.nodes, c.rank, c.world.workers_per_node);
  if (c.world.data_parallelism > 0) {
    text += fmt::format("assume-data-parallelism: {}\n", c.world.data_parallelism);
  }
  if (c.peer_ranks) {
    text += "peer-ranks: [";
    for (const Rank peer : *c.peer_ranks) text += fmt::format("{}, ", peer);
    text += "]\n";
  }
  const auto number = [&](const char* key, const std::optional<uint32_t>& value) {
    if (value) text += fmt::format("{}: \"{}\"\n", key, *value);
  };
  number("peers-per-node", c.peers_per_node);
  number("backup-interval-minutes", c.backup_interval_minutes);
  number("backup-interval-steps", c.backup_interval_steps);
  text += fmt::format("master-port: {}\n", c.master_port);
  if (!c.master.empty()) text += fmt::format("master: '{}'\n", c.master);
  return text;
}

void CheckConfig(const JobConfig& c) {
  TK_CHECK(IsValidJobName(c.job));
  TK_CHECK(CheckWorldShape(c.world).ok());
  TK_CHECK(c.rank < c.world.nodes);
  if (!c.peer_ranks) return;
  std::set<Rank> distinct(c.peer_ranks->begin(), c.peer_ranks->end());
  TK_CHECK(distinct.size() == c.peer_ranks->size());
  TK_CHECK(!distinct.contains(c.rank));
  TK_CHECK(distinct.empty() || *distinct.rbegin() < c.world.nodes);
}

}  // namespace

void RunOne(std::string_view input) {
  const auto parsed = ParseReplicatorConfig(input, Environment);
  if (!parsed.ok()) {
    const std::string& said = parsed.error().message();
    TK_CHECK(parsed.error().code() == Code::kInvalidArgument);
    TK_CHECK_MSG(said.size() < 4096 && EscapeForLog(said, 4096) == said, said);
    return;
  }
  CheckConfig(parsed->config);
  const std::string text = Render(parsed->config);
  const auto again = ParseReplicatorConfig(text, Environment);
  TK_CHECK_MSG(again.ok() && again->config == parsed->config, text);
}

std::vector<std::string> Seeds() {
  JobConfig c;
  c.job = "llama-70b.2";
  c.world = {Framework::kOrbax, 4, 1, 0};
  c.rank = 3;
  c.peers_per_node = 2;
  c.backup_interval_minutes = 30;
  c.master = "tcp://host-0.example:4242";
  std::vector<std::string> seeds = {Render(c)};
  c.world = {Framework::kPytorch, 8, 4, 2};
  c.peers_per_node.reset();
  c.peer_ranks = {0, 1, 7};
  seeds.push_back(Render(c));
  seeds.push_back(
      "job-name: ${JOBSET_NAME}\nframework: pytorch.distributed\nnode-rank: $NODE_RANK\n"
      "nodes: $NNODES\npeers-per-node: 1\nbackup-interval-steps: '100'\npeer-ranks:\n- 0\n- 2\n");
  seeds.push_back(
      "{job-name: j, framework: orbax, nodes: 2, node-rank: 0, peers-per-node: 1, "
      "backup-interval-steps: 5}\n");
  seeds.push_back("%YAML 1.2\n---\njob-name: &a !!str x\nframework: *a\n? [deep, {a: b}]\n: 1\n");
  return seeds;
}

}  // namespace tierkeep::fuzz
