// Names inside the store, the agent's own directory on the volume's mount (docs/formats.md,
// "Store"). All relative to the store's root, '/' between components:
//   staged/<run>-<step>-<occurrence>-<rank>-<worker>/            a save taken from the volume
//   incoming/<run>-<step>-<occurrence>-<rank>-<worker>.<nonce>/  a copy that is being pulled
//   shards/<digest>/{manifest,data,state}                        a shard
//   generations/<run>/<save number>                              which shard is whose
//   store-id                                                     tells an empty store from none
// <run> is "<sequence>-<32 hex digits>": unlike RunId::ToString it carries the whole nonce, so that
// a name alone says which run a save belongs to. Parsing is anchored and canonical: formatting what
// was parsed gives the same name back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "format/ids.h"

namespace tierkeep {

inline constexpr std::string_view kStagedDir = "staged";
inline constexpr std::string_view kIncomingDir = "incoming";
inline constexpr std::string_view kShardsDir = "shards";
inline constexpr std::string_view kGenerationsDir = "generations";
inline constexpr std::string_view kStoreIdName = "store-id";
// Inside shards/<digest>/ and incoming/<…>/.
inline constexpr std::string_view kShardManifestName = "manifest";
inline constexpr std::string_view kShardDataName = "data";    // the tree, or the single file
inline constexpr std::string_view kShardStateName = "state";  // RecordKind::kShardState

// One worker's part of one save on one node.
struct SaveUnit {
  SaveKey save;
  Rank rank = 0;
  Worker worker = 0;
  auto operator<=>(const SaveUnit&) const = default;
};

// "<sequence>-<32 hex digits>". The run must not be none.
std::string RunDirName(const RunId& run);
std::optional<RunId> ParseRunDirName(std::string_view name);

// The last component alone, without "staged/".
std::string StagedName(const SaveUnit& unit);
std::optional<SaveUnit> ParseStagedName(std::string_view name);

// `nonce` keeps two pulls of one shard apart: 16 hex digits.
struct IncomingUnit {
  SaveUnit unit;
  uint64_t nonce = 0;
  auto operator<=>(const IncomingUnit&) const = default;
};
std::string IncomingName(const IncomingUnit& incoming);
std::optional<IncomingUnit> ParseIncomingName(std::string_view name);

// 64 lower-case hex digits.
inline std::string ShardDirName(const Blake3& digest) { return digest.Hex(); }
inline std::optional<Blake3> ParseShardDirName(std::string_view name) {
  return Blake3::FromHex(name);
}

// The file inside generations/<run>/: the save number in decimal, above 0.
std::string GenerationFileName(uint64_t save_number);
std::optional<uint64_t> ParseGenerationFileName(std::string_view name);

// Whole paths, from the store's root.
std::string StagedPath(const SaveUnit& unit);
std::string IncomingPath(const IncomingUnit& incoming);
std::string ShardPath(const Blake3& digest);
std::string ShardManifestPath(const Blake3& digest);
std::string ShardDataPath(const Blake3& digest);
std::string ShardStatePath(const Blake3& digest);
std::string GenerationPath(const GenerationId& id);

}  // namespace tierkeep
