#include "tiers/ram/incoming_shard.h"

#include <fmt/format.h>

#include <utility>

#include "base/escape_name.h"
#include "base/mutation.h"
#include "base/time.h"
#include "format/store_names.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

constexpr uint64_t kPageBytes = 4096;

// What the shard takes when it is complete: whole pages, and one for each directory and link, which
// is more than tmpfs counts for them.
uint64_t BytesNeeded(const RamStore::NewShard& shard) {
  uint64_t bytes = shard.encoded->size() + kPageBytes;
  for (const ManifestEntry& entry : shard.manifest->entries) {
    bytes += (entry.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (entry.type != EntryType::kFile) bytes += kPageBytes;
  }
  return bytes;
}

Status CheckRoom(Dir& root, const RamStore::NewShard& shard) {
  TK_ASSIGN_OR_RETURN(const SpaceInfo space, root.Space());
  const uint64_t needed = BytesNeeded(shard);
  if (needed > space.free_bytes) {
    TK_PROBE(kNoRoomForPull);
    return Error(Code::kResourceExhausted,
                 fmt::format("no room for a shard: {} needed, {} free", FormatBytes(needed),
                             FormatBytes(space.free_bytes)));
  }
  // 0 where inodes aren't limited.
  const uint64_t inodes = shard.manifest->entries.size() + 3;
  if (space.free_inodes != 0 && inodes > space.free_inodes) {
    return Error(
        Code::kResourceExhausted,
        fmt::format("no room for a shard: {} inodes needed, {} free", inodes, space.free_inodes));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<IncomingShard>> RamStore::StartIncoming(
    const std::string& encoded_manifest) {
  TK_ASSIGN_OR_RETURN(NewShard shard,
                      DecodeNew(std::make_shared<const std::string>(encoded_manifest)));
  return RamIncomingShard::Start(this, std::move(shard));
}

Result<std::unique_ptr<IncomingShard>> RamIncomingShard::Start(RamStore* store,
                                                               RamStore::NewShard shard) {
  for (const ManifestEntry& entry : shard.manifest->entries) {
    if (entry.path.size() > kEntryPathBytesMax) {
      return Error(Code::kInvalidArgument,
                   fmt::format("shard {}: an entry's path is too long", shard.digest.Hex()));
    }
  }
  TK_RETURN_IF_ERROR(CheckRoom(store->root(), shard));
  const ShardIdentity& id = shard.manifest->identity;
  std::string dir = IncomingPath({SaveUnit{id.save, id.rank, id.worker}, store->RandomNumber()});
  auto incoming = std::make_unique<RamIncomingShard>(store, std::move(shard), std::move(dir));
  TK_RETURN_IF_ERROR(incoming->MakeDirectories());
  if (TK_MUTATION(kAdoptFromIncoming)) TK_RETURN_IF_ERROR(incoming->WriteManifest());
  return std::unique_ptr<IncomingShard>(std::move(incoming));
}

RamIncomingShard::RamIncomingShard(RamStore* store, RamStore::NewShard shard, std::string dir)
    : store_(store),
      shard_(std::move(shard)),
      dir_(std::move(dir)),
      data_(JoinPath(dir_, kShardDataName)),
      slots_(shard_.manifest->entries.size()) {}

RamIncomingShard::~RamIncomingShard() {
  if (finished_) return;
  slots_.clear();
  const Status removed = store_->root().RemoveTree(dir_);
  // The next start sweeps it.
  if (!removed.ok()) store_->logger().Error("left over: {}", removed.error().message());
}

Status RamIncomingShard::MakeDirectories() {
  TK_RETURN_IF_ERROR(store_->root().MakeDir(dir_, 0700));
  const auto& entries = shard_.manifest->entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].type != EntryType::kDirectory) continue;
    TK_RETURN_IF_ERROR(store_->root().MakeDir(PathOf(i), 0700));
  }
  return OkStatus();
}

std::string RamIncomingShard::PathOf(size_t entry) const {
  return JoinPath(data_, shard_.manifest->entries[entry].path);
}

Status RamIncomingShard::CheckEntry(size_t entry) const {
  const auto& entries = shard_.manifest->entries;
  if (entry < entries.size() && entries[entry].type == EntryType::kFile) return OkStatus();
  return Error(Code::kInvalidArgument, fmt::format("entry {} of the shard is no file", entry));
}

