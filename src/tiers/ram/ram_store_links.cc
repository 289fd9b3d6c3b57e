// Shards in the volume: trees of hard links that the job can read and, where the file system allows
// it, nobody can write.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/escape_name.h"
#include "base/mutation.h"
#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/ram_store.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {

// A link to an immutable file can't be made; the flag may be left from an earlier H.data.
Status RamStore::LinkFile(const std::string& from, const std::string& to) {
  Status linked = root_->HardLink(from, to);
  if (linked.ok() || linked.error().code() != Code::kPermissionDenied) return linked;
  TK_RETURN_IF_ERROR(root_->SetImmutable(from, false));
  return root_->HardLink(from, to);
}

Status RamStore::BuildLinks(const HeldShard& shard, const std::string& tree) {
  const std::string data = ShardDataPath(shard.digest);
  for (const ManifestEntry& entry : shard.manifest->entries) {
    const std::string to = JoinPath(tree, entry.path);
    switch (entry.type) {
      case EntryType::kDirectory:
        TK_RETURN_IF_ERROR(root_->MakeDir(to, 0700));
        break;
      case EntryType::kFile:
        TK_RETURN_IF_ERROR(LinkFile(JoinPath(data, entry.path), to));
        break;
      case EntryType::kSymlink:
        TK_RETURN_IF_ERROR(root_->MakeSymlink(entry.link_target, to));
        break;
    }
  }
  return OkStatus();
}

// True: all files are immutable, and nobody had one open for writing when they became so.
Result<bool> RamStore::Guard(const HeldShard& shard, const std::string& tree) {
  bool guarded = true;
  for (const ManifestEntry& entry : shard.manifest->entries) {
    if (entry.type != EntryType::kFile) continue;
    const Status set = root_->SetImmutable(JoinPath(tree, entry.path), true);
    if (!set.ok() && set.error().code() != Code::kUnimplemented) return set.error();
    if (!set.ok()) {
      guarded = false;
      logger_.Warning("restored files can't be protected from the job: {}", set.error().message());
      break;
    }
  }
  for (const ManifestEntry& entry : shard.manifest->entries) {
    if (entry.type != EntryType::kFile) continue;
    TK_ASSIGN_OR_RETURN(const LeaseResult probed, root_->ProbeWriters(JoinPath(tree, entry.path)));
    if (probed == LeaseResult::kUnsupported) guarded = false;
    if (probed == LeaseResult::kHasWriters) {
      return Error(Code::kFailedPrecondition,
                   fmt::format("shard {}: entry \"{}\" is open for writing", shard.digest.Hex(),
                               EscapeName(entry.path)));
    }
  }
  return guarded;
}

// From the leaves up: a directory's own mode may forbid to change what is in it.
Status RamStore::SetDirectoryModes(const HeldShard& shard, const std::string& tree) {
  const auto& entries = shard.manifest->entries;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->type == EntryType::kFile) continue;  // shared inode, has its own
    const Status set =
        root_->SetOwnerAndMode(JoinPath(tree, entry->path), entry->uid, entry->gid, entry->mode);
    // Only root gives files away; without it they are ours, as the job's are then.
    if (!set.ok() && set.error().code() != Code::kPermissionDenied) return set;
  }
  return OkStatus();
}

Status RamStore::PutIntoVolume(const std::string& tree, const std::string& name) {
  constexpr int kTries = 3;
  Status renamed = OkStatus();
  std::vector<std::string> former;
  for (int i = 0; i < kTries; ++i) {
    renamed = mount_->RenameNew("store/" + tree, "client/" + name);
    if (renamed.ok() || renamed.error().code() != Code::kAlreadyExists) break;
    // Planted since we looked, or of the copy that this one replaces: a client may be waiting to
    // read it, so nothing comes between the two renames.
    TK_ASSIGN_OR_RETURN(former.emplace_back(), TakeFromVolume(name));
  }
  (void)RemoveTrees(former);
  return renamed;
}

