#include "core/core_testutil.h"

#include <fmt/format.h>

#include "base/digest.h"
#include "format/messages.h"

namespace tierkeep {

Id128 TestId(uint64_t number) {
  const Blake3 digest = ComputeBlake3(fmt::format("id {}", number));
  Id128 id;
  std::copy(digest.bytes.begin(), digest.bytes.begin() + Id128::kSize, id.bytes.begin());
  return id;
}

RunId TestRun(uint64_t sequence, uint64_t nonce) {
  return {sequence, TestId(sequence * 1000 + nonce)};
}

control::ShardInfo MakeShard(const TestShard& shard, const std::string& job) {
  ShardSummary summary;
  summary.identity = {job, shard.save, shard.rank, shard.worker, shard.ordinal, shard.world};
  summary.digest =
      ComputeBlake3(fmt::format("{} {} {} {} {}", shard.save.ToString(), shard.save.occurrence,
                                shard.rank, shard.worker, shard.content));
  if (shard.logical != 0) summary.logical = ComputeBlake3(fmt::format("l {}", shard.logical));
  summary.volume_name = "D" + summary.digest.Hex();
  summary.bytes = shard.bytes;
  summary.manifest_bytes = kTestManifestBytes;
  return ToProto(summary);
}

}  // namespace tierkeep
