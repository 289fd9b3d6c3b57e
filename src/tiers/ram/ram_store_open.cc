// Starting on a store that a crash may have left in any state between two calls.
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/escape_name.h"
#include "base/mutation.h"
#include "format/generation_record.h"
#include "format/messages.h"
#include "format/record.h"
#include "format/store_names.h"
#include "tiers/ram/ram_store.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

constexpr std::string_view kRemedy =
    "client/ and store/ must be plain directories of one mount: bind-mount the whole directory "
    "that holds both, not client/ alone, to where the agent runs";

Error WithRemedy(const Error& error) {
  const bool two_mounts = error.errno_value() == EXDEV;
  return Error(two_mounts ? Code::kFailedPrecondition : error.code(),
               fmt::format("{} ({})", error.message(),
                           two_mounts ? kRemedy
                                      : "the agent moves and links files between client/ and "
                                        "store/ and needs the right to"),
               error.errno_value());
}

// What an interrupted Dir::WriteFileAtomically leaves behind.
bool IsAtomicWriteLeftover(std::string_view name) {
  return name.starts_with('.') && name.ends_with(".tmp");
}

Result<std::unique_ptr<Dir>> OpenOrMake(Dir& mount, const std::string& name, uint32_t mode) {
  const Status made = mount.MakeDir(name, mode);
  if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made.error();
  auto dir = mount.OpenDir(name);
  if (!dir.ok()) return WithRemedy(dir.error());
  return dir;
}

}  // namespace

Result<std::unique_ptr<Store>> Store::Open(std::shared_ptr<Dir> mount, const StoreOptions& options,
                                           RandomSource* random, Logger logger) {
  TK_ASSIGN_OR_RETURN(auto client, OpenOrMake(*mount, "client", 0755));
  // A job of root's may have locked its own volume; where there are no flags nothing is locked.
  (void)mount->SetImmutable("client", false);
  // Only we go in: the job's user, where it isn't ours, must not even see saves of others.
  TK_ASSIGN_OR_RETURN(auto root, OpenOrMake(*mount, "store", 0700));
  const auto made = mount->Stat("store");
  if (made.ok() && (made->mode & 0077) != 0) {  // made by whoever mounted it
    const Status closed = mount->SetOwnerAndMode("store", made->uid, made->gid, 0700);
    if (!closed.ok()) logger.Warning("store/ stays open to others: {}", closed.error().message());
  }
  auto store = std::make_unique<RamStore>(std::move(mount), std::move(root), std::move(client),
                                          options, random, std::move(logger));
  TK_RETURN_IF_ERROR(store->MakeDirectories());
  TK_RETURN_IF_ERROR(store->ProbeMount());
  TK_RETURN_IF_ERROR(store->ReadStoreId());
  store->Sweep();
  store->LoadShards();
  store->CheckLinks();
  store->LoadGenerations();
  return std::unique_ptr<Store>(std::move(store));
}

Status RamStore::MakeDirectories() {
  for (const std::string_view name :
       {kStagedDir, kIncomingDir, kShardsDir, kGenerationsDir, kTrashDir}) {
    const Status made = root_->MakeDir(name, 0700);
    if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made;
  }
  return OkStatus();
}

Status RamStore::ProbeMount() {
  Status tried = tierkeep::ProbeMount(
      *mount_, {.in_client = fmt::format("client/.tierkeep-probe-{:016x}", RandomNumber()),
                .in_store = "store/" + TemporaryName("probe"),
                .linked = "store/" + TemporaryName("probe-link")});
  if (tried.ok() || tried.error().code() != Code::kResourceExhausted) return tried;
  // The job has used up every file of the mount. That says nothing about the mount, and the next
  // start of a job cleans.
  logger_.Warning("the mount isn't tried, since nothing can be made in it: {}",
                  tried.error().message());
  return OkStatus();
}