Status RamStore::LinkIntoVolume(const Blake3& digest) {
  const std::lock_guard trees(trees_);
  auto held = FindHeld(digest);
  if (!held) return Error(Code::kNotFound, fmt::format("shard {} is not held", digest.Hex()));
  if (held->state.linked && held->state.guarded && IsIntact(held->shard)) return OkStatus();
  const std::string& h = held->shard.volume_name;
  TK_RETURN_IF_ERROR(DistrustMovedLinks());
  TK_ASSIGN_OR_RETURN(const std::string former, Unlink(h));
  if (!former.empty()) TK_RETURN_IF_ERROR(root_->RemoveTree(former));
  held = FindHeld(digest);
  TK_CHECK(held.has_value());
  return Link(*held);
}

Status RamStore::Link(const Held& held) {
  const std::string tree = TemporaryName("link");
  const Status done = held.shard.manifest->entries.front().type == EntryType::kDirectory
                          ? LinkTree(held, tree)
                          : LinkSingleFile(held, tree);
  if (done.ok()) return OkStatus();

  (void)RemoveTrees({tree});
  const auto now = FindHeld(held.shard.digest);
  if (now && now->state.linked && !HasOtherNames(now->shard)) {
    ShardState state = now->state;
    state.linked = state.guarded = false;
    (void)SetState(held.shard.digest, state);  // if not, the next start finds out
  }
  return done;
}

// Whether the volume has a tree under this shard's name that is no other's: the tree of a copy that
// this one replaces, or replaced in a life that ended then. A client may be waiting to read it.
bool RamStore::IsShown(const HeldShard& shard, bool replaced) {
  const auto stat = client_->Stat(DataName(shard.volume_name));
  if (!stat.ok() && (!replaced || stat.error().code() == Code::kNotFound)) return false;
  return !SharesItsName(shard);
}

bool RamStore::SharesItsName(const HeldShard& shard) {
  const std::vector<Held> linked = LinkedShards();
  return std::any_of(linked.begin(), linked.end(), [&](const Held& other) {
    return other.shard.digest != shard.digest && other.shard.volume_name == shard.volume_name;
  });
}

Status RamStore::LinkTree(const Held& held, const std::string& tree) {
  TK_RETURN_IF_ERROR(BuildLinks(held.shard, tree));
  ShardState state = held.state;
  state.linked = true;
  TK_ASSIGN_OR_RETURN(state.guarded, Guard(held.shard, tree));
  // From the rename on the job may write. Durably before it, whatever happens after.
  if (!state.guarded) state.suspect = true;
  TK_RETURN_IF_ERROR(SetDirectoryModes(held.shard, tree));
  TK_RETURN_IF_ERROR(SetState(held.shard.digest, state));
  return PutIntoVolume(tree, DataName(held.shard.volume_name));
}

// An immutable file can't be renamed, so its flag comes after the rename, and what the job did in
// between is unknown: the copy stays suspect until it is verified under its guard.
Status RamStore::LinkSingleFile(const Held& held, const std::string& tree) {
  TK_RETURN_IF_ERROR(BuildLinks(held.shard, tree));
  ShardState state = held.state;
  state.linked = state.suspect = true;
  TK_RETURN_IF_ERROR(SetState(held.shard.digest, state));
  const std::string name = DataName(held.shard.volume_name);
  TK_RETURN_IF_ERROR(PutIntoVolume(tree, name));
  // By the shard's own name: the one in the volume may be exchanged.
  auto guarded = Guard(held.shard, ShardDataPath(held.shard.digest));
  if (!guarded.ok()) {
    (void)client_->RemoveTree(name);
    return guarded.error();
  }
  state.guarded = *guarded;
  return SetState(held.shard.digest, state);
}

// A single file that is immutable can't be renamed away either.
Result<std::string> RamStore::TakeFromVolume(const std::string& name) {
  auto trash = MoveToTrash("client/" + name);
  if (trash.ok() || trash.error().code() != Code::kPermissionDenied) return trash;
  TK_RETURN_IF_ERROR(client_->RemoveTree(name));
  return std::string();
}

Result<std::string> RamStore::Unlink(std::string_view h) {
  std::vector<Held> linked = LinkedShards();
  std::erase_if(linked, [&](const Held& held) { return held.shard.volume_name != h; });
  for (Held& held : linked) {
    // Removal clears flags on inodes that this shard keeps.
    held.state.suspect = true;
    held.state.guarded = false;
    TK_RETURN_IF_ERROR(SetState(held.shard.digest, held.state));
  }
  return TakeFromVolume(DataName(h));
}

