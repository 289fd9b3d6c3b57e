// Checks of what several messages and records have in common; message_checks.cc has one function
// for each of those. All fail with kInvalidArgument, naming field and rule.
//
// Pure functions: any thread.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "control.pb.h"
#include "format/messages.h"
#include "format/volume_names.h"

namespace tierkeep::checks {

enum class Presence { kRequired, kOptional };
enum class Shards { kComplete, kCompleteOrNone };  // of a generation

template <typename... Args>
Error Bad(fmt::format_string<Args...> format, Args&&... args) {
  return Error(Code::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

Status CheckFixed(const std::string& bytes, size_t size, std::string_view field,
                  Presence presence = Presence::kRequired);
Status CheckNodeName(const std::string& name, std::string_view field);
Status CheckText(const std::string& text, std::string_view field);
Status CheckNumber(uint64_t value, std::string_view field);
Status CheckJob(const std::string& found, const std::string& job);
Status CheckRun(const control::RunId& run, std::string_view field, Presence presence);
Status CheckAttempt(const control::AttemptId& attempt, Presence presence);
Status CheckSave(const control::SaveKey& save);
bool SameSave(const control::SaveKey& a, const control::SaveKey& b);
Status CheckWorld(const control::WorldShape& world);
bool SameWorld(const control::WorldShape& a, const control::WorldShape& b);
Status CheckShard(const control::ShardInfo& shard, const std::string& job);
Status CheckGeneration(const control::GenerationRecord& record, const std::string& job,
                       Shards shards);
Status CheckAddress(const control::Address& address, std::string_view field);
Status CheckToken(const std::string& token);
Status CheckSettings(const control::JobSettings& settings, const std::string& job);
Status CheckStop(const control::RestoreStop& stop);
Status CheckChoice(const control::RestoreChoice& choice, const std::string& job);
Status CheckMember(const control::Member& member);
Status CheckSources(const control::SourceList& sources, const std::string& job);

template <typename List>
Status CheckDigests(const List& digests, std::string_view field) {
  for (const std::string& d : digests) TK_RETURN_IF_ERROR(CheckFixed(d, Blake3::kSize, field));
  return OkStatus();
}

template <typename List>
Status CheckNodeNames(const List& names, std::string_view field) {
  for (const std::string& n : names) TK_RETURN_IF_ERROR(CheckNodeName(n, field));
  return OkStatus();
}

template <typename List>
Status CheckCounts(const List& counts, const std::string& job) {
  for (const control::RestoreCount& count : counts) {
    if (!IsValidJobName(count.job())) return Bad("restores.job is no job name");
    if (!job.empty()) TK_RETURN_IF_ERROR(CheckJob(count.job(), job));
    TK_RETURN_IF_ERROR(CheckSave(count.save()));
    TK_RETURN_IF_ERROR(CheckNumber(count.restores(), "restores"));
  }
  return OkStatus();
}

template <typename List>
Status CheckWanted(const List& wanted, const std::string& job) {
  for (const auto& sources : wanted) TK_RETURN_IF_ERROR(CheckSources(sources, job));
  return OkStatus();
}

}  // namespace tierkeep::checks
