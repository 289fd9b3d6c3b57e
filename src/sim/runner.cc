#include "sim/runner.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "sim/report.h"
#include "sim/scenarios.h"
#include "sim/simulation.h"

namespace tierkeep::sim {
namespace {

using nlohmann::json;

// Every so many seeds one runs twice: the hashes of its traces must be the same.
constexpr uint64_t kTwiceEvery = 20;

struct Unit {
  uint64_t number = 0;  // of the whole
  std::string replay;
  std::function<SimulationResult(bool trace, bool print)> run;
};

std::vector<Unit> UnitsOf(const RunnerOptions& options) {
  std::vector<Unit> units;
  if (options.scenario.empty()) {
    for (uint64_t i = 0; i < options.runs; ++i) {
      Unit unit;
      unit.number = i;
      const uint64_t seed = options.seed + i;
      unit.replay = fmt::format("tierkeep-sim --seed {}{} --trace", seed,
                                options.nodes ? fmt::format(" --nodes {}", options.nodes) : "");
      unit.run = [seed, nodes = options.nodes](bool trace, bool print) {
        return RunSeed({seed, nodes, trace, print});
      };
      units.push_back(std::move(unit));
    }
    return units;
  }
  for (const Scenario& scenario : Scenarios()) {
    if (options.scenario != "all" && options.scenario != scenario.name) continue;
    Unit unit;
    unit.number = units.size();
    unit.replay = fmt::format("tierkeep-sim --scenario {} --trace", scenario.name);
    unit.run = [&scenario](bool trace, bool print) { return RunScenario(scenario, trace, print); };
    units.push_back(std::move(unit));
  }
  return units;
}

json RunUnit(const Unit& unit, bool print) {
  const SimulationResult result = unit.run(false, print);
  json out = ToJson(result);
  out["unit"] = unit.number;
  const bool failed = !result.failure.empty();
  if (!failed && (print || unit.number % kTwiceEvery != 0)) return out;
  // A failed one for the texts of its events.
  const SimulationResult again = unit.run(failed, false);
  out["run_twice"] = true;
  if (failed) out["trace"] = again.trace;
  if (again.hash != result.hash || again.failure != result.failure) {
    out["failure"] = fmt::format("two runs of one seed differ: {:016x} '{}', then {:016x} '{}'",
                                 result.hash, result.failure, again.hash, again.failure);
  }
  return out;
}

// One child process: runs every `stride`-th unit from `next` on and writes a line for each.
struct Child {
  pid_t pid = -1;
  int fd = -1;
  std::string buffer;
  size_t next = 0;  // unit that it is at
  size_t stride = 1;
};

void WriteLine(int fd, const std::string& line) {
  size_t done = 0;
  const std::string text = line + "\n";
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(3);
    done += static_cast<size_t>(n);
  }
}

void StartChild(Child* child, const std::vector<Unit>& units) {
  int ends[2];
  TK_CHECK(::pipe(ends) == 0);
  std::fflush(stdout);
  child->pid = ::fork();
  TK_CHECK(child->pid >= 0);
  if (child->pid == 0) {
    ::close(ends[0]);
    for (size_t i = child->next; i < units.size(); i += child->stride) {
      WriteLine(ends[1], RunUnit(units[i], false).dump());
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  child->fd = ends[0];
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {}", ::strsignal(WTERMSIG(status)));
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

// False: the child is done with all of its units.
bool ReadFrom(Child* child, const std::vector<Unit>& units, Report* report) {
  char bytes[65536];
  const ssize_t n = ::read(child->fd, bytes, sizeof(bytes));
  if (n < 0 && errno == EINTR) return true;
  if (n > 0) {
    child->buffer.append(bytes, static_cast<size_t>(n));
    for (size_t end; (end = child->buffer.find('\n')) != std::string::npos;) {
      const json result = json::parse(child->buffer.substr(0, end));
      report->Add(result, units[child->next].replay);
      child->buffer.erase(0, end + 1);
      child->next += child->stride;
    }
    return true;
  }
  ::close(child->fd);
  int status = 0;
  ::waitpid(child->pid, &status, 0);
  if (child->next >= units.size()) return false;
  report->AddDeath(units[child->next].replay, HowItEnded(status));
  child->next += child->stride;
  child->buffer.clear();
  if (child->next >= units.size()) return false;
  StartChild(child, units);
  return true;
}

void RunInChildren(const std::vector<Unit>& units, size_t jobs, Report* report) {
  std::vector<Child> children(std::min(jobs, units.size()));
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].next = i;
    children[i].stride = children.size();
    StartChild(&children[i], units);
  }
  while (!children.empty()) {
    std::vector<pollfd> fds;
    for (const Child& child : children) fds.push_back({child.fd, POLLIN, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    for (size_t i = fds.size(); i-- > 0;) {
      if (fds[i].revents == 0) continue;
      if (!ReadFrom(&children[i], units, report)) {
        children.erase(children.begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
}

double CpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage use;
    ::getrusage(who, &use);
    for (const timeval& t : {use.ru_utime, use.ru_stime}) {
      seconds += double(t.tv_sec) + double(t.tv_usec) / 1e6;
    }
  }
  return seconds;
}

}  // namespace

int RunMany(const RunnerOptions& options) {
  const std::vector<Unit> units = UnitsOf(options);
  const auto begin = std::chrono::steady_clock::now();
  Report report;
  if (options.trace) {
    for (const Unit& unit : units) report.Add(RunUnit(unit, true), unit.replay);
  } else {
    const size_t jobs =
        options.jobs > 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
    RunInChildren(units, jobs, &report);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (options.as_json) {
    fmt::print("{}\n", report.Json(took.count(), CpuSeconds()).dump(2));
  } else {
    report.Print(took.count(), CpuSeconds());
  }
  return report.failures() == 0 && report.Shortfalls().empty() ? 0 : 1;
}

}  // namespace tierkeep::sim
