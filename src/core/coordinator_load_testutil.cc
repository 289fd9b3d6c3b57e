#include "core/coordinator_load_testutil.h"

#include <fmt/format.h>

#include "base/check.h"
#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr char kJob[] = "load";

WorldShape World(uint32_t nodes) { return {Framework::kPytorchDistributed, nodes, 1, 0}; }

}  // namespace

struct CoordinatorLoad::Member {
  Rank rank = 0;
  std::string node;
  Id128 agent;
  uint64_t attempt = 0;
  RunId run;
  Epoch epoch = 0;
  bool released = false;
  uint64_t restored = 0;
  uint64_t recorded = 0;
  uint64_t saves = 0;
  std::vector<control::ShardInfo> held;             // own and others'
  std::optional<control::GenerationRecord> record;  // of the last commit
  std::vector<std::string> nodes;                   // that it was told of as members
  control::RestoreChoice choice;                    // prepared last
  RunId last_run;                                   // released last, from `last_restored`
  control::RestoreChoice last_restored;
};

CoordinatorLoad::CoordinatorLoad(uint32_t nodes, uint32_t peers, std::function<uint64_t()> clock_ns)
    : nodes_(nodes), peers_(peers), clock_ns_(std::move(clock_ns)) {
  for (Rank rank = 0; rank < nodes; ++rank) {
    auto member = std::make_unique<Member>();
    member->rank = rank;
    member->node = fmt::format("node-{:05}", rank);
    member->agent = TestId(rank + 1);
    members_.push_back(std::move(member));
  }
}

CoordinatorLoad::~CoordinatorLoad() = default;

control::Envelope CoordinatorLoad::JoinOf(const Member& member) const {
  JobConfig config;
  config.job = kJob;
  config.rank = member.rank;
  config.world = World(nodes_);
  config.peers_per_node = peers_;
  control::Envelope envelope;
  envelope.set_job(kJob);
  envelope.set_sender(member.node);
  control::Join& join = *envelope.mutable_join();
  join.set_rank(member.rank);
  *join.mutable_attempt() = ToProto(AttemptId{member.agent, TestId(lives_), member.attempt});
  join.set_node(member.node);
  *join.mutable_settings() = SettingsOf(config);
  join.mutable_data()->set_host("10.0.0.1");
  join.mutable_data()->set_port(4243);
  join.set_data_token(std::string(32, 't'));
  *join.mutable_highest_run() = ToProto(member.run);
  join.set_highest_epoch(member.epoch);
  if (!member.last_run.none()) {
    *join.mutable_last_run() = ToProto(member.last_run);
    join.set_last_nodes(nodes_);
    *join.mutable_last_restored() = member.last_restored;
  }
  for (const std::string& node : member.nodes) join.add_previous_nodes(node);
  for (const auto& shard : member.held) *join.mutable_inventory()->add_shards() = shard;
  if (member.record) *join.mutable_inventory()->add_generations() = *member.record;
  join.set_agent_boot(TestId(lives_).Raw());
  return envelope;
}

void CoordinatorLoad::Feed(const CoordinatorEvent::Any& event) {
  const uint64_t begin = Now();
  CoordinatorActions actions = machine_->Step(now_, event);
  round_.busy_ns += Now() - begin;
  CarryOut(std::move(actions));
}

void CoordinatorLoad::CarryOut(CoordinatorActions actions) {
  using A = CoordinatorAction;
  for (A::Any& action : actions) {
    if (auto* send = std::get_if<A::Send>(&action)) {
      const uint64_t begin = Now();
      const auto bytes = EncodeEnvelope(std::move(send->message));
      round_.busy_ns += Now() - begin;
      TK_CHECK_MSG(bytes.ok(), bytes.error().message());
      ++round_.messages_out;
      round_.bytes_out += bytes->size();
      Deliver(send->to, *bytes);
    } else if (std::holds_alternative<A::ReadRendezvous>(action)) {
      events_.push_back(CoordinatorEvent::RendezvousRead{record_, std::to_string(record_version_)});
    } else if (auto* write = std::get_if<A::WriteRendezvous>(&action)) {
      // The run is fixed; later writes only name the newest generation.
      if (FromProto(record_ ? record_->run() : control::RunId()) !=
          FromProto(write->record.run())) {
        gathered_ = round_;
      }
      record_ = write->record;
      events_.push_back(CoordinatorEvent::RendezvousWritten{std::to_string(++record_version_)});
    } else if (const auto* set = std::get_if<A::SetTimer>(&action)) {
      timers_[set->timer] = set->at;
    } else if (const auto* cancel = std::get_if<A::CancelTimer>(&action)) {
      timers_.erase(cancel->timer);
    } else {
      TK_CHECK_MSG(std::holds_alternative<A::LogText>(action), "nobody should be given up");
    }
  }
}

void CoordinatorLoad::Answer(Member* member, control::Envelope message) {
  message.set_job(kJob);
  message.set_sender(member->node);
  if (!message.has_join()) {
    *message.mutable_run() = ToProto(member->run);
    message.set_epoch(member->epoch);
  }
  auto bytes = EncodeEnvelope(std::move(message));
  TK_CHECK_MSG(bytes.ok(), bytes.error().message());
  inbox_.push_back({member->rank, std::move(*bytes)});
}

