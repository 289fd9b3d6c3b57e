#include "agent/metrics.h"

#include <gmock/gmock.h>

namespace tierkeep {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, F1_F2_OperationsCarryMethodFrameworkAndRealStatus) {
  Metrics metrics;
  metrics.ObserveOperation("CheckpointReplicationTotal", "orbax", OkStatus(), 700ms);
  metrics.ObserveOperation("CheckpointReplication", "orbax", Error(Code::kDeadlineExceeded, "late"),
                           20s);
  const std::string text = metrics.Text({});
  EXPECT_THAT(text, HasSubstr("node_operations_seconds_count{framework=\"orbax\",grpc_status_code="
                              "\"OK\",method_name=\"CheckpointReplicationTotal\"} 1"));
  EXPECT_THAT(text, HasSubstr("grpc_status_code=\"DeadlineExceeded\",method_name="
                              "\"CheckpointReplication\",le=\"15\"} 0"));
  EXPECT_THAT(text, HasSubstr("grpc_status_code=\"DeadlineExceeded\",method_name="
                              "\"CheckpointReplication\",le=\"30\"} 1"));
}

TEST(Metrics, F7_GaugesFollowTheSnapshotAndTotalsNeverFall) {
  Metrics metrics;
  EXPECT_THAT(metrics.Text({}), HasSubstr("tierkeep_last_committed_step -1"));
  MetricsSnapshot s;
  s.has_commit = true;
  s.last_committed_step = 40;
  s.bytes_pulled = 100;
  s.own_bytes = 7;
  s.volume_advised_bytes = 21;
  s.pulls_waiting = 2;
  EXPECT_THAT(metrics.Text(s), HasSubstr("tierkeep_last_committed_step 40"));
  s.bytes_pulled = 60;
  EXPECT_THAT(metrics.Text(s), HasSubstr("tierkeep_pulled_bytes_total 100"));
  s.bytes_pulled = 150;
  const std::string text = metrics.Text(s);
  EXPECT_THAT(text, HasSubstr("tierkeep_pulled_bytes_total 150"));
  EXPECT_THAT(text, HasSubstr("tierkeep_store_bytes{kind=\"own\"} 7"));
  EXPECT_THAT(text, HasSubstr("tierkeep_volume_advised_bytes 21"));
  EXPECT_THAT(text, HasSubstr("tierkeep_pulls_waiting 2"));
}

TEST(Metrics, HashingGoesToTheRightHistogram) {
  Metrics metrics;
  metrics.ObserveHashing(true, 200ms);
  const std::string text = metrics.Text({});
  EXPECT_THAT(text, HasSubstr("duration_hashing_tensorstore_count 1"));
  EXPECT_THAT(text, HasSubstr("duration_hashing_dir_count 0"));
}

}  // namespace
}  // namespace tierkeep
