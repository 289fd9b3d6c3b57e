#include "tiers/peer/chunk_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/escape_name.h"
#include "base/mutation.h"

namespace tierkeep {

ChunkIndex::ChunkIndex(const Manifest& manifest) : manifest_(&manifest) {
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    const auto& chunks = manifest.entries[i].chunks;
    if (chunks.empty()) continue;
    files_.push_back({.entry = i, .first = count_});
    count_ += chunks.size();
  }
}

ChunkIndex::Cursor::Cursor(const ChunkIndex& index, uint64_t chunk) : index_(&index) {
  TK_CHECK(chunk < index.count_);
  const auto after = std::upper_bound(index.files_.begin(), index.files_.end(), chunk,
                                      [](uint64_t c, const File& file) { return c < file.first; });
  file_ = static_cast<size_t>(std::distance(index.files_.begin(), after)) - 1;
  const File& file = index.files_[file_];
  const ManifestEntry& entry = index.manifest_->entries[file.entry];
  place_ = {.entry = file.entry, .chunk = &entry.chunks[0], .file_bytes = entry.bytes};
  while (file.first + chunk_ < chunk) Advance();
}

void ChunkIndex::Cursor::Advance() {
  const ManifestEntry& entry = index_->manifest_->entries[place_.entry];
  if (++chunk_ < entry.chunks.size()) {
    place_.offset += place_.chunk->bytes;
    place_.chunk = &entry.chunks[chunk_];
    return;
  }
  if (file_ + 1 == index_->files_.size()) return;  // stays past the end; not to be used
  ++file_;
  chunk_ = 0;
  const size_t next = index_->files_[file_].entry;
  const ManifestEntry& next_entry = index_->manifest_->entries[next];
  place_ = {.entry = next, .chunk = &next_entry.chunks[0], .file_bytes = next_entry.bytes};
}

Status CheckChunk(const Manifest& manifest, const ChunkPlace& place, const Xxh128& received) {
  if (received == place.chunk->digest || TK_MUTATION(kTakeWithoutDigest)) return OkStatus();
  TK_PROBE(kWrongBytesReceived);
  return Error(Code::kDataLoss,
               fmt::format("bytes of {} from offset {} differ from their digest",
                           EscapeName(manifest.entries[place.entry].path), place.offset));
}

}  // namespace tierkeep
