// Contents of the small text files in the volume (docs/protocol.md, "Volume").
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/ids.h"

namespace tierkeep {

// `replicator.prerestore`: the restore decision, written before links or markers appear.
struct Prerestore {
  std::optional<Step> step;           // none: start without a checkpoint
  std::optional<std::string> backup;  // only with a step: the backup's dated directory name
  bool operator==(const Prerestore&) const = default;
};
std::string PrerestoreText(const Prerestore& prerestore);

// "YYYY-MM-DD_HH-MM": sixteen characters, digits in their places. Not checked against a calendar.
bool IsBackupDirName(std::string_view name);

// `jax-init-info.txt`, which the platform writes for the client: process id, then the JAX
// coordinator's "host:port", a line each.
struct JaxInitInfo {
  Rank process_id = 0;
  std::string coordinator;
  bool operator==(const JaxInitInfo&) const = default;
};
std::string JaxInitInfoText(const JaxInitInfo& info);
// kInvalidArgument unless it has just these two lines; blanks around them are allowed.
Result<JaxInitInfo> ParseJaxInitInfo(std::string_view text);

// `.meta`: exactly H, no line feed.
std::string MetaText(std::string_view h);
std::optional<std::string> ParseMetaText(std::string_view text);

}  // namespace tierkeep
