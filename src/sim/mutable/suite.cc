#include "sim/mutable/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutation.h"
#include "sim/mutable/hints.h"
#include "sim/scenarios.h"
#include "sim/simulation.h"
#include "sim/workers.h"

namespace tierkeep::sim {
namespace {

using nlohmann::json;

struct Named {
  Mutation mutation;
  const char* name;
};
#define TK_NAMED(enumerator, text) {Mutation::enumerator, text},
constexpr Named kMutations[] = {TK_MUTATIONS(TK_NAMED)};
#undef TK_NAMED
#define TK_TEXT(enumerator, text) text,
constexpr const char* kProbes[] = {TK_PROBES(TK_TEXT)};
constexpr const char* kCheckers[] = {TK_CHECKERS(TK_TEXT)};
#undef TK_TEXT

const char* TextOf(Checker checker) { return kCheckers[static_cast<size_t>(checker)]; }
const char* NameOf(Mutation mutation) {
  for (const Named& named : kMutations) {
    if (named.mutation == mutation) return named.name;
  }
  return "";
}

// A schedule: of a seed, or one with a name.
struct Schedule {
  uint64_t seed = 0;
  const Scenario* scenario = nullptr;

  std::string Name() const {
    return scenario != nullptr ? fmt::format("--scenario {}", scenario->name)
                               : fmt::format("--seed {}", seed);
  }
  SimulationResult Run() const {
    LimitComputing();
    if (scenario != nullptr) return RunScenario(*scenario, false, false);
    SimulationOptions options;
    options.seed = seed;
    return RunSeed(options);
  }
};

// How a mutation was noticed.
struct Finding {
  size_t tried = 0;          // schedules
  std::optional<size_t> by;  // the first one's place in the list
  std::string failure;
  // Which checkers did, how often, and where for the first time.
  struct Notice {
    size_t times = 0;
    size_t by = 0;
    std::string failure;
  };
  std::map<Checker, Notice> notices;
  size_t at = 0;  // where the process is, in the order of this mutation's schedules
  bool done = false;
};

class Suite {
 public:
  explicit Suite(const SuiteOptions& options) : options_(options), hits_(std::size(kProbes)) {
    processes_ =
        options.jobs > 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
    // Those with names are part of the number in which a mutation must be noticed.
    const size_t named = Scenarios().size();
    within_ = std::max<size_t>(options.within, named + 1);
    for (uint64_t i = 0; i < within_ - named; ++i)
      schedules_.push_back({options.seed + i, nullptr});
    for (const Scenario& scenario : Scenarios()) schedules_.push_back({0, &scenario});
    for (uint64_t i = within_ - named; i < options.runs; ++i) {
      schedules_.push_back({options.seed + i, nullptr});
    }
  }

  int Run() {
    const auto begin = std::chrono::steady_clock::now();
    for (size_t i = 0; options_.mutation.empty() && i < processes_; ++i) AddControl(i);
    for (const Named& named : kMutations) {
      if (options_.mutation.empty() || options_.mutation == named.name) AddMutation(named);
    }
    workers_.Run(processes_);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    Judge();
    if (options_.as_json) {
      fmt::print("{}\n", Json(took.count()).dump(2));
    } else {
      Print(took.count());
    }
    return problems_.empty() ? 0 : 1;
  }

 private:
  // Every `processes_`-th schedule with all guards in place, from `next` on.
  void AddControl(size_t next) {
    auto at = std::make_shared<size_t>(next);
    workers_.Add({[this, next](const Workers::Say& say) {
                    for (size_t i = next; i < schedules_.size(); i += processes_) {
                      std::fill(std::begin(probe_hits), std::end(probe_hits), 0);
                      const std::string failure = schedules_[i].Run().failure;
                      say(json{{"failure", failure}, {"hits", probe_hits}}.dump());
                    }
                  },
                  [this, at](const std::string& line) {
                    NoteControl(*at, json::parse(line));
                    *at += processes_;
                  },
                  [this, at](const std::string& death) {
                    if (*at >= schedules_.size()) return;
                    NoteFailure(*at, death);
                    AddControl(*at + processes_);
                  }});
  }
  void NoteControl(size_t i, const json& result) {
    const auto hits = result["hits"].get<std::vector<uint64_t>>();
    for (size_t probe = 0; probe < hits_.size(); ++probe) hits_[probe] += hits[probe];
    const std::string failure = result["failure"];
    if (!failure.empty()) NoteFailure(i, failure);
  }
  void NoteFailure(size_t i, const std::string& failure) {
    ++failed_unmutated_;
    problems_.push_back(
        fmt::format("without a mutation {} fails: {}", schedules_[i].Name(), failure));
  }

