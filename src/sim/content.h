// What simulated jobs save: small trees and files that follow from their identity alone, so that
// what was restored can be compared without keeping anything.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/ids.h"
#include "format/replicator_config.h"
#include "io/file_system.h"

namespace tierkeep::sim {

// One worker's save. `attempt` counts the starts of the job, `nth` its saves.
struct SaveId {
  uint32_t attempt = 0;
  uint32_t nth = 0;
  Step step = 0;
  Rank rank = 0;
  Worker worker = 0;
  auto operator<=>(const SaveId&) const = default;
  std::string ToString() const;
  static std::optional<SaveId> Parse(std::string_view text);
};

struct ContentOptions {
  uint64_t seed = 0;
  Framework framework = Framework::kOrbax;
  uint32_t nodes = 0;
  uint32_t replicas = 1;    // equal partitions of the ranks
  uint64_t file_bytes = 0;  // of a shard's largest file
  bool diverging = false;   // now and then some partitions save other values than the others
};

struct ContentEntry {
  std::string path;  // "" for framework pytorch: the file itself
  FileType type = FileType::kFile;
  std::string bytes;  // or the link's target
};

// Whether this rank's partition is one of those that saved other values, where the save is one of
// those in which they differ: 1, else 0.
uint32_t VariantOf(const SaveId& id, const ContentOptions& options);

// The entries of a save, directories before what is in them; the last one says who it is.
std::vector<ContentEntry> ContentOf(const SaveId& id, const ContentOptions& options);

// Reads the tree or file at `path` and says which save it is; the error says what differs. With
// equal replicas another rank of the same place may have written it.
Result<SaveId> IdentifyContent(Dir& dir, const std::string& path, const ContentOptions& options);

}  // namespace tierkeep::sim
