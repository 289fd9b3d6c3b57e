// Random schedules: saves, kills, lost machines, broken links, full and bad stores, ranks that
// move, failing actions. While it lasts, the invariants of cluster_testutil hold and no restart
// goes back behind what was committed; once everything is mended, the job runs and commits again.
//
// TIERKEEP_TEST_SEED=n runs that seed alone and prints its log.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/prng.h"
#include "core/cluster_testutil.h"
#include "core/holdings.h"

namespace tierkeep {
namespace {

class Schedule {
 public:
  explicit Schedule(uint64_t seed) : prng_(seed), cluster_(Options(seed)) {}

  void Run() {
    StartJob();
    for (int i = 0; i < 60 && cluster_.ok() && !testing::Test::HasFailure(); ++i) {
      Disturb();
      cluster_.Run(Duration(prng_.Below(static_cast<uint64_t>(Duration(40ms).count()))));
      Look();
    }
    Mend();
  }

  std::string TraceOf() const { return cluster_.Trace(); }
  std::string LogOf() const { return tierkeep::LogOf(cluster_); }

 private:
  TestClusterOptions Options(uint64_t seed) {
    TestClusterOptions options;
    options.seed = seed;
    const uint32_t partitions = prng_.Chance(1, 3) ? 2 : 0;
    partitions_ = partitions;
    const auto width = static_cast<uint32_t>(1 + prng_.Below(3));
    options.world.nodes = std::max(1U, partitions) * width + (partitions == 0 ? 1 : 0);
    options.world.data_parallelism = partitions;
    options.hosts = options.world.nodes + 1 + prng_.Below(2);
    options.peers_per_node = 1 + prng_.Below(2);
    options.delay_max = prng_.Chance(1, 2) ? Duration(500us) : Duration(5ms);
    // Every other schedule is that of a large job.
    if (seed % 2 == 0) options.whole_view_max = 0;
    nodes_ = options.world.nodes;
    return options;
  }

  size_t AnyHost() { return prng_.Below(cluster_.hosts()); }

  void Disturb() {
    switch (prng_.Below(13)) {
      case 0:
      case 1:
      case 2:
      case 3:
        Save();
        break;
      case 4:
        if (const size_t host = AnyHost(); cluster_.Up(host)) cluster_.KillAgent(host);
        break;
      case 5:
      case 6:
        for (size_t i = 0; i < cluster_.hosts(); ++i) {
          if (!cluster_.Up(i)) cluster_.StartAgent(i);
        }
        break;
      case 7:
        cluster_.CutLink(AnyHost());
        break;
      case 8:
        StartJob();
        break;
      case 9:
        LoseMachine();
        break;
      case 10:
        cluster_.CutData(AnyHost(), AnyHost());
        if (prng_.Chance(1, 2)) cluster_.MendData();
        break;
      case 11:
        cluster_.FillStore(AnyHost(), prng_.Chance(1, 3));
        break;
      case 12:
        FailSomething();
        break;
    }
  }

  // Steps only grow here, so the newest save is the one with the highest step.
  void Save() {
    ++step_;
    if (prng_.Chance(1, 6)) {
      const size_t skips = AnyHost();
      for (size_t i = 0; i < cluster_.hosts(); ++i) {
        if (i != skips) cluster_.SaveOn(i, step_);
      }
      return;
    }
    cluster_.SaveAll(step_);
  }

  // Every process starts anew, often with other ranks, sometimes on other machines.
  void StartJob() {
    std::vector<size_t> hosts(cluster_.hosts());
    std::iota(hosts.begin(), hosts.end(), 0);
    if (prng_.Chance(1, 3)) {
      for (size_t i = hosts.size(); i > 1; --i) std::swap(hosts[i - 1], hosts[prng_.Below(i)]);
    }
    for (size_t i = 0; i < hosts.size(); ++i) {
      const bool gone =
          std::find(hosts.begin(), hosts.begin() + nodes_, i) == hosts.begin() + nodes_;
      if (gone && cluster_.rank(i)) cluster_.SendYaml(i, std::nullopt);
      cluster_.EndClient(i);
    }
    for (Rank rank = 0; rank < nodes_; ++rank) cluster_.StartClient(hosts[rank], rank);
  }

