#include "tiers/ram/stager.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "base/escape_name.h"
#include "base/mutation.h"
#include "format/store_names.h"
#include "tiers/ram/range_hash.h"
#include "tiers/ram/save_hash.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

constexpr uint64_t kHoleBytesMax = 1u << 30;
constexpr uint64_t kHoleFactor = 64;
constexpr Duration kPollMin = 2ms;
constexpr Duration kPollMax = 50ms;

bool IsOneName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

std::string Shown(const TreeEntry& entry) {
  return entry.path.empty() ? "the save itself" : "\"" + EscapeName(entry.path) + "\"";
}

bool IsSame(const TreeEntry& a, const TreeEntry& b) {
  return a.path == b.path && a.stat.type == b.stat.type && a.stat.inode == b.stat.inode &&
         a.stat.bytes == b.stat.bytes && a.stat.links == b.stat.links &&
         a.stat.change_time_ns == b.stat.change_time_ns && a.stat.mode == b.stat.mode &&
         a.stat.uid == b.stat.uid && a.stat.gid == b.stat.gid && a.link_target == b.link_target;
}

bool IsHollow(uint64_t bytes, uint64_t allocated) {
  return bytes - allocated > kHoleBytesMax && bytes / kHoleFactor > allocated;
}

Error Hollow(const std::string& what, uint64_t bytes, uint64_t allocated) {
  return Error(Code::kFailedPrecondition,
               fmt::format("{} is nearly all hole: {} with {} allocated", what, FormatBytes(bytes),
                           FormatBytes(allocated)));
}

// Neither one file nor, with many that would each do, the whole.
Status CheckNotHollow(const std::vector<TreeEntry>& tree) {
  uint64_t tree_bytes = 0;
  uint64_t tree_allocated = 0;
  for (const TreeEntry& entry : tree) {
    if (entry.stat.type != FileType::kFile) continue;
    const uint64_t allocated = std::min(entry.stat.blocks_bytes, entry.stat.bytes);
    if (IsHollow(entry.stat.bytes, allocated)) {
      return Hollow("entry " + Shown(entry), entry.stat.bytes, allocated);
    }
    tree_bytes += entry.stat.bytes;
    tree_allocated += allocated;
  }
  if (IsHollow(tree_bytes, tree_allocated)) {
    return Hollow("the save", tree_bytes, tree_allocated);
  }
  return OkStatus();
}

Status CheckCancelled(const std::atomic<bool>* cancelled) {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) return OkStatus();
  return Error(Code::kCancelled, "staging was cancelled");
}

// One save on its way from staged/<name>/data to a manifest.
class Staging : public StageJob {
 public:
  struct Parts {
    Store* store;
    WorkerPool* pool;
    Clock* clock;
    StageOptions options;
    Logger logger;
  };

  Staging(Parts parts, std::string_view staged_name, const ShardIdentity& identity,
          std::shared_ptr<const std::atomic<bool>> cancelled)
      : parts_(std::move(parts)),
        root_(parts_.store->root()),
        name_(staged_name),
        dir_(fmt::format("{}/{}", kStagedDir, staged_name)),
        data_(fmt::format("{}/{}", dir_, kShardDataName)),
        identity_(identity),
        cancelled_(std::move(cancelled)),
        begin_(parts_.clock->Now()) {}

  std::optional<Result<StagedShard>> Advance() override {
    auto done = Try();
    if (!done.ok()) return done.error();
    if (!*done) return std::nullopt;
    return std::move(**done);
  }
  Duration pause() const override { return pause_; }

 private:
  // nullopt here and below: after a pause, once more.
  Result<std::optional<StagedShard>> Try() {
    if (!IsOneName(name_)) {
      return Error(Code::kInvalidArgument, "not a name: " + EscapeName(name_));
    }
    TK_ASSIGN_OR_RETURN(const auto tree, Settle());
    if (!tree) return std::optional<StagedShard>();
    auto hashed =
        HashSave(root_, data_, *tree, identity_, parts_.pool, cancelled_.get(), parts_.logger);
    // Whether an error counts is seen below, too: a file may have been cut short meanwhile.
    if (!hashed.ok() && hashed.error().code() == Code::kCancelled) return hashed.error();
    TK_ASSIGN_OR_RETURN(const bool still, IsStill(*tree));
    if (still && !hashed.ok()) return hashed.error();
    if (still) return Adopt(std::move(hashed->manifest));
    parts_.logger.Warning("save {} changed while it was hashed, once more", EscapeName(name_));
    if (!MayPause()) {
      return Error(Code::kFailedPrecondition,
                   fmt::format("the save keeps changing: not still within {}",
                               FormatDuration(parts_.options.writers_limit)));
    }
    return std::optional<StagedShard>();
  }

