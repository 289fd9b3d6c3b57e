// The agent's own directory beside the volume: shards, their manifests and state, generations.
// Layout and durability: docs/formats.md, "Store". Everything here lives in RAM (tmpfs): it
// survives crashes of the job and the agent, not of the machine.
//
// A shard exists when shards/<digest>/manifest decodes, its BLAKE3 is <digest>, and data/ is there.
// The manifest is the last thing written, by a rename of the whole shard directory.
//
// Threads: any, on the same object.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/log.h"
#include "base/result.h"
#include "format/control_fwd.h"
#include "format/manifest.h"
#include "io/clock.h"
#include "io/file_system.h"
#include "tiers/worker_pool.h"

namespace tierkeep {

// A shard held here. Immutable but for `suspect`.
struct HeldShard {
  Blake3 digest;
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const std::string> encoded;  // the manifest's bytes, to serve
  std::string volume_name;                     // H
  bool suspect = false;                        // may have been changed since it was verified
};

struct StoreOptions {
  // Verify spreads its chunks over this pool; null: the calling thread alone.
  WorkerPool* pool = nullptr;
};

// Something in the store that is there but can't be read or decoded (control.proto, Unreadable).
struct UnreadableItem {
  std::optional<Blake3> digest;            // a shard's, from its path
  std::optional<GenerationId> generation;  // a generation record's, from its path
  std::string detail;                      // path and error
  // Proven: what stands there isn't what was written, so the copy is lost. Otherwise another try
  // may read it.
  bool damaged = false;
  bool hides_records = false;  // a listing of generation records: which ones isn't known
};

struct VerifyResult {
  bool ok = false;
  uint64_t bytes = 0;
  std::string problem;  // which entry and chunk differ, or which call failed
  bool unread = false;  // a call failed: whether the bytes are good isn't known
};

// A shard being received. Destroying it without Finish removes what was written.
// Threads: Target and Write from several at once, then Finish from one.
class IncomingShard {
 public:
  virtual ~IncomingShard() = default;
  virtual const Manifest& manifest() const = 0;
  virtual const Blake3& digest() const = 0;
  // A writable map of the file entry's bytes (whole file, pre-sized before filling, so that huge
  // pages can back it); index into manifest().entries. Mapped once, kept until Finish.
  virtual Result<MutableByteSpan> Target(size_t entry) = 0;
  // Copies bytes into a file entry; the caller uses it for small files, so that a shard with very
  // many of them needs no map each (the kernel's vm.max_map_count is 65530 by default).
  virtual Status Write(size_t entry, uint64_t offset, ByteSpan data) {
    TK_ASSIGN_OR_RETURN(const MutableByteSpan target, Target(entry));
    if (offset > target.size() || data.size() > target.size() - offset) {
      return Error(Code::kOutOfRange, "write beyond the end of an incoming file");
    }
    std::copy(data.begin(), data.end(), target.begin() + static_cast<ptrdiff_t>(offset));
    return OkStatus();
  }
  // All chunks were written into their targets and each was verified by the caller against the
  // manifest: sets modes, owners and links, writes the manifest, renames into shards/, and drops
  // every map. After it the shard is held (kAlreadyExists counts as held if that copy is good).
  virtual Status Finish() = 0;
};

class Store {
 public:
  // `mount` holds client/ and store/ (made when absent). Fails with the remedy when rename from
  // client/ to store/ or hard links don't work (two mounts, or no rights). Sweeps incoming/,
  // reads all shards and generations; what can't be read is listed in unreadable(), not dropped.
  static Result<std::unique_ptr<Store>> Open(std::shared_ptr<Dir> mount,
                                             const StoreOptions& options, RandomSource* random,
                                             Logger logger);
  virtual ~Store() = default;

  virtual std::vector<HeldShard> Shards() const = 0;  // sorted by digest
  virtual std::optional<HeldShard> Find(const Blake3& digest) const = 0;
  virtual std::vector<UnreadableItem> unreadable() const = 0;
  virtual uint64_t held_bytes() const = 0;

  // Takes over the finished tree staged/<staged_name>/data (hashed by the stager, its manifest
  // given) as a shard. On success the staged directory is gone. Returns the shard's digest.
  virtual Result<Blake3> Adopt(std::string_view staged_name, const Manifest& manifest) = 0;
  virtual Result<std::unique_ptr<IncomingShard>> StartIncoming(
      const std::string& encoded_manifest) = 0;

  // Re-reads every byte and compares with the manifest, also the tree's shape (no missing, extra
  // or retyped entry). A good copy loses `suspect` unless it is linked and can't be protected; one
  // that couldn't be read has it until it was.
  // `cancelled` is read between chunks.
  virtual VerifyResult Verify(const Blake3& digest, const std::atomic<bool>* cancelled) = 0;
  // A file of the shard, to serve its bytes; index into manifest.entries.
  virtual Result<std::unique_ptr<File>> OpenEntry(const Blake3& digest, size_t entry) = 0;

  // Puts the shard into the volume as client/<H>.data: a tree of hard links built inside the store,
  // made immutable where possible (else the copy becomes durably suspect first), checked for
  // writers, then renamed in as a whole. An H.data already there is replaced. The bytes must have
  // been verified just before.
  virtual Status LinkIntoVolume(const Blake3& digest) = 0;
  // Removes the H.data tree from the volume. The copy is marked suspect first when flags have to be
  // cleared on inodes that it shares.
  virtual Status UnlinkFromVolume(std::string_view h) = 0;

  virtual Status Delete(const Blake3& digest) = 0;  // absent is fine; unlinks it first
  // Names below staged/.
  virtual Result<std::vector<std::string>> Staged() const = 0;
  virtual Status DeleteStaged(std::string_view name) = 0;

  virtual Status WriteGeneration(SharedRecord record) = 0;
  virtual std::vector<SharedRecord> Generations() const = 0;
  virtual Status DeleteGeneration(const control::GenerationRecord& record) = 0;
  virtual Result<SpaceInfo> Space() = 0;

  // For the stager and the volume.
  virtual Dir& root() = 0;    // <mount>/store
  virtual Dir& client() = 0;  // <mount>/client
  virtual Dir& mount() = 0;   // for renames between the two, as "client/…" and "store/…"
  // A fresh name below incoming/, from root(): whatever is made there is swept at the next start.
  virtual std::string TemporaryName(std::string_view ending) = 0;
  // Removes entries at the top of the volume, whatever they are: out of sight by a rename, then
  // piece by piece. Absent ones are fine. An H.data goes the way of UnlinkFromVolume.
  virtual Status RemoveFromVolume(const std::vector<std::string>& names) = 0;
};

// Tries what every save and every restore will need of `mount`, so that a wrong mount shows at
// start and not when the first checkpoint is there: a rename from client/ to store/ and hard links
// between them. The names are removed again. Errors name the remedy.
struct MountProbe {
  std::string in_client;  // "client/…"
  std::string in_store;   // "store/…"
  std::string linked;     // "store/…", too
};
Status ProbeMount(Dir& mount, const MountProbe& probe);

// Whether what is in `mount` stands where others see it: if it doesn't, good bytes in it are no
// copy, and the error says what is there instead. Where the look itself fails nothing is known,
// least of all a loss. Threads: any.
Status CheckStands(Dir& mount);

}  // namespace tierkeep