void CoordinatorLoad::Deliver(ConnectionId to, const std::string& bytes) {
  Member* const member = members_.at(to).get();
  // The receiver's side of the wire isn't the coordinator's work: no check, no clock.
  control::Envelope message;
  TK_CHECK(message.ParseFromString(bytes));
  control::Envelope answer;
  switch (message.body_case()) {
    case control::Envelope::kRunStart:
      member->run = FromProto(message.run_start().run());
      member->epoch = message.run_start().epoch();
      member->released = false;
      member->nodes.clear();
      for (const auto& other : message.run_start().members()) member->nodes.push_back(other.node());
      return;
    case control::Envelope::kRestore:
      member->choice = message.restore().choice();
      member->restored = message.restore().choice().generation().save().step();
      answer.mutable_restore_prepared()->set_decision(message.restore().choice().decision());
      answer.mutable_restore_prepared()->set_ok(true);
      return Answer(member, std::move(answer));
    case control::Envelope::kRelease:
      member->released = true;
      member->last_run = member->run;
      member->last_restored = member->choice;
      return;
    case control::Envelope::kKeep:
      answer.mutable_kept()->set_order(message.keep().order());
      answer.mutable_kept()->set_ok(true);
      for (const auto& wanted : message.keep().wanted()) {
        answer.mutable_kept()->add_held(wanted.shard().digest());
        member->held.push_back(wanted.shard());
      }
      return Answer(member, std::move(answer));
    case control::Envelope::kCommit: {
      const control::GenerationRecord& record = message.commit().generation();
      const uint64_t step = record.save().step();
      member->recorded = step;
      member->record = record;
      std::erase_if(member->held, [step](const auto& s) { return s.save().step() != step; });
      *answer.mutable_commit_recorded()->mutable_run() = record.save().run();
      answer.mutable_commit_recorded()->set_save_number(record.save_number());
      return Answer(member, std::move(answer));
    }
    case control::Envelope::kPing:
      answer.mutable_ping()->set_number(message.ping().number());
      answer.mutable_ping()->set_answer(true);
      return Answer(member, std::move(answer));
    default:
      TK_CHECK_MSG(message.has_job_status(), message.ShortDebugString());
  }
}

void CoordinatorLoad::Run(const std::function<bool()>& done) {
  while (!events_.empty() || !inbox_.empty() || !done()) {
    if (!events_.empty()) {
      const auto event = std::move(events_.front());
      events_.pop_front();
      Feed(event);
    } else if (!inbox_.empty()) {
      const Message message = std::move(inbox_.front());
      inbox_.pop_front();
      ++round_.messages_in;
      round_.bytes_in += message.bytes.size();
      const uint64_t begin = Now();
      auto decoded = DecodeSharedEnvelope(message.bytes);
      round_.busy_ns += Now() - begin;
      TK_CHECK(decoded.ok());
      Feed(CoordinatorEvent::Received{message.from, std::move(*decoded)});
    } else {
      TK_CHECK_MSG(!timers_.empty(), "the coordinator waits for nothing");
      auto next = timers_.begin();
      for (auto it = timers_.begin(); it != timers_.end(); ++it) {
        if (it->second < next->second) next = it;
      }
      now_ = std::max(now_, next->second);
      const TimerId timer = next->first;
      timers_.erase(next);
      Feed(CoordinatorEvent::TimerFired{timer});
    }
  }
}

CoordinatorLoad::Start CoordinatorLoad::StartRun() {
  ++lives_;
  timers_.clear();
  CoordinatorOptions options;
  JobConfig config;
  config.job = kJob;
  config.world = World(nodes_);
  config.peers_per_node = peers_;
  options.settings = SettingsOf(config);
  options.node_name = members_[0]->node;
  options.control_host = "10.0.0.1";
  options.control_port = 4242;
  options.boot = TestId(1000 + lives_);
  options.run_nonce = TestId(2000 + lives_);
  machine_ = std::make_unique<CoordinatorMachine>(std::move(options));
  round_ = {};
  for (auto& member : members_) {
    member->attempt = lives_;
    member->released = false;
    member->saves = 0;
  }
  events_.push_back(
      CoordinatorEvent::Started{WallTime(std::chrono::seconds(1'800'000'000 + lives_))});
  for (auto& member : members_) Answer(member.get(), JoinOf(*member));
  Start out;
  Run([this] { return all_released(); });
  out.gather = gathered_;
  out.restore = round_;
  out.restore.messages_in -= gathered_.messages_in;
  out.restore.messages_out -= gathered_.messages_out;
  out.restore.bytes_in -= gathered_.bytes_in;
  out.restore.bytes_out -= gathered_.bytes_out;
  out.restore.busy_ns -= gathered_.busy_ns;
  return out;
}

CoordinatorLoadRound CoordinatorLoad::Save(uint64_t step) {
  round_ = {};
  for (auto& member : members_) {
    const SaveKey save{member->run, step, 1};
    control::ShardInfo shard =
        MakeShard({save, member->rank, 0, ++member->saves, World(nodes_), 0, 0}, kJob);
    control::Envelope message;
    *message.mutable_save_staged()->mutable_save() = ToProto(save);
    message.mutable_save_staged()->set_ordinal(member->saves);
    *message.mutable_save_staged()->add_shards() = shard;
    member->held.push_back(std::move(shard));
    Answer(member.get(), std::move(message));
  }
  Run([this, step] { return committed_step() == step; });
  return round_;
}

bool CoordinatorLoad::all_released() const {
  for (const auto& member : members_) {
    if (!member->released) return false;
  }
  return true;
}

uint64_t CoordinatorLoad::committed_step() const {
  uint64_t step = UINT64_MAX;
  for (const auto& member : members_) step = std::min(step, member->recorded);
  return step;
}

uint64_t CoordinatorLoad::restored_step() const { return members_[0]->restored; }

}  // namespace tierkeep
