// Pulls in simulated time: the plan is core/transfer.h's, shards come in through the store's own
// code and out of the stores of other hosts; only the connections and threads between are made up.
//
// Chunks may be flipped or cut off on the way, sources may be slow, out of reach, or die half-way.
// What is asked of whom, judged and given up follows tiers/peer/pull_job.cc.
// Threads: one.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/runtime.h"
#include "base/log.h"
#include "sim/sim_network.h"
#include "sim/sim_runtime.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct DataRates {  // per million chunks
  uint32_t flipped = 0;
  uint32_t cut_off = 0;
};

// A process that serves its store.
struct DataServerView {
  Store* store = nullptr;  // null: nobody listens there
  std::string token;
  std::shared_ptr<SimProcess> process;
};

class SimPull;

class SimPulls : public PullStarter {
 public:
  struct Parts {
    World* world;
    SimNetwork* network;
    SimClock* clock;
    const HostSpeed* speed;
    const DataRates* rates;
    std::shared_ptr<SimProcess> process;
    Store* store;
    size_t host;
    Logger logger;
    std::function<DataServerView(const HostPort&)> server_at;
  };
  explicit SimPulls(Parts parts) : parts_(std::move(parts)) {}
  ~SimPulls() override;
  void Start(WorkQueue& tasks, PullRequest request,
             std::shared_ptr<const std::atomic<bool>> cancelled,
             std::function<void(PullResult)> done) override;
  void StartListing(WorkQueue& tasks, PullRequest request, const Blake3& logical,
                    std::function<void(Result<std::vector<LogicalLine>>)> done) override;

 private:
  friend class SimPull;
  Result<std::vector<LogicalLine>> Listing(const PullSource& source, const Blake3& digest,
                                           const Blake3& logical) const;
  bool HasTurn(PullPriority priority) const;

  const Parts parts_;
  std::set<std::shared_ptr<SimPull>, std::owner_less<>> running_;  // never walked
  std::array<uint32_t, 3> active_{};                               // by priority
};

}  // namespace tierkeep::sim
