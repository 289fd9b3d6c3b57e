#include "tiers/ram/tree_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/escape_name.h"
#include "base/time.h"

namespace tierkeep {
namespace {

Error Refused(const std::string& path, std::string_view rule) {
  return Error(Code::kFailedPrecondition, fmt::format("entry \"{}\" {}", EscapeName(path), rule));
}

// An entry that a listing has named may be gone again or be something else by now.
Error Moved(const Error& error, const std::string& path) {
  if (error.code() == Code::kNotFound || error.errno_value() == ENOTDIR ||
      error.errno_value() == ELOOP) {
    return Error(Code::kAborted,
                 fmt::format("entry \"{}\" changed while the tree was read", EscapeName(path)));
  }
  if (error.errno_value() == EXDEV) return Refused(path, "is a mount");
  return error;
}

struct Pending {
  std::string path;
  uint32_t depth = 0;  // of the directory's entries
};

class Walk {
 public:
  Walk(Dir& dir, const std::string& root, const TreeLimits& limits)
      : dir_(dir), root_(root), limits_(limits) {}

  Result<std::vector<TreeEntry>> Run() {
    TK_RETURN_IF_ERROR(Add("", 0));
    while (!pending_.empty()) {
      const Pending next = std::move(pending_.back());
      pending_.pop_back();
      TK_RETURN_IF_ERROR(List(next));
    }
    std::sort(entries_.begin(), entries_.end(),
              [](const TreeEntry& a, const TreeEntry& b) { return a.path < b.path; });
    return std::move(entries_);
  }

 private:
  Status List(const Pending& at) {
    auto listed = dir_.List(JoinPath(root_, at.path));
    if (!listed.ok()) return Moved(listed.error(), at.path);
    // Before any of them is looked at: a million entries too many are not a million calls.
    if (listed->size() > limits_.entries_max - entries_.size()) return TooMany(at.path);
    if (!listed->empty() && at.depth > limits_.depth_max) {
      return Refused(at.path, fmt::format("is deeper than {} levels", limits_.depth_max));
    }
    for (const DirEntry& entry : *listed) {
      TK_RETURN_IF_ERROR(Add(at.path.empty() ? entry.name : at.path + "/" + entry.name, at.depth));
    }
    return OkStatus();
  }

  Status Add(std::string path, uint32_t depth) {
    if (entries_.size() >= limits_.entries_max) return TooMany(path);
    if (path.size() > kEntryPathBytesMax) {
      return Refused(path, fmt::format("has a path of more than {} bytes", kEntryPathBytesMax));
    }
    const std::string full = JoinPath(root_, path);
    auto stat = dir_.Stat(full);
    if (!stat.ok()) {
      return path.empty() ? Status(stat.error()) : Status(Moved(stat.error(), path));
    }
    TreeEntry entry{std::move(path), *stat, {}};
    switch (stat->type) {
      case FileType::kDirectory:
        pending_.push_back({entry.path, depth + 1});
        break;
      case FileType::kFile:
        if (stat->bytes > limits_.bytes_max - bytes_) {
          return Refused(entry.path,
                         fmt::format("takes the tree over {}", FormatBytes(limits_.bytes_max)));
        }
        bytes_ += stat->bytes;
        break;
      case FileType::kSymlink: {
        auto target = dir_.ReadLink(full);
        if (!target.ok()) return Moved(target.error(), entry.path);
        entry.link_target = std::move(*target);
        break;
      }
      case FileType::kOther:
        return Refused(entry.path, "is a device, pipe or socket");
    }
    entries_.push_back(std::move(entry));
    return OkStatus();
  }

  Error TooMany(const std::string& path) const {
    return Refused(path, fmt::format("takes the tree over {} entries", limits_.entries_max));
  }

  Dir& dir_;
  const std::string& root_;
  const TreeLimits& limits_;
  std::vector<TreeEntry> entries_;
  std::vector<Pending> pending_;
  uint64_t bytes_ = 0;
};

}  // namespace

std::string JoinPath(std::string_view root, std::string_view path) {
  std::string joined(root);
  if (!joined.empty() && !path.empty()) joined += '/';
  joined += path;
  return joined;
}

Result<std::vector<TreeEntry>> WalkTree(Dir& dir, const std::string& root,
                                        const TreeLimits& limits) {
  return Walk(dir, root, limits).Run();
}

}  // namespace tierkeep
