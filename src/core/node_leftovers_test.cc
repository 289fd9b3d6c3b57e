// One node machine by itself: saves that nobody decides about don't fill its volume, and what a
// restore needs finds room.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/holdings.h"
#include "core/node.h"
#include "core/node_testutil.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

const RunId kLastRun = TestRun(6);
const Error kFull(Code::kResourceExhausted, "no space");

SaveKey SaveOf(Step step) { return {TestRun(7), step, 1}; }

// Rank 1 of two.
class NodeLeftovers : public MemberTest {
 protected:
  struct Staging {
    TaskId task;
    std::string name;  // staged
  };

  void EndRun() {
    control::Envelope message;
    *message.mutable_run_ended()->mutable_run() = ToProto(kRun);
    message.mutable_run_ended()->set_reason("another node has started again");
    Say(std::move(message));
  }

  // Written by the job, taken and hashed.
  void Save(tierkeep::Step step) {
    Step(NodeEvent::SaveSeen{std::to_string(step), step});
    if (staged_.empty()) return;
    ++ordinal_;
    const auto shard =
        MakeShard({.save = SaveOf(step), .rank = 1, .ordinal = ordinal_, .world = kMemberWorld});
    held_[DigestOf(shard)] = step;
    Step(NodeEvent::Staged{staged_.back().task, shard});
  }

  std::set<tierkeep::Step> Held() const {
    std::set<tierkeep::Step> steps;
    for (const auto& [digest, step] : held_) steps.insert(step);
    return steps;
  }

  void Step(const NodeEvent::Any& event) override {
    staged_.clear();
    deletions_.clear();
    for (const auto& action : machine_.Step(now_, event))
      std::visit([&](const auto& a) { Note(a); }, action);
  }

  void Note(const NodeAction::Stage& a) { staged_.push_back({a.task, a.staged_name}); }
  void Note(const NodeAction::DeleteShards& a) {
    deletions_.push_back(a);
    for (const Blake3& digest : a.digests) held_.erase(digest);
  }
  void Note(const NodeAction::Send& a) {
    if (a.message.has_save_staged()) told_.push_back(a.message.save_staged().save().step());
    if (a.message.has_restore_prepared()) prepared_ = a.message.restore_prepared();
  }
  void Note(const NodeAction::DiscardSaves& a) {
    discarded_.insert(discarded_.end(), a.names.begin(), a.names.end());
  }
  void Note(const NodeAction::Pull& a) { pull_ = a.task; }
  void Note(const NodeAction::StartWatchingSaves&) { watching_ = true; }
  void Note(const NodeAction::WriteFailed&) { failed_ = true; }
  void Note(const NodeAction::SetTimer& a) { timers_[a.timer] = a.at; }
  template <typename T>
  void Note(const T&) {}

  // All timers that are due by then, each once.
  void Run(Duration time) {
    const Instant end = now_ + time;
    for (;;) {
      const auto next = std::min_element(timers_.begin(), timers_.end(),
                                         [](auto& a, auto& b) { return a.second < b.second; });
      if (next == timers_.end() || next->second > end) break;
      const auto [timer, at] = *next;
      timers_.erase(next);
      now_ = std::max(now_, at);
      Step(NodeEvent::TimerFired{timer});
    }
    now_ = end;
  }

  NodeMachine machine_{
      {.node_name = "n1", .agent = TestId(1), .boot = TestId(2), .data_host = "n1"}};
  Instant now_ = Instant(1000s);
  uint64_t ordinal_ = 0;
  std::map<Blake3, tierkeep::Step> held_;
  std::vector<Staging> staged_;                      // by the last event
  std::vector<NodeAction::DeleteShards> deletions_;  // by the last event
  std::vector<tierkeep::Step> told_;
  std::vector<std::string> discarded_;
  std::map<TimerId, Instant> timers_;
  std::optional<control::RestorePrepared> prepared_;
  std::optional<TaskId> pull_;
  bool watching_ = false;
  bool failed_ = false;
};

// A link that carries nothing any more is noticed late.
TEST_F(NodeLeftovers, OnlySoManySavesAreUndecided) {
  BeginRun();
  for (tierkeep::Step step = 1; step <= 20; ++step) Save(step);
  EXPECT_EQ(told_, (std::vector<tierkeep::Step>{1, 2, 3, 4}));
  EXPECT_EQ(Held(), (std::set<tierkeep::Step>{1, 2, 3, 4, 20}));
  Drop(SaveOf(2));
  EXPECT_EQ(told_.back(), 20U) << "what was held back follows";
  EXPECT_EQ(Held(), (std::set<tierkeep::Step>{1, 3, 4, 20}));
}

