// Every wait ends in something that the training side can read:
//   * a process that waits for its start sees its yaml go, and links or replicator.failed come,
//     before it gives up by itself;
//   * a save that it finished leaves the volume, and what was taken is hashed, or given up.
// A host whose agent died or was stopped, whose files failed or whose mount was full meanwhile
// owes nothing: then the wait begins anew. Whatever happens to the other hosts and between them
// excuses nobody. Threads: one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_host.h"
#include "sim/world.h"

namespace tierkeep::sim {

class Outcomes {
 public:
  Outcomes(World* world, std::vector<std::unique_ptr<SimHost>>* hosts)
      : world_(world), hosts_(*hosts) {}

  // Looks at what waits, from now on.
  void Watch();
  // The process on `host` gives up what it has waited for since `since`.
  void OnOverdue(size_t host, const std::string& what, Instant since);
  // It has finished a save, at that name in the volume.
  void OnSaved(size_t host, const std::string& name);

 private:
  struct Waiting {
    uint64_t inode = 0;
    Instant since;
  };
  void Look();
  void LookAt(SimHost* host);
  // Whether `since`, moved to now where the agent owes nothing, is too long ago.
  bool IsOverdue(SimHost* host, Instant* since) const;

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  std::map<std::pair<size_t, std::string>, Waiting> saved_;   // by host and name in the volume
  std::map<std::pair<size_t, std::string>, Instant> staged_;  // by host and name in the store
};

}  // namespace tierkeep::sim
