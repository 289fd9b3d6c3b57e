// One node machine by itself: what an earlier life of the agent left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "core/core_testutil.h"
#include "core/node.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

const WorldShape kWorld = {Framework::kPytorchDistributed, 2, 1, 0};

// An agent that died between two attempts has no yaml, but may have saves that it took and never
// hashed. Those of the last run may be the newest there are; no other run's will be wanted again.
TEST(NodeStart, SavesTakenBeforeACrashBetweenAttemptsAreTakenUpByTheNext) {
  const RunId last = TestRun(7);
  const std::string wanted = StagedName({{last, 10, 1}, 1, 0});
  const std::string unwanted = StagedName({{TestRun(6), 9, 1}, 1, 0});
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  NodeEvent::Started started;
  *started.state.mutable_last_run() = ToProto(last);
  started.state.set_last_rank(1);
  *started.state.mutable_last_world() = ToProto(kWorld);
  started.staged = {wanted, unwanted};
  JobConfig config;
  config.job = "job";
  config.rank = 1;
  config.world = kWorld;
  config.peers_per_node = 1;

  std::vector<std::string> staged;
  std::vector<std::string> deleted;
  const auto step = [&](const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(Instant(1000s), event)) {
      if (const auto* a = std::get_if<NodeAction::Stage>(&action)) staged.push_back(a->staged_name);
      if (const auto* a = std::get_if<NodeAction::DeleteShards>(&action)) {
        deleted.insert(deleted.end(), a->staged.begin(), a->staged.end());
      }
    }
  };
  step(started);
  EXPECT_TRUE(staged.empty() && deleted.empty()) << "a holder's store is left as it is";
  step(NodeEvent::ConfigSeen{"yaml", "file", Result<ParsedConfig>(ParsedConfig{config, {}})});
  step(NodeEvent::VolumeCleaned{});
  EXPECT_EQ(staged, std::vector<std::string>{wanted});
  EXPECT_TRUE(std::count(deleted.begin(), deleted.end(), unwanted) >= 1);
  EXPECT_EQ(std::count(deleted.begin(), deleted.end(), wanted), 0);
}

}  // namespace
}  // namespace tierkeep
