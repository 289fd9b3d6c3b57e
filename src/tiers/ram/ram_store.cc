#include "tiers/ram/ram_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/escape_name.h"
#include "base/mutation.h"
#include "format/messages.h"
#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/range_hash.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

bool IsOneName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos;
}

FileType TypeOf(EntryType type) {
  switch (type) {
    case EntryType::kDirectory:
      return FileType::kDirectory;
    case EntryType::kFile:
      return FileType::kFile;
    case EntryType::kSymlink:
      return FileType::kSymlink;
  }
  return FileType::kOther;
}

// "" when the tree has exactly the manifest's entries.
std::string CompareShape(const std::vector<ManifestEntry>& wanted,
                         const std::vector<TreeEntry>& found) {
  for (size_t i = 0; i < std::max(wanted.size(), found.size()); ++i) {
    if (i >= found.size() || (i < wanted.size() && wanted[i].path < found[i].path)) {
      return fmt::format("entry \"{}\" is missing", EscapeName(wanted[i].path));
    }
    if (i >= wanted.size() || wanted[i].path != found[i].path) {
      return fmt::format("entry \"{}\" does not belong there", EscapeName(found[i].path));
    }
    if (TypeOf(wanted[i].type) != found[i].stat.type) {
      return fmt::format("entry \"{}\" has become another type", EscapeName(found[i].path));
    }
    if (wanted[i].type == EntryType::kFile && wanted[i].bytes != found[i].stat.bytes) {
      return fmt::format("entry \"{}\" has {} bytes, not {}", EscapeName(found[i].path),
                         found[i].stat.bytes, wanted[i].bytes);
    }
    if (wanted[i].link_target != found[i].link_target) {
      return fmt::format("link \"{}\" leads elsewhere", EscapeName(found[i].path));
    }
  }
  return "";
}

}  // namespace

RamStore::RamStore(std::shared_ptr<Dir> mount, std::unique_ptr<Dir> root,
                   std::unique_ptr<Dir> client, const StoreOptions& options, RandomSource* random,
                   Logger logger)
    : mount_(std::move(mount)),
      root_(std::move(root)),
      client_(std::move(client)),
      options_(options),
      random_(random),
      logger_(std::move(logger)) {}

uint64_t RamStore::RandomNumber() {
  uint64_t number = 0;
  random_->Fill(&number, sizeof(number));
  return number;
}

std::string RamStore::TemporaryName(std::string_view ending) {
  return fmt::format("{}/{:016x}.{}", kIncomingDir, RandomNumber(), ending);
}

// ---- tables ------------------------------------------------------------------------------------

std::vector<HeldShard> RamStore::Shards() const {
  const std::lock_guard lock(mutex_);
  std::vector<HeldShard> shards;
  shards.reserve(shards_.size());
  for (const auto& [digest, held] : shards_) shards.push_back(held.shard);
  return shards;
}

std::optional<RamStore::Held> RamStore::FindHeld(const Blake3& digest) const {
  const std::lock_guard lock(mutex_);
  const auto at = shards_.find(digest);
  if (at == shards_.end()) return std::nullopt;
  return at->second;
}

std::optional<HeldShard> RamStore::Find(const Blake3& digest) const {
  auto held = FindHeld(digest);
  if (!held) return std::nullopt;
  return std::move(held->shard);
}

std::vector<RamStore::Held> RamStore::LinkedShards() const {
  const std::lock_guard lock(mutex_);
  std::vector<Held> linked;
  for (const auto& [digest, held] : shards_) {
    if (held.state.linked) linked.push_back(held);
  }
  return linked;
}

std::vector<UnreadableItem> RamStore::unreadable() const {
  const std::lock_guard lock(mutex_);
  return unreadable_;
}

void RamStore::AddUnreadable(UnreadableItem item) {
  TK_PROBE(kUnreadableItem);
  if (item.damaged) {
    logger_.Error("damaged: {}: this copy counts as lost", item.detail);
  } else {
    logger_.Error("unreadable: {}", item.detail);
  }
  const std::lock_guard lock(mutex_);
  unreadable_.push_back(std::move(item));
}

