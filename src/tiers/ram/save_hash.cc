#include "tiers/ram/save_hash.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "format/ocdbt.h"
#include "format/ocdbt_logical.h"
#include "tiers/ram/range_hash.h"

namespace tierkeep {
namespace {

void CutStretch(uint64_t bytes, std::vector<uint64_t>& cuts) {
  for (; bytes > 0; bytes -= cuts.back()) cuts.push_back(std::min(bytes, kChunkBytes));
}

// The small reads of the OCDBT reader, below the save's root.
class SaveFiles : public OcdbtFiles {
 public:
  SaveFiles(Dir& dir, const std::string& root) : dir_(dir), root_(root) {}

  Result<std::string> ReadRange(const std::string& path, uint64_t offset,
                                uint64_t length) override {
    TK_RETURN_IF_ERROR(Open(path));
    const uint64_t end = std::min(bytes_, length < UINT64_MAX - offset ? offset + length : bytes_);
    std::string out(offset < end ? static_cast<size_t>(end - offset) : 0, '\0');
    TK_RETURN_IF_ERROR(file_->ReadExactly(offset, std::as_writable_bytes(std::span(out))));
    return out;
  }
  Result<std::string> ReadAll(const std::string& path, uint64_t bytes_max) override {
    return dir_.ReadSmallFile(JoinPath(root_, path), bytes_max);
  }
  Result<std::vector<std::string>> List(const std::string& path) override {
    TK_ASSIGN_OR_RETURN(const auto entries, dir_.List(JoinPath(root_, path)));
    std::vector<std::string> names;
    for (const DirEntry& entry : entries) names.push_back(entry.name);
    return names;
  }

 private:
  // Nodes of one data file are read one after the other: the last file stays open.
  Status Open(const std::string& path) {
    if (file_ != nullptr && path == opened_) return OkStatus();
    TK_ASSIGN_OR_RETURN(file_, dir_.OpenFile(JoinPath(root_, path)));
    auto stat = file_->Stat();
    if (!stat.ok()) {
      file_ = nullptr;
      return stat.error();
    }
    bytes_ = stat->bytes;
    opened_ = path;
    return OkStatus();
  }

  Dir& dir_;
  const std::string& root_;
  std::string opened_;
  std::unique_ptr<File> file_;
  uint64_t bytes_ = 0;
};

Result<LogicalPlan> Plan(Dir& dir, const std::string& root, const std::vector<ManifestEntry>& tree,
                         const Logger& logger) {
  std::vector<StepEntry> entries;
  for (const ManifestEntry& entry : tree) {
    if (entry.type == EntryType::kDirectory) continue;
    entries.push_back(
        {entry.path, entry.type == EntryType::kSymlink, entry.bytes, entry.link_target});
  }
  SaveFiles files(dir, root);
  TK_ASSIGN_OR_RETURN(LogicalPlan plan, PlanLogicalDigest(files, entries));
  for (const std::string& warning : plan.warnings) {
    logger.Warning("save: {}", EscapeForLog(warning));
  }
  return plan;
}

using EntryByPath = std::map<std::string_view, size_t>;  // files only

class SaveHasher {
 public:
  SaveHasher(Dir& dir, const std::string& root, WorkerPool* pool,
             const std::atomic<bool>* cancelled, HashedSave& out)
      : dir_(dir), root_(root), pool_(pool), cancelled_(cancelled), out_(out) {}

  void Begin(const std::vector<TreeEntry>& tree) {
    auto& entries = out_.manifest.entries;
    entries.reserve(tree.size());
    for (const TreeEntry& entry : tree) {
      ManifestEntry& made = entries.emplace_back();
      made.path = entry.path;
      made.mode = entry.stat.mode;
      made.uid = entry.stat.uid;
      made.gid = entry.stat.gid;
      if (entry.stat.type == FileType::kDirectory) made.type = EntryType::kDirectory;
      if (entry.stat.type == FileType::kSymlink) {
        made.type = EntryType::kSymlink;
        made.mode = 0777;
        made.link_target = entry.link_target;
      }
      if (made.type == EntryType::kFile) made.bytes = entry.stat.bytes;
    }
    IndexFiles();
  }

  // Instead of Begin and HashChunks: the chunks are those of `manifest`.
  void Resume(const Manifest& manifest) {
    out_.manifest = manifest;
    IndexFiles();
    for (const ManifestEntry& entry : out_.manifest.entries) {
      if (entry.type != EntryType::kFile) continue;
      std::vector<uint64_t>& starts = chunk_starts_[&entry];
      uint64_t at = 0;
      for (const Chunk& chunk : entry.chunks) {
        starts.push_back(at);
        at += chunk.bytes;
      }
    }
  }

