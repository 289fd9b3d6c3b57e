// One node machine by itself: what an earlier life of the agent left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/node.h"
#include "core/node_testutil.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

// The agent had accepted that attempt and cleaned the volume for it before it died.
NodeEvent::Started StartedAgain(const JobConfig& config) {
  NodeEvent::Started started;
  started.config = config;
  started.state.set_config_text("yaml");
  started.state.mutable_attempt()->set_counter(1);
  started.state.set_volume_cleaned(true);
  return started;
}

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
  *started.state.mutable_last_world() = ToProto(kMemberWorld);
  started.staged = {wanted, unwanted};
  const JobConfig config = MemberConfig();

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
  step(SeenConfig(config));
  step(NodeEvent::VolumeCleaned{});
  EXPECT_EQ(staged, std::vector<std::string>{wanted});
  EXPECT_TRUE(std::count(deleted.begin(), deleted.end(), unwanted) >= 1);
  EXPECT_EQ(std::count(deleted.begin(), deleted.end(), wanted), 0);
}

// Its saves were the last run's, and the new run may save the same steps. Known there as saved
// before, a step would be another save than on the other nodes.
TEST(NodeStart, SavesOfTheLastRunAreNoneOfTheRunThatHasBegun) {
  NodeEvent::Started started = StartedAgain(MemberConfig());
  control::NodeState& state = started.state;
  *state.mutable_last_run() = ToProto(TestRun(7));
  state.set_last_rank(1);
  *started.inventory.add_shards() =
      MakeShard({.save = {TestRun(7), 10, 1}, .rank = 1, .world = kMemberWorld});
  for (const bool begun : {true, false}) {
    if (begun) *state.mutable_run() = ToProto(TestRun(8));
    if (!begun) state.clear_run();
    NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
    machine.Step(Instant(1000s), started);
    EXPECT_EQ(machine.state().saves_size(), begun ? 0 : 1);
  }
}

// What an earlier start of another job left stands there still: without its yaml, and without the
// word that it can't start, the client would take that.
TEST(NodeStart, WhereTheVolumeCouldNotBeCleanedTheYamlStaysUntilTheJobIsTold) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  std::vector<std::string> done;
  std::vector<TimerId> timers;
  const auto step = [&](const NodeEvent::Any& event) {
    done.clear();
    for (const auto& action : machine.Step(Instant(1000s), event)) {
      if (const auto* a = std::get_if<NodeAction::WriteFailed>(&action)) done.push_back(a->text);
      if (std::holds_alternative<NodeAction::RemoveConfig>(action)) done.emplace_back("yaml goes");
      if (const auto* a = std::get_if<NodeAction::SetTimer>(&action)) timers.push_back(a->timer);
    }
  };
  step(NodeEvent::Started{});
  step(SeenConfig(MemberConfig()));
  const Error error(Code::kDataLoss, "input/output error");
  step(NodeEvent::BatchFailed{"CleanVolume", error, {}});
  ASSERT_EQ(done.size(), 2U);
  const std::string told = done[0];
  timers.clear();
  step(NodeEvent::BatchFailed{"WriteFailed", error, {}});
  EXPECT_TRUE(done.empty());
  ASSERT_FALSE(timers.empty());
  step(NodeEvent::TimerFired{timers.back()});
  EXPECT_EQ(done, (std::vector<std::string>{told, "yaml goes"}));
}

