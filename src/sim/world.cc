#include "sim/world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tierkeep::sim {

constexpr size_t kTraceEventsMax = 100;
// A schedule takes 15,000 events on average, a large one a few 100,000: whatever takes so many goes
// round in circles.
constexpr uint64_t kEventsMax = 3'000'000;

Duration World::Between(Duration from, Duration to) {
  if (to <= from) return from;
  return from + Duration(prng_.Below(static_cast<uint64_t>((to - from).count()) + 1));
}

void World::At(Instant when, std::function<void()> work) {
  size_t place = works_.size();
  if (free_.empty()) {
    works_.push_back(std::move(work));
  } else {
    place = free_.back();
    free_.pop_back();
    works_[place] = std::move(work);
  }
  queue_.push_back({std::max(when, now_), next_order_++, place});
  std::push_heap(queue_.begin(), queue_.end(), IsLater);
}

bool World::RunUntil(Instant end, const std::function<bool()>& done) {
  while (!failed()) {
    if (done()) return true;
    if (queue_.empty() || queue_.front().at > end) {
      now_ = std::max(now_, end);
      return false;
    }
    std::pop_heap(queue_.begin(), queue_.end(), IsLater);
    const Event event = queue_.back();
    queue_.pop_back();
    const std::function<void()> work = std::exchange(works_[event.place], nullptr);
    free_.push_back(event.place);
    now_ = event.at;
    work();
    if (++events_ == kEventsMax) {
      Fail(Checker::kCircles,
           fmt::format("it goes round in circles: {} events, and no end", kEventsMax));
    }
  }
  return false;
}

void World::MixText(std::string_view text) {
  uint64_t word = text.size();
  for (const char c : text) word = (word ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  Mix(word);
}

void World::Keep(std::string text) {
  text = fmt::format("{:>12.6f}  {}", ToSeconds(now_.time_since_epoch()) - 1000, text);
  if (print_) fmt::print("{}\n", text);
  trace_.push_back(std::move(text));
  if (trace_.size() > kTraceEventsMax) trace_.pop_front();
}

void World::Count(std::string_view what, uint64_t n) {
  const auto it = counts_.find(what);
  if (it != counts_.end()) {
    it->second += n;
  } else {
    counts_.emplace(what, n);
  }
}

uint64_t World::count(std::string_view what) const {
  const auto it = counts_.find(what);
  return it == counts_.end() ? 0 : it->second;
}

void World::Fault(std::string_view kind) {
  Trace("fault: {}", kind);
  const auto it = faults_.find(kind);
  if (it != faults_.end()) {
    ++it->second;
  } else {
    faults_.emplace(kind, 1);
  }
  ++faults_total_;
}

void World::Fail(Checker checker, std::string why) {
  if (failed()) return;
  Trace("FAILED: {}", why);
  checker_ = checker;
  failure_ = std::move(why);
}

}  // namespace tierkeep::sim