  // Locations that lead nowhere in this tree make the plan useless.
  bool Fits(const LogicalPlan& plan) const {
    return std::all_of(plan.work.begin(), plan.work.end(), [&](const LogicalPlan::Work& work) {
      const auto at = by_path_.find(work.location.path);
      if (at == by_path_.end()) return false;
      const uint64_t bytes = out_.manifest.entries[at->second].bytes;
      return work.location.offset <= bytes && work.location.length <= bytes - work.location.offset;
    });
  }

  Status HashChunks(const LogicalPlan* plan) {
    auto& entries = out_.manifest.entries;
    std::map<size_t, std::vector<ByteRange>> values;
    if (plan != nullptr) {
      for (const LogicalPlan::Work& work : plan->work) {
        if (work.location.length < kOwnChunkBytesMin) continue;
        values[by_path_.at(work.location.path)].push_back(
            {work.location.offset, work.location.length});
      }
    }
    std::vector<HashRange> ranges;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].type != EntryType::kFile) continue;
      uint64_t at = 0;
      std::vector<uint64_t>& starts = chunk_starts_[&entries[i]];
      const auto own = values.find(i);
      const auto cuts =
          CutChunks(entries[i].bytes, own == values.end() ? std::vector<ByteRange>() : own->second);
      for (const uint64_t bytes : cuts) {
        entries[i].chunks.push_back({bytes, {}});
        starts.push_back(at);
        ranges.push_back({&entries[i].path, at, bytes, {}});
        at += bytes;
      }
    }
    TK_RETURN_IF_ERROR(HashRanges(dir_, root_, pool_, ranges, cancelled_));
    auto range = ranges.begin();
    for (ManifestEntry& entry : entries) {
      for (Chunk& chunk : entry.chunks) chunk.digest = (range++)->digest;
    }
    TK_CHECK(range == ranges.end());
    return OkStatus();
  }

  // Fills in the digests of the plan's lines.
  Status HashValues(LogicalPlan& plan) {
    std::sort(plan.work.begin(), plan.work.end(),
              [](const auto& a, const auto& b) { return a.location < b.location; });
    std::vector<HashRange> ranges;
    std::vector<std::pair<size_t, size_t>> lines;  // line, number of its ranges
    for (const LogicalPlan::Work& work : plan.work) {
      const ManifestEntry& entry = out_.manifest.entries[by_path_.at(work.location.path)];
      if (const auto pieces = FromChunks(work.location)) {
        plan.lines[work.line].digest = CombinePieceDigests(*pieces);
        continue;
      }
      std::vector<uint64_t> cuts;
      CutStretch(work.location.length, cuts);
      uint64_t at = work.location.offset;
      for (const uint64_t bytes : cuts) {
        ranges.push_back({&entry.path, at, bytes, {}});
        at += bytes;
      }
      lines.emplace_back(work.line, cuts.size());
      out_.second_pass_bytes += work.location.length;
    }
    TK_RETURN_IF_ERROR(HashRanges(dir_, root_, pool_, ranges, cancelled_));
    auto range = ranges.begin();
    for (const auto& [line, count] : lines) {
      std::vector<Xxh128> pieces;
      for (size_t i = 0; i < count; ++i) pieces.push_back((range++)->digest);
      plan.lines[line].digest = CombinePieceDigests(pieces);
    }
    return OkStatus();
  }

 private:
  void IndexFiles() {
    const auto& entries = out_.manifest.entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].type == EntryType::kFile) by_path_[entries[i].path] = i;
    }
  }

  // The digests of the pieces of `location`, when chunks were cut at its boundaries.
  std::optional<std::vector<Xxh128>> FromChunks(const OcdbtLocation& location) const {
    const ManifestEntry& entry = out_.manifest.entries[by_path_.at(location.path)];
    const std::vector<uint64_t>& starts = chunk_starts_.at(&entry);
    const auto first = std::lower_bound(starts.begin(), starts.end(), location.offset);
    if (first == starts.end() || *first != location.offset) return std::nullopt;
    size_t i = static_cast<size_t>(first - starts.begin());
    std::vector<Xxh128> pieces;
    for (uint64_t left = location.length; left > 0; ++i) {
      if (i >= entry.chunks.size()) return std::nullopt;
      if (entry.chunks[i].bytes != std::min(left, kChunkBytes)) return std::nullopt;
      left -= entry.chunks[i].bytes;
      pieces.push_back(entry.chunks[i].digest);
    }
    return pieces;
  }

  Dir& dir_;
  const std::string& root_;
  WorkerPool* pool_;
  const std::atomic<bool>* cancelled_;
  HashedSave& out_;
  EntryByPath by_path_;
  std::map<const ManifestEntry*, std::vector<uint64_t>> chunk_starts_;
};