// Nor is it told of what an earlier yaml was refused for, or of nothing.
TEST(NodeStart, AYamlThatCanNotBeAcceptedIsToldOfOnceThatCanBeWritten) {
  for (const bool earlier : {false, true}) {
    NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
    std::vector<std::string> done;
    std::set<TimerId> timers;
    const auto step = [&](Instant now, const NodeEvent::Any& event) {
      done.clear();
      for (const auto& action : machine.Step(now, event)) {
        if (const auto* a = std::get_if<NodeAction::WriteFailed>(&action)) done.push_back(a->text);
        if (std::holds_alternative<NodeAction::RemoveConfig>(action))
          done.emplace_back("yaml goes");
        if (const auto* a = std::get_if<NodeAction::SetTimer>(&action)) timers.insert(a->timer);
      }
    };
    step(Instant(1000s), NodeEvent::Started{});
    const Error error(Code::kDataLoss, "input/output error");
    if (earlier) {
      step(Instant(1000s), SeenConfig(MemberConfig()));
      step(Instant(1000s), NodeEvent::BatchFailed{"CleanVolume", error, {}});
      ASSERT_EQ(done.size(), 2U);
    }
    const NodeEvent::ConfigSeen bad{"x", "other", Error(Code::kInvalidArgument, "no job-name")};
    step(Instant(1001s), bad);
    step(Instant(1001s) + CoreTimings().config_bad_max, bad);
    ASSERT_EQ(done.size(), 2U);
    const std::string told = done[0];
    EXPECT_NE(told.find("no job-name"), std::string::npos);
    timers.clear();
    step(Instant(1100s), NodeEvent::BatchFailed{"WriteFailed", error, {}});
    EXPECT_TRUE(done.empty());
    ASSERT_EQ(timers.size(), 1U);
    step(Instant(1100s), NodeEvent::TimerFired{*timers.begin()});
    EXPECT_EQ(done, (std::vector<std::string>{told, "yaml goes"}));
  }
}

// The store marks a copy that the job may write into when its link is placed. An agent that died
// just before that places the link in its next life, whose store knew nothing of it at its start.
TEST(NodeStart, WhatIsPlacedInTheNextLifeIsNoVerifiedCopy) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  NodeEvent::Started started = StartedAgain(MemberConfig());
  const SaveKey save{TestRun(7), 10, 1};
  control::NodeState& state = started.state;
  *state.mutable_run() = ToProto(TestRun(8));
  state.set_epoch(3);
  state.set_released(true);
  control::GenerationRecord& generation = *state.mutable_restored()->mutable_generation();
  *generation.mutable_save() = ToProto(save);
  *generation.mutable_world() = ToProto(kMemberWorld);
  for (const Rank rank : {0, 1}) {
    *generation.add_shards() = MakeShard({.save = save, .rank = rank, .world = kMemberWorld});
    *started.inventory.add_shards() = generation.shards(static_cast<int>(rank));
  }
  std::optional<control::Join> join;
  bool placed = false;
  const auto step = [&](const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(Instant(1000s), event)) {
      placed = placed || std::holds_alternative<NodeAction::PlaceLink>(action);
      const auto* send = std::get_if<NodeAction::Send>(&action);
      if (send != nullptr && send->message.has_join()) join = send->message.join();
    }
  };
  step(started);
  EXPECT_TRUE(placed);
  control::RendezvousRecord record;
  record.set_job("job");
  *record.mutable_run() = ToProto(TestRun(8));
  step(NodeEvent::CoordinatorLocated{record});
  step(NodeEvent::CoordinatorConnected{});
  ASSERT_TRUE(join.has_value());
  for (const auto& shard : join->inventory().shards()) {
    EXPECT_EQ(shard.suspect(), shard.rank() == 1) << shard.rank();
  }
}

// It died between its links and the note of them, and a copy was lost since. Its job trains: it
// must not be told that it can't start.
TEST(NodeStart, LinksThatStandAreNotPlacedAgain) {
  NodeEvent::Started started = StartedAgain(MemberConfig());
  control::NodeState& state = started.state;
  *state.mutable_run() = ToProto(TestRun(8));
  state.set_released(true);
  control::GenerationRecord& generation = *state.mutable_restored()->mutable_generation();
  *generation.mutable_save() = ToProto({TestRun(7), 10, 1});
  *generation.mutable_world() = ToProto(kMemberWorld);
  for (const Rank rank : {0, 1}) {
    *generation.add_shards() =
        MakeShard({.save = {TestRun(7), 10, 1}, .rank = rank, .world = kMemberWorld});
  }
  for (const bool stand : {true, false}) {
    started.links_stand = stand;
    NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
    for (const auto& action : machine.Step(Instant(1000s), started)) {
      EXPECT_FALSE(std::holds_alternative<NodeAction::PlaceLink>(action));
    }
    EXPECT_EQ(machine.state().released(), stand);
    EXPECT_EQ(machine.status().phase, stand ? "running" : "locating");
  }
}

