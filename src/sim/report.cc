#include "sim/report.h"

#include <fmt/format.h>

#include <cstdio>

namespace tierkeep::sim {
namespace {

using nlohmann::json;

// An average schedule has at least so many faults, and so many crashes of agents and machines.
constexpr double kFaultsMin = 20;
constexpr double kCrashesMin = 3;
constexpr uint64_t kSchedulesMin = 50;  // fewer say nothing about averages

}  // namespace

json ToJson(const SimulationResult& result) {
  json out = {{"seed", result.seed},
              {"failure", result.failure},
              {"hash", fmt::format("{:016x}", result.hash)},
              {"events", result.events},
              {"faults", result.faults},
              {"simulated_seconds", result.simulated_seconds},
              {"setup", result.setup}};
  out["counts"] = json::object();
  for (const auto& [what, n] : result.counts) out["counts"][what] = n;
  out["faults_by_kind"] = json::object();
  for (const auto& [kind, n] : result.faults_by_kind) out["faults_by_kind"][kind] = n;
  return out;
}

void Report::Add(const json& result, const std::string& replay) {
  ++schedules_;
  hashes_ += std::stoull(result["hash"].get<std::string>(), nullptr, 16);
  events_ += result["events"].get<uint64_t>();
  faults_ += result["faults"].get<uint64_t>();
  simulated_seconds_ += result["simulated_seconds"].get<double>();
  for (const auto& [what, n] : result["counts"].items()) counts_[what] += n.get<uint64_t>();
  for (const auto& [kind, n] : result["faults_by_kind"].items()) {
    faults_by_kind_[kind] += n.get<uint64_t>();
  }
  if (result.contains("run_twice")) ++run_twice_;
  const std::string failure = result["failure"];
  if (failure.empty()) return;
  ++failures_;
  json failed = result;
  failed["replay"] = replay;
  NoteFailed(std::move(failed));
}

void Report::AddDeath(const std::string& replay, const std::string& how) {
  ++schedules_;
  ++failures_;
  NoteFailed({{"failure", "the simulator itself died: " + how}, {"replay", replay}});
}

// At once: whoever looks on needn't wait for the end of thousands.
void Report::NoteFailed(json failed) {
  if (tell_) {
    if (failed.contains("trace")) {
      for (const json& line : failed["trace"]) fmt::print("{}\n", line.get<std::string>());
    }
    if (failed.contains("setup")) fmt::print("{}\n", failed["setup"].get<std::string>());
    fmt::print("FAILED: {}\nreplay: {}\n\n", failed["failure"].get<std::string>(),
               failed["replay"].get<std::string>());
    std::fflush(stdout);
  }
  failed_.push_back(std::move(failed));
}

uint64_t Report::Crashes() const {
  const auto it = counts_.find("agent crashes");
  return it == counts_.end() ? 0 : it->second;
}

std::vector<std::string> Report::Shortfalls() const {
  std::vector<std::string> out;
  if (schedules_ < kSchedulesMin) return out;
  const auto check = [&](const char* what, double average, double least) {
    if (average >= least) return;
    out.push_back(
        fmt::format("{:.1f} {} a schedule, at least {} are demanded", average, what, least));
  };
  check("faults", Average(double(faults_)), kFaultsMin);
  check("crashes", Average(double(Crashes())), kCrashesMin);
  return out;
}

void Report::Print(double seconds, double cpu_seconds) const {
  fmt::print("{} schedules, {} failed; {} events, {:.1f} simulated hours; all traces {:016x}\n",
             schedules_, failures_, events_, simulated_seconds_ / 3600, hashes_);
  fmt::print("{:.1f} s, {:.1f} s of processor, {:.1f} ms a schedule; {} ran twice, same hash\n",
             seconds, cpu_seconds, Average(cpu_seconds * 1000), run_twice_);
  fmt::print("a schedule: {:.1f} faults, {:.1f} crashes\n", Average(double(faults_)),
             Average(double(Crashes())));
  for (const auto& [kind, n] : faults_by_kind_) {
    fmt::print("  {:>10}  fault: {}\n", n, kind);
  }
  for (const auto& [what, n] : counts_) fmt::print("  {:>10}  {}\n", n, what);
  for (const json& failed : failed_) {
    fmt::print("failed: {}\n", failed["replay"].get<std::string>());
  }
  for (const std::string& text : Shortfalls()) fmt::print("TOO FEW: {}\n", text);
}

json Report::Json(double seconds, double cpu_seconds) const {
  return {{"schedules", schedules_},
          {"failures", failures_},
          {"events", events_},
          {"all_traces", fmt::format("{:016x}", hashes_)},
          {"simulated_seconds", simulated_seconds_},
          {"seconds", seconds},
          {"cpu_seconds", cpu_seconds},
          {"run_twice", run_twice_},
          {"faults_per_schedule", Average(double(faults_))},
          {"crashes_per_schedule", Average(double(Crashes()))},
          {"faults_by_kind", faults_by_kind_},
          {"counts", counts_},
          {"failed", failed_},
          {"shortfalls", Shortfalls()}};
}

}  // namespace tierkeep::sim
