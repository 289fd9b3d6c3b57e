// Where a generation's copies must be before it may be called committed, and what is still missing:
// one mechanism for replication of a save and for rebuilding redundancy after a restore.
//
// Pure functions: any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "control.pb.h"
#include "core/holdings.h"
#include "core/placement.h"

namespace tierkeep {

// Replicas at one position of the partitions that hold different values.
struct Disagreement {
  Worker worker = 0;
  Rank reference = 0;  // the lowest rank of those whose value most replicas hold
  uint32_t equal = 0;  // how many hold the reference's value, itself included
  // The reference's value outnumbers every other; else nobody can tell who is right.
  bool majority = false;
  std::vector<Rank> odd;  // hold another value than the reference; ascending
};

// What each node holds once the generation is protected.
struct ProtectionPlan {
  std::map<std::string, std::set<Blake3>> wanted;  // by node name; every member has an entry
  // With data parallelism: positions whose replicas differ.
  std::vector<Disagreement> disagreements;
  bool copies_needed = true;  // false: equal replicas protect each other
};

// `nodes` are names by rank. Equal replicas need no copies; otherwise each rank's keepers hold one.
ProtectionPlan PlanProtection(const control::GenerationRecord& record,
                              const std::vector<std::string>& nodes,
                              const std::vector<std::vector<Rank>>& keepers);

// By node: what it lacks in verified form. Empty: the generation is protected.
std::map<std::string, std::vector<Blake3>> Missing(const ProtectionPlan& plan,
                                                   const Holdings& holdings);

}  // namespace tierkeep
