// Memory of this node: copies are pulled only where they leave room for the job's next save, what
// can't be admitted waits and is said, and the size that would do is worked out (docs/memory.md).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"
#include "core/restore_choice.h"

namespace tierkeep {
namespace {

using Why = NodeAction::Pull::Why;

uint64_t FootprintOf(const control::ShardInfo& shard) {
  return shard.bytes() + shard.manifest_bytes();
}

}  // namespace

// ---- admission -------------------------------------------------------------------------------

void NodeMachine::Impl::AskForRoom() { Do(NodeAction::ReadMemory{}); }

void NodeMachine::Impl::BeginPull(Fetch* fetch, const Blake3& digest) {
  fetch->waiting = false;
  fetch->refused.clear();
  fetch->pulling = true;
  fetch->task = NewTask();
  fetch_tasks_[fetch->task] = digest;
  Do(NodeAction::Pull{fetch->task, fetch->wanted, fetch->why});
}

void NodeMachine::Impl::Handle(const NodeEvent::MemorySeen& e) {
  if (!e.room.problem.empty() && (!room_ || room_->problem != e.room.problem)) {
    Log(Severity::kError, "the node's memory can't be seen: " + e.room.problem);
  }
  room_ = e.room;
  AdmitPulls();
  MakeRoomForSaves();
  if (given_way_ == 0) TellWaiting();  // else once that is done
  TellWhetherPeersFit();
  if (std::exchange(sizing_due_, false)) TellSizing();
}

// Replication before rebuilding: as long as a copy of the newest save waits, nothing else may take
// its room.
void NodeMachine::Impl::AdmitPulls() {
  if (!room_) return;
  for (const Why why : {Why::kReplicate, Why::kRebuild}) {
    for (auto& [digest, fetch] : fetches_) {
      if (!fetch.waiting || fetch.why != why || !fetch.refused.empty()) continue;
      const PullDemand demand{.bytes = FootprintOf(fetch.wanted.shard()),
                              .under_way_bytes = UnderWayBytes(),
                              .reserve_bytes = ReserveBytes()};
      if (!MayBegin(digest)) continue;
      if (ShortBytes(*room_, demand) == 0) {
        BeginPull(&fetch, digest);
      } else if (GiveWay()) {
        return;  // and is looked at again
      }
    }
    if (RefusedBytes(why) > 0) return;
  }
}

uint64_t NodeMachine::Impl::UnderWayBytes() const {
  uint64_t bytes = 0;
  for (const auto& [digest, fetch] : fetches_) {
    if (fetch.pulling) bytes += FootprintOf(fetch.wanted.shard());
  }
  return bytes;
}

uint64_t NodeMachine::Impl::RefusedBytes(Why why) const {
  uint64_t bytes = 0;
  for (const auto& [digest, fetch] : fetches_) {
    if (fetch.waiting && fetch.why == why) bytes += FootprintOf(fetch.wanted.shard());
  }
  return bytes;
}

bool NodeMachine::Impl::PeersFit() const {
  return Fits({OwnBytes(), kept_bytes_.value_or(0)}, *room_);
}

// Where the job names no peers, they are used only in a volume that has room for them for good.
bool NodeMachine::Impl::MayBegin(const Blake3& digest) const {
  return std::any_of(keeps_.begin(), keeps_.end(), [&](const auto& entry) {
    const KeepWork& work = entry.second;
    return work.open.count(digest) != 0 && (!work.order.optional() || PeersFit());
  });
}

// Copies that were here already, as after ranks moved, are kept without having been asked for: the
// room that they take for good is the next save's.
void NodeMachine::Impl::TellWhetherPeersFit() {
  if (!fit_untold_ || !room_->problem.empty()) return;
  fit_untold_ = false;
  if (kept_bytes_.value_or(0) == 0 || PeersFit()) return;
  control::Envelope message = NewMessage();
  message.mutable_kept()->set_out_of_space(true);
  message.mutable_kept()->set_error(fmt::format("{} of peers' copies don't fit for good; {}",
                                                FormatBytes(*kept_bytes_), SizeAdvice()));
  Send(std::move(message));
}

// Admitted, and there was no room all the same: somebody else took it, or it isn't bytes that lack.
void NodeMachine::Impl::NoteNoRoom(Fetch* fetch, const Error& error) {
  fetch->pulling = false;
  fetch->task = 0;
  fetch->waiting = true;
  fetch->refused = error.ToString();
  TellWaiting();
}

// Something was given back, or time has passed.
void NodeMachine::Impl::RetryPulls() {
  bool waiting = false;
  for (auto& [digest, fetch] : fetches_) {
    waiting = waiting || fetch.waiting;
    fetch.refused.clear();
  }
  if (waiting) AskForRoom();
}

// The order itself stays, and is answered when it is carried out.
void NodeMachine::Impl::TellWaiting() {
  bool waiting = false;
  for (auto& [order, work] : keeps_) {
    for (const Blake3& digest : work.open) {
      const auto fetch = fetches_.find(digest);
      if (fetch == fetches_.end() || !fetch->second.waiting) continue;
      waiting = true;
      TellWaiting(&work, fetch->second);
      break;
    }
  }
  if (waiting) Arm(kRoomTimer, options_.timings.room_recheck);
}

// People are told once an order; the coordinator, who may have something given back for it, again
// when another amount is lacking after a while, and after what it had given back.
void NodeMachine::Impl::TellWaiting(KeepWork* work, const Fetch& fetch) {
  const uint64_t bytes = RefusedBytes(fetch.why);
  const PullDemand demand{
      .bytes = bytes, .under_way_bytes = UnderWayBytes(), .reserve_bytes = ReserveBytes()};
  uint64_t lacking = ShortBytes(*room_, demand);
  if (!fetch.refused.empty()) lacking = std::max(lacking, bytes);
  const bool first = !work->told_short;
  if (!first) {
    if (*work->told_short == lacking || !deleting_.empty()) return;
    if (now_ - work->told_at < options_.timings.room_recheck) return;
  }
  work->told_short = lacking;
  work->told_at = now_;
  std::string why = fetch.refused;
  if (why.empty()) {
    why = fmt::format("no room for {} of peers' copies", FormatBytes(bytes));
    if (demand.reserve_bytes > 0) {
      why += fmt::format(" beside the job's next save of {}", FormatBytes(demand.reserve_bytes));
    }
  }
  why += "; " + SizeAdvice();
  control::Envelope message = NewMessage();
  auto* kept = message.mutable_kept();
  *kept = work->answer;
  kept->set_ok(false);
  kept->set_out_of_space(true);
  kept->set_waiting(!work->order.optional() || PeersFit());
  kept->set_error(why);
  kept->set_short_bytes(lacking);
  kept->set_may_thin(options_.on_pressure == OnPressure::kThin);
  Send(std::move(message));
  if (!first) return;
  std::string text =
      fmt::format("copies of step {} can't be kept on node {} now: {}; {}",
                  fetch.wanted.shard().save().step(), options_.node_name, why, Kept());
  Log(Severity::kWarning, text);
  last_error_ = text;
  errors_.push_back(std::move(text));
  TellSizing();
}

// ---- giving back -----------------------------------------------------------------------------

// Whatever the coordinator believes: this node's own part of what it runs from, has committed or
// may still commit stays.
bool NodeMachine::Impl::IsNeededHere(const control::ShardInfo& shard) const {
  if (shard.job() != config_->job) return true;
  const Blake3 digest = DigestOf(shard);
  if (restore_) {
    const auto& wanted = restore_->order.wanted();
    return fetches_.count(digest) != 0 ||
           std::any_of(wanted.begin(), wanted.end(),
                       [&](const auto& one) { return DigestOf(one.shard()) == digest; });
  }
  const auto is_own_part = [&](const control::GenerationRecord& record) {
    for (const auto& own : ShardsOfRank(record, config_->rank)) {
      if (DigestOf(own) == digest) return true;
    }
    return false;
  };
  if (committed_ && is_own_part(*committed_)) return true;
  if (state_.has_restored() && !state_.restored().none() &&
      is_own_part(state_.restored().generation())) {
    return true;
  }
  const bool committed = committed_ && FromProto(committed_->save()) == FromProto(shard.save());
  return FromProto(shard.save().run()) == FromProto(state_.run()) && !committed;
}

// By its save: of a large job a record here names some of the shards.
bool NodeMachine::Impl::IsOfCommitted(const Blake3& digest) const {
  const auto shard = shards_.find(digest);
  if (shard == shards_.end()) return false;
  const auto is_of = [&](const SharedRecord& record) {
    return record->committed() && FromProto(record->save()) == FromProto(shard->second.save());
  };
  return (committed_ && is_of(committed_)) ||
         std::any_of(generations_.begin(), generations_.end(), is_of);
}

// A record that can't be read may say that a save of this run is committed.
bool NodeMachine::Impl::MayHideRecordOf(const RunId& run) const {
  if (TK_MUTATION(kHiddenRecordIsNone)) return false;
  return std::any_of(unreadable_.begin(), unreadable_.end(), [&](const auto& item) {
    return item.hides_records() || (item.has_run() && FromProto(item.run()) == run);
  });
}

bool NodeMachine::Impl::MayBeOfCommitted(const Blake3& digest,
                                         const control::ShardInfo& shard) const {
  return IsOfCommitted(digest) || MayHideRecordOf(FromProto(shard.save().run()));
}

// Where a restore has no room for its part, or a copy has none: whether something goes for it.
bool NodeMachine::Impl::GiveWay() {
  if (given_way_ != 0) return true;
  if (!restore_ && !Released()) return false;
  return GiveUpPassedOver() || GiveUpOtherJobs();
}

bool NodeMachine::Impl::IsPassedOver(const Blake3& digest, const control::ShardInfo& shard) const {
  const control::RestoreChoice& choice = restore_ ? restore_->order.choice() : state_.restored();
  const SaveKey save = FromProto(shard.save());
  const bool kept = (!choice.none() && save == FromProto(choice.generation().save())) ||
                    save.run == FromProto(state_.run()) || fetches_.count(digest) != 0;
  return shard.job() == config_->job && !kept && !MayBeOfCommitted(digest, shard);
}

// Saves that were never committed, and that the restore decision passed over, are a branch that the
// job leaves behind; and what was read and found bad is no copy.
bool NodeMachine::Impl::GiveUpPassedOver() {
  std::vector<Blake3> digests;
  for (const auto& [digest, shard] : bad_) {
    if (shards_.count(digest) == 0 && unread_.count(digest) == 0) digests.push_back(digest);
  }
  if (!digests.empty()) {
    GiveUp(std::move(digests), "of copies that are bad");
    return true;
  }
  for (const auto& [digest, shard] : shards_) {
    if (IsPassedOver(digest, shard)) digests.push_back(digest);
  }
  if (digests.empty()) return false;
  GiveUp(std::move(digests),
         "of saves that were never committed, and that the job doesn't go on from,");
  return true;
}

// A volume belongs to one job, and this one runs: what another one left goes before this one can't
// start or isn't protected; what that one never committed first.
bool NodeMachine::Impl::GiveUpOtherJobs() {
  std::vector<Blake3> uncommitted;
  std::vector<Blake3> all;
  std::string job;
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() == config_->job) continue;
    job = shard.job();
    all.push_back(digest);
    if (!IsOfCommitted(digest)) uncommitted.push_back(digest);
  }
  if (all.empty()) return false;
  GiveUp(uncommitted.empty() ? std::move(all) : std::move(uncommitted),
         "that job " + job + " left");
  return true;
}

