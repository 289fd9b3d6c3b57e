// Whether a host's mount holds no more than docs/memory.md, "What a volume holds", allows for the
// state that its job is in.
//
// Counted are copies: what stands in the store, is on its way there or is being deleted, and what
// the job writes, finished or not. Everything else on the mount must be small. What is over for ten
// seconds fails. In the quiet stretches of a schedule the table holds to the last copy; while
// faults are put in, the bound follows from what was saved, by how many starts of the job, since
// the host's last commit.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/manifest.h"
#include "sim/ledger.h"
#include "sim/sim_host.h"
#include "sim/sim_job.h"
#include "sim/world.h"

namespace tierkeep::sim {

class Budget {
 public:
  enum class Stretch : uint8_t {
    kUnknown,      // nothing is asked
    kUndisturbed,  // no fault yet
    kDisturbed,
    kMended,   // no fault any more, and a commit since
    kMoved,    // the job was restored, perhaps on other hosts, and saves nothing
    kRebuilt,  // all copies are made again
  };

  Budget(World* world, std::vector<std::unique_ptr<SimHost>>* hosts, const SimJob* job,
         Ledger* ledger)
      : world_(world), hosts_(*hosts), job_(job), ledger_(ledger) {}

  void Begin(Stretch stretch);
  // At all hosts.
  void Look();

 private:
  // Copies of one worker's shard on a mount.
  struct Held {
    size_t in_store = 0;  // of this job
    size_t in_volume = 0;
    size_t foreign = 0;      // of that, another job's that the nemesis left there
    size_t other = 0;        // of other jobs, or unreadable
    size_t undeletable = 0;  // for file errors
    uint64_t bytes = 0;
    size_t ours() const { return in_store + in_volume; }
    std::string ToString() const;
  };
  // What is known of a host.
  struct Known {
    std::optional<SaveId> committed;                 // as recorded there
    uint32_t attempt_of_commit = 0;                  // that was under way then, at the latest
    Instant commit_at{};                             // when it was seen
    size_t before_commit = 0;                        // what was allowed then
    uint32_t attempt = 0;                            // at the last look
    std::deque<std::pair<Instant, size_t>> allowed;  // of the last seconds
    Instant kept_at{};                               // the last look that found no more than that
  };

  Held HeldAt(SimHost* host);
  void CountVolume(SimHost* host, Held* held) const;
  const ShardIdentity* IdentityOf(SimHost* host, const Blake3& digest);
  bool HasRank(size_t host) const;
  bool HoldsOlder(SimHost* host);
  void NoteCommit(SimHost* host, Known* known);
  size_t Copies() const;
  size_t Allowed(SimHost* host, const Known& known) const;
  size_t AllowedByTable(const Known& known) const;
  size_t AllowedDisturbed(const Known& known) const;
  static bool WasCutShort(SimHost* host, const Known& known);
  void LookAt(SimHost* host);

  World* const world_;
  std::vector<std::unique_ptr<SimHost>>& hosts_;
  const SimJob* const job_;
  Ledger* const ledger_;
  Stretch stretch_ = Stretch::kUnknown;
  Instant since_{};  // it
  size_t copies_most_ = 1;
  std::map<size_t, Known> known_;
  std::map<Blake3, ShardIdentity> identities_;
};

}  // namespace tierkeep::sim
