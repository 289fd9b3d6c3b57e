// Getting this node's part of the restored generation, verified, and releasing the job.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"
#include "core/restore_choice.h"

namespace tierkeep {

void NodeMachine::Impl::OnRestore(const control::Restore& m) {
  if (Released()) return;
  if (restore_ && restore_->order.choice().decision() == m.choice().decision()) {
    if (!restore_->answered) return;
    if (restore_->answer.ok()) {
      // The answer may have been lost with a connection.
      AnswerRestore();
      return;
    }
  }
  if (restore_ && m.choice().decision() < restore_->order.choice().decision()) return;
  const auto own = m.choice().none() ? std::vector<control::ShardInfo>()
                                     : ShardsOfRank(m.choice().generation(), config_->rank);
  if (!m.choice().none() && own.size() != config_->world.workers_per_node) {
    ++dropped_messages_;
    return;
  }
  for (const auto& wanted : m.wanted()) Meet(wanted);
  CancelRestore();
  phase_ = Phase::kRestoring;
  restore_.emplace();
  restore_->order = m;
  restore_->answer.set_decision(m.choice().decision());
  restore_->answer.set_ok(true);
  if (!m.choice().none()) {
    Log(Severity::kInfo, fmt::format("Restoring from in-cluster checkpoint {}",
                                     m.choice().generation().save().step()));
  }
  for (const auto& wanted : m.wanted()) {
    const Blake3 digest = DigestOf(wanted.shard());
    // Verified for an earlier decision of this attempt: the job has not had it since.
    const bool checked = checked_.count(digest) != 0 || TK_MUTATION(kLinkBeforeVerify);
    if (HoldsVerified(digest) && checked) continue;
    restore_->open.insert(digest);
  }
  const control::Restore order = m;
  for (const auto& wanted : order.wanted()) {
    if (restore_ && restore_->open.count(DigestOf(wanted.shard())) != 0) {
      StartFetch(wanted, NodeAction::Pull::Why::kRestore);
    }
  }
  if (restore_ && restore_->open.empty() && !restore_->answered) AnswerRestore();
}

void NodeMachine::Impl::CancelRestore() {
  if (!restore_) return;
  const std::set<Blake3> open = restore_->open;
  restore_.reset();
  for (const Blake3& digest : open) {
    const bool kept = std::any_of(keeps_.begin(), keeps_.end(), [&](const auto& entry) {
      return entry.second.open.count(digest) != 0;
    });
    if (!kept) CancelFetch(digest);
  }
}

void NodeMachine::Impl::RestoreFetched(const Blake3& digest, const Status& status) {
  if (!restore_ || restore_->open.erase(digest) == 0) return;
  if (!status.ok()) {
    restore_->answer.set_ok(false);
    if (restore_->answer.error().empty()) restore_->answer.set_error(status.error().ToString());
  }
  if (restore_->open.empty()) AnswerRestore();
}

void NodeMachine::Impl::AnswerRestore() {
  restore_->answered = true;
  if (restore_->answer.ok()) {
    phase_ = Phase::kPrepared;
  } else {
    TellUnread();
  }
  control::Envelope message = NewMessage();
  *message.mutable_restore_prepared() = restore_->answer;
  Send(std::move(message));
}

// What can't be read may be the newest that there is: the decision must not pass over it. A join
// tells what is here, that it can't be read included.
void NodeMachine::Impl::TellUnread() {
  bool news = false;
  for (auto& [digest, copy] : unread_) news = !std::exchange(copy.told, true) || news;
  if (news) SendJoin();
}

// All nodes have their part: the job goes on here.
void NodeMachine::Impl::OnRelease(const control::Release& m) {
  if (Released() || !restore_ || !restore_->answered || !restore_->answer.ok() ||
      restore_->order.choice().decision() != m.decision()) {
    return;
  }
  state_.set_released(true);
  state_.set_links_placed(false);
  *state_.mutable_restored() = restore_->order.choice();
  *state_.mutable_last_run() = state_.run();
  *state_.mutable_last_restored() = restore_->order.choice();
  state_.set_last_rank(config_->rank);
  *state_.mutable_last_world() = ToProto(config_->world);
  state_.clear_nodes();
  for (const auto& member : members_) {
    if (!member.holder()) state_.add_nodes(member.node());
  }
  restore_.reset();
  NoteRelease(state_.restored());
  DistrustRestored();
  Persist();
  PlaceAll();
  phase_ = Phase::kRunning;
  LookAtRoomForSaves();
  // Said once the links stand: the job trains on.
  if (!state_.restored().suspect().empty()) WriteError(state_.restored().suspect());
  Disarm(kGatherTimer);
  Disarm(kConfigKeptTimer);
  for (const auto& save : std::exchange(waiting_saves_, {})) TakeSave(save);
}

// From now on the job has them in its volume. Where they can't be locked it may write into them,
// and they count as copies again only once they were read again.
void NodeMachine::Impl::DistrustRestored() {
  if (state_.restored().none()) return;
  for (const auto& shard : ShardsOfRank(state_.restored().generation(), config_->rank)) {
    const auto held = shards_.find(DigestOf(shard));
    if (held != shards_.end()) held->second.set_suspect(true);
  }
}

// The client waits for its yaml to go, then for the decision, then for its links: in this order.
void NodeMachine::Impl::PlaceAll() {
  const control::RestoreChoice& choice = state_.restored();
  const uint32_t workers = config_->world.workers_per_node;
  RemoveConfig();
  if (choice.none()) {
    Do(NodeAction::WritePrerestore{std::nullopt});
    for (Worker worker = 0; worker < workers; ++worker) {
      Do(NodeAction::PlaceNoCheckpoint{{config_->job, 0, config_->rank, worker}});
    }
  } else {
    const tierkeep::Step step = choice.generation().save().step();
    const auto shards = ShardsOfRank(choice.generation(), config_->rank);
    if (!TK_MUTATION(kLinksBeforeDecision)) Do(NodeAction::WritePrerestore{step});
    for (Worker worker = 0; worker < workers; ++worker) {
      Do(NodeAction::PlaceLink{{config_->job, step, config_->rank, worker},
                               DigestOf(shards[worker])});
    }
    if (TK_MUTATION(kLinksBeforeDecision)) Do(NodeAction::WritePrerestore{step});
  }
  // A task with nothing to do: it ends once all before it was carried out, or is skipped with it.
  release_task_ = NewTask();
  Do(NodeAction::DeleteShards{release_task_, {}, {}});
  WriteRestoredMetas();
}

void NodeMachine::Impl::WriteRestoredMetas() {
  const control::RestoreChoice& choice = state_.restored();
  if (choice.none()) return;
  for (const auto& shard : ShardsOfRank(choice.generation(), config_->rank)) {
    Do(NodeAction::WriteMeta{
        {config_->job, choice.generation().save().step(), config_->rank, shard.worker()},
        shard.volume_name()});
  }
}

}  // namespace tierkeep
