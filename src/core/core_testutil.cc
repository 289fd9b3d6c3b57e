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

control::Envelope MakeJoin(uint64_t agent, Rank rank, uint32_t nodes) {
  JobConfig config;
  config.job = "job";
  config.rank = rank;
  config.world = {Framework::kPytorchDistributed, nodes, 1, 0};
  control::Envelope message;
  message.set_job("job");
  message.set_sender("n" + std::to_string(agent));
  control::Join& join = *message.mutable_join();
  *join.mutable_attempt() = ToProto(AttemptId{TestId(agent), TestId(100 + agent), 1});
  join.set_node(message.sender());
  join.set_rank(rank);
  *join.mutable_settings() = SettingsOf(config);
  return message;
}

}  // namespace tierkeep