void RamStore::ForgetUnreadable(const Blake3& digest) {
  const std::lock_guard lock(mutex_);
  std::erase_if(unreadable_, [&](const UnreadableItem& item) { return item.digest == digest; });
}

uint64_t RamStore::held_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [digest, held] : shards_) bytes += held.shard.manifest->TotalBytes();
  return bytes;
}

// ---- state -------------------------------------------------------------------------------------

Status RamStore::WriteState(const Blake3& digest, const ShardState& state) {
  const std::string path = ShardStatePath(digest);
  if (state.IsPlain()) {
    const Status removed = root_->Unlink(path);
    if (!removed.ok() && removed.error().code() != Code::kNotFound) return removed;
    return OkStatus();
  }
  const Status written = root_->WriteFileAtomically(path, EncodeShardState(state), 0600);
  if (written.ok() || written.error().code() != Code::kResourceExhausted) return written;
  // A full volume still takes an empty file, which reads as the most careful state. Without this,
  // memory could not be given back just when there is none left.
  if (!state.suspect || state.guarded) return written;
  const std::string empty = TemporaryName("state");
  if (auto file = root_->CreateFile(empty, 0600); !file.ok()) return written;
  const Status renamed = root_->Rename(empty, path);
  if (!renamed.ok()) (void)root_->Unlink(empty);
  return renamed;
}

Status RamStore::SetState(const Blake3& digest, const ShardState& state) {
  const auto held = FindHeld(digest);
  if (!held || held->state == state) return OkStatus();
  TK_RETURN_IF_ERROR(WriteState(digest, state));
  const std::lock_guard lock(mutex_);
  const auto at = shards_.find(digest);
  TK_CHECK(at != shards_.end());  // only TakeOut removes, with trees_ held
  if (state.suspect) ++at->second.distrusts;
  at->second.state = state;
  at->second.shard.suspect = state.suspect;
  return OkStatus();
}

// In memory alone: where the state can't be written, or what can't be read now may be good.
void RamStore::Distrust(const Blake3& digest) {
  const std::lock_guard lock(mutex_);
  const auto at = shards_.find(digest);
  if (at == shards_.end()) return;
  ++at->second.distrusts;
  at->second.shard.suspect = true;
}

void RamStore::Trust(const Blake3& digest) {
  const std::lock_guard lock(mutex_);
  if (const auto at = shards_.find(digest); at != shards_.end()) at->second.shard.suspect = false;
}

// ---- shards ------------------------------------------------------------------------------------

Result<RamStore::NewShard> RamStore::DecodeNew(std::shared_ptr<const std::string> encoded) {
  TK_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(*encoded));
  NewShard shard;
  shard.digest = ManifestDigest(*encoded);
  shard.manifest = std::make_shared<const Manifest>(std::move(manifest));
  shard.encoded = std::move(encoded);
  return shard;
}

Result<Blake3> RamStore::Adopt(std::string_view staged_name, const Manifest& manifest) {
  if (!IsOneName(staged_name)) {
    return Error(Code::kInvalidArgument, "not a name: " + EscapeName(staged_name));
  }
  NewShard shard;
  TK_ASSIGN_OR_RETURN(std::string encoded, EncodeManifest(manifest));
  shard.digest = ManifestDigest(encoded);
  shard.manifest = std::make_shared<const Manifest>(manifest);
  shard.encoded = std::make_shared<const std::string>(std::move(encoded));
  const std::string dir = JoinPath(kStagedDir, staged_name);
  TK_ASSIGN_OR_RETURN(const FileStat data, root_->Stat(JoinPath(dir, kShardDataName)));
  if (data.type != TypeOf(manifest.entries.front().type)) {
    return Error(Code::kFailedPrecondition, "the staged data is of another type than its manifest");
  }
  TK_RETURN_IF_ERROR(
      root_->WriteFileAtomically(JoinPath(dir, kShardManifestName), *shard.encoded, 0600));
  // What an earlier try left, were it killed.
  TK_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, root_->List(dir));
  for (const DirEntry& entry : entries) {
    if (entry.name == kShardDataName || entry.name == kShardManifestName) continue;
    TK_RETURN_IF_ERROR(root_->RemoveTree(JoinPath(dir, entry.name)));
  }
  TK_RETURN_IF_ERROR(Install(dir, shard));
  return shard.digest;
}

