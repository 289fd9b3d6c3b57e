// The jobs' records as a shared service keeps them: compare-and-swap is exact, but an answer may be
// lost after the write, a read may see an older version, and the service may be away.
//
// Promises checked: a job's epoch never falls, and a new run's sequence is above every earlier one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/rendezvous.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct RendezvousRates {  // per million calls
  uint32_t away = 0;
  uint32_t stale = 0;
  uint32_t answer_lost = 0;
};

class SimRendezvous : public Rendezvous {
 public:
  explicit SimRendezvous(World* world) : world_(world) {}
  Result<std::optional<VersionedRecord>> Read(std::string_view job) override;
  Result<std::string> CompareAndSwap(std::string_view job, std::string_view expected,
                                     std::string_view bytes) override;
  void set_rates(const RendezvousRates& rates) { rates_ = rates; }
  void set_away(bool away) { away_ = away; }

 private:
  Status Reach();
  void CheckRecord(std::string_view before, std::string_view after);

  World* const world_;
  RendezvousRates rates_;
  bool away_ = false;
  // All versions, newest last; the version's name is its number.
  std::map<std::string, std::vector<std::string>, std::less<>> records_;
};

}  // namespace tierkeep::sim