  // The first `within_` schedules, those first that showed it last time.
  std::vector<size_t> OrderFor(Mutation mutation) const {
    std::vector<size_t> order(within_);
    std::iota(order.begin(), order.end(), 0);
    for (const Hint& hint : Hints()) {
      if (hint.mutation != mutation || options_.survey) continue;
      std::stable_partition(order.begin(), order.end(), [&](size_t i) {
        return std::count(hint.schedules.begin(), hint.schedules.end(), schedules_[i].Name()) > 0;
      });
    }
    return order;
  }
  // The checkers that are to notice it and have not yet.
  static std::set<Checker> OpenOf(Mutation mutation, const Finding& finding) {
    std::set<Checker> open;
    for (const Demand& demand : Demands()) {
      if (demand.mutation == mutation && !finding.notices.contains(demand.checker)) {
        open.insert(demand.checker);
      }
    }
    return open;
  }

  // Schedules with one guard taken away, until one fails that passes with the guard, and until all
  // checkers that are to notice it have.
  void AddMutation(const Named& named) { AddFrom(named, OrderFor(named.mutation), 0); }
  void AddFrom(const Named& named, const std::vector<size_t>& order, size_t from) {
    Finding& finding = findings_[named.name];
    workers_.Add({[this, named, order, from, &finding](const Workers::Say& say) {
                    Search(named.mutation, order, from, finding, say);
                  },
                  [order, &finding](const std::string& line) { Note(order, line, &finding); },
                  [this, named, order, &finding](const std::string& death) {
                    if (finding.done) return;
                    if (!finding.by) {
                      finding.by = order[finding.at];
                      finding.failure = death;
                    }
                    // A schedule that brings its process down is followed by the others.
                    AddFrom(named, order, finding.at + 1);
                  }});
  }
  // In a process of its own.
  void Search(Mutation mutation, const std::vector<size_t>& order, size_t from,
              const Finding& before, const Workers::Say& say) const {
    // What a broken guard makes the product say goes nowhere.
    TK_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
    std::set<Checker> open = OpenOf(mutation, before);
    bool noticed = before.by.has_value();
    for (size_t at = from; at < order.size(); ++at) {
      if (noticed && open.empty() && !options_.survey) break;
      say(json{{"at", at}}.dump());  // that a death can be told to its schedule
      selected_mutation = mutation;
      const SimulationResult result = schedules_[order[at]].Run();
      if (result.failure.empty()) continue;
      // Only what passes with the guard in place shows that the guard was missed.
      selected_mutation = Mutation::kNone;
      if (!schedules_[order[at]].Run().failure.empty()) continue;
      noticed = true;
      open.erase(result.checker);
      say(json{{"checker", result.checker}, {"failure", result.failure}}.dump());
    }
    say(json{{"done", true}}.dump());
  }
  static void Note(const std::vector<size_t>& order, const std::string& line, Finding* finding) {
    const json told = json::parse(line);
    if (told.contains("at")) {
      ++finding->tried;
      finding->at = told["at"];
    } else if (told.contains("checker")) {
      auto& notice = finding->notices[told["checker"].get<Checker>()];
      if (notice.times++ == 0) {
        notice.by = order[finding->at];
        notice.failure = told["failure"];
      }
      if (finding->by) return;
      finding->by = order[finding->at];
      finding->failure = told["failure"];
    } else {
      finding->done = true;
    }
  }