  Result<std::optional<StagedShard>> Adopt(Manifest manifest) {
    StagedShard shard;
    TK_ASSIGN_OR_RETURN(shard.digest, parts_.store->Adopt(name_, manifest));
    shard.manifest = std::move(manifest);
    shard.hash_time = parts_.clock->Now() - begin_;
    parts_.logger.Info("{} of rank {} worker {} staged: {} in {} entries, hashed in {}",
                       identity_.save.ToString(), identity_.rank, identity_.worker,
                       FormatBytes(shard.manifest.TotalBytes()), shard.manifest.entries.size(),
                       FormatDuration(shard.hash_time));
    return std::optional(std::move(shard));
  }

  // A tree that may be hashed: within the limits, each file with this one name only, and nobody
  // writing. What was true a moment ago may have changed again: hence IsStill after hashing.
  Result<std::optional<std::vector<TreeEntry>>> Settle() {
    for (;;) {
      TK_RETURN_IF_ERROR(CheckCancelled(cancelled_.get()));
      auto tree = WalkTree(root_, data_, parts_.options.limits);
      if (!tree.ok() && tree.error().code() == Code::kAborted && MayPause()) {
        return std::optional<std::vector<TreeEntry>>();
      }
      if (!tree.ok()) return tree.error();
      TK_RETURN_IF_ERROR(CheckNotHollow(*tree));
      TK_ASSIGN_OR_RETURN(const bool copied, CopyShared(*tree));
      if (copied) continue;
      TK_ASSIGN_OR_RETURN(const TreeEntry* const written, FindWriter(*tree));
      if (written == nullptr) return std::optional(std::move(*tree));
      if (MayPause()) return std::optional<std::vector<TreeEntry>>();
      return Error(Code::kFailedPrecondition,
                   fmt::format("entry {} is still open for writing after {}", Shown(*written),
                               FormatDuration(parts_.options.writers_limit)));
    }
  }

  // Whether the tree is as it was before hashing, with no writer.
  Result<bool> IsStill(const std::vector<TreeEntry>& before) {
    auto after = WalkTree(root_, data_, parts_.options.limits);
    if (!after.ok() && after.error().code() == Code::kAborted) return false;
    if (!after.ok()) return after.error();
    if (!std::equal(before.begin(), before.end(), after->begin(), after->end(), IsSame)) {
      TK_PROBE(kChangedWhileHashed);
      if (TK_MUTATION(kIgnoreWriters)) return true;
      return false;
    }
    TK_ASSIGN_OR_RETURN(const TreeEntry* const written, FindWriter(*after));
    return written == nullptr;
  }

  // False: the time is over.
  bool MayPause() {
    if (parts_.clock->Now() - begin_ >= parts_.options.writers_limit) return false;
    pause_ = next_pause_;
    next_pause_ = std::min(next_pause_ * 2, kPollMax);
    return true;
  }

  Result<const TreeEntry*> FindWriter(const std::vector<TreeEntry>& tree) {
    for (const TreeEntry& entry : tree) {
      if (entry.stat.type != FileType::kFile) continue;
      auto probed = root_.ProbeWriters(JoinPath(data_, entry.path));
      if (!probed.ok() && probed.error().code() == Code::kNotFound) return &entry;  // it moves
      if (!probed.ok()) return probed.error();
      if (*probed == LeaseResult::kHasWriters && !TK_MUTATION(kIgnoreWriters)) {
        TK_PROBE(kWriterWaitedFor);
        return &entry;
      }
      if (*probed == LeaseResult::kUnsupported && !leases_missing_) {
        leases_missing_ = true;
        parts_.logger.Warning(
            "no leases here: writers that still have files of the save open can't be "
            "seen; what they change is found when the copy is verified");
      }
    }
    return nullptr;
  }

  // Gives each file that has another name an inode of its own; true: there were some.
  Result<bool> CopyShared(const std::vector<TreeEntry>& tree) {
    bool any = false;
    for (const TreeEntry& entry : tree) {
      if (entry.stat.type != FileType::kFile || entry.stat.links <= 1) continue;
      TK_RETURN_IF_ERROR(CheckCancelled(cancelled_.get()));
      TK_PROBE(kSharedFileCopied);
      TK_RETURN_IF_ERROR(CopyOne(entry));
      any = true;
    }
    return any;
  }

  Status CopyOne(const TreeEntry& entry) {
    const std::string copy = dir_ + "/copy";
    // Left by a crash, if it is there.
    TK_RETURN_IF_ERROR(root_.RemoveTree(copy));
    Status done = CopyBytes(entry, copy);
    if (done.ok()) {
      done = root_.SetOwnerAndMode(copy, entry.stat.uid, entry.stat.gid, entry.stat.mode);
    }
    if (done.ok()) done = root_.Rename(copy, JoinPath(data_, entry.path));
    if (!done.ok()) {
      (void)root_.RemoveTree(copy);
      if (done.error().code() == Code::kPermissionDenied) {
        return Error(Code::kFailedPrecondition,
                     fmt::format("entry {} has another name and can't be replaced by a copy: {}",
                                 Shown(entry), done.error().message()));
      }
    }
    return done;
  }