TEST_F(NodeLeftovers, AJobThatTrainsOnAfterItsRunLeavesTheNewestSave) {
  BeginRun();
  Save(1);
  EndRun();
  for (tierkeep::Step step = 2; step <= 9; ++step) Save(step);
  EXPECT_EQ(Held(), (std::set<tierkeep::Step>{1, 9})) << "the first may be committed";
  EXPECT_TRUE(discarded_.empty());
}

TEST_F(NodeLeftovers, SavesOfNoKnownJobDoNotFillTheVolume) {
  BeginRun();
  Step(NodeEvent::ConfigSeen{"", "empty", std::nullopt});
  Run(10s);
  Step(NodeEvent::ConfigSeen{"", "empty", std::nullopt});
  for (tierkeep::Step step = 2; step <= 5; ++step) Save(step);
  EXPECT_TRUE(Held().empty());
  EXPECT_EQ(discarded_, (std::vector<std::string>{"2", "3"}));
}

// The agent took up its released run again and looked for the coordinator, when a new yaml came.
TEST_F(NodeLeftovers, AnAnswerForTheAttemptBeforeLeavesTheCleaningAlone) {
  BeginRun();
  Step(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "gone")});
  Run(1s);  // looks again
  watching_ = false;
  Step(SeenConfig(MemberConfig(), "next"));
  Step(NodeEvent::LocateFailed{Error(Code::kUnavailable, "the rendezvous can't be reached")});
  Step(NodeEvent::VolumeCleaned{});
  EXPECT_TRUE(watching_) << "or nobody would ever take the job's saves";
}

// Its client waits for a link for 300 s and is gone, without a word.
TEST_F(NodeLeftovers, AnAttemptEndsBeforeItsClientHasGivenUpOnTheLink) {
  Step(NodeEvent::Started{});
  JobConfig config = MemberConfig();
  config.world.framework = Framework::kOrbax;
  Step(SeenConfig(config));
  Step(NodeEvent::VolumeCleaned{});
  Run(300s);
  EXPECT_FALSE(failed_);
  Run(59s);
  EXPECT_TRUE(failed_);
}

// Nor for a decision that waits, or for transfers.
TEST_F(NodeLeftovers, AnAttemptInARunEndsBeforeItsClientHasGivenUpToo) {
  Step(NodeEvent::Started{});
  Step(SeenConfig(MemberConfig(), "file"));
  Step(NodeEvent::VolumeCleaned{});
  Connect();
  const auto wait = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      Run(1s);
      control::Envelope ping;
      ping.mutable_ping();
      Say(std::move(ping));
    }
  };
  wait(300);
  EXPECT_FALSE(failed_);
  wait(59);
  EXPECT_TRUE(failed_);
}

class NodeAdoption : public NodeLeftovers {
 protected:
  void Begin(const std::vector<tierkeep::Step>& steps) {
    NodeEvent::Started started;
    *started.state.mutable_last_run() = ToProto(kLastRun);
    started.state.set_last_rank(1);
    *started.state.mutable_last_world() = ToProto(kMemberWorld);
    Step(started);
    Step(SeenConfig(MemberConfig(), "file"));
    NodeEvent::VolumeCleaned cleaned;
    for (const tierkeep::Step step : steps) {
      cleaned.adopted.push_back(StagedName({{kLastRun, step, 1}, 1, 0}));
    }
    Step(cleaned);
    all_ = staged_;
  }
  static std::string NameOf(tierkeep::Step step) { return StagedName({{kLastRun, step, 1}, 1, 0}); }
  TaskId TaskOf(tierkeep::Step step) const {
    for (const Staging& staging : all_) {
      if (staging.name == NameOf(step)) return staging.task;
    }
    return 0;
  }
  std::vector<Staging> all_;
};

TEST_F(NodeAdoption, OlderLeftoversGiveWayToTheNewest) {
  Begin({10, 20, 30});
  ASSERT_EQ(all_.size(), 3U);
  Step(NodeEvent::StageFailed{TaskOf(30), kFull});
  ASSERT_EQ(deletions_.size(), 1U);
  EXPECT_EQ(deletions_[0].staged, std::vector<std::string>{NameOf(10)});
  EXPECT_TRUE(staged_.empty()) << "not before there is room";
  Step(NodeEvent::Deleted{deletions_[0].task});
  ASSERT_EQ(staged_.size(), 1U);
  EXPECT_EQ(staged_[0].name, NameOf(30));
}