// What would go for a save that the job has no room for.
bool NodeMachine::Impl::GivesWayForSaves(const Blake3& digest,
                                         const control::ShardInfo& shard) const {
  return shard.job() != config_->job || IsPassedOver(digest, shard);
}

void NodeMachine::Impl::LookAtRoomForSaves() {
  if (!Released() || !config_) return;
  const bool any = std::any_of(shards_.begin(), shards_.end(), [&](const auto& entry) {
    return GivesWayForSaves(entry.first, entry.second);
  });
  if (any) AskForRoom();
}

// Nobody tells of a save that the job finds no room for. Before the first one, it counts as large
// as the largest of those that would go for it.
void NodeMachine::Impl::MakeRoomForSaves() {
  if (!Released() || !config_ || given_way_ != 0) return;
  if (!deleting_.empty() || !room_->problem.empty()) return;
  uint64_t bytes = OwnBytes();
  if (bytes == 0) {
    std::map<std::pair<SaveKey, Rank>, uint64_t> saves;
    for (const auto& [digest, shard] : shards_) {
      if (!GivesWayForSaves(digest, shard)) continue;
      uint64_t& save = saves[{FromProto(shard.save()), shard.rank()}];
      save += FootprintOf(shard);
      bytes = std::max(bytes, save);
    }
  }
  if (room_->free_bytes < bytes) (void)GiveWay();
}

