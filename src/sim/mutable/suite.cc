#include "sim/mutable/suite.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/mutation.h"
#include "sim/scenarios.h"
#include "sim/simulation.h"

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

// What one process does: schedules first, first + stride, ... below end, until one fails.
struct Work {
  Mutation mutation = Mutation::kNone;
  const char* name = "";
  uint64_t first = 0, end = 0, stride = 1;
  bool scenarios = false;  // those too, after the schedules
};

struct Outcome {
  std::optional<uint64_t> failed_at;
  std::string failure;
  uint64_t schedules = 0;
  std::vector<uint64_t> hits;
};

void WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(3);
    done += static_cast<size_t>(n);
  }
}

// In the child. A line when a schedule begins, so that a death can be told to its seed; then one
// with the outcome.
void DoWork(const Work& work, int fd) {
  selected_mutation = work.mutation;
  json outcome = json::object();
  const auto note = [&](const SimulationResult& result, const std::string& what) {
    if (result.failure.empty()) return false;
    outcome["failure"] = what + result.failure;
    return true;
  };
  bool failed = false;
  for (uint64_t seed = work.first; seed < work.end && !failed; seed += work.stride) {
    WriteAll(fd, fmt::format("{}\n", seed));
    SimulationOptions options;
    options.seed = seed;
    const SimulationResult result = RunSeed(options);
    if (!result.failure.empty() && work.mutation != Mutation::kNone) {
      // Only what passes with the guard in place shows that the guard was missed.
      selected_mutation = Mutation::kNone;
      const bool fails_anyway = !RunSeed(options).failure.empty();
      selected_mutation = work.mutation;
      if (fails_anyway) continue;
    }
    failed = note(result, "");
  }
  if (work.scenarios && !failed) {
    for (const Scenario& scenario : Scenarios()) {
      if (note(RunScenario(scenario, false, false), fmt::format("scenario {}: ", scenario.name))) {
        break;
      }
    }
  }
  outcome["hits"] = probe_hits;
  WriteAll(fd, outcome.dump() + "\n");
}

class Child {
 public:
  explicit Child(Work work) : work_(work) {
    int ends[2];
    TK_CHECK(::pipe(ends) == 0);
    std::fflush(stdout);
    pid_ = ::fork();
    TK_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      ::close(ends[0]);
      // What a broken guard makes the product say goes nowhere.
      if (work.mutation != Mutation::kNone && ::freopen("/dev/null", "w", stderr) == nullptr) {
        ::_exit(3);
      }
      DoWork(work_, ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    fd_ = ends[0];
  }

  const Work& work() const { return work_; }
  int fd() const { return fd_; }

  // nullopt: not done yet.
  std::optional<Outcome> Read() {
    char bytes[4096];
    const ssize_t n = ::read(fd_, bytes, sizeof(bytes));
    if (n < 0 && errno == EINTR) return std::nullopt;
    if (n > 0) {
      buffer_.append(bytes, static_cast<size_t>(n));
      for (size_t end; (end = buffer_.find('\n')) != std::string::npos;) {
        Line(buffer_.substr(0, end));
        buffer_.erase(0, end + 1);
      }
      return std::nullopt;
    }
    ::close(fd_);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    if (outcome_.hits.empty()) {
      outcome_.failed_at = seed_;
      outcome_.failure = WIFSIGNALED(status)
                             ? fmt::format("it died: {}", ::strsignal(WTERMSIG(status)))
                             : fmt::format("it ended with status {}", WEXITSTATUS(status));
    }
    return outcome_;
  }

 private:
  void Line(const std::string& line) {
    if (line[0] != '{') {
      seed_ = std::stoull(line);
      ++outcome_.schedules;
      return;
    }
    const json end = json::parse(line);
    outcome_.hits = end["hits"].get<std::vector<uint64_t>>();
    if (!end.contains("failure")) return;
    outcome_.failed_at = seed_;
    outcome_.failure = end["failure"];
  }

  Work work_;
  pid_t pid_ = -1;
  int fd_ = -1;
  std::string buffer_;
  uint64_t seed_ = 0;
  Outcome outcome_;
};

class Suite {
 public:
  explicit Suite(const SuiteOptions& options) : options_(options) {
    jobs_ = options.jobs > 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
    hits_.resize(std::size(kProbes));
    for (const Named& named : kMutations) {
      if (!options.mutation.empty() && options.mutation != named.name) continue;
      queue_.push_back(
          {named.mutation, named.name, options.seed, options.seed + options.within, 1, false});
    }
    if (!options.mutation.empty()) return;
    const uint64_t runs = std::max(options.runs, options.within);
    for (size_t i = 0; i < jobs_; ++i) {
      queue_.push_back({Mutation::kNone, "none", options.seed + i, options.seed + runs, jobs_,
                        /*scenarios=*/i == 0});
    }
  }

