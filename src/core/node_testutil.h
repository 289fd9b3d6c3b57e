// One node machine by itself: rank 1 of two of "job", whose coordinator is the test.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/core_testutil.h"
#include "core/events.h"
#include "format/messages.h"

namespace tierkeep {

inline const WorldShape kMemberWorld = {Framework::kPytorchDistributed, 2, 1, 0};

inline JobConfig MemberConfig(const WorldShape& world = kMemberWorld) {
  JobConfig config;
  config.job = "job";
  config.rank = 1;
  config.world = world;
  config.peers_per_node = 1;
  return config;
}

inline NodeEvent::ConfigSeen SeenConfig(const JobConfig& config, const std::string& file = "file") {
  return {"yaml", file, Result<ParsedConfig>(ParsedConfig{config, {}})};
}

// All of kMemberWorld.
inline void AddMembers(control::RunStart* start) {
  for (Rank rank = 0; rank < kMemberWorld.nodes; ++rank) {
    control::Member* member = start->add_members();
    member->set_node("n" + std::to_string(rank));
    member->set_rank(rank);
  }
}

class MemberTest : public testing::Test {
 protected:
  static constexpr Epoch kEpoch = 5;
  inline static const RunId kRun = TestRun(7);

  virtual void Step(const NodeEvent::Any& event) = 0;

  void Say(control::Envelope message) {
    message.set_job("job");
    message.set_sender("n0");
    *message.mutable_run() = ToProto(kRun);
    message.set_epoch(kEpoch);
    Step(NodeEvent::Received{std::move(message)});
  }

  void Connect(bool continued = false) {
    control::RendezvousRecord record;
    record.set_job("job");
    record.mutable_coordinator()->set_host("n0");
    Step(NodeEvent::CoordinatorLocated{record});
    Step(NodeEvent::CoordinatorConnected{});
    control::Envelope message;
    *message.mutable_run_start()->mutable_run() = ToProto(kRun);
    message.mutable_run_start()->set_epoch(kEpoch);
    message.mutable_run_start()->set_continued(continued);
    AddMembers(message.mutable_run_start());
    Say(std::move(message));
  }

  // The agent has started, and the job begins without a checkpoint.
  void BeginRun() {
    Step(NodeEvent::Started{});
    Step(SeenConfig(MemberConfig()));
    Step(NodeEvent::VolumeCleaned{});
    Connect();
    ReleaseWithNothing();
  }

  void ReleaseWithNothing() {
    control::Envelope message;
    message.mutable_restore()->mutable_choice()->set_decision(1);
    message.mutable_restore()->mutable_choice()->set_none(true);
    Say(std::exchange(message, {}));
    message.mutable_release()->set_decision(1);
    Say(std::move(message));
  }

  // The decision for this generation; this node's part of it, `shard`, is to be had from n0.
  void SayRestore(const control::GenerationRecord& record, const control::ShardInfo& shard) {
    control::Envelope message;
    message.mutable_restore()->mutable_choice()->set_decision(1);
    *message.mutable_restore()->mutable_choice()->mutable_generation() = record;
    auto* wanted = message.mutable_restore()->add_wanted();
    *wanted->mutable_shard() = shard;
    wanted->add_nodes("n0");
    Say(std::move(message));
  }

  void Drop(const SaveKey& save) {
    control::Envelope message;
    *message.mutable_drop()->mutable_save() = ToProto(save);
    Say(std::move(message));
  }
};

}  // namespace tierkeep
