#include "sim/mutable/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutation.h"
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
#undef TK_TEXT

// A schedule: of a seed, or one with a name.
struct Schedule {
  uint64_t seed = 0;
  const Scenario* scenario = nullptr;

  std::string Name() const {
    return scenario != nullptr ? fmt::format("--scenario {}", scenario->name)
                               : fmt::format("--seed {}", seed);
  }
  // What failed; empty: nothing.
  std::string Run() const {
    LimitComputing();
    if (scenario != nullptr) return RunScenario(*scenario, false, false).failure;
    SimulationOptions options;
    options.seed = seed;
    return RunSeed(options).failure;
  }
};

// How a mutation was noticed.
struct Finding {
  size_t tried = 0;          // schedules
  std::optional<size_t> by;  // its place in the list
  std::string failure;
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
                      const std::string failure = schedules_[i].Run();
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

  // Schedules with one guard taken away, until one fails that passes with the guard.
  void AddMutation(const Named& named) {
    Finding& finding = findings_[named.name];
    workers_.Add({[this, named](const Workers::Say& say) {
                    // What a broken guard makes the product say goes nowhere.
                    TK_CHECK(std::freopen("/dev/null", "w", stderr) != nullptr);
                    for (size_t i = 0; i < within_; ++i) {
                      say(fmt::format("{}", i));  // that a death can be told to its schedule
                      selected_mutation = named.mutation;
                      const std::string failure = schedules_[i].Run();
                      if (failure.empty()) continue;
                      // Only what passes with the guard in place shows that the guard was missed.
                      selected_mutation = Mutation::kNone;
                      if (!schedules_[i].Run().empty()) continue;
                      return say(json{{"failure", failure}}.dump());
                    }
                  },
                  [this, &finding](const std::string& line) {
                    if (line[0] != '{') {
                      ++finding.tried;
                      finding.by = std::stoull(line);
                    } else {
                      finding.failure = json::parse(line)["failure"];
                    }
                  },
                  [&finding](const std::string& death) {
                    if (finding.failure.empty()) finding.failure = death;
                    if (finding.failure.empty()) finding.by.reset();
                  }});
  }

  void Judge() {
    for (const auto& [name, finding] : findings_) {
      if (finding.by) continue;
      problems_.push_back(
          fmt::format("mutation {} was not noticed in {} schedules", name, finding.tried));
    }
    for (size_t i = 0; options_.mutation.empty() && i < hits_.size(); ++i) {
      if (hits_[i] == 0) problems_.push_back(fmt::format("probe never hit: {}", kProbes[i]));
    }
  }

  void Print(double seconds) const {
    for (const auto& [name, finding] : findings_) {
      if (finding.by) {
        fmt::print("{:<26} noticed by the {:>3}. ({}): {}\n", name, finding.tried,
                   schedules_[*finding.by].Name(), finding.failure.substr(0, 160));
      } else {
        fmt::print("{:<26} NOT noticed in {} schedules\n", name, finding.tried);
      }
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
        "{:.1f} s\n",
        noticed, findings_.size(), hit, hits_.size(), failed_unmutated_, schedules_.size(),
        seconds);
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
