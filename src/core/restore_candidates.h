// The generations that could be restored, as groups of shards of one save: part of restore_choice.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/restore_choice.h"
#include "format/generation_record.h"

namespace tierkeep {

using Place = std::pair<Rank, Worker>;

// Newest = highest. Within a run the nodes' own count of saves orders numbered and unnumbered ones
// alike: of two complete saves every node saved the newer one later.
struct CandidateOrder {
  uint64_t sequence = 0;
  uint64_t ordinal = 0;
  uint64_t number = 0;
  auto operator<=>(const CandidateOrder&) const = default;
};

struct Candidate {
  SaveKey save;
  // The numbered record, if any node has one, as far as its parts are here. Records of one save
  // that differ in their shards are candidates of their own.
  std::optional<control::GenerationRecord> record;
  // Known shards of this save by whose bytes they are.
  std::map<Place, std::set<Blake3>> shards;
  CandidateOrder order;
  WorldShape world;
  std::string contradiction = {};  // of the parts of its record, for people
};

// All candidates of the question's job and world, newest first.
std::vector<Candidate> FindCandidates(const RestoreQuestion& question);
// The newest candidate of each other world that the job has saved in.
std::vector<Candidate> FindOtherWorlds(const RestoreQuestion& question);

// The record that these are parts of, at least one, with what `holdings` adds to them.
AssembledRecord AssembleFor(const Holdings& holdings,
                            const std::vector<const control::GenerationRecord*>& parts);

struct Filled {
  std::vector<control::ShardInfo> shards;  // by (rank, worker); empty when `missing` is set
  std::string missing;                     // what it lacks, for people
  std::string problem;                     // replicas that disagree, for people
};
// A reachable shard for every place, if there is one.
Filled FillPlaces(const RestoreQuestion& question, const Candidate& candidate);

}  // namespace tierkeep
