// A shard's manifest: what it is, every entry of its tree, a digest for every byte. Its BLAKE3-256
// names the shard, so the name covers all of it. Encoding: docs/formats.md, "Manifest".
//
// Chunks. A regular file's bytes are cut into consecutive chunks that tile it exactly; the cuts are
// the writer's choice (8 MiB, or at the boundaries of OCDBT values so that one pass over the bytes
// gives both the chunk digests and the values'). An empty file has no chunk. Chunks are numbered
// over the whole shard in entry order: that number is what the data protocol asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "format/ids.h"

namespace tierkeep {

inline constexpr uint64_t kChunkBytes = 8u << 20;      // the usual cut
inline constexpr uint64_t kChunkBytesMax = 64u << 20;  // no chunk is larger
inline constexpr uint64_t kManifestBytesMax = 256u << 20;

// Limits on a save's tree (weaknesses D13); named in the error that refuses one.
struct TreeLimits {
  uint32_t depth_max = 128;
  uint64_t entries_max = 1'000'000;
  uint64_t bytes_max = UINT64_MAX;
};

enum class EntryType : uint8_t { kDirectory = 1, kFile = 2, kSymlink = 3 };

struct Chunk {
  uint64_t bytes = 0;  // > 0
  Xxh128 digest;
  auto operator<=>(const Chunk&) const = default;
};

struct ManifestEntry {
  // Relative to the shard's root, '/' between components, no empty, "." or ".." component. The root
  // itself is the first entry with path "" (a directory; or a file for single-file saves).
  std::string path;
  EntryType type = EntryType::kFile;
  uint32_t mode = 0;  // permission bits, 07777
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string link_target;    // symlinks only
  uint64_t bytes = 0;         // files only: the sum of its chunks
  std::vector<Chunk> chunks;  // files only
  auto operator<=>(const ManifestEntry&) const = default;
};

struct ShardIdentity {
  std::string job;
  SaveKey save;
  Rank rank = 0;
  Worker worker = 0;
  uint64_t ordinal = 0;  // this node's how-manieth save of the run, from 1: orders unnumbered saves
  WorldShape world;
  auto operator<=>(const ShardIdentity&) const = default;
};

struct Manifest {
  ShardIdentity identity;
  // Equal for shards that are logically equal (data parallelism); zero when not computed.
  Blake3 logical;
  std::vector<ManifestEntry> entries;  // sorted by path, bytewise; parents before children

  uint64_t TotalBytes() const;
  uint64_t ChunkCount() const;
  bool operator==(const Manifest&) const = default;
};

// Canonical: one encoding for one manifest. Fails (kInvalidArgument) for a manifest that breaks a
// rule above, so what is written always reads back.
Result<std::string> EncodeManifest(const Manifest& manifest);
// Checks every rule; anything else is kDataLoss and says where. Never allocates more than a small
// multiple of `bytes`.
Result<Manifest> DecodeManifest(std::string_view bytes);
// The shard's name.
inline Blake3 ManifestDigest(std::string_view encoded) { return ComputeBlake3(encoded); }

// The `H` that tools see: `D` + 64 hex digits for a directory, 64 hex digits for a file; derived
// from the logical digest where there is one, else from the manifest digest.
std::string VolumeDataName(const Manifest& manifest, const Blake3& manifest_digest);

// The digest of a stored value that is hashed in pieces of at most kChunkBytes: XXH3-128 of the
// bytes for one piece, else XXH3-128 over the pieces' digests in order.
Xxh128 CombinePieceDigests(const std::vector<Xxh128>& pieces);

}  // namespace tierkeep
