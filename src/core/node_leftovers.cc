// Saves that no run took while it went on: what the last one left, taken over by the next, and what
// stands in the volume while no job is known.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/holdings.h"
#include "core/node_impl.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

// Without a job that is known: saves that stay in the volume.
constexpr size_t kUnclaimedMax = 2;

}  // namespace

// Of a job whose yaml is of the past. The next cleaning takes over what stands there; it is the
// newest that counts, and all of them would leave no room for the next yaml.
void NodeMachine::Impl::NoteUnclaimed(const NodeEvent::SaveSeen& e) {
  if (unclaimed_.empty() || unclaimed_.back().first != e.step) {
    std::erase_if(unclaimed_, [&](const auto& save) { return save.first == e.step; });
    unclaimed_.emplace_back(e.step, std::vector<std::string>());
  }
  unclaimed_.back().second.push_back(e.name);
  if (unclaimed_.size() <= kUnclaimedMax) return;
  Log(Severity::kWarning,
      fmt::format("the save of step {} is removed: newer ones stand in the volume, and no job "
                  "is known to whom they belong",
                  unclaimed_.front().first));
  Do(NodeAction::DiscardSaves{std::move(unclaimed_.front().second)});
  unclaimed_.erase(unclaimed_.begin());
}

// The list of saves is in order of time, one entry a step, the last one the newest. 0: the same
// step was saved again after it. What isn't in the list was taken after all that is.
uint64_t NodeMachine::Impl::OrdinalOfLeftover(const SaveKey& save) {
  for (const auto& [other, own] : saves_) {
    if (other == save) return own.ordinal;
  }
  for (int i = 0; i < state_.saves_size(); ++i) {
    const SaveKey noted = FromProto(state_.saves(i));
    if (noted.step != save.step || noted.occurrence < save.occurrence) continue;
    if (noted.occurrence > save.occurrence) return 0;
    const auto behind = static_cast<uint64_t>(state_.saves_size() - 1 - i);
    return state_.last_ordinal() > behind ? state_.last_ordinal() - behind : 1;
  }
  NoteSave(save, state_.last_ordinal() + 1);
  return state_.last_ordinal();
}

// Saves taken from the volume but not hashed. Their names say which save they are.
void NodeMachine::Impl::StageAdopted(const std::vector<std::string>& names) {
  std::map<SaveUnit, std::string> units;
  for (const std::string& name : names) {
    const std::optional<SaveUnit> unit = ParseStagedName(name);
    const bool known = std::any_of(staging_.begin(), staging_.end(), [&](const auto& entry) {
      return entry.second.staged_name == name;
    });
    if (unit && !known) units[*unit] = name;
  }
  std::map<SaveKey, uint64_t> ordinals;
  for (const auto& [unit, name] : units) {
    const RunId& run = unit.save.run;
    const bool of_run = Released() && run == FromProto(state_.run());
    if (run != FromProto(state_.last_run()) && !of_run) {
      // Of a run that is over for good: nobody will ever take it up.
      DeleteAll({}, {name});
      continue;
    }
    const auto [ordinal, added] = ordinals.emplace(unit.save, 0);
    if (added) ordinal->second = OrdinalOfLeftover(unit.save);
    if (ordinal->second == 0) {
      DeleteAll({}, {name});
      continue;
    }
    const TaskId task = NewTask();
    const StageWork& work = staging_[task] = {unit, name, ordinal->second, /*adopted=*/!of_run};
    if (of_run) {
      OwnSave& own = saves_[unit.save];
      own.ordinal = ordinal->second;
      own.staged_names[unit.worker] = name;
    } else {
      TK_PROBE(kSaveAdopted);
      adopting_.insert(task);
    }
    StageLeftover(task, work);
  }
}

// The agent died when it had taken some workers' files of a save: the file belongs to that one.
bool NodeMachine::Impl::StageRest(const NodeEvent::SaveSeen& e) {
  const RunId run = FromProto(state_.run());
  for (auto it = saves_.rbegin(); it != saves_.rend(); ++it) {
    auto& [save, own] = *it;
    if (save.run != run || save.step != e.step) continue;
    if (own.shards.count(e.worker) != 0 || own.staged_names.count(e.worker) != 0) return false;
    StageOne(save, e.worker, e.name, &own);
    return true;
  }
  return false;
}

void NodeMachine::Impl::StageLeftover(TaskId task, const StageWork& work) {
  const WorldShape world =
      state_.has_last_world() ? FromProto(state_.last_world()) : config_->world;
  Do(NodeAction::Stage{task, "", work.staged_name,
                       ShardIdentity{config_->job, work.unit.save, work.unit.rank, work.unit.worker,
                                     work.ordinal, world}});
}

// Left by the last run: for the newest the older ones give way. Once they are gone it is tried
// again; whether it will be.
bool NodeMachine::Impl::AdoptWithMoreRoom(const StageWork& work, const Error& error) {
  if (error.code() != Code::kResourceExhausted) return false;
  std::map<uint64_t, SaveKey> older;  // by ordinal
  for (const auto& [task, other] : staging_) {
    if (other.adopted && other.ordinal < work.ordinal) older[other.ordinal] = other.unit.save;
  }
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() != config_->job || shard.rank() != work.unit.rank ||
        FromProto(shard.save().run()) != work.unit.save.run || shard.ordinal() >= work.ordinal ||
        MayBeOfCommitted(digest, shard)) {
      continue;
    }
    older[shard.ordinal()] = FromProto(shard.save());
  }
  if (older.empty()) return false;
  const SaveKey gone = older.begin()->second;
  Log(Severity::kWarning, fmt::format("the leftover save of {} gives way to a newer one: {}",
                                      gone.ToString(), error.ToString()));
  std::vector<std::string> staged;
  for (auto it = staging_.begin(); it != staging_.end();) {
    if (!it->second.adopted || it->second.unit.save != gone) {
      ++it;
      continue;
    }
    Do(NodeAction::CancelTask{it->first});
    staged.push_back(it->second.staged_name);
    adopting_.erase(it->first);
    it = staging_.erase(it);
  }
  std::vector<Blake3> digests;
  for (const auto& [digest, shard] : shards_) {
    if (shard.job() == config_->job && FromProto(shard.save()) == gone) digests.push_back(digest);
  }
  const TaskId task = NewTask();
  staging_[task] = work;
  adopting_.insert(task);
  adopt_again_[next_task_] = task;
  DeleteAll(std::move(digests), std::move(staged));
  return true;
}

void NodeMachine::Impl::AdoptAgain(TaskId deleted) {
  const auto again = adopt_again_.extract(deleted);
  if (!again) return;
  const auto work = staging_.find(again.mapped());
  if (work != staging_.end()) StageLeftover(work->first, work->second);
}

// Not those that a coordinator was told of: it may have committed them, and the word of it may have
// been lost with the connection. It decides about them once it is heard again.
void NodeMachine::Impl::ForgetOlderSaves(uint64_t ordinal) {
  std::vector<SaveKey> older;
  for (const auto& [save, own] : saves_) {
    TK_PROBE_IF(kSaveInDoubt, own.ordinal < ordinal && own.told);
    if (own.ordinal < ordinal && (!own.told || TK_MUTATION(kForgetInDoubt))) older.push_back(save);
  }
  for (const SaveKey& save : older) {
    Log(Severity::kWarning,
        fmt::format("Save of {} is dropped: a newer one is here, and no coordinator could be told "
                    "of either",
                    save.ToString()));
    DropSave(save);
  }
}

}  // namespace tierkeep
