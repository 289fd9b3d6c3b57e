#include "tiers/peer/shard_copy.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tiers/peer/chunk_index.h"
#include "tiers/peer/data_connection.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

constexpr Duration kConnectDeadline = 3s;
// A peer sends at most so much for one request.
constexpr uint64_t kRequestBytes = 32u << 20;

// Gives a shard's chunks in their order.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual Result<std::string> EncodedManifest() = 0;
  // `number` counts all chunks; each is asked for once, in order.
  virtual Status Read(uint64_t number, const ChunkPlace& place, MutableByteSpan out) = 0;
};

class StoreSource : public ChunkSource {
 public:
  StoreSource(Store* store, const Blake3& digest) : store_(store), digest_(digest) {}

  Result<std::string> EncodedManifest() override {
    const auto held = store_->Find(digest_);
    if (!held) return Error(Code::kNotFound, "it isn't held here");
    return *held->encoded;
  }

  Status Read(uint64_t, const ChunkPlace& place, MutableByteSpan out) override {
    if (!file_ || entry_ != place.entry) {
      TK_ASSIGN_OR_RETURN(file_, store_->OpenEntry(digest_, place.entry));
      entry_ = place.entry;
    }
    return file_->ReadExactly(place.offset, out);
  }

 private:
  Store* const store_;
  const Blake3 digest_;
  size_t entry_ = 0;
  std::unique_ptr<File> file_;
};

class PeerSource : public ChunkSource {
 public:
  PeerSource(const ShardCopyRequest& request, const PullSource& peer)
      : request_(request), peer_(peer) {}

  Result<std::string> EncodedManifest() override {
    StreamOptions options;
    options.tls = request_.port.tls;
    options.connect_deadline = kConnectDeadline;
    options.stall_limit = request_.port.stall_limit;
    options.socket_buffer_bytes = kDataSocketBufferBytes;
    TK_ASSIGN_OR_RETURN(connection_, DataConnection::Open(peer_.address, peer_.token, options));
    TK_ASSIGN_OR_RETURN(std::string encoded, connection_->FetchManifest(request_.digest));
    TK_ASSIGN_OR_RETURN(const Manifest manifest, DecodeManifest(encoded));
    for (const ManifestEntry& entry : manifest.entries) {
      for (const Chunk& chunk : entry.chunks) chunk_bytes_.push_back(chunk.bytes);
    }
    return encoded;
  }

  Status Read(uint64_t number, const ChunkPlace&, MutableByteSpan out) override {
    if (number == asked_until_) {
      uint64_t bytes = 0;
      uint64_t until = number;
      do {
        bytes += chunk_bytes_[until++];
      } while (until < chunk_bytes_.size() && bytes + chunk_bytes_[until] <= kRequestBytes);
      TK_RETURN_IF_ERROR(
          connection_->RequestChunks(request_.digest, number, until - number, bytes));
      asked_until_ = until;
    }
    return connection_->Read(out);
  }

 private:
  const ShardCopyRequest& request_;
  const PullSource& peer_;
  std::unique_ptr<DataConnection> connection_;
  std::vector<uint64_t> chunk_bytes_;
  uint64_t asked_until_ = 0;
};

Status MakeEntry(Dir& dir, const std::string& path, const ManifestEntry& entry) {
  switch (entry.type) {
    case EntryType::kDirectory:
      return dir.MakeDir(path, 0700);
    case EntryType::kSymlink:
      return dir.MakeSymlink(entry.link_target, path);
    case EntryType::kFile: {
      TK_ASSIGN_OR_RETURN(const auto file, dir.CreateFile(path, 0600));
      return OkStatus();
    }
  }
  return Error(Code::kInternal, "an entry of no known type");
}