  // Every position has two good copies, an equal replica's counting as one.
  bool Protected() const {
    const auto digests = cluster_.NewestDigests();
    if (digests.empty()) return false;
    const size_t width = digests.size() / std::max(1U, partitions_);
    for (size_t column = 0; column < width; ++column) {
      std::set<Blake3> of_column;
      for (size_t i = column; i < digests.size(); i += width) of_column.insert(digests[i]);
      size_t copies = 0;
      for (const Blake3& digest : of_column) copies += cluster_.CopiesOf(digest);
      if (copies < 2) return false;
    }
    return true;
  }

  // At most one loss between two moments of full protection: that is what is promised.
  void LoseMachine() {
    if (!Protected() || floor_ == 0) return;
    const size_t host = AnyHost();
    if (cluster_.Up(host)) cluster_.KillAgent(host);
    if (prng_.Chance(1, 2)) {
      cluster_.WipeRam(host);
    } else {
      cluster_.LoseHost(host);
    }
    cluster_.StartAgent(host);
    StartJob();
    settle_ = true;
  }

  void FailSomething() {
    static const char* const kActions[] = {"RecordGeneration", "Stage",      "Pull",
                                           "Verify",           "WriteMeta",  "DeleteShards",
                                           "PersistState",     "WriteError", "RemoveOtherMetas"};
    cluster_.FailNext(AnyHost(), kActions[prng_.Below(std::size(kActions))]);
  }

  void Look() {
    if (settle_) {
      // The next loss waits until the job runs and its copies stand again.
      Heal();
      settle_ = false;
    }
    for (Step step = step_; step > floor_; --step) {
      if (cluster_.AllCommitted(step)) floor_ = step;
    }
  }

  void Heal() {
    cluster_.MendData();
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      cluster_.FillStore(i, false);
      cluster_.ClearFailures(i);
      if (!cluster_.Up(i)) cluster_.StartAgent(i);
    }
    // A yaml of a process that is gone may still stand for its rank; whoever starts jobs tries
    // again.
    for (int i = 0; i < 5; ++i) {
      // What was restored and never copied may be gone with a machine; then somebody must say so.
      for (size_t host = 0; host < cluster_.hosts(); ++host) {
        if (!cluster_.rank(host)) continue;
        const auto& failed = cluster_.client(host).failed;
        if (failed.empty() || failed.back().find("--without-absent") == std::string::npos) continue;
        control::RestoreOrder order;
        order.set_job("job");
        order.set_without_absent(true);
        cluster_.GiveOrder(host, order);
        break;
      }
      StartJob();
      // Longer than a decision waits for nodes that may hold something newer.
      if (!cluster_.RunUntil([&] { return cluster_.AllReleased(); }, 300s)) continue;
      for (size_t host = 0; host < cluster_.hosts(); ++host) {
        if (!cluster_.rank(host)) continue;
        EXPECT_GE(cluster_.client(host).step.value_or(0), floor_);
      }
      ++step_;
      cluster_.SaveAll(step_);
      if (!cluster_.RunUntil([&] { return cluster_.AllCommitted(step_); }, 60s)) continue;
      floor_ = step_;
      return;
    }
    ADD_FAILURE() << "the job doesn't recover\n" << States();
  }

  std::string States() {
    std::string text;
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      text += fmt::format("n{}: {}, rank {}, released {}, yaml {}, failed '{}'\n", i,
                          cluster_.status(i).phase, cluster_.rank(i) ? int(*cluster_.rank(i)) : -1,
                          cluster_.client(i).released, cluster_.YamlStands(i),
                          fmt::join(cluster_.client(i).failed, "; "));
    }
    return text;
  }

  void Mend() {
    Heal();
    cluster_.Run(30s);
    // Nothing is left over: each rank has its own shards and its peers', no more.
    EXPECT_TRUE(nodes_ == 1 || Protected());
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      if (!cluster_.rank(i)) continue;
      EXPECT_EQ(cluster_.StaleShards(i, step_), "") << "host " << i;
    }
  }

  Prng prng_;
  uint32_t nodes_ = 0;
  uint32_t partitions_ = 0;
  TestCluster cluster_;
  Step step_ = 0;
  Step floor_ = 0;  // all nodes had committed this
  bool settle_ = false;
};

TEST(Schedules, KeepTheirPromises) {
  uint64_t first = 1;
  uint64_t last = 150;
  bool print = false;
  if (const char* seed = std::getenv("TIERKEEP_TEST_SEED")) {
    first = last = std::strtoull(seed, nullptr, 10);
    print = true;
  }
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(fmt::format("TIERKEEP_TEST_SEED={}", seed));
    Schedule schedule(seed);
    schedule.Run();
    if (print) fmt::print("{}{}", schedule.LogOf(), schedule.TraceOf());
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tierkeep