  void Judge() {
    for (const auto& [name, finding] : findings_) {
      if (finding.by) continue;
      problems_.push_back(
          fmt::format("mutation {} was not noticed in {} schedules", name, finding.tried));
    }
    for (const Demand& demand : Demands()) {
      const auto finding = findings_.find(NameOf(demand.mutation));
      if (finding == findings_.end() || finding->second.notices.contains(demand.checker)) continue;
      problems_.push_back(fmt::format("checker '{}' does not notice mutation {}",
                                      TextOf(demand.checker), finding->first));
    }
    if (!options_.mutation.empty()) return;
    for (size_t i = 0; i < hits_.size(); ++i) {
      if (hits_[i] == 0) problems_.push_back(fmt::format("probe never hit: {}", kProbes[i]));
    }
    for (size_t i = 0; i < std::size(kCheckers); ++i) {
      const auto checker = static_cast<Checker>(i);
      const bool shown = checker == Checker::kCircles ||  // simulation_test.cc
                         std::any_of(Demands().begin(), Demands().end(), [&](const Demand& demand) {
                           return demand.checker == checker;
                         });
      if (!shown) {
        problems_.push_back(fmt::format("no mutation is there for checker '{}'", kCheckers[i]));
      }
    }
  }

  void PrintNotices(const Finding& finding) const {
    for (const auto& [checker, notice] : finding.notices) {
      fmt::print("  {:>4} times, ({}) {}: {}\n", notice.times, schedules_[notice.by].Name(),
                 TextOf(checker), notice.failure.substr(0, 160));
    }
  }

  void Print(double seconds) const {
    for (const auto& [name, finding] : findings_) {
      if (finding.by) {
        fmt::print("{:<26} {:>3} tried, noticed by {}: {}\n", name, finding.tried,
                   schedules_[*finding.by].Name(), finding.failure.substr(0, 160));
      } else {
        fmt::print("{:<26} NOT noticed in {} schedules\n", name, finding.tried);
      }
      if (options_.survey) PrintNotices(finding);
    }
    for (const std::string& problem : problems_) fmt::print("FAILED: {}\n", problem);
    if (!options_.mutation.empty()) return;
    for (size_t i = 0; i < hits_.size(); ++i) fmt::print("{:>9} {}\n", hits_[i], kProbes[i]);
    const auto noticed = std::count_if(findings_.begin(), findings_.end(), [](const auto& entry) {
      return entry.second.by.has_value();
    });
    const auto hit = std::count_if(hits_.begin(), hits_.end(), [](uint64_t n) { return n > 0; });
    fmt::print(
        "{} of {} mutations noticed, {} of {} probes hit; {} of {} schedules fail unmutated; "
        "{} problems; {:.1f} s\n",
        noticed, findings_.size(), hit, hits_.size(), failed_unmutated_, schedules_.size(),
        problems_.size(), seconds);
  }

  json Json(double seconds) const {
    json out = {{"seconds", seconds},
                {"schedules", schedules_.size()},
                {"problems", problems_},
                {"mutations", json::object()}};
    for (const auto& [name, finding] : findings_) {
      json& one = out["mutations"][name];
      one = {{"tried", finding.tried}, {"failure", finding.failure}};
      if (finding.by) one["noticed_by"] = schedules_[*finding.by].Name();
      for (const auto& [checker, notice] : finding.notices) {
        one["checkers"][TextOf(checker)] = notice.times;
      }
    }
    for (size_t i = 0; i < hits_.size(); ++i) out["probes"][kProbes[i]] = hits_[i];
    return out;
  }

  const SuiteOptions options_;
  size_t processes_ = 1;
  size_t within_ = 0;
  std::vector<Schedule> schedules_;  // the first `within_` for mutations, all without
  Workers workers_;
  uint64_t failed_unmutated_ = 0;
  std::map<std::string, Finding> findings_;
  std::vector<uint64_t> hits_;
  std::vector<std::string> problems_;
};

}  // namespace

bool SelectMutation(const std::string& name) {
  for (const Named& named : kMutations) {
    if (name != named.name) continue;
    selected_mutation = named.mutation;
    return true;
  }
  return false;
}

void PrintMutations() {
  for (const Named& named : kMutations) fmt::print("{}\n", named.name);
}

void PrintProbes() {
  for (const char* probe : kProbes) fmt::print("{}\n", probe);
}

int RunSuite(const SuiteOptions& options) { return Suite(options).Run(); }

}  // namespace tierkeep::sim
