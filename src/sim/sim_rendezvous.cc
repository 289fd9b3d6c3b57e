#include "sim/sim_rendezvous.h"

#include "base/check.h"
#include "format/messages.h"

namespace tierkeep::sim {

Status SimRendezvous::Reach() {
  if (!away_ && !world_->Chance(rates_.away)) return OkStatus();
  world_->Fault("rendezvous away");
  return Error(Code::kUnavailable, "the rendezvous can't be reached");
}

Result<std::optional<VersionedRecord>> SimRendezvous::Read(std::string_view job) {
  TK_RETURN_IF_ERROR(Reach());
  const auto it = records_.find(job);
  size_t version = it == records_.end() ? 0 : it->second.size();
  if (version > 1 && world_->Chance(rates_.stale)) {
    world_->Fault("rendezvous stale");
    version = 1 + world_->prng().Below(version - 1);
  }
  world_->Trace("rendezvous of {} read at version {}", job, version);
  if (version == 0) return std::optional<VersionedRecord>();
  return std::optional(VersionedRecord{it->second[version - 1], std::to_string(version)});
}

Result<std::string> SimRendezvous::CompareAndSwap(std::string_view job, std::string_view expected,
                                                  std::string_view bytes) {
  TK_RETURN_IF_ERROR(Reach());
  auto it = records_.find(job);
  if (it == records_.end()) it = records_.emplace(job, std::vector<std::string>()).first;
  const std::string now = it->second.empty() ? "" : std::to_string(it->second.size());
  if (now != expected) return Error(Code::kAborted, "somebody else wrote the record");
  if (!it->second.empty()) CheckRecord(it->second.back(), bytes);
  it->second.emplace_back(bytes);
  world_->Trace("rendezvous of {} written, version {}", job, it->second.size());
  if (world_->Chance(rates_.answer_lost)) {
    world_->Fault("rendezvous answer lost");
    return Error(Code::kUnavailable, "no answer from the rendezvous");
  }
  return std::to_string(it->second.size());
}

void SimRendezvous::CheckRecord(std::string_view before, std::string_view after) {
  const auto old_record = DecodeRendezvousRecord(before);
  const auto new_record = DecodeRendezvousRecord(after);
  TK_CHECK(old_record.ok() && new_record.ok());
  if (new_record->epoch() < old_record->epoch()) {
    return world_->Fail(Checker::kEpochFalls,
                        fmt::format("epoch {} is written after epoch {}", new_record->epoch(),
                                    old_record->epoch()));
  }
  const RunId old_run = FromProto(old_record->run());
  const RunId new_run = FromProto(new_record->run());
  if (new_run != old_run && new_run.sequence <= old_run.sequence) {
    world_->Fail(Checker::kRunFalls, fmt::format("run {} is begun after run {}", new_run.ToString(),
                                                 old_run.ToString()));
  }
}

}  // namespace tierkeep::sim