// Empty files only: they need no memory, so a full volume opens.
Status ProbeMount(Dir& mount, const MountProbe& probe) {
  Status tried = OkStatus();
  {
    auto made = mount.CreateFile(probe.in_client, 0600);
    if (!made.ok()) return WithRemedy(made.error());
  }
  tried = mount.RenameNew(probe.in_client, probe.in_store);
  if (tried.ok()) tried = mount.HardLink(probe.in_store, probe.in_client);
  if (tried.ok()) tried = mount.RenameNew(probe.in_client, probe.linked);
  for (const std::string* path : {&probe.in_client, &probe.in_store, &probe.linked}) {
    (void)mount.Unlink(*path);
  }
  if (!tried.ok()) return WithRemedy(tried.error());
  return OkStatus();
}

Status CheckStands(Dir& mount) {
  Status there = mount.CheckPath();
  if (!there.ok() && there.error().code() != Code::kAborted) return OkStatus();
  return there;
}

Status RamStore::ReadStoreId() {
  const auto bytes = root_->ReadSmallFile(kStoreIdName, 4096);
  if (bytes.ok()) {
    const auto id = DecodeRecord(RecordKind::kStoreId, *bytes);
    if (id.ok()) return OkStatus();
    AddUnreadable({{}, {}, fmt::format("store/{}: {}", kStoreIdName, id.error().message())});
    return OkStatus();
  }
  if (bytes.error().code() != Code::kNotFound) {
    AddUnreadable({{}, {}, fmt::format("store/{}: {}", kStoreIdName, bytes.error().message())});
    return OkStatus();
  }
  // No id: a new store. One that has shards all the same has lost it; they are read as always.
  std::string id(Id128::kSize, '\0');
  random_->Fill(id.data(), id.size());
  return root_->WriteFileAtomically(kStoreIdName, EncodeRecord(RecordKind::kStoreId, id), 0600);
}

void RamStore::Sweep() {
  for (const std::string_view part : {kIncomingDir, kTrashDir}) {
    const auto entries = root_->List(part);
    if (TK_MUTATION(kNeverSweep)) continue;
    if (!entries.ok()) {
      AddUnreadable({{}, {}, entries.error().message()});
      continue;
    }
    for (const DirEntry& entry : *entries) {
      if (TK_MUTATION(kAdoptFromIncoming)) {
        const std::string dir = JoinPath(part, entry.name);
        const auto manifest = root_->ReadSmallFile(JoinPath(dir, kShardManifestName), 1 << 20);
        if (manifest.ok() && root_->RenameNew(dir, ShardPath(ManifestDigest(*manifest))).ok()) {
          continue;
        }
      }
      const Status removed = root_->RemoveTree(JoinPath(part, entry.name));
      if (!removed.ok()) logger_.Error("left over in the store: {}", removed.error().message());
    }
  }
  // Made for a save, but killed before the rename that was to fill it.
  if (const auto entries = root_->List(kStagedDir); entries.ok()) {
    for (const DirEntry& entry : *entries) {
      (void)root_->RemoveDir(JoinPath(kStagedDir, entry.name));  // does nothing unless empty
    }
  }
}

void RamStore::LoadShards() {
  const auto entries = root_->List(kShardsDir);
  if (!entries.ok() && TK_MUTATION(kListingErrorIsEmpty)) return;
  if (!entries.ok()) {
    AddUnreadable({{}, {}, entries.error().message()});
    return;
  }
  for (const DirEntry& entry : *entries) LoadShard(entry.name);
}