// In full size before it is filled: only then older kernels back it with huge pages
// (huge=within_size).
Result<std::unique_ptr<File>> RamIncomingShard::Make(size_t entry) {
  TK_ASSIGN_OR_RETURN(auto file, store_->root().CreateFile(PathOf(entry), 0600));
  TK_RETURN_IF_ERROR(file->Resize(shard_.manifest->entries[entry].bytes));
  slots_[entry].made = true;
  return file;
}

Result<MutableByteSpan> RamIncomingShard::Target(size_t entry) {
  TK_RETURN_IF_ERROR(CheckEntry(entry));
  const std::lock_guard lock(LockOf(entry));
  Slot& slot = slots_[entry];
  const uint64_t bytes = shard_.manifest->entries[entry].bytes;
  if (slot.map == nullptr) {
    std::unique_ptr<File> file;
    if (slot.made) {
      TK_ASSIGN_OR_RETURN(file, store_->root().OpenFileReadWrite(PathOf(entry)));
    } else {
      TK_ASSIGN_OR_RETURN(file, Make(entry));
    }
    // A page that can't be had under a map is SIGBUS; here it is an error.
    TK_RETURN_IF_ERROR(file->Allocate(0, bytes));
    TK_ASSIGN_OR_RETURN(slot.map, file->Map(0, bytes, MapAccess::kReadWrite));
  }
  return MutableByteSpan(slot.map->data(), slot.map->size());
}

Status RamIncomingShard::Write(size_t entry, uint64_t offset, ByteSpan data) {
  TK_RETURN_IF_ERROR(CheckEntry(entry));
  const uint64_t bytes = shard_.manifest->entries[entry].bytes;
  if (offset > bytes || data.size() > bytes - offset) {
    return Error(Code::kOutOfRange, "write beyond the end of an incoming file");
  }
  std::unique_ptr<File> file;
  {
    const std::lock_guard lock(LockOf(entry));
    if (slots_[entry].made) {
      TK_ASSIGN_OR_RETURN(file, store_->root().OpenFileReadWrite(PathOf(entry)));
    } else {
      TK_ASSIGN_OR_RETURN(file, Make(entry));
    }
  }
  return file->WriteAll(offset, data);
}

// Links, empty files.
Status RamIncomingShard::MakeRest() {
  const auto& entries = shard_.manifest->entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].type == EntryType::kSymlink) {
      TK_RETURN_IF_ERROR(store_->root().MakeSymlink(entries[i].link_target, PathOf(i)));
    }
    if (entries[i].type != EntryType::kFile || slots_[i].made) continue;
    if (entries[i].bytes > 0) {
      return Error(Code::kFailedPrecondition,
                   fmt::format("shard {}: entry \"{}\" was never written", shard_.digest.Hex(),
                               EscapeName(entries[i].path)));
    }
    auto made = Make(i);
    if (!made.ok()) return made.error();
  }
  return OkStatus();
}

// From the leaves up: a directory's own mode may forbid to change what is in it.
Status RamIncomingShard::SetOwnersAndModes() {
  const auto& entries = shard_.manifest->entries;
  bool is_root = true;
  for (size_t i = entries.size(); i-- > 0;) {
    const ManifestEntry& entry = entries[i];
    Status set = OkStatus();
    if (is_root) {
      set = store_->root().SetOwnerAndMode(PathOf(i), entry.uid, entry.gid, entry.mode);
    }
    if (!set.ok() && set.error().code() != Code::kPermissionDenied) return set;
    if (is_root && set.ok()) continue;
    // Only root gives files away; without it they stay ours, as the job's files are then.
    is_root = false;
    TK_ASSIGN_OR_RETURN(const FileStat stat, store_->root().Stat(PathOf(i)));
    TK_RETURN_IF_ERROR(store_->root().SetOwnerAndMode(PathOf(i), stat.uid, stat.gid, entry.mode));
  }
  return OkStatus();
}

Status RamIncomingShard::WriteManifest() {
  return store_->root().WriteFileAtomically(JoinPath(dir_, kShardManifestName), *shard_.encoded,
                                            0600);
}

Status RamIncomingShard::Finish() {
  for (Slot& slot : slots_) slot.map = nullptr;
  TK_RETURN_IF_ERROR(MakeRest());
  TK_RETURN_IF_ERROR(SetOwnersAndModes());
  TK_RETURN_IF_ERROR(WriteManifest());
  TK_RETURN_IF_ERROR(store_->Install(dir_, shard_));
  finished_ = true;
  return OkStatus();
}

}  // namespace tierkeep
