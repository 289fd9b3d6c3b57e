// Which chunk of a shard is fetched from whom: the plan behind replication, rebuild and restore.
//
// The plan deals contiguous ranges of chunks to whoever has a free connection, over all sources at
// once. A chunk is out with at most one request at a time, so no two connections ever write the
// same bytes, and a chunk that was verified is never asked for again. Ranges get smaller towards
// the end so that the connections finish together.
//
// Sources. A faster one gets more work. One that fails is left alone for a while, longer each time,
// and given up after `failures_max` failures with no chunk between them; one that doesn't have the
// shard, or sent bytes that differ from their digest, is given up at once. When nothing is left to
// deal and a request makes no progress, an idle connection may take its chunks over: the plan asks
// to cancel it first.
//
// Ends. Every step either deals a chunk, or waits for something that is out, or for a back-off to
// pass; failures without progress are bounded. So a transfer completes or is exhausted, whatever
// the sources do, provided that every request that was dealt is reported as ended.
//
// Pure: no I/O, no clock, one thread at a time; the same calls give the same plan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"

namespace tierkeep {

struct TransferPolicy {
  uint64_t request_bytes = 32u << 20;  // most asked for at once; a larger chunk is asked for alone
  uint64_t request_chunks_max = 65'536;  // most chunks asked for at once
  uint32_t streams = 4;                  // connections that will ask for work
  // Failures in a row after which a source is given up: with the back-off below about three
  // seconds, in which an agent that restarts is back.
  uint32_t failures_max = 6;
  Duration backoff_first = 100ms;  // doubled with each failure in a row
  Duration backoff_max = 2s;
  // A request is late when its next chunk took longer than this beyond four times what the best
  // other source would need.
  Duration late_after = 500ms;
  uint32_t late_max = 2;  // a source's requests are taken over at most so often
};

// What became of a source.
enum class SourceVerdict : uint8_t {
  kUsable,
  kMissing,  // it doesn't have the shard
  kFailing,  // couldn't be reached, or broke off, too often
  kCorrupt,  // sent bytes that differ from their digest
};

class TransferPlan {
 public:
  using RequestId = uint64_t;

  struct Request {
    RequestId id = 0;
    size_t source = 0;  // index into the sources
    uint64_t first = 0;
    uint64_t count = 0;
    uint64_t bytes = 0;
  };

  enum class Action : uint8_t {
    kRequest,    // fetch `request`, then report it ended
    kCancel,     // break off the request `request.id`, which will then be reported as cancelled
    kWait,       // ask again when something was reported, or at `until`
    kComplete,   // every chunk is done
    kExhausted,  // chunks are missing and no source is left; nothing is out
  };

  struct Step {
    Action action = Action::kWait;
    Request request;
    Instant until = Instant::max();
  };

  enum class Outcome : uint8_t {
    kServed,     // all its chunks were done
    kFailed,     // unreachable, broke off, stalled, answered an error
    kMissing,    // the source doesn't have the shard
    kCorrupt,    // a chunk's bytes differ from its digest, or the answer made no sense
    kCancelled,  // on the plan's demand or the caller's
  };

  // `chunk_bytes` in shard order, each > 0. Sources are known by index, best first.
  TransferPlan(std::vector<uint64_t> chunk_bytes, size_t sources, const TransferPolicy& policy);

  // The chunks are already here and verified. Only before the first Next.
  void MarkPresent(uint64_t first, uint64_t count);
  // Nothing may be asked of this source any more. What it has been asked for goes on.
  void GiveUp(size_t source, SourceVerdict why);

  // Work for a connection that is idle. `connected` is the source it already has a connection to:
  // it stays there unless another one is clearly better.
  Step Next(Instant now, std::optional<size_t> connected);

  // The next chunk of a request arrived and was verified; in order, each once.
  void ChunkDone(RequestId id, Instant now);
  // The last word on a request: what it didn't get is dealt again. kServed needs all its chunks
  // done.
  void Ended(RequestId id, Outcome outcome, Instant now);

  bool complete() const { return chunks_left_ == 0; }
  uint64_t bytes_left() const { return bytes_left_; }  // of chunks that aren't done
  size_t requests_out() const { return out_.size(); }
  SourceVerdict verdict(size_t source) const { return sources_[source].verdict; }

 private:
  struct Source {
    SourceVerdict verdict = SourceVerdict::kUsable;
    uint32_t failures = 0;  // in a row
    uint32_t late = 0;
    uint32_t out = 0;
    Instant not_before = Instant::min();
    uint64_t bytes_per_ms = 0;      // of one connection; 0: not measured yet
    RequestId failures_before = 0;  // requests dealt before this id failed together: counted once
  };
  struct Out {
    Request request;
    uint64_t next = 0;  // first chunk that isn't done
    Instant dealt;
    Instant progressed;
    bool cancelling = false;
  };

  void Return(uint64_t first, uint64_t end);
  std::optional<size_t> Choose(Instant now, std::optional<size_t> connected) const;
  Step Deal(size_t source, Instant now);
  Step TakeOverOrWait(Instant now);
  std::optional<Instant> LateAt(const Out& out) const;
  uint64_t RateForComparison(size_t source) const;
  void CountFailure(Source& source, RequestId id, Instant now);
  static void Measure(Source& source, uint64_t bytes, Duration took);

  std::vector<uint64_t> chunk_bytes_;
  TransferPolicy policy_;
  std::vector<Source> sources_;
  std::map<uint64_t, uint64_t> todo_;  // disjoint, not adjacent: first → end
  uint64_t todo_bytes_ = 0;
  std::map<RequestId, Out> out_;
  RequestId next_id_ = 1;
  uint64_t chunks_left_ = 0;
  uint64_t bytes_left_ = 0;
};

}  // namespace tierkeep
