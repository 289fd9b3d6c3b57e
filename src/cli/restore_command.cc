#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "cli/admin_client.h"
#include "cli/command.h"

namespace tierkeep {
namespace {

using nlohmann::json;

struct RestoreFlags {
  std::string admin = kDefaultAdminSocket;
  bool as_json = false;
  std::string job;
  std::vector<std::string> without;
  bool without_absent = false;
  std::vector<std::string> skip;
  std::string to;
  std::string step;
  std::string generation;
  std::vector<uint32_t> ranks;
  bool all = false;
};

int BadUsage(const std::string& text) {
  fmt::print(stderr, "tierkeep restore: {}\n", text);
  return 2;
}

void PrintOrders(const RestoreFlags& flags, const json& answer) {
  for (const json& order : answer["orders"]) {
    fmt::print("job {}: {}, at the next restore decision\n", answer["job"].get<std::string>(),
               order.get<std::string>());
  }
  for (const json& hit : answer["hits"]) fmt::print("skipped: {}\n", hit.get<std::string>());
  if (!flags.skip.empty() && answer["hits"].empty()) {
    fmt::print("this node knows of no such checkpoint; the order holds all the same\n");
  }
  if (answer.contains("given_up")) {
    for (const json& text : answer["given_up"]) {
      fmt::print("given up: {}\n", text.get<std::string>());
    }
    fmt::print("instead the job goes on from {}\n", answer["instead"].get<std::string>());
  }
}

void PrintCopies(const RestoreFlags&, const json& a) {
  fmt::print("job {} step {} (run {}{}){}\n", a["job"].get<std::string>(), a["step"].dump(),
             a["run"].get<std::string>(),
             a["save"].is_null() ? "" : fmt::format(", save {}", a["save"].dump()),
             a["committed"].get<bool>() ? ", committed" : ", not committed");
  for (const json& s : a["shards"]) {
    fmt::print("rank {} worker {}: {} in {} files, verified, from {}\n  digest {}\n  {}/{}\n",
               s["rank"].dump(), s["worker"].dump(), FormatBytes(s["bytes"].get<uint64_t>()),
               s["files"].dump(), s["from"].get<std::string>(), s["digest"].get<std::string>(),
               a["dir"].get<std::string>(), s["path"].get<std::string>());
  }
}

// Asks and prints the answer, for people by `print`.
int Ask(const RestoreFlags& flags, const std::string& path, Duration deadline, json request,
        void (*print)(const RestoreFlags&, const json&)) {
  if (!flags.job.empty()) request["job"] = flags.job;
  const auto answer = AskAgent(flags.admin, "POST", path, deadline, request.dump());
  if (!answer.ok()) {
    fmt::print(stderr, "tierkeep restore: {}\n", answer.error().message());
    return 1;
  }
  if (flags.as_json) {
    fmt::print("{}\n", answer->dump(2));
  } else {
    print(flags, *answer);
  }
  return 0;
}

int GiveOrders(const RestoreFlags& flags) {
  return Ask(
      flags, "/v1/restore/orders", 30s,
      {{"skip", flags.skip}, {"without", flags.without}, {"without_absent", flags.without_absent}},
      PrintOrders);
}

int CopyTo(const RestoreFlags& flags) {
  json request = {{"to", std::filesystem::absolute(flags.to).lexically_normal().string()},
                  {"ranks", flags.ranks},
                  {"all", flags.all}};
  if (!flags.generation.empty()) request["generation"] = flags.generation;
  if (!flags.step.empty()) {
    const json step = json::parse(flags.step, nullptr, /*allow_exceptions=*/false);
    if (!step.is_number_unsigned()) return BadUsage("--step must be a whole number");
    request["step"] = step;
  }
  // Copying takes as long as disks and networks need; each wait within has its own limit.
  return Ask(flags, "/v1/restore/to", 24h, std::move(request), PrintCopies);
}

int RunRestore(const RestoreFlags& flags) {
  const bool orders = !flags.without.empty() || flags.without_absent || !flags.skip.empty();
  if (orders == !flags.to.empty()) {
    return BadUsage(
        "give either --to, or what the next restore decision shall do: --without, "
        "--without-absent, --skip");
  }
  return orders ? GiveOrders(flags) : CopyTo(flags);
}

}  // namespace

void AddRestoreCommand(CLI::App& app, int* exit_status) {
  auto flags = std::make_shared<RestoreFlags>();
  CLI::App* command = app.add_subcommand(
      "restore", "Copy a checkpoint into a directory, or say what the next restore decision does");
  command->add_option("--admin", flags->admin, "the agent's admin socket")->capture_default_str();
  command->add_flag("--json", flags->as_json, "print the agent's answer as it is");
  command->add_option("--job", flags->job, "the job (default: the one that the agent serves)");
  command
      ->add_option("--without", flags->without,
                   "when the decision stopped because of this node: go on without what it can't "
                   "read or has while it is away")
      ->type_name("NODE");
  command->add_flag("--without-absent", flags->without_absent,
                    "likewise for every node that is away");
  command
      ->add_option("--skip", flags->skip,
                   "don't choose this step, or this one save, at the next restore decision")
      ->type_name("STEP|RUN/SAVE");
  auto* to = command
                 ->add_option("--to", flags->to,
                              "a new directory to put a verified copy into, outside the volume")
                 ->type_name("DIR");
  command->add_option("--step", flags->step, "of this step (default: the newest)")->needs(to);
  command->add_option("--generation", flags->generation, "this one save")
      ->type_name("RUN/SAVE")
      ->needs(to);
  command->add_option("--rank", flags->ranks, "whose shards (default: this node's)")->needs(to);
  command->add_flag("--all", flags->all, "every rank's shards")->needs(to);
  command->callback([flags, exit_status] { *exit_status = RunRestore(*flags); });
}

}  // namespace tierkeep
