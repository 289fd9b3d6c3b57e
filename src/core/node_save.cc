// Saves of this node and copies of peers': staging, keeping, dropping. Commits: node_commit.cc.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"

namespace tierkeep {
namespace {

constexpr int kSavesRememberedMax = 256;
// Saves that a coordinator was told of and hasn't decided about: one more than one that answers
// leaves (the one that is protected, and two that wait for other nodes).
constexpr int kInDoubtMax = 4;

WorkerName NameOf(const control::ShardInfo& shard) {
  return {shard.job(), shard.save().step(), shard.rank(), shard.worker()};
}

}  // namespace

// ---- staging ---------------------------------------------------------------------------------

void NodeMachine::Impl::Handle(const NodeEvent::SaveSeen& e) {
  switch (phase_) {
    case Phase::kRunning:
    case Phase::kEnded:  // the job trains on: left in its volume they would fill it
      TakeSave(e);
      break;
    case Phase::kLocating:
    case Phase::kJoining:
    case Phase::kRestoring:
    case Phase::kPrepared:
      waiting_saves_.push_back(e);
      break;
    case Phase::kIdle:
    case Phase::kFailed:
    case Phase::kHolder:
      NoteUnclaimed(e);
      break;
    case Phase::kCleaning:
      break;  // the cleaning takes it over, or the scan after it finds it
  }
}

void NodeMachine::Impl::TakeSave(const NodeEvent::SaveSeen& e) {
  if (!IsOfUse(e)) return;
  if (config_->world.framework != Framework::kPytorch) {
    StageSave(e.step, {{0, e.name}});
    return;
  }
  if (StageRest(e)) return;
  SaveParts::Found found = parts_.Add(e.step, e.worker, e.name, config_->world.workers_per_node);
  if (found.whole.empty()) return;
  StageSave(e.step, found.whole);
  if (found.overtaken.empty()) return;
  WriteError(
      fmt::format("step {} is whole, earlier saves are not: some worker skipped them; removed: {}",
                  e.step, fmt::join(found.overtaken, ", ")));
  Do(NodeAction::DiscardSaves{std::move(found.overtaken)});
}

// What could never be restored is said and goes, so that it takes no memory and, above all, no
// committed generation's place.
bool NodeMachine::Impl::IsOfUse(const NodeEvent::SaveSeen& e) {
  const WorldShape& world = config_->world;
  std::string why;
  if (world.framework != Framework::kOrbax && e.step == 0) {
    why = "step 0 means \"no checkpoint\" to clients of this framework";
  } else if (world.framework == Framework::kPytorch &&
             (e.rank != config_->rank || e.worker >= world.workers_per_node)) {
    why = fmt::format("this node is rank {} and has workers 0 to {}", config_->rank,
                      world.workers_per_node - 1);
  } else {
    return true;
  }
  WriteError(fmt::format("the save {} can't be used and is removed: {}", e.name, why));
  Do(NodeAction::DiscardSaves{{e.name}});
  return false;
}

void NodeMachine::Impl::StageSave(tierkeep::Step step, const std::map<Worker, std::string>& names) {
  SaveKey save{FromProto(state_.run()), step, 1};
  uint64_t ordinal = state_.last_ordinal();
  for (const auto& noted : state_.saves()) {
    if (noted.step() == step) save.occurrence = std::max(save.occurrence, noted.occurrence() + 1);
  }
  for (const auto& [other, own] : saves_) {
    ordinal = std::max(ordinal, own.ordinal);
    if (other.step == step) save.occurrence = std::max(save.occurrence, other.occurrence + 1);
  }
  TK_PROBE_IF(kStepSavedAgain, save.occurrence > 1);
  if (TK_MUTATION(kLoseOccurrence)) save.occurrence = 1;
  OwnSave& own = saves_[save];
  own.ordinal = ordinal + 1;
  for (const auto& [worker, name] : names) StageOne(save, worker, name, &own);
}

void NodeMachine::Impl::StageOne(const SaveKey& save, Worker worker, const std::string& name,
                                 OwnSave* own) {
  const SaveUnit unit{save, config_->rank, worker};
  const TaskId task = NewTask();
  staging_[task] = {unit, StagedName(unit), own->ordinal, false};
  own->staged_names[worker] = StagedName(unit);
  Do(NodeAction::Stage{
      task, name, StagedName(unit),
      ShardIdentity{config_->job, save, config_->rank, worker, own->ordinal, config_->world}});
}

// Remembers a save once it has certainly left the volume, and not before: after a crash what still
// stands there must get the same occurrence again. Returns whether that was news.
bool NodeMachine::Impl::NoteSave(const SaveKey& save, uint64_t ordinal) {
  auto* saves = state_.mutable_saves();
  for (int i = 0; i < saves->size(); ++i) {
    if (saves->Get(i).step() != save.step) continue;
    if (saves->Get(i).occurrence() >= save.occurrence) return false;
    saves->DeleteSubrange(i, 1);
    break;
  }
  *saves->Add() = ToProto(save);
  if (saves->size() > kSavesRememberedMax) saves->DeleteSubrange(0, 1);
  state_.set_last_ordinal(std::max<uint64_t>(state_.last_ordinal(), ordinal));
  return true;
}

void NodeMachine::Impl::Handle(const NodeEvent::Staged& e) {
  const auto found = staging_.find(e.task);
  if (found == staging_.end()) {
    // Dropped, and hashed all the same before it could be cancelled.
    shards_[DigestOf(e.shard)] = e.shard;
    DeleteAll({DigestOf(e.shard)}, {});
    return;
  }
  const StageWork work = found->second;
  staging_.erase(found);
  const Blake3 digest = DigestOf(e.shard);
  shards_[digest] = e.shard;
  const bool news = NoteSave(work.unit.save, work.ordinal);
  if (work.adopted) {
    if (news) Persist();
    adopting_.erase(e.task);
    if (adopting_.empty() && phase_ == Phase::kCleaning && state_.volume_cleaned()) {
      StartLocating();
    }
    return;
  }
  const auto own = saves_.find(work.unit.save);
  if (own == saves_.end()) {
    DeleteAll({digest}, {});  // dropped while it was hashed
    if (news) Persist();
    return;
  }
  own->second.staged_names.erase(work.unit.worker);
  own->second.shards[work.unit.worker] = e.shard;
  if (IsWhole(own->second)) {
    NoteOwnBytes(own->second);
    SaveIsStaged(own->first, &own->second);
    LookAtRoomForSaves();
  }
  if (news) Persist();
  Do(NodeAction::WriteMeta{NameOf(e.shard), e.shard.volume_name()});
}

void NodeMachine::Impl::SaveIsStaged(const SaveKey& save, OwnSave* own) {
  if (TK_MUTATION(kCollectBeforeCommit)) {
    std::vector<Blake3> older;
    for (const auto& [digest, shard] : shards_) {
      if (FromProto(shard.save()) != save) older.push_back(digest);
    }
    DeleteAll(older, {});
  }
  if (entered_ && MayTell()) {
    TellStaged(save, own);
  } else {
    // Nobody can match it now: of such saves only the newest one is kept for later.
    if (TK_MUTATION(kDropUntold)) return DropSave(save);
    ForgetOlderSaves(own->ordinal);
  }
}

bool NodeMachine::Impl::IsWhole(const OwnSave& own) const {
  return own.shards.size() == config_->world.workers_per_node;
}

// A link that carries nothing any more is noticed late. What was told over it may be committed and
// stays: without an end to it, it would fill the volume.
bool NodeMachine::Impl::MayTell() const {
  const auto told = std::count_if(saves_.begin(), saves_.end(),
                                  [](const auto& save) { return save.second.told; });
  return told < kInDoubtMax;
}

// Those that were held back, once there was a decision about others.
void NodeMachine::Impl::TellHeldBack() {
  if (!entered_) return;
  for (auto& [save, own] : saves_) {
    if (!own.told && IsWhole(own) && MayTell()) TellStaged(save, &own);
  }
}

void NodeMachine::Impl::TellStaged(const SaveKey& save, OwnSave* own) {
  control::Envelope message = NewMessage();
  auto* staged = message.mutable_save_staged();
  *staged->mutable_save() = ToProto(save);
  staged->set_ordinal(own->ordinal);
  for (const auto& [worker, shard] : own->shards) *staged->add_shards() = shard;
  own->told = true;
  Send(std::move(message));
}

void NodeMachine::Impl::Handle(const NodeEvent::StageFailed& e) {
  const auto found = staging_.find(e.task);
  if (found == staging_.end()) return;
  const StageWork work = found->second;
  staging_.erase(found);
  const bool gone = e.error.code() == Code::kNotFound;  // the client has taken it away
  if (!gone && NoteSave(work.unit.save, work.ordinal)) Persist();
  if (work.adopted) {
    adopting_.erase(e.task);
    const bool kept = std::find(taken_over_.begin(), taken_over_.end(), work.staged_name) !=
                      taken_over_.end();  // not started: the next attempt takes it up
    if (!gone && !kept && !AdoptWithMoreRoom(work, e.error)) {
      WriteError("a save of the last run can't be adopted: " + WithAdvice(e.error));
      DeleteAll({}, {work.staged_name});
    }
    if (adopting_.empty() && phase_ == Phase::kCleaning && state_.volume_cleaned()) {
      StartLocating();
    }
    return;
  }
  const auto own = saves_.find(work.unit.save);
  if (own == saves_.end()) return;  // dropped meanwhile
  TK_PROBE_IF(kSaveRefused, !gone);
  if (!gone) {
    WriteError(fmt::format("the save of {} can't be taken: {}", work.unit.save.ToString(),
                           WithAdvice(e.error)));
  }
  if (entered_) {
    control::Envelope message = NewMessage();
    auto* failed = message.mutable_save_failed();
    *failed->mutable_save() = ToProto(work.unit.save);
    failed->set_ordinal(own->second.ordinal);
    failed->set_error(e.error.ToString());
    Send(std::move(message));
  }
  DropSave(work.unit.save);
}

// ---- fetching --------------------------------------------------------------------------------

void NodeMachine::Impl::StartFetch(const control::SourceList& wanted, NodeAction::Pull::Why why) {
  const Blake3 digest = DigestOf(wanted.shard());
  const auto [it, added] = fetches_.emplace(digest, Fetch{wanted, 0, false, false, "", why});
  if (!added) {
    if (!it->second.waiting) return;
    if (why != NodeAction::Pull::Why::kRestore) {
      // The order that it waited for may have gone with an earlier connection, and with it
      // whatever would look again.
      AskForRoom();
      return;
    }
    // A restore waits for nothing.
    it->second.why = why;
    BeginPull(&it->second, digest);
    return;
  }
  if (shards_.count(digest) == 0) {
    StartPull(digest, &it->second);
    return;
  }
  it->second.task = NewTask();
  fetch_tasks_[it->second.task] = digest;
  Do(NodeAction::Verify{it->second.task, digest});
}

void NodeMachine::Impl::StartPull(const Blake3& digest, Fetch* fetch) {
  if (fetch->wanted.nodes().empty()) {
    FetchDone(digest, Error(Code::kNotFound, "no other node has a copy of the shard"), {}, 0);
    return;
  }
  if (fetch->why == NodeAction::Pull::Why::kRestore) {
    BeginPull(fetch, digest);
    return;
  }
  fetch->task = 0;
  fetch->waiting = true;
  AskForRoom();
}

void NodeMachine::Impl::Handle(const NodeEvent::Verified& e) {
  const auto task = fetch_tasks_.find(e.task);
  if (task == fetch_tasks_.end()) return;
  const Blake3 digest = task->second;
  fetch_tasks_.erase(task);
  Fetch& fetch = fetches_.at(digest);
  if (restore_ && restore_->open.count(digest) != 0) {
    restore_->answer.set_verify_ms(
        std::max<uint64_t>(restore_->answer.verify_ms(), static_cast<uint64_t>(ToMillis(e.took))));
  }
  if (e.ok) {
    if (const auto shard = shards_.find(digest); shard != shards_.end()) {
      shard->second.clear_suspect();
    }
    checked_.insert(digest);
    FetchDone(digest, OkStatus(), {}, 0);
    return;
  }
  WriteError(fmt::format("the copy of rank {}'s shard of step {} {}: {}",
                         fetch.wanted.shard().rank(), fetch.wanted.shard().save().step(),
                         e.unread ? "can't be read" : "is bad", e.problem));
  TK_PROBE(kBadCopyReplaced);
  if (auto bad = shards_.extract(digest)) bad_.insert(std::move(bad));
  if (e.unread) {
    unread_[digest] = {e.problem};
  } else if (restore_ && restore_->open.count(digest) != 0) {
    restore_->answer.add_bad_shards(digest.Raw());
  }
  StartPull(digest, &fetch);
}

void NodeMachine::Impl::Handle(const NodeEvent::Pulled& e) {
  if (const auto cancelled = cancelled_pulls_.extract(e.task)) {
    CancelledPullEnded(cancelled.mapped(), e.status);
    return;
  }
  const auto task = fetch_tasks_.find(e.task);
  if (task == fetch_tasks_.end()) return;
  const Blake3 digest = task->second;
  fetch_tasks_.erase(task);
  Fetch& fetch = fetches_.at(digest);
  if (!e.status.ok() && e.status.error().code() == Code::kResourceExhausted &&
      fetch.why != NodeAction::Pull::Why::kRestore) {
    NoteNoRoom(&fetch, e.status.error());
    return;
  }
  if (e.status.ok()) {
    control::ShardInfo shard = fetches_.at(digest).wanted.shard();
    shard.clear_suspect();
    shards_[digest] = std::move(shard);
    unread_.erase(digest);
    checked_.insert(digest);
    auto* given = state_.mutable_given_back();
    given->erase(std::remove(given->begin(), given->end(), digest.Raw()), given->end());
  }
  if (restore_ && restore_->open.count(digest) != 0) {
    auto& answer = restore_->answer;
    answer.set_pull_ms(
        std::max<uint64_t>(answer.pull_ms(), static_cast<uint64_t>(ToMillis(e.took))));
    answer.set_bytes_pulled(answer.bytes_pulled() + e.bytes_pulled);
    for (const std::string& node : e.bad_sources) answer.add_bad_sources(node);
  }
  const bool no_room = !e.status.ok() && e.status.error().code() == Code::kResourceExhausted;
  if (no_room && GiveWay()) {
    fetch.pulling = false;
    fetch.task = 0;
    fetch.waiting = true;
    return;
  }
  if (no_room && restore_ && restore_->open.count(digest) != 0) {
    const control::ShardInfo& shard = fetch.wanted.shard();
    restore_->answer.set_short_bytes(restore_->answer.short_bytes() + shard.bytes() +
                                     shard.manifest_bytes());
  }
  FetchDone(digest, no_room ? Status(WithWhatIsLacking(e.status.error(), fetch)) : e.status,
            e.bad_sources, e.bytes_pulled);
  RetryPulls();
}

void NodeMachine::Impl::FetchDone(const Blake3& done, const Status& status,
                                  const std::vector<std::string>& bad_sources, uint64_t bytes) {
  const Blake3 digest = done;  // may live in what is erased
  fetches_.erase(digest);
  // A restore says so before it is given another try.
  if (!restore_ || restore_->open.count(digest) == 0) TakeBackUnread(digest);
  KeepFetched(digest, status, bad_sources, bytes);
  RestoreFetched(digest, status);
}

// It counts as a copy that isn't verified: read again before it is used.
void NodeMachine::Impl::TakeBackUnread(const Blake3& which) {
  const Blake3 digest = which;  // may live in what is erased
  if (unread_.erase(digest) == 0) return;
  auto copy = bad_.extract(digest);
  if (copy.empty()) return;
  copy.mapped().set_suspect(true);
  shards_.insert(std::move(copy));
}

void NodeMachine::Impl::CancelFetch(const Blake3& which) {
  const Blake3 digest = which;
  const auto fetch = fetches_.find(digest);
  if (fetch == fetches_.end()) return;
  if (fetch->second.task != 0) {
    Do(NodeAction::CancelTask{fetch->second.task});
    fetch_tasks_.erase(fetch->second.task);
    if (fetch->second.pulling) {
      control::ShardInfo shard = fetch->second.wanted.shard();
      shard.clear_suspect();
      cancelled_pulls_[fetch->second.task] = {std::move(shard)};
    }
  }
  fetches_.erase(fetch);
}

void NodeMachine::Impl::CancelledPullEnded(const CancelledPull& pull, const Status& status) {
  const Blake3 digest = DigestOf(pull.shard);
  // Whoever wants it again by now knows of it, or will.
  const bool wanted = shards_.count(digest) != 0 || fetches_.count(digest) != 0;
  if (!status.ok() || (pull.unwanted && wanted)) return;
  const bool first = HolderJobs().empty();
  shards_[digest] = pull.shard;
  if (!pull.unwanted) {
    // A run's next commit finds it. Without a run nobody else says what is here.
    const bool over = !config_ || phase_ == Phase::kEnded;
    if (holding_ && link_ == Link::kUp) SendJoin();
    if (!holding_ && over && first) StartHolding();
    return;
  }
  // The deletion may have come before there was anything to delete.
  DeleteAll({digest}, {});
}

// ---- keeping ---------------------------------------------------------------------------------

void NodeMachine::Impl::OnKeep(const control::Keep& m) {
  if (!Released() || keeps_.count(m.order()) != 0) return;
  // Said twice: its copies would come back when nobody deletes them any more.
  if (std::any_of(m.wanted().begin(), m.wanted().end(),
                  [&](const auto& wanted) { return IsOvertaken(wanted.shard()); })) {
    ++dropped_messages_;
    return;
  }
  KeepWork& work = keeps_[m.order()];
  work.order = m;
  work.answer.set_order(m.order());
  work.answer.set_ok(true);
  for (const auto& wanted : m.wanted()) {
    const Blake3 digest = DigestOf(wanted.shard());
    if (HoldsVerified(digest)) {
      work.answer.add_held(digest.Raw());
    } else {
      work.open.insert(digest);
    }
  }
  NoteKeptBytes(m);
  for (const auto& wanted : m.wanted()) Meet(wanted);
  const std::set<Blake3> open = work.open;
  const control::Keep order = m;
  for (const auto& wanted : order.wanted()) {
    if (open.count(DigestOf(wanted.shard())) == 0) continue;
    StartFetch(wanted, order.rebuild() ? NodeAction::Pull::Why::kRebuild
                                       : NodeAction::Pull::Why::kReplicate);
  }
  AnswerKeepIfDone(order.order());
}

void NodeMachine::Impl::KeepFetched(const Blake3& digest, const Status& status,
                                    const std::vector<std::string>& bad_sources, uint64_t bytes) {
  std::vector<uint64_t> touched;
  for (auto& [order, work] : keeps_) {
    if (work.open.erase(digest) == 0) continue;
    touched.push_back(order);
    auto& answer = work.answer;
    answer.set_bytes_pulled(answer.bytes_pulled() + bytes);
    for (const std::string& node : bad_sources) answer.add_bad_sources(node);
    if (status.ok()) {
      answer.add_held(digest.Raw());
      continue;
    }
    answer.set_ok(false);
    if (answer.error().empty()) answer.set_error(status.error().ToString());
    if (status.error().code() == Code::kResourceExhausted) answer.set_out_of_space(true);
  }
  for (const uint64_t order : touched) AnswerKeepIfDone(order);
}

void NodeMachine::Impl::AnswerKeepIfDone(uint64_t order) {
  const auto work = keeps_.find(order);
  if (work == keeps_.end() || !work->second.open.empty()) return;
  const KeepWork done = std::move(work->second);
  keeps_.erase(work);
  control::Envelope message = NewMessage();
  *message.mutable_kept() = done.answer;
  Send(std::move(message));
  if (!done.answer.ok()) WriteError("a peer's copy can't be kept: " + done.answer.error());
  for (const auto& wanted : done.order.wanted()) {
    if (!HoldsVerified(DigestOf(wanted.shard()))) continue;
    Do(NodeAction::WriteMeta{NameOf(wanted.shard()), wanted.shard().volume_name()});
  }
}

// ---- dropping and committing -----------------------------------------------------------------

// Whatever the coordinator believes: nothing that was committed; and what the run was restored from
// only where this rank has a whole later save.
bool NodeMachine::Impl::MayDrop(const SaveKey& save) const {
  if (committed_ && FromProto(committed_->save()) == save) return false;
  if (save.run == FromProto(state_.run())) return true;
  const control::RestoreChoice& choice = state_.restored();
  return !choice.none() && FromProto(choice.generation().save()) == save &&
         !choice.generation().committed() && !MayHideRecordOf(save.run) &&
         std::any_of(saves_.begin(), saves_.end(),
                     [&](const auto& entry) { return entry.second.told && IsWhole(entry.second); });
}

void NodeMachine::Impl::OnDrop(const control::Drop& m) {
  const SaveKey save = FromProto(m.save());
  if (!Released() || !MayDrop(save)) return;
  DropSave(save);
  TellHeldBack();
}

void NodeMachine::Impl::DropSave(const SaveKey& which) {
  const SaveKey save = which;
  std::vector<Blake3> digests;
  std::vector<std::string> staged;
  for (auto it = staging_.begin(); it != staging_.end();) {
    if (it->second.unit.save != save || it->second.adopted) {
      ++it;
      continue;
    }
    Do(NodeAction::CancelTask{it->first});
    staged.push_back(it->second.staged_name);
    it = staging_.erase(it);
  }
  if (const auto own = saves_.find(save); own != saves_.end()) {
    for (const auto& [worker, name] : own->second.staged_names) {
      if (std::find(staged.begin(), staged.end(), name) == staged.end()) staged.push_back(name);
    }
    saves_.erase(own);
  }
  std::erase_if(keeps_, [&](const auto& entry) {
    const auto& wanted = entry.second.order.wanted();
    return std::any_of(wanted.begin(), wanted.end(), [&](const auto& source) {
      return FromProto(source.shard().save()) == save;
    });
  });
  std::vector<Blake3> fetching;
  for (const auto& [digest, fetch] : fetches_) {
    if (FromProto(fetch.wanted.shard().save()) == save) fetching.push_back(digest);
  }
  for (const Blake3& digest : fetching) {
    CancelFetch(digest);
    digests.push_back(digest);  // it may be complete all the same
  }
  for (const auto& [digest, shard] : shards_) {
    if (FromProto(shard.save()) == save && config_ && shard.job() == config_->job) {
      digests.push_back(digest);
    }
  }
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
  if (digests.empty() && staged.empty()) return;
  DeleteAll(std::move(digests), std::move(staged));
  TellMetas();
}

void NodeMachine::Impl::DeleteAll(std::vector<Blake3> digests, std::vector<std::string> staged) {
  const TaskId task = NewTask();
  for (const Blake3& digest : digests) {
    if (auto shard = shards_.extract(digest)) deleting_[task].push_back(std::move(shard.mapped()));
    checked_.erase(digest);
    bad_.erase(digest);
    unread_.erase(digest);
  }
  for (auto& [pull, cancelled] : cancelled_pulls_) {
    const auto found = std::find(digests.begin(), digests.end(), DigestOf(cancelled.shard));
    cancelled.unwanted = cancelled.unwanted || found != digests.end();
  }
  if (!staged.empty()) deleting_staged_[task] = staged;
  Do(NodeAction::DeleteShards{task, std::move(digests), std::move(staged)});
}

// Metas follow the shards that are here.
void NodeMachine::Impl::TellMetas() {
  std::vector<WorkerName> keep;
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() == job()) keep.push_back(NameOf(shard));
  }
  std::sort(keep.begin(), keep.end());
  keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
  Do(NodeAction::RemoveOtherMetas{std::move(keep)});
}

}  // namespace tierkeep
