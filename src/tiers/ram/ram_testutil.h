// For tests of the RAM tier: a mount on tmpfs with its store, random trees, calls that fail.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log_sinks.h"
#include "base/prng.h"
#include "format/format_testutil.h"
#include "format/manifest.h"
#include "io/clock.h"
#include "io/forwarding_dir_testutil.h"
#include "io/temp_dir_testutil.h"
#include "tiers/ram/stager.h"
#include "tiers/ram/store.h"
#include "tiers/ram/volume.h"
#include "tiers/worker_pool.h"

namespace tierkeep {

// Decides, before each call that goes to a FaultyDir or a file of it, whether it fails instead.
// Threads: any; a rule is called from several at once and may itself make calls.
class Faults {
 public:
  using Rule = std::function<std::optional<Error>(std::string_view call, std::string_view path)>;

  void Set(Rule rule);
  void Clear() { Set({}); }
  // Only the n-th call from now on (from 1) fails, or it and all after it: the process was killed.
  enum class After : uint8_t { kWorks, kFails };
  void FailAt(uint64_t n, Error error, After after);
  // From the n-th call on those that `fails` names fail.
  void FailFrom(uint64_t n, Error error, std::function<bool(std::string_view call)> fails);
  // Whether a call has failed by FailAt or FailFrom.
  bool hit() const { return hit_.load(); }
  std::optional<Error> Check(std::string_view call, std::string_view path);

 private:
  std::mutex mutex_;
  Rule rule_;
  std::atomic<bool> hit_{false};
};

// `dir` and all that is opened through it, with faults.
std::unique_ptr<Dir> MakeFaultyDir(std::unique_ptr<Dir> dir, std::shared_ptr<Faults> faults);

// A directory on tmpfs with client/ and store/, as one node has it.
class RamNode {
 public:
  RamNode();

  // Opens the store anew, as after a restart of the agent.
  Status Reopen();
  Store& store() { return *store_; }
  Stager& stager() { return *stager_; }
  Volume& volume() { return *volume_; }
  WorkerPool& pool() { return pool_; }
  Faults& faults() { return *faults_; }
  MemoryLogSink& log() { return *log_; }
  Logger logger() { return Logger(log_); }
  const std::string& path() const { return temp_.path(); }
  std::string Client(const std::string& name) const { return temp_.path() + "/client/" + name; }
  std::string InStore(const std::string& name) const { return temp_.path() + "/store/" + name; }
  // The real directory, without faults.
  Dir& real() { return temp_.dir(); }
  StageOptions& stage_options() { return stage_options_; }

  // Takes client/<name> and hashes it.
  Result<StagedShard> Stage(const std::string& name, const ShardIdentity& identity);
  // Whether FS_IMMUTABLE_FL can be set here by us.
  bool HasImmutable();

 private:
  TempDir temp_;
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::shared_ptr<MemoryLogSink> log_ = std::make_shared<MemoryLogSink>();
  WorkerPool pool_{2};
  SystemClock clock_;
  SystemRandom random_;
  StageOptions stage_options_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Stager> stager_;
  std::unique_ptr<Volume> volume_;
};

ShardIdentity TestIdentity(Step step, uint32_t data_parallelism = 0);

// Writes a file and the directories above it. Plain POSIX calls: tests don't build their world with
// what they test.
void PutFile(const std::string& path, std::string_view content, uint32_t mode = 0644);
std::string GetFile(const std::string& path);
bool Exists(const std::string& path);  // a dangling link exists

// A tree of files (some empty, one larger than a chunk now and then), directories and links.
struct RandomTreeOptions {
  size_t entries_max = 40;
  uint64_t file_bytes_max = 200'000;
  bool large_file = false;  // one of 20 MiB
};
void MakeRandomTree(Prng& prng, const std::string& path, const RandomTreeOptions& options = {});
// One line an entry: path, type, mode, size, digest or target. Equal texts: equal trees.
std::string TreeText(const std::string& path);

}  // namespace tierkeep