  int Run() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<Child> children;
    while (!queue_.empty() || !children.empty()) {
      while (!queue_.empty() && children.size() < jobs_) {
        children.emplace_back(queue_.front());
        queue_.pop_front();
      }
      std::vector<pollfd> fds;
      for (const Child& child : children) fds.push_back({child.fd(), POLLIN, 0});
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      for (size_t i = fds.size(); i-- > 0;) {
        if (fds[i].revents == 0) continue;
        if (const auto outcome = children[i].Read()) {
          Note(children[i].work(), *outcome);
          children.erase(children.begin() + static_cast<ptrdiff_t>(i));
        }
      }
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    Print(took.count());
    return problems_.empty() ? 0 : 1;
  }

 private:
  void Note(const Work& work, const Outcome& outcome) {
    if (work.mutation != Mutation::kNone) {
      noticed_[work.name] = outcome;
      if (!outcome.failed_at) {
        problems_.push_back(fmt::format("mutation {} was not noticed in {} schedules", work.name,
                                        outcome.schedules));
      }
      return;
    }
    unmutated_ += outcome.schedules;
    for (size_t i = 0; i < outcome.hits.size(); ++i) hits_[i] += outcome.hits[i];
    if (outcome.failed_at) {
      problems_.push_back(fmt::format("without a mutation, schedule {} fails: {}",
                                      *outcome.failed_at, outcome.failure));
    }
  }

  void Print(double seconds) {
    if (options_.mutation.empty()) {
      for (size_t i = 0; i < hits_.size(); ++i) {
        if (hits_[i] == 0) problems_.push_back(fmt::format("probe never hit: {}", kProbes[i]));
      }
    }
    if (options_.as_json) {
      fmt::print("{}\n", Json(seconds).dump(2));
      return;
    }
    for (const auto& [name, outcome] : noticed_) {
      if (outcome.failed_at) {
        fmt::print("{:<26} noticed by schedule {:>4} (the {}th): {}\n", name, *outcome.failed_at,
                   outcome.schedules, outcome.failure.substr(0, 160));
      } else {
        fmt::print("{:<26} NOT noticed in {} schedules\n", name, outcome.schedules);
      }
    }
    if (options_.mutation.empty()) {
      for (size_t i = 0; i < hits_.size(); ++i) fmt::print("{:>9} {}\n", hits_[i], kProbes[i]);
    }
    for (const std::string& problem : problems_) fmt::print("FAILED: {}\n", problem);
    fmt::print("{} mutations, {} schedules without one, {:.1f} s\n", noticed_.size(), unmutated_,
               seconds);
  }

  json Json(double seconds) const {
    json out = {{"seconds", seconds}, {"unmutated", unmutated_}, {"problems", problems_}};
    for (const auto& [name, outcome] : noticed_) {
      json& one = out["mutations"][name];
      one = {{"schedules", outcome.schedules}, {"failure", outcome.failure}};
      if (outcome.failed_at) one["noticed_by"] = *outcome.failed_at;
    }
    for (size_t i = 0; i < hits_.size(); ++i) out["probes"][kProbes[i]] = hits_[i];
    return out;
  }

  const SuiteOptions options_;
  size_t jobs_ = 1;
  std::deque<Work> queue_;
  std::map<std::string, Outcome> noticed_;
  std::vector<uint64_t> hits_;
  uint64_t unmutated_ = 0;
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