// A single file: all of its bytes count.
LogicalDigestBuilder SingleFile(const ManifestEntry& file) {
  std::vector<Xxh128> pieces;
  for (const Chunk& chunk : file.chunks) pieces.push_back(chunk.digest);
  LogicalDigestBuilder builder;
  builder.AddFile("", file.bytes, pieces.empty() ? ComputeXxh128({}) : CombinePieceDigests(pieces));
  return builder;
}

}  // namespace

std::vector<uint64_t> CutChunks(uint64_t bytes, std::vector<ByteRange> values) {
  std::sort(values.begin(), values.end());
  std::vector<uint64_t> cuts;
  uint64_t at = 0;
  for (const ByteRange& value : values) {
    if (value.bytes < kOwnChunkBytesMin || value.offset < at) continue;
    if (value.offset > bytes || value.bytes > bytes - value.offset) continue;
    CutStretch(value.offset - at, cuts);
    CutStretch(value.bytes, cuts);
    at = value.offset + value.bytes;
  }
  CutStretch(bytes - at, cuts);
  return cuts;
}

Result<HashedSave> HashSave(Dir& dir, const std::string& root, const std::vector<TreeEntry>& tree,
                            const ShardIdentity& identity, WorkerPool* pool,
                            const std::atomic<bool>* cancelled, const Logger& logger) {
  HashedSave out;
  out.manifest.identity = identity;
  SaveHasher hasher(dir, root, pool, cancelled, out);
  hasher.Begin(tree);
  std::optional<LogicalPlan> plan;
  const bool is_tree = !tree.empty() && tree.front().stat.type == FileType::kDirectory;
  const bool comparable = identity.world.replicas() > 1;
  if (comparable && is_tree) {
    if (auto made = Plan(dir, root, out.manifest.entries, logger); made.ok()) {
      plan = std::move(*made);
    } else {
      logger.Warning(
          "save can't be compared with other replicas, its arrays are not readable as OCDBT: {}",
          EscapeForLog(made.error().message()));
    }
  }
  if (plan && !hasher.Fits(*plan)) {
    logger.Warning("save can't be compared with other replicas: its files changed while read");
    plan.reset();
  }
  TK_RETURN_IF_ERROR(hasher.HashChunks(plan ? &*plan : nullptr));
  Result<Blake3> logical = Blake3{};
  if (plan) {
    TK_RETURN_IF_ERROR(hasher.HashValues(*plan));
    logical = LogicalDigest(std::move(plan->lines));
  } else if (comparable && !is_tree && !out.manifest.entries.empty()) {
    logical = SingleFile(out.manifest.entries.front()).Finish();
  }
  if (!logical.ok()) {
    logger.Warning("save can't be compared with other replicas: {}",
                   EscapeForLog(logical.error().message()));
  } else {
    out.manifest.logical = *logical;
  }
  return out;
}

Result<std::string> ListLogically(Dir& dir, const std::string& root, const Manifest& manifest,
                                  const std::atomic<bool>* cancelled, const Logger& logger) {
  if (manifest.logical.IsZero()) {
    return Error(Code::kFailedPrecondition, "it could not be compared with other replicas");
  }
  const Error changed(Code::kDataLoss, "its bytes are no longer what was saved");
  HashedSave out;
  SaveHasher hasher(dir, root, nullptr, cancelled, out);
  hasher.Resume(manifest);
  std::vector<LogicalLine> lines;
  if (manifest.entries.front().type == EntryType::kDirectory) {
    TK_ASSIGN_OR_RETURN(LogicalPlan plan, Plan(dir, root, manifest.entries, logger));
    if (!hasher.Fits(plan)) return changed;
    TK_RETURN_IF_ERROR(hasher.HashValues(plan));
    lines = std::move(plan.lines);
  } else {
    lines = SingleFile(manifest.entries.front()).lines();
  }
  TK_ASSIGN_OR_RETURN(std::string listing, EncodeLogicalListing(std::move(lines)));
  if (ComputeBlake3(listing) != manifest.logical) return changed;
  return listing;
}

}  // namespace tierkeep