// An agent that was restarted while its job waited. That job's process may be gone, and the next
// one waits for this very yaml to go.
TEST(NodeStart, AYamlGoesInTimeAfterARestart) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  NodeEvent::Started started = StartedAgain(MemberConfig());
  started.state.set_config_file_id("file");
  std::map<TimerId, Instant> timers;
  bool removed = false;
  const auto step = [&](Instant now, const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(now, event)) {
      if (const auto* set = std::get_if<NodeAction::SetTimer>(&action))
        timers[set->timer] = set->at;
      removed = removed || std::holds_alternative<NodeAction::RemoveConfig>(action);
    }
  };
  step(Instant(1000s), started);
  step(Instant(1000s), SeenConfig(MemberConfig()));
  for (const auto& [timer, at] : std::map<TimerId, Instant>(timers)) {
    if (at <= Instant(1060s)) step(at, NodeEvent::TimerFired{timer});
  }
  EXPECT_TRUE(removed);
}

// Our own removal, which is seen once more before it is gone, isn't its client's.
TEST(NodeStart, AYamlThatWeRemoveStaysAStart) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  std::map<TimerId, Instant> timers;
  bool removed = false;
  const auto step = [&](Instant now, const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(now, event)) {
      if (const auto* set = std::get_if<NodeAction::SetTimer>(&action))
        timers[set->timer] = set->at;
      removed = removed || std::holds_alternative<NodeAction::RemoveConfig>(action);
    }
  };
  step(Instant(1000s), NodeEvent::Started{});
  step(Instant(1000s), SeenConfig(MemberConfig()));
  step(Instant(1000s), NodeEvent::VolumeCleaned{});
  for (const auto& [timer, at] : std::map<TimerId, Instant>(timers)) {
    if (at <= Instant(1060s)) step(Instant(1060s), NodeEvent::TimerFired{timer});
  }
  EXPECT_TRUE(removed);
  step(Instant(1060s), SeenConfig(MemberConfig()));
  step(Instant(1060s), NodeEvent::ConfigGone{});
  EXPECT_TRUE(machine.status().config.has_value());
}

// Before it died the agent had taken worker 0's file only. The other one is of the same save.
TEST(NodeStart, ASaveOfWhichACrashTookAPartIsMadeWhole) {
  const WorldShape world{Framework::kPytorch, 2, /*workers_per_node=*/2, 0};
  const RunId run = TestRun(8);
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  NodeEvent::Started started = StartedAgain(MemberConfig(world));
  control::NodeState& state = started.state;
  state.set_released(true);
  state.set_links_placed(true);
  *state.mutable_run() = *state.mutable_last_run() = ToProto(run);
  state.set_last_rank(1);
  *state.mutable_last_world() = ToProto(world);
  state.mutable_restored()->set_none(true);
  started.staged = {StagedName({{run, 10, 1}, 1, 0})};
  std::vector<std::string> staged;
  std::vector<std::string> discarded;
  const auto step = [&](const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(Instant(1000s), event)) {
      if (const auto* a = std::get_if<NodeAction::Stage>(&action)) staged.push_back(a->staged_name);
      if (const auto* a = std::get_if<NodeAction::DiscardSaves>(&action)) discarded = a->names;
    }
  };
  step(started);
  for (const tierkeep::Step number : {10, 20}) {
    for (const Worker worker : {0, 1}) {
      if (number == 10 && worker == 0) continue;
      step(NodeEvent::SaveSeen{"file", number, worker, 1});
    }
  }
  const std::vector<std::string> expected{
      StagedName({{run, 10, 1}, 1, 0}), StagedName({{run, 10, 1}, 1, 1}),
      StagedName({{run, 20, 1}, 1, 0}), StagedName({{run, 20, 1}, 1, 1})};
  EXPECT_EQ(staged, expected);
  EXPECT_TRUE(discarded.empty());
}