void NodeMachine::Impl::GiveUp(std::vector<Blake3> digests, const std::string& what) {
  uint64_t bytes = 0;
  for (const Blake3& digest : digests) {
    const auto shard = shards_.find(digest);
    bytes += FootprintOf(shard != shards_.end() ? shard->second : bad_.at(digest));
  }
  Log(Severity::kWarning, fmt::format("{} {} give way: memory is short", FormatBytes(bytes), what));
  given_way_ = next_task_;
  DeleteAll(std::move(digests), {});
}

void NodeMachine::Impl::RestoreWithMoreRoom() {
  given_way_ = 0;
  for (auto& [digest, fetch] : fetches_) {
    if (fetch.waiting && fetch.why == Why::kRestore) BeginPull(&fetch, digest);
  }
}

// An order to keep what goes now came before: to verify it any more would find it gone.
void NodeMachine::Impl::ForgetOrdersFor(const std::vector<Blake3>& digests) {
  const auto goes = [&](const control::SourceList& wanted) {
    return std::find(digests.begin(), digests.end(), DigestOf(wanted.shard())) != digests.end();
  };
  std::set<Blake3> needless(digests.begin(), digests.end());
  std::erase_if(keeps_, [&](const auto& entry) {
    const KeepWork& work = entry.second;
    const auto& wanted = work.order.wanted();
    if (std::none_of(wanted.begin(), wanted.end(), goes)) return false;
    needless.insert(work.open.begin(), work.open.end());
    return true;
  });
  for (const auto& [order, work] : keeps_) {
    for (const Blake3& digest : work.open) needless.erase(digest);
  }
  if (!restore_) std::for_each(needless.begin(), needless.end(), [&](auto& d) { CancelFetch(d); });
}

