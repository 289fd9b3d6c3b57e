// A commit as a node carries it out: record it, then give up what it makes obsolete.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"
#include "format/generation_record.h"

namespace tierkeep {

// A shard of the job that the commit makes obsolete unless it is to be kept: not of a newer save.
bool NodeMachine::Impl::IsOutdated(const control::ShardInfo& shard,
                                   const control::Commit& m) const {
  if (shard.job() != m.generation().job()) return false;
  const RunId run = FromProto(state_.run());
  if (FromProto(shard.save().run()) != run) return true;
  const bool own_run = FromProto(m.generation().save().run()) == run;
  const control::ShardInfo* entry = EntryOf(m.generation(), shard.rank(), shard.worker());
  return own_run && entry != nullptr && shard.ordinal() <= entry->ordinal();
}

// By a commit of this run that is recorded here.
bool NodeMachine::Impl::IsOvertaken(const control::ShardInfo& shard) const {
  const RunId run = FromProto(state_.run());
  if (!committed_ || FromProto(committed_->save().run()) != run) return false;
  if (FromProto(shard.save().run()) != run) return true;
  const control::ShardInfo* entry = EntryOf(*committed_, shard.rank(), shard.worker());
  return entry != nullptr && shard.ordinal() < entry->ordinal();
}

std::vector<Blake3> NodeMachine::Impl::Outdated(const control::Commit& m) const {
  const std::set<std::string> keep(m.keep().begin(), m.keep().end());
  std::vector<Blake3> outdated;
  for (const auto& [digest, shard] : shards_) {
    if (keep.count(digest.Raw()) == 0 && IsOutdated(shard, m)) outdated.push_back(digest);
  }
  // Still in the store, though they count for nothing.
  for (const auto& [digest, shard] : bad_) {
    if (shard.job() == m.generation().job() && keep.count(digest.Raw()) == 0 &&
        shards_.count(digest) == 0) {
      outdated.push_back(digest);
    }
  }
  return outdated;
}

// What is still being fetched of it has no purpose any more.
void NodeMachine::Impl::CancelOutdated(const control::Commit& m) {
  const std::set<std::string> keep(m.keep().begin(), m.keep().end());
  const auto outdated = [&](const control::SourceList& wanted) {
    return keep.count(wanted.shard().digest()) == 0 && IsOutdated(wanted.shard(), m);
  };
  std::vector<Blake3> fetching;
  for (const auto& [digest, fetch] : fetches_) {
    if (outdated(fetch.wanted)) fetching.push_back(digest);
  }
  for (const Blake3& digest : fetching) CancelFetch(digest);
  std::erase_if(keeps_, [&](const auto& entry) {
    const auto& wanted = entry.second.order.wanted();
    return std::any_of(wanted.begin(), wanted.end(), outdated);
  });
  for (auto& [task, pull] : cancelled_pulls_) {
    if (keep.count(pull.shard.digest()) == 0 && IsOutdated(pull.shard, m)) pull.unwanted = true;
  }
}

// Copies that are damaged, and those that can't be read, but that an older record names: left
// behind, these would stop a restore as soon as nobody else knows any more what they were.
std::vector<Blake3> NodeMachine::Impl::OutdatedUnreadable(const control::Commit& m) const {
  if (unreadable_.empty()) return {};
  const std::set<std::string> keep(m.keep().begin(), m.keep().end());
  std::set<std::string> named;
  for (const auto& record : generations_) {
    if (record->job() != m.generation().job()) continue;
    for (const auto& shard : record->shards()) named.insert(shard.digest());
  }
  std::vector<Blake3> outdated;
  named.insert(m.obsolete().begin(), m.obsolete().end());
  for (const auto& item : unreadable_) {
    if (item.digest().empty() || keep.count(item.digest()) != 0) continue;
    if (item.damaged() || named.count(item.digest()) != 0)
      outdated.push_back(FixedFromProto<Blake3>(item.digest()));
  }
  return outdated;
}

void NodeMachine::Impl::ForgetUnreadable(const std::vector<Blake3>& digests) {
  std::erase_if(unreadable_, [&](const auto& item) {
    return std::any_of(digests.begin(), digests.end(),
                       [&](const Blake3& digest) { return digest.Raw() == item.digest(); });
  });
}

// What this node is to keep and doesn't have. The coordinator is told with the commit's record and
// has it made again, where it can be.
std::vector<std::string> NodeMachine::Impl::NotHere(const control::Commit& m) {
  std::vector<std::string> missing;
  for (const std::string& digest : m.keep()) {
    if (shards_.count(FixedFromProto<Blake3>(digest)) == 0) missing.push_back(digest);
  }
  const auto lost = std::count_if(missing.begin(), missing.end(), [&](const std::string& digest) {
    const auto& given = state_.given_back();
    return std::find(given.begin(), given.end(), digest) == given.end();
  });
  if (lost == 0) return missing;
  WriteError(
      fmt::format("{} of the {} shards of the committed step {} that this node keeps are "
                  "no longer here: the coordinator is told, and has copied again what others hold",
                  lost, m.keep_size(), m.generation().save().step()));
  return missing;
}

void NodeMachine::Impl::OnCommit(const control::Commit& m) {
  if (!Released()) return;
  const control::GenerationRecord& record = m.generation();
  const bool own_run = FromProto(record.save().run()) == FromProto(state_.run());
  // Overtaken by the next one, or said twice.
  if (committed_ && FromProto(committed_->save().run()) == FromProto(state_.run()) &&
      GenerationIdOf(record) < GenerationIdOf(*committed_)) {
    ++dropped_messages_;
    return;
  }
  const bool again = committed_ && GenerationIdOf(*committed_) == GenerationIdOf(record) &&
                     FromProto(committed_->save()) == FromProto(record.save());
  const TaskId task = next_task_;
  std::vector<Blake3> outdated = OutdatedUnreadable(m);
  // One copy for all: a record names all shards of a job.
  const SharedRecord shared = Shared(record);
  undo_ = CommitUndo{std::exchange(generations_, {}), saves_, std::move(committed_), task};
  const std::vector<std::string> missing = NotHere(m);
  Do(NodeAction::RecordGeneration{shared});
  if (!again) {
    state_.clear_given_back();
    ++commits_;
    if (missing.empty()) {
      Log(Severity::kInfo,
          fmt::format("All files were replicated globally for step {}", record.save().step()));
    }
  }
  control::Envelope message = NewMessage();
  *message.mutable_commit_recorded()->mutable_run() = record.save().run();
  message.mutable_commit_recorded()->set_save_number(record.save_number());
  for (const std::string& digest : missing) message.mutable_commit_recorded()->add_missing(digest);
  Send(std::move(message));
  committed_ = shared;
  std::copy_if(undo_->generations.begin(), undo_->generations.end(),
               std::back_inserter(generations_),
               [&](const auto& other) { return other->job() != record.job(); });
  generations_.push_back(shared);
  std::erase_if(unreadable_,
                [](const auto& item) { return item.has_run() || item.hides_records(); });
  ForgetUnreadable(outdated);
  if (own_run) {
    const control::ShardInfo* own = EntryOf(record, config_->rank, 0);
    const uint64_t ordinal = own == nullptr ? 0 : own->ordinal();
    std::erase_if(saves_, [&](const auto& entry) {
      return entry.second.ordinal <= ordinal && entry.second.staged_names.empty();
    });
  }
  NoteKeptBytes(m);
  TellHeldBack();
  CancelOutdated(m);
  if (!TK_MUTATION(kNeverCollect)) {
    const std::vector<Blake3> readable = Outdated(m);
    outdated.insert(outdated.end(), readable.begin(), readable.end());
  }
  ForgetOthers(record.job(), GenerationIdOf(record));
  DeleteAll(std::move(outdated), {});
  TellMetas();
  if (own_run) ForgetRestores(record.job());
}

// Once what is deleted next is gone: if that is cut short, copies that can't be read are known to
// be outdated by the records that name them.
void NodeMachine::Impl::ForgetOthers(const std::string& job, std::optional<GenerationId> keep) {
  std::erase_if(forgets_, [&](const auto& entry) { return entry.second.job == job; });
  forgets_[next_task_] = {job, keep};
}

// What this node took of the job's saves in the last run that it was in, and nobody hashed: the
// job has gone on without it.
std::vector<std::string> NodeMachine::Impl::LeftBehindBy(const control::Commit& m) {
  const control::RestoreChoice& last = state_.last_restored();
  const RunId run = FromProto(m.generation().save().run());
  if (last.none() || last.generation().job() != m.generation().job()) return {};
  if (FromProto(state_.last_run()).sequence >= run.sequence) return {};
  return std::exchange(taken_over_, {});
}

void NodeMachine::Impl::HolderCommit(const control::Commit& m) {
  if (!m.keep().empty()) return;
  std::vector<Blake3> digests = OutdatedUnreadable(m);
  ForgetUnreadable(digests);
  std::erase_if(generations_,
                [&](const auto& other) { return other->job() == m.generation().job(); });
  for (const auto* shards : {&shards_, &bad_}) {
    for (const auto& [digest, shard] : *shards) {
      if (shard.job() == m.generation().job()) digests.push_back(digest);
    }
  }
  for (auto& [task, pull] : cancelled_pulls_) {
    if (pull.shard.job() == m.generation().job()) pull.unwanted = true;
  }
  ForgetOthers(m.generation().job(), std::nullopt);
  ForgetDecision(m.generation().job());
  DeleteAll(std::move(digests), LeftBehindBy(m));
  TellMetas();
}

void NodeMachine::Impl::Handle(const NodeEvent::Deleted& e) {
  deleting_.erase(e.task);
  deleting_staged_.erase(e.task);
  if (!e.staged_left.empty()) {
    delete_later_.insert(delete_later_.end(), e.staged_left.begin(), e.staged_left.end());
    Arm(kPersistTimer, options_.timings.holder_poll);
  }
  if (e.task == release_task_) {
    release_task_ = 0;
    if (Released()) {
      state_.set_links_placed(true);
      Persist();
    }
  }
  if (undo_ && undo_->task == e.task) undo_.reset();
  if (auto forget = forgets_.extract(e.task)) Do(std::move(forget.mapped()));
  AdoptAgain(e.task);
  if (e.task == given_way_) RestoreWithMoreRoom();
  RetryPulls();
  LookAtRoomForSaves();
}

}  // namespace tierkeep
