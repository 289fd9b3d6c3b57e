// Two nodes in one process exchange a shard each over loopback TCP, both ways at once, verified:
// how fast, for how much processor time, and how that compares with `iperf3 -P 4` and with one XXH3
// pass over the same bytes, all measured in turn within one run so that other load hits them alike.
//
// Memory is warm: the copies of one round are deleted right before the next, which gets their
// pages. (On a virtual machine the first touch of fresh pages measures the host.)
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/prng.h"
#include "format/data_wire.h"
#include "io/stream.h"
#include "tiers/peer/data_server.h"
#include "tiers/peer/puller.h"
#include "tiers/ram/store.h"

namespace tierkeep {
namespace {

using nlohmann::literals::operator""_json_pointer;

constexpr double kGiB = 1024.0 * 1024 * 1024;

[[noreturn]] void Die(const std::string& what) {
  std::cerr << "transfer_bench: " << what << "\n";
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
  uint64_t file_mib = 128;
  int rounds = 10;
  uint32_t streams = 4;
  uint64_t request_mib = 32;
  std::string huge = "within_size";
  std::string tls_dir;
  std::string json_path;
  bool iperf = true;
};

// From here on mounts are seen by this process and its children alone and go with them, however
// they end: a tmpfs left behind would hold its memory.
void EnterOwnMountNamespace() {
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    Die("cannot mount a tmpfs of its own (run as root, or in `unshare -rm`)");
  }
}

// A tmpfs of its own.
class RamMount {
 public:
  RamMount(const std::string& huge, uint64_t mib) {
    char name[] = "/tmp/tierkeep-bench.XXXXXX";
    if (::mkdtemp(name) == nullptr) Die("mkdtemp failed");
    path_ = name;
    const std::string data =
        "size=" + std::to_string(mib) + "m,mode=0700" + (huge.empty() ? "" : ",huge=" + huge);
    if (::mount("tmpfs", name, "tmpfs", 0, data.c_str()) != 0) {
      ::rmdir(name);
      Die("cannot mount a tmpfs with huge pages (run as root, or in `unshare -rm`)");
    }
  }
  ~RamMount() {
    ::umount2(path_.c_str(), MNT_DETACH);
    ::rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Node {
  Node(const std::string& name, const Options& options, std::shared_ptr<TlsContext> tls)
      : mount(options.huge, 2 * options.mib + 256) {
    std::shared_ptr<Dir> dir = OrDie(OpenPosixDir(mount.path()));
    store = OrDie(Store::Open(std::move(dir), {}, &random, Logger()));
    token = Prng(name.size()).Bytes(kDataTokenBytes);
    for (const bool encrypted : {false, true}) {
      if (encrypted && !tls) continue;
      DataPortOptions port;
      port.listen_host = "127.0.0.1";
      port.tls = encrypted ? tls : nullptr;
      servers[encrypted] = OrDie(DataServer::Start(port, token, store.get(), &clock, Logger()));
      PullerOptions pull;
      pull.port = port;
      pull.streams = options.streams;
      pull.request_bytes = options.request_mib << 20;
      pullers[encrypted] = std::make_unique<Puller>(store.get(), &clock, pull, Logger());
    }
  }

  RamMount mount;
  SystemRandom random;
  SystemClock clock;
  std::string token;
  std::unique_ptr<Store> store;
  std::array<std::unique_ptr<DataServer>, 2> servers;  // plain, encrypted
  std::array<std::unique_ptr<Puller>, 2> pullers;
  Blake3 own;
};

// A shard of random bytes in files of the usual size, cut into the usual chunks.
Blake3 MakeShard(Node& node, const Options& options, uint32_t rank) {
  Prng prng(rank + 1);
  const std::string block = prng.Bytes(kChunkBytes);
  Manifest manifest;
  manifest.identity = {.job = "bench",
                       .save = {.run = {.sequence = 1, .nonce = {}}, .step = 1, .occurrence = 1},
                       .rank = rank,
                       .worker = 0,
                       .ordinal = 1,
                       .world = {.framework = Framework::kOrbax, .nodes = 2}};
  manifest.entries.push_back({.path = "", .type = EntryType::kDirectory, .mode = 0755});
  std::vector<std::string> files;
  // Each chunk differs from all others in its first bytes.
  uint64_t number = 0;
  std::string chunk = block;
  const auto stamp = [&](uint64_t n) {
    std::copy_n(reinterpret_cast<const char*>(&n), 8, &chunk[0]);
  };
  const uint64_t total = options.mib << 20;
  for (uint64_t at = 0; at < total; at += options.file_mib << 20) {
    ManifestEntry file{.path = fmt::format("f{:06}", at >> 20), .mode = 0644};
    file.bytes = std::min(options.file_mib << 20, total - at);
    for (uint64_t in_file = 0; in_file < file.bytes; in_file += kChunkBytes) {
      stamp(number++);
      const uint64_t bytes = std::min<uint64_t>(kChunkBytes, file.bytes - in_file);
      file.chunks.push_back({.bytes = bytes, .digest = ComputeXxh128(AsBytes(chunk).first(bytes))});
    }
    manifest.entries.push_back(std::move(file));
  }
  const std::string encoded = OrDie(EncodeManifest(manifest));
  auto incoming = OrDie(node.store->StartIncoming(encoded));
  number = 0;
  for (size_t i = 1; i < manifest.entries.size(); ++i) {
    const MutableByteSpan target = OrDie(incoming->Target(i));
    uint64_t offset = 0;
    for (const Chunk& c : manifest.entries[i].chunks) {
      stamp(number++);
      std::copy_n(AsBytes(chunk).begin(), c.bytes, target.begin() + static_cast<ptrdiff_t>(offset));
      offset += c.bytes;
    }
  }
  OrDie(incoming->Finish());
  return ManifestDigest(encoded);
}

double CpuSeconds() {
  struct rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Measured {
  double seconds = 0;
  double cpu_seconds = 0;
};

template <typename Body>
Measured Measure(const Body& body) {
  SystemClock clock;
  const double cpu = CpuSeconds();
  const Instant start = clock.Now();
  body();
  return {ToSeconds(clock.Now() - start), CpuSeconds() - cpu};
}

Measured Exchange(Node& a, Node& b, bool encrypted) {
  OrDie(a.store->Delete(b.own));
  OrDie(b.store->Delete(a.own));
  const auto pull = [&](Node& from, Node& to) {
    const PullRequest request{
        .digest = from.own,
        .sources = {{.node = "peer",
                     .address = {"127.0.0.1", from.servers[encrypted]->port()},
                     .token = from.token}}};
    const PullResult result = to.pullers[encrypted]->Pull(request, nullptr);
    OrDie(result.status);
  };
  return Measure([&] {
    std::thread other([&] { pull(b, a); });
    pull(a, b);
    other.join();
  });
}

// One pass of the digest over both nodes' own bytes, on two threads.
Measured HashPass(Node& a, Node& b) {
  const auto pass = [](Node& node) {
    const auto held = node.store->Find(node.own);
    for (size_t i = 0; i < held->manifest->entries.size(); ++i) {
      const ManifestEntry& entry = held->manifest->entries[i];
      if (entry.bytes == 0) continue;
      const auto file = OrDie(node.store->OpenEntry(node.own, i));
      const auto map = OrDie(file->Map(0, entry.bytes, MapAccess::kRead));
      ByteSpan bytes(map->data(), map->size());
      for (const Chunk& chunk : entry.chunks) {
        if (ComputeXxh128(bytes.first(chunk.bytes)) != chunk.digest) Die("wrong bytes");
        bytes = bytes.subspan(chunk.bytes);
      }
    }
  };
  return Measure([&] {
    std::thread other([&] { pass(b); });
    pass(a);
    other.join();
  });
}

std::string Capture(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) Die("popen failed");
  std::string out;
  std::array<char, 4096> buffer;
  for (size_t n = 0; (n = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    out.append(buffer.data(), n);
  }
  if (::pclose(pipe) != 0) Die("failed: " + command + "\n" + out);
  return out;
}

// A port that nobody has at the moment.
uint16_t FreePort() { return OrDie(ListenStreams("127.0.0.1", 0, {}))->port(); }

// Bytes a second that `iperf3 -P 4` moves one way over loopback.
double IperfRate() {
  // A server that failed one client is gone, so each try has its own.
  std::string out;
  for (int tries = 0; tries < 10; ++tries) {
    out = Capture(
        fmt::format("iperf3 -s -1 -B 127.0.0.1 -p {0} >/dev/null 2>&1 & server=$!; sleep 0.3; "
                    "iperf3 -c 127.0.0.1 -p {0} -P 4 -t 1 -J; "
                    "kill $server 2>/dev/null; true",
                    FreePort()));
    if (out.find("sum_received") != std::string::npos) break;
  }
  const auto json = nlohmann::json::parse(out, nullptr, false);
  if (json.is_discarded() || !json.contains("/end/sum_received/bits_per_second"_json_pointer)) {
    Die("iperf3 said: " + out);
  }
  return json["end"]["sum_received"]["bits_per_second"].get<double>() / 8;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void PrintLine(const std::string& what, double value, const std::string& unit, double limit,
               const std::string& against, double ratio, const std::string& aim, bool pass) {
  fmt::print("{:<44} {:>8.3f} {:<10} {:>8.3f} {:<22} {:>6.2f}  {:<12} {}\n", what, value, unit,
             limit, against, ratio, aim, pass ? "pass" : "FAIL");
}

struct Samples {
  std::vector<double> plain_s, plain_cpu, tls_s, tls_cpu, iperf, hash_s, rate_ratio, tls_ratio,
      hash_ratio;
};

nlohmann::json Run(const Options& options) {
  std::shared_ptr<TlsContext> tls;
  if (!options.tls_dir.empty()) tls = OrDie(TlsContext::Load(options.tls_dir));
  Node a("a", options, tls);
  Node b("bb", options, tls);
  a.own = MakeShard(a, options, 0);
  b.own = MakeShard(b, options, 1);
  const double gib = 2 * static_cast<double>(options.mib) / 1024;
  (void)Exchange(a, b, false);  // takes the memory that all rounds reuse

  Samples s;
  nlohmann::json rounds = nlohmann::json::array();
  for (int round = 0; round < options.rounds; ++round) {
    const Measured plain = Exchange(a, b, false);
    const Measured hash = HashPass(a, b);
    s.plain_s.push_back(plain.seconds);
    s.plain_cpu.push_back(plain.cpu_seconds / gib);
    s.hash_s.push_back(hash.seconds);
    s.hash_ratio.push_back(plain.seconds / hash.seconds);
    nlohmann::json json = {{"seconds", plain.seconds},
                           {"cpu_seconds_per_gib", plain.cpu_seconds / gib},
                           {"xxh3_pass_seconds", hash.seconds}};
    if (options.iperf) {
      const double rate = IperfRate();
      s.iperf.push_back(rate);
      s.rate_ratio.push_back(gib * kGiB / plain.seconds / rate);
      json["iperf3_bytes_per_second"] = rate;
    }
    if (tls) {
      const Measured encrypted = Exchange(a, b, true);
      s.tls_s.push_back(encrypted.seconds);
      s.tls_cpu.push_back(encrypted.cpu_seconds / gib);
      s.tls_ratio.push_back(encrypted.seconds / plain.seconds);
      json["encrypted_seconds"] = encrypted.seconds;
      json["encrypted_cpu_seconds_per_gib"] = encrypted.cpu_seconds / gib;
    }
    rounds.push_back(std::move(json));
  }

  fmt::print("{:<44} {:>8} {:<10} {:>8} {:<22} {:>6}  {:<12} {}\n",
             fmt::format("{} MiB each way at once, {} rounds, median", options.mib, options.rounds),
             "value", "", "limit", "", "ratio", "aim", "");
  const double rate = gib * kGiB / Median(s.plain_s) / 1e9;
  if (options.iperf) {
    const double ratio = Median(s.rate_ratio);
    PrintLine("transfer, verified, both ways in all", rate, "GB/s", Median(s.iperf) / 1e9,
              "GB/s iperf3 -P 4", ratio, ">= 1.3", ratio >= 1.3);
  }
  const double cpu = Median(s.plain_cpu);
  PrintLine("  processor time", cpu, "s/GiB", 0.62, "s/GiB", cpu / 0.62, "<= 1", cpu <= 0.62);
  const double hash_ratio = Median(s.hash_ratio);
  PrintLine("  time", Median(s.plain_s), "s", Median(s.hash_s), "s one XXH3 pass", hash_ratio,
            "(shown)", true);
  if (tls) {
    const double ratio = Median(s.tls_ratio);
    PrintLine("the same, encrypted", Median(s.tls_s), "s", Median(s.plain_s), "s not encrypted",
              ratio, "<= 2.5", ratio <= 2.5);
    PrintLine("  processor time", Median(s.tls_cpu), "s/GiB", cpu, "s/GiB not encrypted",
              Median(s.tls_cpu) / cpu, "(shown)", true);
  }
  return {{"mib_each_way", options.mib},
          {"streams", options.streams},
          {"request_mib", options.request_mib},
          {"huge", options.huge},
          {"rounds", rounds}};
}

}  // namespace
}  // namespace tierkeep

int main(int argc, char** argv) {
  tierkeep::Options options;
  CLI::App app("Measures transfers between two nodes on this machine");
  app.add_option("--mib", options.mib, "MiB each way");
  app.add_option("--file-mib", options.file_mib, "size of the shard's files");
  app.add_option("--rounds", options.rounds, "timed rounds")->check(CLI::Range(1, 100));
  app.add_option("--streams", options.streams, "connections each way")->check(CLI::Range(1, 64));
  app.add_option("--request-mib", options.request_mib, "bytes asked for at once");
  app.add_option("--huge", options.huge, "tmpfs huge= setting; empty: none");
  app.add_option("--tls-dir", options.tls_dir, "measure encrypted too, with these certificates");
  app.add_option("--json", options.json_path, "write raw results here");
  app.add_flag("!--no-iperf", options.iperf, "don't compare with iperf3");
  CLI11_PARSE(app, argc, argv);
  tierkeep::EnterOwnMountNamespace();
  const nlohmann::json result = tierkeep::Run(options);
  if (!options.json_path.empty()) std::ofstream(options.json_path) << result.dump(1) << "\n";
  return 0;
}