// The directory's name is the digest of the manifest's bytes: whether they are those that were
// written is known without any record. What is missing or differs is lost; what a call failed to
// read, or a newer version wrote, isn't.
void RamStore::LoadShard(const std::string& name) {
  const std::string dir = JoinPath(kShardsDir, name);
  const auto digest = ParseShardDirName(name);
  const auto add = [&](std::string_view why, bool damaged) {
    const std::string path = fmt::format("store/{}", EscapeName(dir));
    AddUnreadable({digest, {}, fmt::format("{}: {}", path, why), damaged});
  };
  const auto failed = [&](const Error& e) { add(e.message(), e.code() == Code::kNotFound); };
  if (!digest) return add("no shard's name", false);
  auto bytes = root_->ReadSmallFile(JoinPath(dir, kShardManifestName), kManifestBytesMax);
  if (!bytes.ok()) return failed(bytes.error());
  if (ManifestDigest(*bytes) != *digest) {
    return add("its manifest isn't the one that it is named by", true);
  }
  auto decoded = DecodeNew(std::make_shared<const std::string>(std::move(*bytes)));
  if (!decoded.ok()) return add(decoded.error().message(), false);
  const auto data = root_->Stat(ShardDataPath(*digest));
  if (!data.ok()) return failed(data.error());
  const bool is_tree = decoded->manifest->entries.front().type == EntryType::kDirectory;
  if (data->type != (is_tree ? FileType::kDirectory : FileType::kFile)) {
    return add("its data is of another type than its manifest says", true);
  }
  Held held;
  held.shard = {*digest, decoded->manifest, decoded->encoded,
                VolumeDataName(*decoded->manifest, *digest), false};
  const auto state = root_->ReadSmallFile(ShardStatePath(*digest), 4096);
  if (state.ok()) {
    held.state = DecodeShardState(*state);
  } else if (state.error().code() != Code::kNotFound) {
    held.state = DecodeShardState({});
  }
  held.shard.suspect = held.state.suspect;
  const std::lock_guard lock(mutex_);
  shards_[*digest] = std::move(held);
}

// A crash may have come between a state and the rename that it announced.
void RamStore::CheckLinks() {
  const std::lock_guard trees(trees_);
  for (const Held& held : LinkedShards()) {
    if (IsIntact(held.shard)) continue;
    ShardState state = held.state;
    state.guarded = false;
    state.linked = HasOtherNames(held.shard);
    // Its names are somewhere else in the volume, or its flags went with the tree that had them:
    // nobody knows what was done to it.
    if (state.linked || held.state.guarded) state.suspect = true;
    const Status set = SetState(held.shard.digest, state);
    if (!set.ok()) {
      logger_.Error("shard {}: {}", held.shard.digest.Hex(), set.error().message());
      Distrust(held.shard.digest);
    }
  }
}

void RamStore::LoadGenerations() {
  const auto runs = root_->List(kGenerationsDir);
  if (!runs.ok() && TK_MUTATION(kListingErrorIsEmpty)) return;
  if (!runs.ok()) {
    AddUnreadable({.detail = runs.error().message(), .hides_records = true});
    return;
  }
  for (const DirEntry& run_entry : *runs) {
    const std::string dir = JoinPath(kGenerationsDir, run_entry.name);
    const auto run = ParseRunDirName(run_entry.name);
    const auto files = root_->List(dir);
    if (!run || !files.ok()) {
      AddUnreadable({.detail = fmt::format("store/{}: {}", EscapeName(dir),
                                           run ? files.error().message() : "no run's name"),
                     .hides_records = true});
      continue;
    }
    for (const DirEntry& file : *files) {
      if (IsAtomicWriteLeftover(file.name)) {
        (void)root_->Unlink(JoinPath(dir, file.name));
        continue;
      }
      const auto number = ParseGenerationFileName(file.name);
      const std::string path = fmt::format("store/{}", EscapeName(JoinPath(dir, file.name)));
      if (!number) {
        AddUnreadable({.detail = path + ": no generation's name", .hides_records = true});
        continue;
      }
      const GenerationId id{*run, *number};
      const Status loaded = LoadGeneration(id);
      if (!loaded.ok()) AddUnreadable({{}, id, path + ": " + loaded.error().message()});
    }
  }
}

Status RamStore::LoadGeneration(const GenerationId& id) {
  TK_ASSIGN_OR_RETURN(const std::string bytes,
                      root_->ReadSmallFile(GenerationPath(id), kFrameBytesMax));
  TK_ASSIGN_OR_RETURN(control::GenerationRecord record, DecodeGenerationRecord(bytes));
  if (GenerationIdOf(record) != id) {
    return Error(Code::kDataLoss, "it is the record of another generation");
  }
  const std::lock_guard lock(mutex_);
  generations_[id] = Shared(std::move(record));
  return OkStatus();
}

}  // namespace tierkeep
