// Simulated time: a queue of events on one thread, one seed, a trace.
//
// Everything that happens is an event at an instant; events of one instant run in the order in
// which they were planned. All chance comes from `prng`, so a seed is a schedule: the same seed
// gives the same events, which the trace's hash proves.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "base/time.h"
#include "sim/checkers.h"

namespace tierkeep::sim {

class World {
 public:
  // `keep_trace`: texts of the last events are kept, which costs time; the hash is the same.
  World(uint64_t seed, bool keep_trace) : prng_(seed), keep_trace_(keep_trace) {}

  Instant now() const { return now_; }
  Prng& prng() { return prng_; }
  // Uniform in [from, to].
  Duration Between(Duration from, Duration to);
  bool Chance(uint32_t per_million) { return prng_.Below(1'000'000) < per_million; }

  void At(Instant when, std::function<void()> work);
  void After(Duration delay, std::function<void()> work) { At(now_ + delay, std::move(work)); }
  // Runs events until `done`, at most up to `end`. False: the end came first, or the run failed.
  bool RunUntil(Instant end, const std::function<bool()>& done);

  // One line of the trace. All arguments count for the hash; the text is made only when kept.
  template <typename... Args>
  void Trace(fmt::format_string<const Args&...> text, const Args&... args) {
    Mix(static_cast<uint64_t>(now_.time_since_epoch().count()));
    (Mix(args), ...);
    if (keep_trace_) Keep(fmt::format(text, args...));
  }
  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& trace() const { return trace_; }
  bool keeps_trace() const { return keep_trace_; }
  void set_print(bool print) { print_ = print; }

  // Counts for the report: faults by kind, and what was reached.
  void Count(std::string_view what, uint64_t n = 1);
  uint64_t count(std::string_view what) const;
  const std::map<std::string, uint64_t, std::less<>>& counts() const { return counts_; }
  // A fault that was put in: it happened, from now on it may explain what the agents say.
  void Fault(std::string_view kind);
  bool HadFault(std::string_view kind) const { return faults_.contains(kind); }
  const std::map<std::string, uint64_t, std::less<>>& faults() const { return faults_; }
  uint64_t faults_total() const { return faults_total_; }

  // A promise is broken. The first one ends the run.
  void Fail(Checker checker, std::string why);
  // What a scenario demands beside all others.
  void Fail(std::string why) { Fail(Checker::kScenario, std::move(why)); }
  const std::string& failure() const { return failure_; }
  Checker checker() const { return checker_; }  // that failed, when one has
  bool failed() const { return !failure_.empty(); }
  uint64_t events() const { return events_; }

 private:
  struct Event {
    Instant at;
    uint64_t order;
    size_t place;  // of its work
  };
  static bool IsLater(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
  template <typename T>
  void Mix(const T& value) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      hash_ = (hash_ ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15U;
      hash_ ^= hash_ >> 29;
    } else {
      MixText(std::string_view(value));
    }
  }
  void MixText(std::string_view text);
  void Keep(std::string text);

  Prng prng_;
  const bool keep_trace_;
  bool print_ = false;
  Instant now_ = Instant(1000s);
  uint64_t next_order_ = 0;
  uint64_t events_ = 0;
  std::vector<Event> queue_;  // a heap: the next one first
  std::vector<std::function<void()>> works_;
  std::vector<size_t> free_;  // places in works_
  uint64_t hash_ = 0x243f6a8885a308d3U;
  std::deque<std::string> trace_;
  std::map<std::string, uint64_t, std::less<>> counts_;
  std::map<std::string, uint64_t, std::less<>> faults_;
  uint64_t faults_total_ = 0;
  std::string failure_;
  Checker checker_ = Checker::kScenario;
};

}  // namespace tierkeep::sim
