// From a chunk's number to its place in the shard's files.
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "format/manifest.h"

namespace tierkeep {

struct ChunkPlace {
  size_t entry = 0;     // index into manifest.entries
  uint64_t offset = 0;  // in the file
  const Chunk* chunk = nullptr;
  uint64_t file_bytes = 0;
};

// Borrows the manifest. Immutable: any thread.
class ChunkIndex {
 public:
  explicit ChunkIndex(const Manifest& manifest);

  uint64_t count() const { return count_; }

  // Walks chunks in order, from any one on. One thread.
  class Cursor {
   public:
    // `chunk` < count().
    Cursor(const ChunkIndex& index, uint64_t chunk);
    const ChunkPlace& place() const { return place_; }
    // To the next chunk; not beyond the last.
    void Advance();

   private:
    const ChunkIndex* index_;
    size_t file_ = 0;   // index into files_
    size_t chunk_ = 0;  // within the file
    ChunkPlace place_;
  };

 private:
  struct File {
    size_t entry;
    uint64_t first;  // number of its first chunk
  };
  const Manifest* manifest_;
  std::vector<File> files_;  // those with chunks, in order
  uint64_t count_ = 0;
};

// kDataLoss, naming the place, unless what was received has the digest that the manifest demands.
Status CheckChunk(const Manifest& manifest, const ChunkPlace& place, const Xxh128& received);

}  // namespace tierkeep