Status WriteChunks(const ShardCopyRequest& request, const Manifest& manifest, ChunkSource& source) {
  const ChunkIndex index(manifest);
  if (index.count() == 0) return OkStatus();
  std::vector<std::byte> buffer;
  std::unique_ptr<File> file;
  ChunkIndex::Cursor cursor(index, 0);
  for (uint64_t number = 0; number < index.count(); ++number) {
    if (request.cancelled != nullptr && request.cancelled->load()) {
      return Error(Code::kCancelled, "the agent stops");
    }
    if (number > 0) cursor.Advance();
    const ChunkPlace& place = cursor.place();
    const std::string& name = manifest.entries[place.entry].path;
    buffer.resize(place.chunk->bytes);
    TK_RETURN_IF_ERROR(source.Read(number, place, buffer));
    if (ComputeXxh128(buffer) != place.chunk->digest) {
      return Error(Code::kDataLoss,
                   fmt::format("bytes of {} from offset {} differ from their digest",
                               EscapeForLog(name), place.offset));
    }
    if (place.offset == 0) {
      TK_ASSIGN_OR_RETURN(file, request.target->OpenFileReadWrite(JoinPath(request.path, name)));
    }
    TK_RETURN_IF_ERROR(file->WriteAll(place.offset, buffer));
    if (place.offset + place.chunk->bytes == place.file_bytes) TK_RETURN_IF_ERROR(file->Sync());
  }
  return OkStatus();
}

// Owners and modes last, what is deepest first: a directory may not be writable.
Status Finish(const ShardCopyRequest& request, const Manifest& manifest) {
  const bool root = ::geteuid() == 0;
  for (auto entry = manifest.entries.rbegin(); entry != manifest.entries.rend(); ++entry) {
    if (entry->type == EntryType::kSymlink) continue;
    const std::string path = JoinPath(request.path, entry->path);
    if (entry->type == EntryType::kDirectory) TK_RETURN_IF_ERROR(request.target->SyncDir(path));
    TK_RETURN_IF_ERROR(request.target->SetOwnerAndMode(
        path, root ? entry->uid : ::geteuid(), root ? entry->gid : ::getegid(), entry->mode));
  }
  return OkStatus();
}

Result<std::shared_ptr<const Manifest>> CopyFrom(const ShardCopyRequest& request,
                                                 ChunkSource& source) {
  TK_ASSIGN_OR_RETURN(const std::string encoded, source.EncodedManifest());
  if (ManifestDigest(encoded) != request.digest) {
    return Error(Code::kDataLoss, "the manifest differs from its digest");
  }
  TK_ASSIGN_OR_RETURN(Manifest decoded, DecodeManifest(encoded));
  auto manifest = std::make_shared<const Manifest>(std::move(decoded));
  for (const ManifestEntry& entry : manifest->entries) {
    TK_RETURN_IF_ERROR(MakeEntry(*request.target, JoinPath(request.path, entry.path), entry));
  }
  TK_RETURN_IF_ERROR(WriteChunks(request, *manifest, source));
  TK_RETURN_IF_ERROR(Finish(request, *manifest));
  return manifest;
}

}  // namespace

Result<ShardCopy> CopyShard(const ShardCopyRequest& request) {
  std::string tried;
  Code worst = Code::kNotFound;
  for (size_t i = 0; i <= request.sources.size(); ++i) {
    const std::string from = i == 0 ? "" : request.sources[i - 1].node;
    std::unique_ptr<ChunkSource> source;
    if (i == 0) {
      source = std::make_unique<StoreSource>(request.store, request.digest);
    } else {
      source = std::make_unique<PeerSource>(request, request.sources[i - 1]);
    }
    auto manifest = CopyFrom(request, *source);
    if (manifest.ok()) return ShardCopy{std::move(*manifest), from};
    const Error& error = manifest.error();
    tried +=
        fmt::format("; {}: {}", from.empty() ? "this node" : EscapeForLog(from), error.ToString());
    TK_RETURN_IF_ERROR(request.target->RemoveTree(request.path));
    const bool ours = error.code() == Code::kResourceExhausted || error.code() == Code::kCancelled;
    if (error.code() != Code::kNotFound) worst = error.code();
    if (ours) break;  // no other source helps
  }
  return Error(worst, fmt::format("shard {} can't be had{}", request.digest.Hex(), tried));
}

}  // namespace tierkeep