// The coordinator of a job that never starts again may listen for ever.
TEST(NodeStart, AHolderOfTwoJobsServesBothInTurn) {
  NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
  NodeEvent::Started started;
  uint64_t content = 0;
  for (const char* job : {"first", "second"}) {
    *started.inventory.add_shards() =
        MakeShard({.save = {TestRun(7), 10, 1}, .world = kMemberWorld, .content = ++content}, job);
  }
  std::vector<std::string> asked;  // whose coordinator
  TimerId timer = 0;
  bool left = false;
  const auto step = [&](const NodeEvent::Any& event) {
    for (const auto& action : machine.Step(Instant(1000s), event)) {
      if (const auto* a = std::get_if<NodeAction::LocateCoordinator>(&action)) {
        asked.push_back(a->job);
      } else if (const auto* set = std::get_if<NodeAction::SetTimer>(&action)) {
        timer = set->timer;
      } else {
        left = left || std::holds_alternative<NodeAction::Disconnect>(action);
      }
    }
  };
  step(started);
  for (const bool second : {false, true}) {
    const TimerId turn = timer;
    step(NodeEvent::TimerFired{turn});
    EXPECT_EQ(asked.size(), second ? 2U : 1U);
    EXPECT_EQ(left, second);
    control::RendezvousRecord record;
    record.set_job(asked.back());
    step(NodeEvent::CoordinatorLocated{record});
    step(NodeEvent::CoordinatorConnected{});
  }
  EXPECT_NE(asked.front(), asked.back());
}

// A coordinator may read an older connection's join last, and must know it for what it is.
TEST(NodeStart, EachConnectionHasANumberAboveAllBeforeIt) {
  std::optional<std::pair<uint64_t, uint64_t>> last;
  NodeEvent::Started started = StartedAgain(MemberConfig());
  for (int life = 0; life < 2; ++life) {
    NodeMachine machine(NodeOptions{.node_name = "n1", .agent = TestId(1), .boot = TestId(2)});
    int joins = 0;
    std::vector<TimerId> timers;  // set by the last step
    const auto step = [&](const NodeEvent::Any& event) {
      timers.clear();
      for (const auto& action : machine.Step(Instant(1000s), event)) {
        if (const auto* timer = std::get_if<NodeAction::SetTimer>(&action)) {
          timers.push_back(timer->timer);
        }
        const auto* send = std::get_if<NodeAction::Send>(&action);
        if (send == nullptr || !send->message.has_join()) continue;
        const control::AgentLink& link = send->message.join().link();
        EXPECT_EQ(link.agent(), TestId(1).Raw());
        EXPECT_TRUE(!last || *last < std::pair(link.life(), link.number()));
        last = {link.life(), link.number()};
        ++joins;
      }
    };
    step(started);
    control::RendezvousRecord record;
    record.set_job("job");
    record.mutable_coordinator()->set_host("n0");
    for (int i = 0; i < 2; ++i) {
      step(NodeEvent::CoordinatorLocated{record});
      step(NodeEvent::CoordinatorConnected{});
      step(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "lost")});
      ASSERT_EQ(timers.size(), 1U);
      step(NodeEvent::TimerFired{timers[0]});
    }
    EXPECT_EQ(joins, 2);
    started.state = machine.state();
  }
}

}  // namespace
}  // namespace tierkeep
