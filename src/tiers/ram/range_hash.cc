#include "tiers/ram/range_hash.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "base/log.h"
#include "format/manifest.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep {
namespace {

// A run of ranges for one thread: about as much as a usual chunk, so that the threads end together,
// and not too many files, so that cancelling is prompt.
struct Run {
  size_t begin = 0;
  size_t end = 0;
};

std::vector<Run> CutRuns(std::span<const HashRange> ranges) {
  constexpr size_t kRangesMax = 512;
  std::vector<Run> runs;
  uint64_t bytes = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (runs.empty() || bytes + ranges[i].bytes > kChunkBytes ||
        i - runs.back().begin >= kRangesMax) {
      runs.push_back({i, i});
      bytes = 0;
    }
    bytes += ranges[i].bytes;
    runs.back().end = i + 1;
  }
  return runs;
}

// Page-aligned: the kernel copies into memory that malloc aligned, to 16 bytes, a third slower.
constexpr std::align_val_t kBufferAlignment{4096};
struct FreeBuffer {
  void operator()(std::byte* buffer) const { ::operator delete[](buffer, kBufferAlignment); }
};
using Buffer = std::unique_ptr<std::byte[], FreeBuffer>;

// Buffers that finished runs hand to the next ones: getting fresh memory for each would cost a page
// fault every 4 KiB.
class Buffers {
 public:
  Buffer Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
    }
    return Buffer(new (kBufferAlignment) std::byte[kHashBufferBytes]);
  }
  void Give(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

class FirstError {
 public:
  void Set(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    failed_.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  Status Get() {
    const std::lock_guard lock(mutex_);
    return error_ ? Status(*error_) : OkStatus();
  }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::optional<Error> error_;
};

Status HashRun(Dir& dir, const std::string& root, std::span<HashRange> run, MutableByteSpan buffer,
               const FirstError& others, const std::atomic<bool>* cancelled) {
  Xxh128Hasher hasher;
  std::unique_ptr<File> file;
  const std::string* opened = nullptr;
  for (HashRange& range : run) {
    if (others.failed()) return OkStatus();
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
      return Error(Code::kCancelled, "hashing was cancelled");
    }
    if (opened == nullptr || (opened != range.path && *opened != *range.path)) {
      TK_ASSIGN_OR_RETURN(file, dir.OpenFile(JoinPath(root, *range.path)));
      opened = range.path;
    }
    hasher.Reset();
    for (uint64_t done = 0; done < range.bytes;) {
      const auto piece =
          buffer.first(static_cast<size_t>(std::min<uint64_t>(buffer.size(), range.bytes - done)));
      TK_RETURN_IF_ERROR(file->ReadExactly(range.offset + done, piece));
      hasher.Update(piece);
      done += piece.size();
    }
    range.digest = hasher.Finish();
  }
  return OkStatus();
}

}  // namespace

Status HashRanges(Dir& dir, const std::string& root, WorkerPool* pool, std::span<HashRange> ranges,
                  const std::atomic<bool>* cancelled) {
  const std::vector<Run> runs = CutRuns(ranges);
  Buffers buffers;
  FirstError error;
  const auto body = [&](size_t i) {
    if (error.failed()) return;
    auto buffer = buffers.Take();
    const Status status =
        HashRun(dir, root, ranges.subspan(runs[i].begin, runs[i].end - runs[i].begin),
                MutableByteSpan(buffer.get(), kHashBufferBytes), error, cancelled);
    if (!status.ok()) error.Set(status.error());
    buffers.Give(std::move(buffer));
  };
  if (pool == nullptr) {
    for (size_t i = 0; i < runs.size(); ++i) body(i);
  } else {
    pool->ParallelFor(runs.size(), body);
  }
  return error.Get();
}

}  // namespace tierkeep
