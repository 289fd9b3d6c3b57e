// A shard that is being received: incoming/<unit>.<nonce>/{data,manifest} until it is complete.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tiers/ram/ram_store.h"

namespace tierkeep {

class RamIncomingShard : public IncomingShard {
 public:
  // Makes the directories. `store` must outlive it. kResourceExhausted: no room for the shard.
  static Result<std::unique_ptr<IncomingShard>> Start(RamStore* store, RamStore::NewShard shard);
  RamIncomingShard(RamStore* store, RamStore::NewShard shard, std::string dir);
  ~RamIncomingShard() override;

  const Manifest& manifest() const override { return *shard_.manifest; }
  const Blake3& digest() const override { return shard_.digest; }
  Result<MutableByteSpan> Target(size_t entry) override;
  Status Write(size_t entry, uint64_t offset, ByteSpan data) override;
  Status Finish() override;

 private:
  struct Slot {
    bool made = false;  // the file is there, in its full size
    std::unique_ptr<Mapping> map;
  };

  Status MakeDirectories();
  Status WriteManifest();
  Status CheckEntry(size_t entry) const;
  std::mutex& LockOf(size_t entry) { return locks_[entry % locks_.size()]; }
  std::string PathOf(size_t entry) const;
  Result<std::unique_ptr<File>> Make(size_t entry);
  Status MakeRest();
  Status SetOwnersAndModes();

  RamStore* const store_;
  const RamStore::NewShard shard_;
  const std::string dir_;
  const std::string data_;
  std::vector<Slot> slots_;  // by entry; each under LockOf
  std::array<std::mutex, 16> locks_;
  bool finished_ = false;
};

}  // namespace tierkeep
