// The Store over a Dir. Split over several files by what a method is about: ram_store_open.cc
// (start), ram_store.cc (shards, state, generations), ram_store_links.cc (the volume), and
// incoming_shard.cc.
//
// Locks: `trees_` is held while directories are moved between the store's parts and the volume, or
// a shard's state changes; `mutex_` guards the tables and is taken inside it. Bytes are read,
// written and removed under neither.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control.pb.h"
#include "tiers/ram/shard_state.h"
#include "tiers/ram/store.h"

namespace tierkeep {

// Trees on their way out; emptied at start.
inline constexpr std::string_view kTrashDir = "trash";

class RamStore : public Store {
 public:
  RamStore(std::shared_ptr<Dir> mount, std::unique_ptr<Dir> root, std::unique_ptr<Dir> client,
           const StoreOptions& options, RandomSource* random, Logger logger);

  // ---- start (ram_store_open.cc); each once, in this order
  Status MakeDirectories();
  Status ProbeMount();
  Status ReadStoreId();
  void Sweep();
  void LoadShards();
  void CheckLinks();
  void LoadGenerations();

  // ---- Store
  std::vector<HeldShard> Shards() const override;
  std::optional<HeldShard> Find(const Blake3& digest) const override;
  std::vector<UnreadableItem> unreadable() const override;
  uint64_t held_bytes() const override;
  Result<Blake3> Adopt(std::string_view staged_name, const Manifest& manifest) override;
  Result<std::unique_ptr<IncomingShard>> StartIncoming(
      const std::string& encoded_manifest) override;
  VerifyResult Verify(const Blake3& digest, const std::atomic<bool>* cancelled) override;
  Result<std::unique_ptr<File>> OpenEntry(const Blake3& digest, size_t entry) override;
  Status LinkIntoVolume(const Blake3& digest) override;
  Status UnlinkFromVolume(std::string_view h) override;
  Status Delete(const Blake3& digest) override;
  Result<std::vector<std::string>> Staged() const override;
  Status DeleteStaged(std::string_view name) override;
  Status WriteGeneration(SharedRecord record) override;
  std::vector<SharedRecord> Generations() const override;
  Status DeleteGeneration(const control::GenerationRecord& record) override;
  Result<SpaceInfo> Space() override { return root_->Space(); }
  Dir& root() override { return *root_; }
  Dir& client() override { return *client_; }
  Dir& mount() override { return *mount_; }
  std::string TemporaryName(std::string_view ending) override;
  Status RemoveFromVolume(const std::vector<std::string>& names) override;

  // ---- for IncomingShard
  struct NewShard {
    Blake3 digest;
    std::shared_ptr<const Manifest> manifest;
    std::shared_ptr<const std::string> encoded;
  };
  static Result<NewShard> DecodeNew(std::shared_ptr<const std::string> encoded);
  // Turns the complete directory `dir` (data and manifest) into the shard. One that is already
  // there stays if it verifies, and `dir` goes; else it is replaced, in the volume too.
  Status Install(const std::string& dir, const NewShard& shard);
  const Logger& logger() const { return logger_; }
  uint64_t RandomNumber();

 private:
  struct Held {
    HeldShard shard;
    ShardState state;
    // Times it became suspect: a verification clears only what was there when it began.
    uint64_t distrusts = 0;
  };

  std::optional<Held> FindHeld(const Blake3& digest) const;
  std::vector<Held> LinkedShards() const;
  void LoadShard(const std::string& name);
  Status LoadGeneration(const GenerationId& id);
  void AddUnreadable(UnreadableItem item);
  void ForgetUnreadable(const Blake3& digest);

  // With trees_ held. The new state is durable on return, or the old one stands.
  Status SetState(const Blake3& digest, const ShardState& state);
  Status WriteState(const Blake3& digest, const ShardState& state);
  void Distrust(const Blake3& digest);
  void Trust(const Blake3& digest);
  VerifyResult CheckBytes(const Held& held, const std::atomic<bool>* cancelled, bool* other_names,
                          bool* damaged);

  // Moves `path` (from the mount) into the trash: out of sight at once. The path there, from the
  // store, or "" when there was nothing.
  Result<std::string> MoveToTrash(const std::string& path);
  // With trees_ held: takes the shard out of the tables and of sight; what is left to remove.
  enum class Shown : uint8_t { kGoes, kStays };  // its tree in the volume
  Result<std::vector<std::string>> TakeOut(const Blake3& digest, Shown shown);
  Status RemoveTrees(const std::vector<std::string>& paths);

  // With trees_ held.
  Status Link(const Held& held);  // in place of whatever stands there
  Status LinkTree(const Held& held, const std::string& tree);
  Status LinkSingleFile(const Held& held, const std::string& tree);
  Result<std::string> TakeFromVolume(const std::string& name);  // what is left to remove
  Status BuildLinks(const HeldShard& shard, const std::string& tree);
  Status LinkFile(const std::string& from, const std::string& to);
  Result<bool> Guard(const HeldShard& shard, const std::string& tree);
  Status SetDirectoryModes(const HeldShard& shard, const std::string& tree);
  Status PutIntoVolume(const std::string& tree, const std::string& name);
  Result<std::string> Unlink(std::string_view h);  // what is left to remove
  bool IsIntact(const HeldShard& shard);
  bool IsShown(const HeldShard& shard, bool replaced);
  std::vector<std::string> TreesOfNobodyBut(const Blake3& digest);
  bool SharesItsName(const HeldShard& shard);
  bool HasOtherNames(const HeldShard& shard);
  // Shards whose H.data was taken apart by the job lose their guard's word before trees of unknown
  // making are removed, since that clears flags for an instant.
  Status DistrustMovedLinks();
  Status Remove(const std::string& name, const std::string& trash, size_t number);

  const std::shared_ptr<Dir> mount_;
  const std::unique_ptr<Dir> root_;
  const std::unique_ptr<Dir> client_;
  const StoreOptions options_;
  RandomSource* const random_;
  const Logger logger_;

  std::mutex trees_;
  mutable std::mutex mutex_;
  std::map<Blake3, Held> shards_;
  std::map<GenerationId, SharedRecord> generations_;
  std::vector<UnreadableItem> unreadable_;
};

}  // namespace tierkeep