void NodeMachine::Impl::OnGiveBack(const control::GiveBack& m) {
  if (!Released() && !restore_) return;
  std::vector<Blake3> digests;
  uint64_t bytes = 0;
  for (const std::string& raw : m.digests()) {
    const auto shard = shards_.find(FixedFromProto<Blake3>(raw));
    if (shard == shards_.end() || IsNeededHere(shard->second)) continue;
    digests.push_back(shard->first);
    bytes += shard->second.bytes();
    if (IsOfCommitted(shard->first)) state_.add_given_back(raw);
  }
  if (digests.empty()) return;
  ForgetOrdersFor(digests);
  Persist();
  Log(Severity::kWarning,
      fmt::format("{} of copies are given back: {}", FormatBytes(bytes), m.reason()));
  if (restore_ && given_way_ == 0) given_way_ = next_task_;
  DeleteAll(std::move(digests), {});
  TellMetas();
}

// ---- sizes -----------------------------------------------------------------------------------

void NodeMachine::Impl::NoteOwnBytes(const OwnSave& own) {
  own_bytes_ = 0;
  for (const auto& [worker, shard] : own.shards) own_bytes_ += FootprintOf(shard);
}

void NodeMachine::Impl::NoteKeptBytes(const control::Keep& m) {
  uint64_t bytes = 0;
  for (const auto& wanted : m.wanted()) {
    if (wanted.shard().rank() != config_->rank) bytes += FootprintOf(wanted.shard());
  }
  kept_bytes_ = std::max(kept_bytes_.value_or(0), bytes);
}

void NodeMachine::Impl::NoteKeptBytes(const control::Commit& m) {
  uint64_t bytes = 0;
  for (const std::string& raw : m.keep()) {
    const auto shard = shards_.find(FixedFromProto<Blake3>(raw));
    if (shard == shards_.end()) continue;
    if (shard->second.rank() != config_->rank) bytes += FootprintOf(shard->second);
  }
  kept_bytes_ = bytes;
  sizing_due_ = true;
  fit_untold_ = m.optional_peers();
  AskForRoom();
}

// The prediction of the next save: the last one, or what this run was restored from.
uint64_t NodeMachine::Impl::OwnBytes() const {
  if (own_bytes_ > 0 || !state_.has_restored() || state_.restored().none()) return own_bytes_;
  uint64_t bytes = 0;
  for (const auto& shard : ShardsOfRank(state_.restored().generation(), config_->rank)) {
    bytes += FootprintOf(shard);
  }
  return bytes;
}

