#include "sim/expected_errors.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tierkeep::sim {
namespace {

enum class Reason : uint8_t {
  kDamage,    // bytes at rest or in flight
  kFiles,     // file operations that fail
  kFull,      // no room
  kLost,      // RAM, machines
  kVanished,  // RAM under a live agent
  kNetwork,   // connections, frames, partitions, rendezvous
  kCrash,     // of agents
  kJob,       // starts again, elsewhere, otherwise
  kOrders,    // of people
  kDiverge,   // replicas with different values
  kSlowness,  // slow or suspended hosts, drifting clocks
  kGaveWay,   // to another job
};

const std::vector<std::string_view>& FaultsOf(Reason reason) {
  static const std::vector<std::string_view> kFaults[] = {
      {"damage at rest", "byte flipped in flight", "restored checkpoint changed"},
      {"file errors", "read error", "write error"},
      {"mount full", "small mounts", "write error"},
      {"RAM lost", "machine replaced", "RAM volume vanished"},
      {"RAM volume vanished"},
      {"connection broken", "connection refused", "frame lost", "frame delayed", "partition",
       "one-way partition", "rendezvous away", "rendezvous stale", "rendezvous answer lost",
       "data connection cut off", "old frame replayed", "frame duplicated", "connection overtaken"},
      {"agent crash"},
      {"job restart", "job process killed", "ranks moved", "host swapped", "another job",
       "world changed", "foreign leftovers"},
      {"restore order"},
      {"replicas diverge"},
      {"slow host", "host suspended", "clock drift", "wall clock jump"},
      {"another job"},
  };
  return kFaults[static_cast<size_t>(reason)];
}

struct Expected {
  std::string_view part;
  std::vector<Reason> reasons;
};

const std::vector<Expected>& AllExpected() {
  using R = Reason;
  static const std::vector<Expected> kExpected = {
      // -- the job can't start, and is told so
      {"did not join within", {R::kNetwork, R::kCrash, R::kJob, R::kLost, R::kFull, R::kSlowness}},
      {"there is no checkpoint to go on from after",
       {R::kNetwork, R::kCrash, R::kJob, R::kLost, R::kFull, R::kSlowness}},
      {"no run of the job was found", {R::kNetwork, R::kCrash, R::kJob, R::kLost, R::kSlowness}},
      {"went on without this node", {R::kNetwork, R::kCrash, R::kJob, R::kLost, R::kSlowness}},
      {"is claimed by", {R::kJob, R::kNetwork, R::kLost, R::kCrash}},
      {"is used by another agent", {R::kLost}},
      {"has taken rank", {R::kJob, R::kLost}},
      {"has been another node's since", {R::kJob, R::kLost}},
      {"disagree", {R::kJob}},
      {"none can be restored", {R::kLost, R::kDamage, R::kFiles, R::kOrders, R::kGaveWay}},
      {"hold different values", {R::kDiverge}},
      {"holds other values", {R::kDiverge}},
      {"the restore decision stops", {R::kDamage, R::kFiles}},
      {"replicator.yaml can't be accepted", {R::kJob, R::kFiles, R::kLost}},
      {"replicator.yaml is empty", {R::kJob, R::kLost, R::kFull}},
      {"replicator.yaml can't be read", {R::kFiles}},
      {"two jobs use this volume", {R::kJob}},
      {"was saved by a job of another shape", {R::kJob}},
      {"is suspect: it was restored", {R::kJob, R::kCrash, R::kNetwork, R::kLost, R::kFull}},
      {"may hold it and is away", {R::kLost, R::kJob, R::kCrash, R::kNetwork}},
      {"it is given up", {R::kLost, R::kJob}},
      // -- a restore falls back
      {"prepare", {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork, R::kSlowness}},
      {"can be put together", {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork}},
      // -- copies
      {"Failed: replication for step",
       {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork, R::kCrash, R::kSlowness}},
      {"a peer's copy can't be kept",
       {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork, R::kCrash}},
      // A commit is due again to a node that came back without what it kept.
      {"no longer here", {R::kLost, R::kDamage, R::kFiles}},
      {" is bad", {R::kDamage, R::kFiles}},
      {"unreadable: ", {R::kDamage, R::kFiles}},
      {"counts as lost", {R::kDamage}},
      {"and is lost", {R::kDamage}},
      {"the copies of", {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork, R::kJob}},
      {"its replicas disagree, and the real copies",
       {R::kDamage, R::kFiles, R::kFull, R::kLost, R::kNetwork, R::kCrash, R::kSlowness}},
      // -- saves
      {"the save of ", {R::kFiles, R::kFull, R::kSlowness}},
      {"some worker skipped them", {R::kFiles, R::kFull, R::kJob, R::kLost, R::kSlowness}},
      {"can't be adopted", {R::kFiles, R::kFull, R::kJob, R::kLost}},
      {"new saves are not protected", {R::kNetwork, R::kCrash, R::kLost, R::kSlowness, R::kJob}},
      // -- files
      {"has vanished under its agent", {R::kVanished}},
      {"RESOURCE_EXHAUSTED", {R::kFull}},
      {"ENOSPC", {R::kFull}},
      {"DATA_LOSS: ", {R::kFiles, R::kDamage}},
      {"PlaceLink failed: NOT_FOUND", {R::kDamage}},
      {"could not be deleted", {R::kFiles}},
      {"left ", {R::kFiles}},
      {"write store/shards/", {R::kFiles, R::kFull}},
      {"injected", {R::kFiles}},
      {"EIO", {R::kFiles, R::kDamage}},
  };
  return kExpected;
}

}  // namespace

bool IsExplained(const World& world, std::string_view text) {
  return std::any_of(AllExpected().begin(), AllExpected().end(), [&](const Expected& expected) {
    if (text.find(expected.part) == std::string_view::npos) return false;
    return std::any_of(expected.reasons.begin(), expected.reasons.end(), [&](Reason reason) {
      const auto& faults = FaultsOf(reason);
      return std::any_of(faults.begin(), faults.end(),
                         [&](std::string_view fault) { return world.HadFault(fault); });
    });
  });
}

}  // namespace tierkeep::sim