Status RamStore::Install(const std::string& dir, const NewShard& shard) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    {
      const std::lock_guard trees(trees_);
      const Status renamed = root_->RenameNew(dir, ShardPath(shard.digest));
      if (renamed.ok()) {
        ForgetUnreadable(shard.digest);
        Held held;
        held.shard = {shard.digest, shard.manifest, shard.encoded,
                      VolumeDataName(*shard.manifest, shard.digest), false};
        {
          const std::lock_guard lock(mutex_);
          shards_[shard.digest] = held;
        }
        if (!IsShown(held.shard, /*replaced=*/i > 0)) return OkStatus();
        Status linked = DistrustMovedLinks();  // what stands there is removed
        if (linked.ok()) linked = Link(held);
        if (!linked.ok()) {
          logger_.Error("left in the volume, of a copy that was replaced: {}",
                        linked.error().ToString());
        }
        return OkStatus();
      }
      if (renamed.error().code() != Code::kAlreadyExists) return renamed;
    }
    // Never by its name alone: what stands there must prove itself, else the new one takes its
    // place (weaknesses A22).
    if (FindHeld(shard.digest)) {
      const VerifyResult there = Verify(shard.digest, nullptr);
      if (there.ok) return root_->RemoveTree(dir);
      logger_.Error("shard {} is held already, but is bad and will be replaced: {}",
                    shard.digest.Hex(), there.problem);
    }
    std::vector<std::string> trash;
    {
      const std::lock_guard trees(trees_);
      TK_ASSIGN_OR_RETURN(trash, TakeOut(shard.digest, Shown::kStays));
    }
    (void)RemoveTrees(trash);  // the new one is at hand, whatever becomes of the old one
  }
  return Error(Code::kAborted,
               fmt::format("shard {} keeps being made by others", shard.digest.Hex()));
}

VerifyResult RamStore::CheckBytes(const Held& held, const std::atomic<bool>* cancelled,
                                  bool* other_names, bool* damaged) {
  VerifyResult result;
  const std::string data = ShardDataPath(held.shard.digest);
  const std::vector<ManifestEntry>& entries = held.shard.manifest->entries;
  // One entry more than there should be is enough to see that there are too many.
  TreeLimits limits;
  limits.depth_max = UINT32_MAX;
  limits.entries_max = entries.size() + 1;
  const auto tree = WalkTree(*root_, data, limits);
  if (!tree.ok()) {
    *damaged =
        tree.error().code() == Code::kFailedPrecondition || tree.error().code() == Code::kNotFound;
    result.unread = !*damaged;
    result.problem = tree.error().message();
    return result;
  }
  result.problem = CompareShape(entries, *tree);
  if (!result.problem.empty()) {
    *damaged = true;
    return result;
  }
  for (const TreeEntry& entry : *tree) {
    if (entry.stat.type == FileType::kFile && entry.stat.links > 1) *other_names = true;
  }
  std::vector<HashRange> ranges;
  ranges.reserve(held.shard.manifest->ChunkCount());
  for (const ManifestEntry& entry : entries) {
    uint64_t at = 0;
    for (const Chunk& chunk : entry.chunks) {
      ranges.push_back({&entry.path, at, chunk.bytes, {}});
      at += chunk.bytes;
    }
  }
  const Status hashed = HashRanges(*root_, data, options_.pool, ranges, cancelled);
  if (!hashed.ok()) {
    *damaged = hashed.error().code() == Code::kDataLoss;
    const bool other = hashed.error().code() == Code::kNotFound;  // a file has just gone
    result.unread = (!*damaged && !other) || hashed.error().errno_value() == EIO;
    result.problem = hashed.error().message();
    return result;
  }
  auto range = ranges.begin();
  for (const ManifestEntry& entry : entries) {
    for (const Chunk& chunk : entry.chunks) {
      if (range->digest != chunk.digest) {
        *damaged = true;
        result.problem = fmt::format("entry \"{}\": the bytes at {} differ from their digest",
                                     EscapeName(entry.path), range->offset);
        return result;
      }
      result.bytes += chunk.bytes;
      ++range;
    }
  }
  result.ok = true;
  return result;
}

