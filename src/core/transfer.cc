#include "core/transfer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace tierkeep {

TransferPlan::TransferPlan(std::vector<uint64_t> chunk_bytes, size_t sources,
                           const TransferPolicy& policy)
    : chunk_bytes_(std::move(chunk_bytes)), policy_(policy), sources_(sources) {
  TK_CHECK(policy_.streams > 0 && policy_.failures_max > 0);
  TK_CHECK(policy_.request_bytes > 0 && policy_.request_chunks_max > 0);
  chunks_left_ = chunk_bytes_.size();
  for (const uint64_t bytes : chunk_bytes_) {
    TK_CHECK(bytes > 0);
    bytes_left_ += bytes;
  }
  if (!chunk_bytes_.empty()) todo_[0] = chunk_bytes_.size();
  todo_bytes_ = bytes_left_;
}

void TransferPlan::MarkPresent(uint64_t first, uint64_t count) {
  TK_CHECK(next_id_ == 1);
  const uint64_t end = first + count;
  TK_CHECK(first <= end && end <= chunk_bytes_.size());
  for (uint64_t at = first; at < end;) {
    auto it = todo_.upper_bound(at);
    if (it != todo_.begin() && std::prev(it)->second > at) --it;
    if (it == todo_.end() || it->first >= end) return;
    const auto [range_first, range_end] = *it;
    const uint64_t cut_first = std::max(range_first, first);
    const uint64_t cut_end = std::min(range_end, end);
    todo_.erase(it);
    if (range_first < cut_first) todo_[range_first] = cut_first;
    if (cut_end < range_end) todo_[cut_end] = range_end;
    for (uint64_t chunk = cut_first; chunk < cut_end; ++chunk) {
      todo_bytes_ -= chunk_bytes_[chunk];
      bytes_left_ -= chunk_bytes_[chunk];
      --chunks_left_;
    }
    at = cut_end;
  }
}

void TransferPlan::GiveUp(size_t source, SourceVerdict why) {
  Source& s = sources_[source];
  // The first reason stays, but wrong bytes outweigh all others.
  if (s.verdict == SourceVerdict::kUsable || why == SourceVerdict::kCorrupt) s.verdict = why;
}

TransferPlan::Step TransferPlan::Next(Instant now, std::optional<size_t> connected) {
  if (complete()) return {.action = Action::kComplete, .request = {}};
  if (todo_.empty()) return TakeOverOrWait(now);
  if (const auto source = Choose(now, connected)) return Deal(*source, now);

  Step wait;
  bool any_usable = false;
  for (const Source& source : sources_) {
    if (source.verdict != SourceVerdict::kUsable) continue;
    any_usable = true;
    wait.until = std::min(wait.until, source.not_before);
  }
  // What is out may still deliver, although its source isn't asked any more.
  if (!any_usable && out_.empty()) wait.action = Action::kExhausted;
  return wait;
}

uint64_t TransferPlan::RateForComparison(size_t source) const {
  if (sources_[source].bytes_per_ms > 0) return sources_[source].bytes_per_ms;
  // Not measured: taken to be as good as the best, so that it is tried.
  uint64_t best = 1;
  for (const Source& s : sources_) best = std::max(best, s.bytes_per_ms);
  return best;
}

std::optional<size_t> TransferPlan::Choose(Instant now, std::optional<size_t> connected) const {
  // Cost of one more request: how many would share the source over how fast it is. A new connection
  // must be worth a third more than the one that is there.
  constexpr uint64_t kStay = 3;
  constexpr uint64_t kMove = 4;
  std::optional<size_t> best;
  uint64_t best_shares = 0;
  uint64_t best_rate = 1;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& s = sources_[i];
    if (s.verdict != SourceVerdict::kUsable || s.not_before > now) continue;
    const uint64_t shares = (s.out + uint64_t{1}) * (connected == i ? kStay : kMove);
    const uint64_t rate = RateForComparison(i);
    // One that was late before is only the last choice.
    const bool better = !best || s.late < sources_[*best].late ||
                        (s.late == sources_[*best].late && shares * best_rate < best_shares * rate);
    if (better) {
      best = i;
      best_shares = shares;
      best_rate = rate;
    }
  }
  return best;
}

TransferPlan::Step TransferPlan::Deal(size_t source, Instant now) {
  const auto it = todo_.begin();
  const auto [range_first, range_end] = *it;
  // Half of an equal share: the connections then end within a small request of each other.
  const uint64_t share = std::max<uint64_t>(1, todo_bytes_ / (2 * uint64_t{policy_.streams}));
  const uint64_t bytes_max = std::min(policy_.request_bytes, share);
  Request request{.id = next_id_++, .source = source, .first = range_first};
  uint64_t end = range_first;
  while (end < range_end && request.count < policy_.request_chunks_max &&
         (request.count == 0 || request.bytes + chunk_bytes_[end] <= bytes_max)) {
    request.bytes += chunk_bytes_[end];
    ++request.count;
    ++end;
  }
  todo_.erase(it);
  if (end < range_end) todo_[end] = range_end;
  todo_bytes_ -= request.bytes;
  ++sources_[source].out;
  out_[request.id] =
      Out{.request = request, .next = request.first, .dealt = now, .progressed = now};
  return {.action = Action::kRequest, .request = request};
}

