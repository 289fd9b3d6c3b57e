// Short ways to make shards, records and inventories in tests of the core.
#pragma once

#include <string>

#include "control.pb.h"
#include "format/ids.h"

namespace tierkeep {

Id128 TestId(uint64_t number);
RunId TestRun(uint64_t sequence, uint64_t nonce = 0);

inline constexpr uint64_t kTestManifestBytes = 100;

struct TestShard {
  SaveKey save;
  Rank rank = 0;
  Worker worker = 0;
  uint64_t ordinal = 1;
  WorldShape world;
  uint64_t logical = 0;  // 0: none
  uint64_t bytes = 1000;
  uint64_t content = 0;  // tells apart shards that are otherwise the same
};
control::ShardInfo MakeShard(const TestShard& shard, const std::string& job = "job");

// The join of node "n<agent>" to "job", of framework pytorch.distributed with so many nodes.
control::Envelope MakeJoin(uint64_t agent, Rank rank, uint32_t nodes);

}  // namespace tierkeep
