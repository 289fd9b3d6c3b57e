#include "agent/status_json.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "format/generation_record.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

using nlohmann::json;

HeldShard Shard(Rank rank, uint64_t bytes) {
  auto manifest = std::make_shared<Manifest>();
  manifest->identity.job = "train";
  manifest->identity.save = {RunId{7, {}}, 40, 1};
  manifest->identity.rank = rank;
  ManifestEntry file;
  file.path = "x";
  file.bytes = bytes;
  manifest->entries.push_back(file);
  HeldShard shard;
  shard.manifest = manifest;
  shard.volume_name = "D00";
  return shard;
}

StatusInputs Running() {
  StatusInputs in;
  in.node_name = "node1";
  in.node.phase = "running";
  JobConfig config;
  config.job = "train";
  config.rank = 1;
  config.world = {Framework::kOrbax, 2, 1, 0};
  in.node.config = config;
  in.node.run = {7, {}};
  in.shards = {Shard(1, 100), Shard(0, 30)};
  return in;
}

TEST(StatusJson, TellsOwnCopiesFromPeers) {
  const json out = StatusJson(Running());
  EXPECT_EQ(out["version"], kStatusVersion);
  EXPECT_EQ(out["store"]["own_bytes"], 100);
  EXPECT_EQ(out["store"]["peer_bytes"], 30);
  EXPECT_EQ(out["store"]["shards"][0]["own"], true);
  EXPECT_EQ(out["job"]["rank"], 1);
}

TEST(StatusJson, NothingCommittedIsNullAndSaysSo) {
  const json out = StatusJson(Running());
  EXPECT_TRUE(out["tiers"]["committed"].is_null());
  EXPECT_TRUE(out["restorable"]["step"].is_null());
  EXPECT_EQ(out["restorable"]["why"], "nothing was saved and committed yet");
}

TEST(StatusJson, WhatWouldBeRestoredPrefersTheJobsViewThenTheNodes) {
  StatusInputs in = Running();
  control::GenerationRecord record;
  record.set_committed(true);
  record.set_save_number(4);
  *record.mutable_save() = ToProto(SaveKey{RunId{7, {}}, 40, 1});
  in.node.committed = Shared(record);
  in.node.in_flight = SaveKey{RunId{7, {}}, 50, 1};
  json out = StatusJson(in);
  EXPECT_EQ(out["restorable"]["step"], 40);
  EXPECT_EQ(out["tiers"]["staged"], 50);
  EXPECT_EQ(out["tiers"]["committed"], 40);
  control::JobStatus job;
  record.mutable_save()->set_step(50);
  *job.mutable_last_committed() = record;
  job.add_problems("rank 0 is away");
  job.add_missing_ranks(0);
  in.coordinating = job;
  out = StatusJson(in);
  EXPECT_EQ(out["restorable"]["step"], 50);
  EXPECT_EQ(out["coordinator"], true);
  EXPECT_EQ(out["problems"][0], "rank 0 is away");
  EXPECT_EQ(out["missing_ranks"][0], 0);
}

TEST(StatusJson, RanksTellStagedFromCommitted) {
  StatusInputs in = Running();
  in.progress = {{0, "node0", true, 50, 40}, {1, "node1", false, std::nullopt, 40}};
  const json ranks = StatusJson(in)["ranks"];
  EXPECT_EQ(ranks[0]["staged"], 50);
  EXPECT_EQ(ranks[0]["committed"], 40);
  EXPECT_EQ(ranks[1]["staged"], 40) << "what is committed was staged";
  EXPECT_EQ(ranks[1]["connected"], false);
}

