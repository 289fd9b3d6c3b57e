// Names at the top of the volume (docs/protocol.md, "Volume"). Anchored and canonical: no leading
// zeros, ranks and steps within range, nothing before or after (weaknesses C15).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "format/ids.h"

namespace tierkeep {

inline constexpr std::string_view kConfigName = "replicator.yaml";
inline constexpr std::string_view kPrerestoreName = "replicator.prerestore";
inline constexpr std::string_view kErrorsName = "replicator.errors";
inline constexpr std::string_view kFailedName = "replicator.failed";
inline constexpr std::string_view kJaxInitName = "jax-init-info.txt";
inline constexpr std::string_view kCommitSuccessName = "commit_success.txt";
// Empty, in a step directory (Orbax from 0.12.10 on): the job asks for a backup of this step.
inline constexpr std::string_view kBackupRequestedName = "_BACKUP_REQUESTED";

// "J-sS-nR-wW" and an ending. J may itself contain such a text: the last one counts.
struct WorkerName {
  std::string job;
  Step step = 0;
  Rank rank = 0;
  Worker worker = 0;
  auto operator<=>(const WorkerName&) const = default;
};
std::string MetaName(const WorkerName& name);      // "….meta"
std::string RestoreName(const WorkerName& name);   // "….restore"
std::string SaveFileName(const WorkerName& name);  // "….save", framework pytorch
std::string DataName(std::string_view h);          // "H.data"

std::optional<WorkerName> ParseWorkerName(std::string_view name, std::string_view ending);
// H: optional D, then 64 of [0-9a-z].
bool IsDataHash(std::string_view h);
// "H.data" → H.
std::optional<std::string> ParseDataName(std::string_view name);
// A finished save of frameworks orbax and pytorch.distributed: decimal digits, value within
// uint64. Leading zeros are accepted here only because clients were allowed them.
std::optional<Step> ParseStepName(std::string_view name);

// Job names: [A-Za-z0-9] then [A-Za-z0-9._-]*, at most 128 bytes (docs/protocol.md).
bool IsValidJobName(std::string_view name);

}  // namespace tierkeep
