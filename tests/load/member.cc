#include "member.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/core_testutil.h"
#include "format/messages.h"

namespace tierkeep {

Member::Member(std::string job, Rank rank, uint32_t nodes, Rank keeper)
    : job_(std::move(job)),
      rank_(rank),
      world_{Framework::kPytorchDistributed, nodes, 1, 0},
      keeper_(keeper),
      node_(fmt::format("member{}", rank)) {}

control::Envelope Member::NewMessage() const {
  control::Envelope message;
  message.set_job(job_);
  message.set_sender(node_);
  *message.mutable_run() = ToProto(run_);
  message.set_epoch(epoch_);
  return message;
}

control::Envelope Member::Join() {
  entered_ = decided_ = released_ = false;
  ++attempt_;
  JobConfig config;
  config.job = job_;
  config.rank = rank_;
  config.world = world_;
  config.peer_ranks = {keeper_};
  control::Envelope message;
  message.set_job(job_);
  message.set_sender(node_);
  control::Join& join = *message.mutable_join();
  join.set_rank(rank_);
  *join.mutable_attempt() = ToProto(AttemptId{TestId(rank_ + 1), TestId(0), attempt_});
  join.set_node(node_);
  *join.mutable_settings() = SettingsOf(config);
  join.mutable_data()->set_host("127.0.0.1");
  join.mutable_data()->set_port(1);
  join.set_data_token(std::string(32, 't'));
  *join.mutable_highest_run() = ToProto(run_);
  join.set_highest_epoch(epoch_);
  join.set_agent_boot(TestId(0).Raw());
  if (record_) {
    *join.mutable_last_run() = ToProto(run_);
    *join.mutable_inventory()->add_generations() = *record_;
  }
  for (const auto& shard : held_) *join.mutable_inventory()->add_shards() = shard;
  return message;
}

control::Envelope Member::Save(Step step) {
  const SaveKey save{run_, step, 1};
  control::Envelope message = NewMessage();
  control::SaveStaged& staged = *message.mutable_save_staged();
  *staged.mutable_save() = ToProto(save);
  staged.set_ordinal(++ordinal_);
  *staged.add_shards() = MakeShard({save, rank_, 0, ordinal_, world_}, job_);
  held_.push_back(staged.shards(0));
  return message;
}

Result<std::optional<control::Envelope>> Member::Hear(const control::Envelope& message) {
  control::Envelope answer = NewMessage();
  switch (message.body_case()) {
    case control::Envelope::kRunStart:
      entered_ = true;
      run_ = FromProto(message.run_start().run());
      epoch_ = message.run_start().epoch();
      ordinal_ = 0;
      return std::nullopt;
    case control::Envelope::kRestore: {
      const control::RestoreChoice& choice = message.restore().choice();
      decided_ = true;
      restored_ = choice.none() ? 0 : choice.generation().save().step();
      answer.mutable_restore_prepared()->set_decision(choice.decision());
      answer.mutable_restore_prepared()->set_ok(true);
      return answer;
    }
    case control::Envelope::kRelease:
      released_ = true;
      return std::nullopt;
    case control::Envelope::kKeep:
      answer.mutable_kept()->set_order(message.keep().order());
      answer.mutable_kept()->set_ok(true);
      for (const auto& wanted : message.keep().wanted()) {
        answer.mutable_kept()->add_held(wanted.shard().digest());
        held_.push_back(wanted.shard());
      }
      return answer;
    case control::Envelope::kCommit: {
      record_ = message.commit().generation();
      const std::set<std::string> keep(message.commit().keep().begin(),
                                       message.commit().keep().end());
      std::erase_if(held_, [&](const auto& shard) { return keep.count(shard.digest()) == 0; });
      *answer.mutable_commit_recorded()->mutable_run() = record_->save().run();
      answer.mutable_commit_recorded()->set_save_number(record_->save_number());
      return answer;
    }
    case control::Envelope::kPing:
      if (message.ping().answer()) return std::nullopt;
      *answer.mutable_ping() = message.ping();
      answer.mutable_ping()->set_answer(true);
      return answer;
    case control::Envelope::kJobStatus:
    case control::Envelope::kRestoreOrders:
    case control::Envelope::kRunEnded:  // of the one that its new start has ended
      return std::nullopt;
    default:
      return Error(Code::kFailedPrecondition,
                   fmt::format("{} is told: {}", node_, message.ShortDebugString()));
  }
}

}  // namespace tierkeep