VerifyResult RamStore::Verify(const Blake3& digest, const std::atomic<bool>* cancelled) {
  const auto before = FindHeld(digest);
  if (!before) return {false, 0, fmt::format("shard {} is not held", digest.Hex())};
  bool other_names = false;
  bool damaged = false;
  VerifyResult result = CheckBytes(*before, cancelled, &other_names, &damaged);

  const std::lock_guard trees(trees_);
  const auto now = FindHeld(digest);
  if (!now) return {false, result.bytes, fmt::format("shard {} was deleted", digest.Hex())};
  ShardState state = now->state;
  const bool trusted =
      result.ok && now->distrusts == before->distrusts && (state.guarded || !other_names);
  if (trusted) {
    TK_PROBE_IF(kSuspectCleared, now->state.suspect);
    state.suspect = false;
    if (!other_names) state.linked = state.guarded = false;
  }
  if (damaged) state.suspect = true;
  const Status set = SetState(digest, state);
  if (!set.ok()) logger_.Error("shard {}: {}", digest.Hex(), set.error().message());
  if (trusted && set.ok()) Trust(digest);
  // A pull must not take it for a copy that is here already.
  if (!result.ok && (cancelled == nullptr || !cancelled->load())) Distrust(digest);
  return result;
}

Result<std::unique_ptr<File>> RamStore::OpenEntry(const Blake3& digest, size_t entry) {
  const auto held = FindHeld(digest);
  if (!held) return Error(Code::kNotFound, fmt::format("shard {} is not held", digest.Hex()));
  const auto& entries = held->shard.manifest->entries;
  if (entry >= entries.size() || entries[entry].type != EntryType::kFile) {
    return Error(Code::kInvalidArgument,
                 fmt::format("shard {} has no file {}", digest.Hex(), entry));
  }
  return root_->OpenFile(JoinPath(ShardDataPath(digest), entries[entry].path));
}

Result<std::string> RamStore::MoveToTrash(const std::string& path) {
  std::string trash = fmt::format("{}/{:016x}", kTrashDir, RandomNumber());
  const Status moved = mount_->RenameNew(path, "store/" + trash);
  if (moved.ok()) return trash;
  if (moved.error().code() == Code::kNotFound) return std::string();
  return moved.error();
}

Status RamStore::RemoveTrees(const std::vector<std::string>& paths) {
  Status result = OkStatus();
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    const Status removed = root_->RemoveTree(path);
    if (removed.ok()) continue;
    // Out of sight already; the next start tries again.
    logger_.Error("left in the store's trash: {}", removed.error().message());
    if (result.ok()) result = removed;
  }
  return result;
}

// Renames alone and no state written, so this works on a full volume. The tree in the volume goes
// first: an agent that dies then deletes the shard when it hears of its job again, and finds its
// links missing until then.
Result<std::vector<std::string>> RamStore::TakeOut(const Blake3& digest, Shown shown) {
  const auto held = FindHeld(digest);
  std::vector<std::string> names;
  if (shown == Shown::kGoes && !held) names = TreesOfNobodyBut(digest);
  // Equal replicas have one name in the volume: the tree there may be the other one's.
  if (shown == Shown::kGoes && held && held->state.linked && !SharesItsName(held->shard)) {
    names.push_back(DataName(held->shard.volume_name));
  }
  std::vector<std::string> trash;
  for (const std::string& name : names) {
    auto tree = TakeFromVolume(name);
    if (tree.ok()) {
      trash.push_back(std::move(*tree));
    } else {
      logger_.Error("left in the volume: {}", tree.error().message());
    }
  }
  auto shard = MoveToTrash("store/" + ShardPath(digest));
  if (!shard.ok()) {
    if (!trash.empty()) Distrust(digest);  // its guard goes with the tree
    return shard.error();
  }
  trash.push_back(std::move(*shard));
  {
    const std::lock_guard lock(mutex_);
    shards_.erase(digest);
  }
  ForgetUnreadable(digest);
  return trash;
}