  Status CopyBytes(const TreeEntry& entry, const std::string& copy) {
    TK_ASSIGN_OR_RETURN(const auto from, root_.OpenFile(JoinPath(data_, entry.path)));
    TK_ASSIGN_OR_RETURN(const FileStat stat, from->Stat());
    TK_ASSIGN_OR_RETURN(const SpaceInfo space, root_.Space());
    if (stat.bytes > space.free_bytes) {
      return Error(
          Code::kResourceExhausted,
          fmt::format("entry {} has another name and must be copied: {} needed, {} free",
                      Shown(entry), FormatBytes(stat.bytes), FormatBytes(space.free_bytes)));
    }
    TK_ASSIGN_OR_RETURN(const auto to, root_.CreateFile(copy, 0600));
    TK_RETURN_IF_ERROR(to->Resize(stat.bytes));
    std::vector<std::byte> buffer(std::min<uint64_t>(kHashBufferBytes, stat.bytes));
    for (uint64_t at = 0; at < stat.bytes;) {
      TK_RETURN_IF_ERROR(CheckCancelled(cancelled_.get()));
      const auto piece = MutableByteSpan(buffer).first(
          static_cast<size_t>(std::min<uint64_t>(buffer.size(), stat.bytes - at)));
      TK_RETURN_IF_ERROR(from->ReadExactly(at, piece));
      TK_RETURN_IF_ERROR(to->WriteAll(at, piece));
      at += piece.size();
    }
    return OkStatus();
  }

  const Parts parts_;
  Dir& root_;
  const std::string name_;
  const std::string dir_;
  const std::string data_;
  const ShardIdentity identity_;
  const std::shared_ptr<const std::atomic<bool>> cancelled_;
  const Instant begin_;
  Duration pause_{};
  Duration next_pause_ = kPollMin;
  bool leases_missing_ = false;
};

}  // namespace

Stager::Stager(Store* store, WorkerPool* pool, Clock* clock, StageOptions options, Logger logger)
    : store_(store),
      pool_(pool),
      clock_(clock),
      options_(std::move(options)),
      logger_(std::move(logger)) {}

Status Stager::Take(std::string_view name, std::string_view staged_name) {
  if (!IsOneName(name) || !IsOneName(staged_name)) {
    return Error(Code::kInvalidArgument, "not a name: " + EscapeName(name));
  }
  const auto is_save = [](FileType type) {
    return type == FileType::kDirectory || type == FileType::kFile;
  };
  const Error wrong_type(Code::kFailedPrecondition,
                         EscapeName(name) + " in the volume is neither directory nor file");
  TK_ASSIGN_OR_RETURN(const FileStat before, store_->client().Stat(name));
  if (!is_save(before.type)) return wrong_type;

  Dir& root = store_->root();
  const std::string staged = fmt::format("{}/{}", kStagedDir, staged_name);
  const std::string data = fmt::format("{}/{}", staged, kShardDataName);
  const Status made = root.MakeDir(staged, 0700);
  // An empty one is left when we were killed just before the rename.
  if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made;
  const std::string from = fmt::format("client/{}", name);
  const std::string to = fmt::format("store/{}", data);
  if (const Status moved = store_->mount().RenameNew(from, to); !moved.ok()) {
    (void)root.RemoveDir(staged);  // only when empty
    return moved;
  }
  const auto after = root.Stat(data);
  if (after.ok() && is_save(after->type)) return OkStatus();
  // The name's owner put something else there between our look and the rename.
  if (after.ok()) (void)store_->mount().RenameNew(to, from);
  (void)root.RemoveTree(staged);
  if (!after.ok()) return after.error();
  return wrong_type;
}

std::unique_ptr<StageJob> Stager::Start(std::string_view staged_name, const ShardIdentity& identity,
                                        std::shared_ptr<const std::atomic<bool>> cancelled) {
  return std::make_unique<Staging>(Staging::Parts{store_, pool_, clock_, options_, logger_},
                                   staged_name, identity, std::move(cancelled));
}

Result<StagedShard> Stager::HashAndAdopt(std::string_view staged_name,
                                         const ShardIdentity& identity,
                                         const std::atomic<bool>* cancelled) {
  // The caller's flag, not ours to own.
  const auto job = Start(staged_name, identity, {std::shared_ptr<void>(), cancelled});
  for (;;) {
    if (auto done = job->Advance()) return std::move(*done);
    std::this_thread::sleep_for(job->pause());
  }
}

}  // namespace tierkeep