// Nothing is kept free for the job before there is anything to fall back on.
uint64_t NodeMachine::Impl::ReserveBytes() const {
  const bool first = !committed_ && (!state_.has_restored() || state_.restored().none());
  return first ? 0 : OwnBytes();
}

std::optional<MemorySizing> NodeMachine::Impl::Sizing() const {
  if (!room_ || !kept_bytes_ || !config_ || !Released()) return std::nullopt;
  MemorySizing sizing;
  sizing.generation = {OwnBytes(), *kept_bytes_};
  if (sizing.generation.own == 0) return std::nullopt;
  sizing.room = *room_;
  sizing.advised_bytes = AdvisedBytes(BytesNeeded(sizing.generation));
  if (room_->limit_bytes) sizing.advised_limit_bytes = AdvisedBytes(LimitNeeded(sizing.generation));
  sizing.fits = Fits(sizing.generation, *room_);
  return sizing;
}

std::string NodeMachine::Impl::SizeAdvice() const {
  const auto sizing = Sizing();
  if (!sizing) return "the size that would do isn't known yet";
  std::vector<std::string> parts;
  if (sizing->room.total_bytes < sizing->advised_bytes) {
    parts.push_back(fmt::format("a volume of {} would do, this one has {}",
                                FormatBytes(sizing->advised_bytes),
                                FormatBytes(sizing->room.total_bytes)));
  }
  if (sizing->advised_limit_bytes && *sizing->room.limit_bytes < *sizing->advised_limit_bytes) {
    parts.push_back(fmt::format(
        "for the agent's control group a memory limit of {} would do, it has {}",
        FormatBytes(*sizing->advised_limit_bytes), FormatBytes(*sizing->room.limit_bytes)));
  }
  if (!parts.empty()) return fmt::format("{}", fmt::join(parts, ", "));
  return fmt::format("the volume of {} is large enough, so something else takes memory",
                     FormatBytes(sizing->room.total_bytes));
}

std::string NodeMachine::Impl::Kept() const {
  if (committed_) return fmt::format("the committed step {} is kept", committed_->save().step());
  if (state_.has_restored() && !state_.restored().none()) {
    return fmt::format("step {}, which the job runs from, is kept",
                       state_.restored().generation().save().step());
  }
  return "nothing was committed before it";
}

// Lack of memory is told with what is safe and with what would help.
std::string NodeMachine::Impl::WithAdvice(const Error& error) const {
  if (error.code() != Code::kResourceExhausted || !config_) return error.ToString();
  return fmt::format("{} (on node {}; {}; {})", error.ToString(), options_.node_name, Kept(),
                     SizeAdvice());
}

// A restore: neither what the job needs is known yet, nor may anything be deleted for it.
Error NodeMachine::Impl::WithWhatIsLacking(const Error& error, const Fetch& fetch) const {
  const control::ShardInfo& shard = fetch.wanted.shard();
  return Error(
      error.code(),
      fmt::format("{} (node {}, step {}; nothing was deleted; with {} more in its volume the "
                  "shard would fit)",
                  error.message(), options_.node_name, shard.save().step(),
                  FormatBytes(FootprintOf(shard))),
      error.errno_value());
}

// After the first save of a run, and when it no longer holds.
void NodeMachine::Impl::TellSizing() {
  const auto sizing = Sizing();
  if (!sizing || sizing_told_ == sizing->fits) return;
  sizing_told_ = sizing->fits;
  const GenerationBytes& g = sizing->generation;
  std::string text = fmt::format(
      "The volume of {} holds a checkpoint of {} and {} of peers' copies; to keep the last "
      "committed generation until the next one is committed takes {}",
      FormatBytes(sizing->room.total_bytes), FormatBytes(g.own), FormatBytes(g.kept),
      FormatBytes(BytesNeeded(g)));
  if (sizing->advised_limit_bytes) {
    text += fmt::format(", of which the agent's memory limit of {} pays for {}",
                        FormatBytes(*sizing->room.limit_bytes), FormatBytes(LimitNeeded(g)));
  }
  if (sizing->fits) {
    Log(Severity::kInfo, text);
    return;
  }
  Log(Severity::kWarning,
      fmt::format("{}: too small, {}. Until then newer saves may stay unprotected", text,
                  SizeAdvice()));
}

}  // namespace tierkeep