// Left there it would take memory until the agent starts again.
TEST_F(NodeAdoption, ALeftoverThatCanNotBeAdoptedIsRemoved) {
  Begin({10});
  Step(NodeEvent::StageFailed{TaskOf(10), Error(Code::kFailedPrecondition, "it keeps changing")});
  ASSERT_EQ(deletions_.size(), 1U);
  EXPECT_EQ(deletions_[0].staged, std::vector<std::string>{NameOf(10)});
}

// Saves that were never committed, and that the decision passes over, against a start of the job.
TEST_F(NodeLeftovers, UncommittedSavesGiveWayToARestore) {
  NodeEvent::Started started;
  const auto wanted = MakeShard({.save = {kLastRun, 10, 1}, .rank = 1, .world = kMemberWorld});
  const auto other = MakeShard({.save = {kLastRun, 10, 1}, .rank = 0, .world = kMemberWorld});
  const auto useless =
      MakeShard({.save = {kLastRun, 20, 1}, .rank = 0, .ordinal = 2, .world = kMemberWorld});
  const auto foreign = MakeShard({.save = {kLastRun, 5, 1}, .world = kMemberWorld}, "other");
  for (const auto& shard : {other, useless, foreign}) {
    *started.inventory.add_shards() = shard;
  }
  Step(started);
  Step(SeenConfig(MemberConfig(), "file"));
  Step(NodeEvent::VolumeCleaned{});
  Connect();
  control::Envelope message;
  auto* restore = message.mutable_restore();
  restore->mutable_choice()->set_decision(1);
  auto* record = restore->mutable_choice()->mutable_generation();
  record->set_job("job");
  *record->mutable_save() = wanted.save();
  *record->mutable_world() = ToProto(kMemberWorld);
  *record->add_shards() = other;
  *record->add_shards() = wanted;
  auto* sources = restore->add_wanted();
  *sources->mutable_shard() = wanted;
  sources->add_nodes("n0");
  Say(std::move(message));
  ASSERT_TRUE(pull_.has_value());
  const TaskId first = *pull_;
  Step(NodeEvent::Pulled{.task = first, .digest = DigestOf(wanted), .status = kFull});
  ASSERT_EQ(deletions_.size(), 1U);
  EXPECT_EQ(deletions_[0].digests, std::vector<Blake3>{DigestOf(useless)});
  EXPECT_FALSE(prepared_.has_value());
  Step(NodeEvent::Deleted{deletions_[0].task});
  ASSERT_NE(*pull_, first);
  Step(NodeEvent::Pulled{.task = *pull_, .digest = DigestOf(wanted), .status = kFull});
  ASSERT_EQ(deletions_.size(), 1U);
  EXPECT_EQ(deletions_[0].digests, std::vector<Blake3>{DigestOf(foreign)});
  Step(NodeEvent::Deleted{deletions_[0].task});
  Step(NodeEvent::Pulled{.task = *pull_, .digest = DigestOf(wanted), .status = kFull});
  ASSERT_TRUE(prepared_.has_value()) << "nothing else gives way";
  EXPECT_FALSE(prepared_->ok());
}

// What is to go after a refused save was skipped with a state that could not be written.
TEST_F(NodeLeftovers, ARefusedSaveGoesThoughItsBatchFailed) {
  BeginRun();
  Step(NodeEvent::SaveSeen{"10", 10});
  ASSERT_EQ(staged_.size(), 1U);
  const std::string name = staged_.front().name;
  Step(NodeEvent::StageFailed{staged_.front().task, Error(Code::kDataLoss, "it can't be read")});
  ASSERT_EQ(deletions_.size(), 1U);
  Step(NodeEvent::BatchFailed{"PersistState", kFull, {deletions_.front().task}});
  EXPECT_TRUE(deletions_.empty());
  constexpr TimerId kPersistTimer = 7;
  for (const bool again : {true, false}) {
    Step(NodeEvent::TimerFired{kPersistTimer});
    ASSERT_EQ(deletions_.size(), 1U);
    EXPECT_EQ(deletions_.front().staged, std::vector<std::string>{name});
    // It would not go: once more.
    const TaskId task = deletions_.front().task;
    Step(NodeEvent::Deleted{task,
                            again ? std::vector<std::string>{name} : std::vector<std::string>{}});
  }
  Step(NodeEvent::TimerFired{kPersistTimer});
  EXPECT_TRUE(deletions_.empty());
}

}  // namespace
}  // namespace tierkeep
