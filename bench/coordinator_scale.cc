// The coordinator's work in jobs of many members (src/core/coordinator_load_testutil.h): processor
// time of decoding, deciding and encoding, bytes, and the process's memory. One JSON line a size.

#include <sys/resource.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/coordinator_load_testutil.h"

namespace {

uint64_t ProcessorNs() {
  struct timespec t {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

nlohmann::json Json(const tierkeep::CoordinatorLoadRound& r) {
  return {{"processor_ms", static_cast<double>(r.busy_ns / 1000) / 1000},
          {"messages_in", r.messages_in},
          {"messages_out", r.messages_out},
          {"bytes_in", r.bytes_in},
          {"bytes_out", r.bytes_out}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Processor time and bytes of a job's coordinator"};
  std::vector<uint32_t> sizes = {10, 100, 1000, 10000, 50000};
  uint32_t peers = 1;
  app.add_option("nodes", sizes, "numbers of members");
  app.add_option("--peers", peers, "copies of each shard on other nodes");
  CLI11_PARSE(app, argc, argv);
  for (const uint32_t nodes : sizes) {
    tierkeep::CoordinatorLoad load(nodes, peers, ProcessorNs);
    const auto first = load.StartRun();
    const auto save1 = load.Save(1);
    const auto save2 = load.Save(2);
    const auto again = load.StartRun();
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    std::cout << nlohmann::json{{"nodes", nodes},
                                {"peers", peers},
                                {"join", Json(first.gather)},
                                {"start_without_checkpoint", Json(first.restore)},
                                {"first_save", Json(save1)},
                                {"save", Json(save2)},
                                {"join_with_checkpoint", Json(again.gather)},
                                {"restore", Json(again.restore)},
                                {"peak_memory_mib", usage.ru_maxrss / 1024}}
              << std::endl;
  }
  return 0;
}
