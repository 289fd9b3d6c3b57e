// Reads OCDBT databases (TensorStore's key-value format, in which Orbax saves arrays): the newest
// version, every key in order, and where each value's bytes are. Never writes. Format and rules:
// docs/formats.md, "OCDBT".
//
// Does no I/O itself: files come from an OcdbtFiles. Files are not trusted; a database that breaks
// a rule of the format, or a limit of ours, is an error, and nothing found in it is believed before
// its checksum holds. (Values outside of tree nodes have no checksum in OCDBT; whoever hashes them
// covers them.) Recursion and memory are bounded by OcdbtLimits, not by what the files say.
//
// Threads: a call uses the OcdbtFiles from the calling thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace tierkeep {

// The files of a tree, by path relative to its root with '/' between components. Paths handed in
// are plain: not absolute, no empty, "." or ".." component, no NUL. An implementation must not
// follow links out of the root.
class OcdbtFiles {
 public:
  virtual ~OcdbtFiles() = default;
  // The bytes [offset, offset + length); fewer only where the file ends. kNotFound: no such file.
  // The reader never asks for more than OcdbtLimits::node_bytes_max at once.
  virtual Result<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) = 0;
  // The whole file. kNotFound: no such file; kResourceExhausted: it has more than bytes_max bytes.
  virtual Result<std::string> ReadAll(const std::string& path, uint64_t bytes_max) = 0;
  // Names (not paths) in the directory `path` ("" is the root), in any order.
  virtual Result<std::vector<std::string>> List(const std::string& path) = 0;
};

// Where a stored value is; path as for OcdbtFiles. length > 0.
struct OcdbtLocation {
  std::string path;
  uint64_t offset = 0;
  uint64_t length = 0;
  auto operator<=>(const OcdbtLocation&) const = default;
};

// A key and its value: the bytes themselves when they stand in the tree, or where they are.
struct OcdbtEntry {
  std::string key;  // raw bytes, at most 65535
  std::variant<std::string, OcdbtLocation> value;

  const std::string* inline_value() const { return std::get_if<std::string>(&value); }
  const OcdbtLocation* location() const { return std::get_if<OcdbtLocation>(&value); }
  uint64_t length() const {
    return inline_value() != nullptr ? inline_value()->size() : location()->length;
  }
  bool operator==(const OcdbtEntry&) const = default;
};

// What one database may take of us; more is kResourceExhausted. The defaults are far above what
// Orbax writes (nodes of 100 MB at most) and keep a hostile file from costing more than seconds
// and about a gigabyte.
struct OcdbtLimits {
  uint64_t manifest_bytes_max = 64ull << 20;
  uint64_t node_bytes_max = 512ull << 20;         // one node, encoded or decoded
  uint64_t held_bytes_max = 1ull << 30;           // nodes on the way from the root, together
  uint64_t decoded_bytes_total_max = 8ull << 30;  // all nodes read
  uint64_t entries_max = 32u << 20;
  uint64_t listed_bytes_max = 1ull << 30;  // ListOcdbt: keys, inline values, paths
};

inline constexpr std::string_view kOcdbtManifestName = "manifest.ocdbt";

struct OcdbtSummary {
  uint64_t generation = 0;  // 0: a database that was never committed to
  uint64_t keys = 0;
  uint64_t indirect_value_bytes = 0;
  // Statistics in the tree that do not match it. TensorStore does not check them, so they are no
  // error; at most 16 are kept.
  std::vector<std::string> warnings;
};

// Calls `visit` for every entry, in strictly increasing key order. Stops at the first error, its
// own or visit's; what was visited before an error counts for nothing. Errors: kNotFound (no
// manifest.ocdbt), kDataLoss (corrupt, or a data file is missing or short), kResourceExhausted (a
// limit), kAborted (numbered manifests kept vanishing), and those of `files`.
Result<OcdbtSummary> WalkOcdbt(OcdbtFiles& files, const std::string& database_dir,
                               const OcdbtLimits& limits,
                               const std::function<Status(OcdbtEntry&&)>& visit);

struct OcdbtListing {
  OcdbtSummary summary;
  std::vector<OcdbtEntry> entries;  // by key
};

// All entries of the database in `database_dir` ("" is the root of `files`). Locations' paths are
// relative to the root of `files`.
Result<OcdbtListing> ListOcdbt(OcdbtFiles& files, const std::string& database_dir,
                               const OcdbtLimits& limits = {});

// Hands a value's bytes to `sink` in pieces of at most `piece_bytes`, in order. A short read is
// kDataLoss.
Status ReadOcdbtValue(OcdbtFiles& files, const OcdbtEntry& entry, uint64_t piece_bytes,
                      const std::function<void(std::string_view)>& sink);

}  // namespace tierkeep
