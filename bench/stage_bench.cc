// Nodes in one process each take a save of their own at the same moment: how long from the rename
// in the volume to a shard with a verified-by-digest manifest, against one XXH3-128 pass over as
// many bytes in memory (one thread, in the same round, so that other load hits both alike), and how
// fast plain hashing by pread is for several buffer sizes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/prng.h"
#include "tiers/ram/stager.h"
#include "tiers/ram/store.h"

namespace tierkeep {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

[[noreturn]] void Die(const std::string& what) {
  std::cerr << "stage_bench: " << what << "\n";
  std::exit(1);
}
template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) Die(result.error().ToString());
  return std::move(*result);
}
void OrDie(const Status& status) {
  if (!status.ok()) Die(status.error().ToString());
}

struct Options {
  uint64_t mib = 1024;
  uint64_t file_mib = 32;
  int rounds = 5;
  int nodes = 2;
  size_t threads = 2;  // in all
  std::string huge = "always";
  std::string json_path;
};

// Wall time, and this process's processor time, which other load on the machine hardly touches.
struct Cost {
  double wall = 0;
  double cpu = 0;
};

Cost Measure(const std::function<void()>& work) {
  const auto cpu = [] {
    struct rusage usage {};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  };
  SystemClock clock;
  const Instant begin = clock.Now();
  const double cpu_begin = cpu();
  work();
  return {ToSeconds(clock.Now() - begin), cpu() - cpu_begin};
}