std::optional<Instant> TransferPlan::LateAt(const Out& out) const {
  if (out.cancelling || sources_[out.request.source].late >= policy_.late_max) return std::nullopt;
  uint64_t best_rate = 0;
  std::optional<Instant> other_ready;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& s = sources_[i];
    if (i == out.request.source || s.verdict != SourceVerdict::kUsable) continue;
    other_ready = other_ready ? std::min(*other_ready, s.not_before) : s.not_before;
    best_rate = std::max(best_rate, s.bytes_per_ms);
  }
  if (!other_ready) return std::nullopt;
  // Unmeasured: nothing is known about what the network can do, so be patient.
  const Duration fair = best_rate == 0
                            ? 4 * policy_.late_after
                            : std::chrono::milliseconds(4 * chunk_bytes_[out.next] / best_rate);
  return std::max(out.progressed + policy_.late_after + fair, *other_ready);
}

TransferPlan::Step TransferPlan::TakeOverOrWait(Instant now) {
  Step wait;
  for (auto& [id, out] : out_) {
    if (out.next == out.request.first + out.request.count) continue;  // about to be reported
    const auto late_at = LateAt(out);
    if (!late_at) continue;
    if (*late_at <= now) {
      out.cancelling = true;
      ++sources_[out.request.source].late;
      return {.action = Action::kCancel, .request = out.request};
    }
    wait.until = std::min(wait.until, *late_at);
  }
  return wait;
}

void TransferPlan::ChunkDone(RequestId id, Instant now) {
  const auto it = out_.find(id);
  TK_CHECK(it != out_.end());
  Out& out = it->second;
  TK_CHECK(out.next < out.request.first + out.request.count);
  bytes_left_ -= chunk_bytes_[out.next];
  --chunks_left_;
  ++out.next;
  out.progressed = now;
  sources_[out.request.source].failures = 0;
}

void TransferPlan::Measure(Source& source, uint64_t bytes, Duration took) {
  // Little requests say more about the scheduler than about the source.
  constexpr uint64_t kBytesMin = 256u << 10;
  if (bytes < kBytesMin) return;
  const auto ms = std::max<int64_t>(1, ToMillis(took));
  const uint64_t rate = std::max<uint64_t>(1, bytes / static_cast<uint64_t>(ms));
  source.bytes_per_ms =
      source.bytes_per_ms == 0 ? rate : std::max<uint64_t>(1, (3 * source.bytes_per_ms + rate) / 4);
}

void TransferPlan::CountFailure(Source& source, RequestId id, Instant now) {
  // When a source goes away all its requests fail; that is one failure, not one a connection.
  if (id < source.failures_before) return;
  source.failures_before = next_id_;
  ++source.failures;
  if (source.failures >= policy_.failures_max) {
    if (source.verdict == SourceVerdict::kUsable) source.verdict = SourceVerdict::kFailing;
    return;
  }
  Duration backoff = policy_.backoff_first;
  for (uint32_t i = 1; i < source.failures && backoff < policy_.backoff_max; ++i) backoff *= 2;
  source.not_before = now + std::min(backoff, policy_.backoff_max);
}

void TransferPlan::Ended(RequestId id, Outcome outcome, Instant now) {
  const auto it = out_.find(id);
  TK_CHECK(it != out_.end());
  const Out out = it->second;
  out_.erase(it);
  Source& source = sources_[out.request.source];
  --source.out;
  const uint64_t end = out.request.first + out.request.count;
  uint64_t got = out.request.bytes;
  for (uint64_t chunk = out.next; chunk < end; ++chunk) got -= chunk_bytes_[chunk];
  Measure(source, got, now - out.dealt);
  TK_CHECK(outcome != Outcome::kServed || out.next == end);
  Return(out.next, end);
  switch (outcome) {
    case Outcome::kServed:
    case Outcome::kCancelled:
      break;
    case Outcome::kFailed:
      CountFailure(source, id, now);
      break;
    case Outcome::kMissing:
      GiveUp(out.request.source, SourceVerdict::kMissing);
      break;
    case Outcome::kCorrupt:
      GiveUp(out.request.source, SourceVerdict::kCorrupt);
      break;
  }
}

void TransferPlan::Return(uint64_t first, uint64_t end) {
  if (first == end) return;
  for (uint64_t chunk = first; chunk < end; ++chunk) todo_bytes_ += chunk_bytes_[chunk];
  auto after = todo_.lower_bound(first);
  if (after != todo_.end() && after->first == end) {
    end = after->second;
    after = todo_.erase(after);
  }
  if (after != todo_.begin() && std::prev(after)->second == first) {
    std::prev(after)->second = end;
  } else {
    todo_[first] = end;
  }
}

}  // namespace tierkeep