// A copy that can't be read doesn't say under which name the volume shows it. As long as there are
// others of those, whose tree it is remains unknown, and the next start of a job cleans.
std::vector<std::string> RamStore::TreesOfNobodyBut(const Blake3& digest) {
  std::set<std::string> known;
  {
    const std::lock_guard lock(mutex_);
    const bool others = std::any_of(
        unreadable_.begin(), unreadable_.end(),
        [&](const UnreadableItem& item) { return !item.generation && item.digest != digest; });
    if (others) return {};
    for (const auto& [other, held] : shards_) known.insert(held.shard.volume_name);
  }
  const auto entries = client_->List("");
  if (!entries.ok()) return {};
  std::vector<std::string> names;
  for (const DirEntry& entry : *entries) {
    const auto h = ParseDataName(entry.name);
    if (h && !known.contains(*h)) names.push_back(entry.name);
  }
  return names;
}

Status RamStore::Delete(const Blake3& digest) {
  std::vector<std::string> trash;
  {
    const std::lock_guard trees(trees_);
    TK_ASSIGN_OR_RETURN(trash, TakeOut(digest, Shown::kGoes));
  }
  return RemoveTrees(trash);
}

// ---- staged saves ------------------------------------------------------------------------------

Result<std::vector<std::string>> RamStore::Staged() const {
  TK_ASSIGN_OR_RETURN(const auto entries, root_->List(kStagedDir));
  std::vector<std::string> names;
  for (const DirEntry& entry : entries) names.push_back(entry.name);
  return names;
}

Status RamStore::DeleteStaged(std::string_view name) {
  if (!IsOneName(name)) {
    return Error(Code::kInvalidArgument, "not a name: " + EscapeName(name));
  }
  std::string trash;
  {
    const std::lock_guard trees(trees_);
    TK_RETURN_IF_ERROR(DistrustMovedLinks());
    TK_ASSIGN_OR_RETURN(trash, MoveToTrash("store/" + JoinPath(kStagedDir, name)));
  }
  return RemoveTrees({trash});
}

// ---- generations -------------------------------------------------------------------------------

Status RamStore::WriteGeneration(SharedRecord record) {
  TK_ASSIGN_OR_RETURN(const std::string bytes, EncodeGenerationRecord(*record));
  const GenerationId id = GenerationIdOf(*record);
  const std::string path = GenerationPath(id);
  TK_RETURN_IF_ERROR(root_->MakeDirs(path.substr(0, path.rfind('/')), 0700));
  TK_RETURN_IF_ERROR(root_->WriteFileAtomically(path, bytes, 0600));
  const std::lock_guard lock(mutex_);
  generations_[id] = std::move(record);
  std::erase_if(unreadable_, [&](const UnreadableItem& item) { return item.generation == id; });
  return OkStatus();
}

std::vector<SharedRecord> RamStore::Generations() const {
  const std::lock_guard lock(mutex_);
  std::vector<SharedRecord> records;
  for (const auto& [id, record] : generations_) records.push_back(record);
  return records;
}

Status RamStore::DeleteGeneration(const control::GenerationRecord& record) {
  const GenerationId id = GenerationIdOf(record);
  const std::string path = GenerationPath(id);
  const Status removed = root_->Unlink(path);
  if (!removed.ok() && removed.error().code() != Code::kNotFound) return removed;
  (void)root_->RemoveDir(path.substr(0, path.rfind('/')));  // the run's, when this was its last
  const std::lock_guard lock(mutex_);
  generations_.erase(id);
  std::erase_if(unreadable_, [&](const UnreadableItem& item) { return item.generation == id; });
  return OkStatus();
}

}  // namespace tierkeep