struct Series {
  std::vector<double> wall, cpu;
  void Add(const Cost& cost) {
    wall.push_back(cost.wall);
    cpu.push_back(cost.cpu);
  }
  nlohmann::json Json() const { return {{"wall_s", wall}, {"cpu_s", cpu}}; }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Node {
 public:
  Node(const Options& options, size_t threads) : options_(options), pool_(threads) {
    char name[] = "/tmp/tierkeep-bench.XXXXXX";
    if (::mkdtemp(name) == nullptr) Die("mkdtemp failed");
    path_ = name;
    const std::string data = fmt::format("size={}m,mode=0700{}", options.mib + 256,
                                         options.huge.empty() ? "" : ",huge=" + options.huge);
    if (::mount("tmpfs", name, "tmpfs", 0, data.c_str()) != 0) {
      ::rmdir(name);
      Die("cannot mount a tmpfs (run as root, or in `unshare -rm`)");
    }
    std::shared_ptr<Dir> dir = OrDie(OpenPosixDir(path_));
    store_ = OrDie(Store::Open(std::move(dir), {&pool_}, &random_, Logger()));
    stager_ = std::make_unique<Stager>(store_.get(), &pool_, &clock_, StageOptions{}, Logger());
  }
  ~Node() {
    store_ = nullptr;
    ::umount2(path_.c_str(), MNT_DETACH);
    ::rmdir(path_.c_str());
  }

  // The files are written once; each round stages them and moves them back, so memory stays warm.
  void Fill() {
    const std::string save = path_ + "/client/1";
    ::mkdir(save.c_str(), 0755);
    const std::string block = Prng(7).Bytes(1 << 20);
    for (uint64_t done = 0; done < options_.mib; done += options_.file_mib) {
      std::ofstream out(fmt::format("{}/{}", save, done), std::ios::binary);
      for (uint64_t i = 0; i < std::min(options_.file_mib, options_.mib - done); ++i) {
        out.write(block.data(), static_cast<std::streamsize>(block.size()));
      }
      if (!out.flush()) Die("cannot write " + save);
    }
  }
  void Stage(Step step) {
    ShardIdentity id;
    id.job = "bench";
    id.save.run.sequence = 1;
    id.save.run.nonce.bytes[0] = 1;
    id.save.step = step;
    id.ordinal = step + 1;
    id.world.nodes = 1;
    OrDie(stager_->Take("1", "s"));
    digest_ = OrDie(stager_->HashAndAdopt("s", id, nullptr)).digest;
  }
  void Verify() {
    const VerifyResult result = store_->Verify(digest_, nullptr);
    if (!result.ok) Die(result.problem);
  }
  void PutBack() {
    OrDie(store_->mount().Rename("store/shards/" + digest_.Hex() + "/data", "client/1"));
    OrDie(store_->Delete(digest_));
  }
  // Files of the save, hashed by `threads` with buffers of `bytes`.
  void HashBy(size_t bytes, size_t threads) {
    std::vector<std::string> files;
    for (uint64_t done = 0; done < options_.mib; done += options_.file_mib) {
      files.push_back(fmt::format("{}/client/1/{}", path_, done));
    }
    std::atomic<size_t> next{0};
    const auto work = [&] {
      std::vector<std::byte> buffer(bytes);
      Xxh128Hasher hasher;
      for (size_t i; (i = next++) < files.size();) {
        const int fd = ::open(files[i].c_str(), O_RDONLY | O_CLOEXEC);
        hasher.Reset();
        ssize_t n = 0;
        while ((n = ::read(fd, buffer.data(), bytes)) > 0) {
          hasher.Update(ByteSpan(buffer).first(static_cast<size_t>(n)));
        }
        ::close(fd);
        if (n < 0 || hasher.Finish().IsZero()) Die("cannot read " + files[i]);
      }
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < threads; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

 private:
  const Options& options_;
  std::string path_;
  WorkerPool pool_;
  SystemRandom random_;
  SystemClock clock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Stager> stager_;
  Blake3 digest_;
};

void OnEach(std::vector<std::unique_ptr<Node>>& nodes, const std::function<void(Node&)>& work) {
  std::vector<std::thread> threads;
  for (auto& node : nodes) threads.emplace_back([&] { work(*node); });
  for (std::thread& thread : threads) thread.join();
}

nlohmann::json Run(const Options& options) {
  std::vector<std::unique_ptr<Node>> nodes;
  // The caller of a ParallelFor works too, so each pool has one thread less, but at least one.
  const size_t each = std::max<size_t>(options.threads / static_cast<size_t>(options.nodes), 2) - 1;
  for (int i = 0; i < options.nodes; ++i) nodes.push_back(std::make_unique<Node>(options, each));
  for (auto& node : nodes) node->Fill();
  const size_t bytes = options.mib << 20;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Die("no memory");
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  std::fill_n(static_cast<char*>(memory), bytes, 'x');
  const ByteSpan span(static_cast<const std::byte*>(memory), bytes);

  Series pass, stage, verify;
  std::vector<double> ratio;
  std::map<size_t, Series> by_buffer;
  for (int round = 0; round <= options.rounds; ++round) {
    const Cost p = Measure([&] {
      if (ComputeXxh128(span).IsZero()) Die("impossible digest");
    });
    const Cost s =
        Measure([&] { OnEach(nodes, [&](Node& node) { node.Stage(static_cast<Step>(round)); }); });
    const Cost v = Measure([&] { OnEach(nodes, [](Node& node) { node.Verify(); }); });
    for (auto& node : nodes) node->PutBack();
    std::map<size_t, Cost> b;
    for (const size_t kib : {128, 256, 512, 1024, 2048, 8192}) {
      b[kib] = Measure([&] { nodes[0]->HashBy(kib << 10, options.threads); });
    }
    if (round == 0) continue;  // warms up
    pass.Add(p);
    stage.Add(s);
    verify.Add(v);
    ratio.push_back(s.wall / p.wall);
    for (const auto& [kib, cost] : b) by_buffer[kib].Add(cost);
  }
  ::munmap(memory, bytes);
  fmt::print("{} MiB a node in files of {} MiB, {} nodes at once, {} threads, median of {}\n",
             options.mib, options.file_mib, options.nodes, options.threads, options.rounds);
  const auto print = [&](const std::string& what, const Series& series, int times,
                         const std::string& rest) {
    const double gib = static_cast<double>(bytes) * times / kGiB;
    fmt::print("{:<32} {:7.3f} s  {:6.2f} GB/s  {:.3f} CPU-s a GiB{}\n", what, Median(series.wall),
               gib * kGiB / 1e9 / Median(series.wall), Median(series.cpu) / gib, rest);
  };
  print("one XXH3-128 pass, one thread", pass, 1, "");
  print("volume to shard, all nodes", stage, options.nodes,
        fmt::format("  {:.2f} passes (aim <= 2.5)", Median(ratio)));
  print("verify, all nodes", verify, options.nodes, "");
  nlohmann::json buffers;
  for (const auto& [kib, series] : by_buffer) {
    print(fmt::format("pread and hash by {} KiB", kib), series, 1, "");
    buffers[std::to_string(kib)] = series.Json();
  }
  return {{"mib", options.mib},      {"nodes", options.nodes},  {"threads", options.threads},
          {"huge", options.huge},    {"pass", pass.Json()},     {"stage", stage.Json()},
          {"verify", verify.Json()}, {"by_buffer_kib", buffers}};
}

}  // namespace
}  // namespace tierkeep

int main(int argc, char** argv) {
  tierkeep::Options options;
  CLI::App app("Measures staging: from a save in the volume to a shard");
  app.add_option("--mib", options.mib, "MiB of each node's save");
  app.add_option("--file-mib", options.file_mib, "size of its files")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds, "timed rounds")->check(CLI::Range(1, 100));
  app.add_option("--nodes", options.nodes, "nodes at once")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads, "hashing threads in all")->check(CLI::Range(1, 256));
  app.add_option("--huge", options.huge, "tmpfs huge= setting; empty: none");
  app.add_option("--json", options.json_path, "write raw results here");
  CLI11_PARSE(app, argc, argv);
  const nlohmann::json result = tierkeep::Run(options);
  if (!options.json_path.empty()) std::ofstream(options.json_path) << result.dump(1) << "\n";
  return 0;
}
