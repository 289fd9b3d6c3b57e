// What makes two data-parallel replicas of a save equal although their bytes never are: random
// object names, timestamps and absolute paths differ, the arrays do not. The logical digest covers
// every stored value of every OCDBT item of a step directory, and, byte for byte, all other files,
// except those on a list of bookkeeping files (docs/formats.md, "Logical digest").
//
// An item is the step directory itself or an immediate subdirectory, when it holds manifest.ocdbt.
// Stored values are usually compressed chunks: equal digests prove equal arrays, unequal ones only
// that somebody should look.
//
// Pure logic; any thread. The bytes of values are not read here: the caller hashes them, as many at
// once as it likes, and puts the digests into the lines.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "format/ocdbt.h"

namespace tierkeep {

// One fact that the digest covers. Values that are hashed in pieces have the digest that
// CombinePieceDigests() of format/manifest.h makes, pieces being cut every kChunkBytes from the
// value's (or file's) first byte.
struct LogicalLine {
  enum class Kind : uint8_t {
    kItem = 1,   // an item exists; name, length and digest are empty
    kValue = 2,  // a key of an item and its stored value
    kFile = 3,   // a file outside of OCDBT: item empty, name is its path, digest of its contents
    kLink = 4,   // a symbolic link: item empty, name is its path, digest of its target
  };
  Kind kind = Kind::kValue;
  std::string item;  // the item's directory, "" for the step directory itself
  std::string name;  // raw bytes
  uint64_t length = 0;
  Xxh128 digest;
  auto operator<=>(const LogicalLine&) const = default;
};

// BLAKE3-256 over the lines. The encoding is unambiguous, for every field has a fixed size or its
// length in front (integers little-endian):
//
//   "tierkeep logical digest 1\n"
//   then, sorted by (kind, item, name), unsigned bytewise, for each line:
//   kind u8 | item length u64 | item | name length u64 | name | length u64 | digest 16 bytes
//
// kInvalidArgument: two lines of one (kind, item, name), or a value of an item without an item
// line.
Result<Blake3> LogicalDigest(std::vector<LogicalLine> lines);

// The same, line by line. One thread at a time.
class LogicalDigestBuilder {
 public:
  void AddItem(std::string item);
  void AddValue(std::string item, std::string key, uint64_t length, const Xxh128& digest);
  void AddFile(std::string path, uint64_t bytes, const Xxh128& digest);
  void AddLink(std::string path, std::string_view target);
  const std::vector<LogicalLine>& lines() const { return lines_; }
  Result<Blake3> Finish() const { return LogicalDigest(lines_); }

 private:
  std::vector<LogicalLine> lines_;
};

// The bytes that LogicalDigest covers, whose BLAKE3-256 it is: what one replica tells another when
// they disagree. Errors as of LogicalDigest; kResourceExhausted beyond kLogicalListingBytesMax.
inline constexpr uint64_t kLogicalListingBytesMax = 256u << 20;
Result<std::string> EncodeLogicalListing(std::vector<LogicalLine> lines);
// The lines again, sorted. kDataLoss: these are not the bytes of that logical digest.
Result<std::vector<LogicalLine>> DecodeLogicalListing(std::string_view bytes,
                                                      const Blake3& logical);

// Where two replicas differ.
struct LogicalDifference {
  uint64_t total = 0;
  // A sentence each ("state: the value of b'w/c/0/0' differs"), in the order of the lines; of those
  // that only one has, `a` or `b` is said to have it. Escaped and cut, for people.
  std::vector<std::string> first;
};
// At most `first_max` sentences; `total` counts them all. `a` and `b` name the two sides.
struct ReplicaLines {
  std::string name;
  std::vector<LogicalLine> lines;
};
LogicalDifference CompareReplicas(ReplicaLines a, ReplicaLines b, size_t first_max = 16);

// An entry of a step directory, as the walk over it found it. Directories need not be listed.
struct StepEntry {
  std::string path;  // relative to the step directory, plain
  bool is_link = false;
  uint64_t bytes = 0;       // files
  std::string link_target;  // links
};

// Directories ("" or a first path component) that are OCDBT items.
std::set<std::string> OcdbtItems(std::span<const StepEntry> entries);

// What the comparison of replicas does with a file of a step directory.
enum class ReplicaFile : uint8_t {
  kContents,     // must be byte-equal
  kTimestamps,   // must be equal after NeutralCheckpointMetadata()
  kBookkeeping,  // may differ, or be missing
};

// Bookkeeping is what says how, when and by whom a save was written, and what the lines of an item
// cover already: commit_success.txt of the step and of its items (absolute paths), the files of
// OCDBT itself (random names), and array_metadatas/process_N (named by process; repeats the shapes
// that the arrays' own metadata has). A name that Orbax does not write is never bookkeeping, not
// even inside these directories: it could be somebody's state.
ReplicaFile ClassifyReplicaFile(std::string_view path, const std::set<std::string>& items);
inline bool IsReplicaBookkeeping(std::string_view path, const std::set<std::string>& items) {
  return ClassifyReplicaFile(path, items) == ReplicaFile::kBookkeeping;
}

// Orbax's _CHECKPOINT_METADATA without what differs from replica to replica: the values of the
// top-level members init_timestamp_nsecs, commit_timestamp_nsecs and performance_metrics are cut
// out. The rest (handlers, metrics, the user's own metadata) stays byte for byte. What is no JSON
// object comes back unchanged.
std::string NeutralCheckpointMetadata(std::string_view contents);

// All lines of a step directory, and which bytes are still to be hashed for them.
struct LogicalPlan {
  struct Work {
    size_t line = 0;  // its digest goes to lines[line].digest
    OcdbtLocation location;
  };
  std::vector<LogicalLine> lines;
  std::vector<Work> work;
  std::vector<std::string> warnings;  // for the log: OcdbtSummary::warnings, by item
};

// Reads manifests, trees and _CHECKPOINT_METADATA through `files`, rooted at the step directory.
// Values within the trees are hashed here. Errors as of ListOcdbt.
Result<LogicalPlan> PlanLogicalDigest(OcdbtFiles& files, std::span<const StepEntry> entries,
                                      const OcdbtLimits& limits = {});

}  // namespace tierkeep