TEST(StatusJson, ReplicasThatDisagreeAreThereWithTheirKeys) {
  StatusInputs in = Running();
  EXPECT_TRUE(StatusJson(in)["divergence"].is_null());
  control::JobStatus job;
  control::Divergence& divergence = *job.mutable_divergence();
  *divergence.mutable_save() = ToProto(SaveKey{RunId{7, {}}, 50, 2});
  divergence.set_odd_total(5);
  control::OddReplica& odd = *divergence.add_odd();
  odd.set_rank(3);
  odd.set_node("node3");
  odd.set_total(2);
  odd.add_differences("the file x differs");
  divergence.add_odd()->set_unknown("node node4 is not connected");
  in.node.job = job;
  const json out = StatusJson(in)["divergence"];
  EXPECT_EQ(out["step"], 50);
  EXPECT_EQ(out["occurrence"], 2);
  EXPECT_EQ(out["odd_total"], 5);
  EXPECT_EQ(out["odd"][0]["node"], "node3");
  EXPECT_EQ(out["odd"][0]["differences_total"], 2);
  EXPECT_EQ(out["odd"][0]["differences"], json({"the file x differs"}));
  EXPECT_TRUE(out["odd"][1]["differences_total"].is_null());
  EXPECT_EQ(out["odd"][1]["unknown"], "node node4 is not connected");
}

TEST(StatusJson, MembersClocksAreToldWhereTheyAreKnown) {
  StatusInputs in = Running();
  for (const char* name : {"node0", "node1"}) in.node.members.emplace_back().set_node(name);
  in.clock_skews["node0"] = -1.5;
  in.clock_skews["stranger"] = 9;
  EXPECT_EQ(StatusJson(in)["clock_skew_seconds"], json({{"node0", -1.5}}));
}

TEST(StatusJson, SizingIsToldOnceItIsKnown) {
  StatusInputs in = Running();
  EXPECT_TRUE(StatusJson(in)["sizing"].is_null());
  MemorySizing sizing;
  sizing.generation = {100, 200};
  sizing.room.total_bytes = 500;
  sizing.advised_bytes = 1 << 20;
  in.node.sizing = sizing;
  in.node.pulls_waiting = 2;
  in.node.bytes_waiting = 200;
  json out = StatusJson(in);
  EXPECT_EQ(out["sizing"]["own_save_bytes"], 100);
  EXPECT_EQ(out["sizing"]["peers_save_bytes"], 200);
  EXPECT_EQ(out["sizing"]["needed_bytes"], 700);
  EXPECT_EQ(out["sizing"]["advised_bytes"], 1 << 20);
  EXPECT_EQ(out["sizing"]["fits"], false);
  EXPECT_TRUE(out["sizing"]["memory_limit_bytes"].is_null());
  EXPECT_EQ(out["waiting_for_memory"]["copies"], 2);
  EXPECT_EQ(out["waiting_for_memory"]["bytes"], 200);
  in.node.sizing->room.limit_bytes = 300;
  in.node.sizing->advised_limit_bytes = 400;
  out = StatusJson(in);
  EXPECT_EQ(out["sizing"]["memory_limit_bytes"], 300);
  EXPECT_EQ(out["sizing"]["advised_memory_limit_bytes"], 400);
}

TEST(StatusJson, NamesWhatTheStoreCantRead) {
  StatusInputs in = Running();
  in.unreadable = {{std::nullopt, std::nullopt, "store/shards: EIO", false},
                   {Blake3{}, std::nullopt, "store/shards/00: its manifest", true}};
  const json out = StatusJson(in);
  ASSERT_EQ(out["store"]["unreadable"].size(), 2U);
  EXPECT_EQ(out["store"]["unreadable"][0]["detail"], "store/shards: EIO");
  EXPECT_EQ(out["store"]["unreadable"][0]["damaged"], false);
  EXPECT_EQ(out["store"]["unreadable"][1]["damaged"], true);
}

TEST(StatusJson, AnIdleAgentHasNoJob) {
  StatusInputs in;
  in.node.phase = "idle";
  const json out = StatusJson(in);
  EXPECT_TRUE(out["job"].is_null());
  EXPECT_TRUE(out["run"].is_null());
}

}  // namespace
}  // namespace tierkeep
