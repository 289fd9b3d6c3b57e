#include "tiers/peer/chunk_index.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

Manifest SomeManifest() {
  Manifest manifest;
  const auto add = [&](std::vector<uint64_t> chunks) {
    ManifestEntry entry;
    for (const uint64_t bytes : chunks) {
      entry.chunks.push_back({.bytes = bytes, .digest = {}});
      entry.bytes += bytes;
    }
    manifest.entries.push_back(entry);
  };
  add({});
  add({5, 6, 7});
  add({});
  add({8});
  add({9, 10});
  add({});
  return manifest;
}

TEST(ChunkIndex, WalksFromEveryChunkOn) {
  const Manifest manifest = SomeManifest();
  const ChunkIndex index(manifest);
  ASSERT_EQ(index.count(), 6u);
  const std::vector<size_t> entries = {1, 1, 1, 3, 4, 4};
  const std::vector<uint64_t> offsets = {0, 5, 11, 0, 0, 9};
  const std::vector<uint64_t> sizes = {5, 6, 7, 8, 9, 10};
  const std::vector<uint64_t> files = {18, 18, 18, 8, 19, 19};
  for (size_t start = 0; start < 6; ++start) {
    ChunkIndex::Cursor cursor(index, start);
    for (size_t i = start; i < 6; ++i, cursor.Advance()) {
      EXPECT_EQ(cursor.place().entry, entries[i]);
      EXPECT_EQ(cursor.place().offset, offsets[i]);
      EXPECT_EQ(cursor.place().chunk->bytes, sizes[i]);
      EXPECT_EQ(cursor.place().file_bytes, files[i]);
    }
  }
}

TEST(ChunkIndex, AShardWithoutBytesHasNoChunk) {
  Manifest manifest;
  manifest.entries.resize(2);
  EXPECT_EQ(ChunkIndex(manifest).count(), 0u);
}

}  // namespace
}  // namespace tierkeep