Status RamStore::UnlinkFromVolume(std::string_view h) {
  if (!IsDataHash(h)) {
    return Error(Code::kInvalidArgument, "no data name: " + EscapeName(h));
  }
  const std::lock_guard trees(trees_);
  TK_ASSIGN_OR_RETURN(const std::string trash, Unlink(h));
  if (!trash.empty()) TK_RETURN_IF_ERROR(root_->RemoveTree(trash));
  for (const Held& held : LinkedShards()) {
    if (held.shard.volume_name != h || HasOtherNames(held.shard)) continue;
    ShardState state = held.state;
    state.linked = false;
    // Not worth an error: Verify and the next start see that it has no other name.
    (void)SetState(held.shard.digest, state);
  }
  return OkStatus();
}

bool RamStore::IsIntact(const HeldShard& shard) {
  TreeLimits limits;
  limits.depth_max = UINT32_MAX;
  limits.entries_max = shard.manifest->entries.size() + 1;
  const auto ours = WalkTree(*root_, ShardDataPath(shard.digest), limits);
  const auto theirs = WalkTree(*client_, DataName(shard.volume_name), limits);
  if (!ours.ok() || !theirs.ok()) return false;
  return std::equal(ours->begin(), ours->end(), theirs->begin(), theirs->end(),
                    [](const TreeEntry& a, const TreeEntry& b) {
                      return a.path == b.path && a.stat.type == b.stat.type &&
                             a.link_target == b.link_target &&
                             (a.stat.type != FileType::kFile ||
                              (a.stat.inode == b.stat.inode && a.stat.device == b.stat.device));
                    });
}

bool RamStore::HasOtherNames(const HeldShard& shard) {
  const std::string data = ShardDataPath(shard.digest);
  return std::any_of(shard.manifest->entries.begin(), shard.manifest->entries.end(),
                     [&](const ManifestEntry& entry) {
                       if (entry.type != EntryType::kFile) return false;
                       const auto stat = root_->Stat(JoinPath(data, entry.path));
                       return !stat.ok() || stat->links > 1;  // unknown counts as yes
                     });
}

Status RamStore::DistrustMovedLinks() {
  for (const Held& held : LinkedShards()) {
    if (!held.state.guarded || IsIntact(held.shard)) continue;
    TK_PROBE(kLinksTakenApart);
    logger_.Warning("{} in the volume was taken apart; its copy must be verified again",
                    DataName(held.shard.volume_name));
    ShardState state = held.state;
    state.suspect = true;
    state.guarded = false;
    TK_RETURN_IF_ERROR(SetState(held.shard.digest, state));
  }
  return OkStatus();
}

// Out of the volume into `trash`, which is made for the first entry that needs it.
Status RamStore::Remove(const std::string& name, const std::string& trash, size_t number) {
  const auto stat = client_->Stat(name);
  if (!stat.ok() && stat.error().code() == Code::kNotFound) return OkStatus();
  if (stat.ok() && stat->type != FileType::kDirectory) {
    const Status unlinked = client_->Unlink(name);
    if (unlinked.ok() || unlinked.error().code() == Code::kNotFound) return OkStatus();
  } else {
    // Without a file left for it the trash can't be made: then it goes where it stands.
    (void)root_->MakeDir(trash, 0700);
    const Status moved =
        mount_->RenameNew("client/" + name, fmt::format("store/{}/{}", trash, number));
    if (moved.ok()) return OkStatus();
  }
  return client_->RemoveTree(name);  // immutable, say: this clears the flag
}

Status RamStore::RemoveFromVolume(const std::vector<std::string>& names) {
  const std::string trash = fmt::format("{}/{:016x}", kTrashDir, RandomNumber());
  Status result = OkStatus();
  const auto keep_first = [&](const Status& status) {
    if (!status.ok() && result.ok()) result = status;
  };
  std::vector<std::string> others;
  for (const std::string& name : names) {
    if (const auto h = ParseDataName(name)) {
      keep_first(UnlinkFromVolume(*h));
    } else {
      others.push_back(name);
    }
  }
  {
    const std::lock_guard trees(trees_);
    keep_first(DistrustMovedLinks());
    for (size_t i = 0; i < others.size(); ++i) keep_first(Remove(others[i], trash, i));
  }
  keep_first(RemoveTrees({trash}));
  return result;
}

}  // namespace tierkeep
