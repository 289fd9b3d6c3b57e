// Reads the shape of a tree that a stranger made: every entry's type, size, mode and link target.
//
// Iterative and bounded, so that no tree can exhaust the stack or memory (weaknesses D9, D13). The
// Dir follows no links and crosses no mounts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/manifest.h"
#include "io/file_system.h"

namespace tierkeep {

struct TreeEntry {
  std::string path;  // relative to the tree's root, "" for the root
  FileStat stat;
  std::string link_target;  // links only
};

// Entries sorted by path, bytewise; the root, which may be a file, comes first. Errors:
// kFailedPrecondition for what no save may hold (a device, pipe or socket; a mount; a limit
// passed), naming the entry; kAborted when the tree changes under the walk; else the failing
// call's.
Result<std::vector<TreeEntry>> WalkTree(Dir& dir, const std::string& root,
                                        const TreeLimits& limits);

// `path` below `root`.
std::string JoinPath(std::string_view root, std::string_view path);

// Longest path of an entry, relative to the root. Whole paths are handed to the kernel, whose limit
// is 4095 bytes, and a shard's data sits deeper in the store than a save in the volume.
inline constexpr size_t kEntryPathBytesMax = 3072;

}  // namespace tierkeep
