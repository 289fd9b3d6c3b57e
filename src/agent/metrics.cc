#include "agent/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <mutex>

namespace tierkeep {
namespace {

using prometheus::Histogram;

// Section "Metrics" of docs/protocol.md.
const Histogram::BucketBoundaries kOperationBuckets = {1,   5,   15,  30,   60,  120,
                                                       250, 500, 750, 1000, 1500};
const Histogram::BucketBoundaries kHashBuckets = {0.1, 0.5, 1, 5, 10, 30, 40, 45, 55, 75, 120};

// "DeadlineExceeded" for kDeadlineExceeded: gRPC's spelling.
std::string GrpcName(Code code) {
  if (code == Code::kOk) return "OK";
  std::string out;
  bool upper = true;
  for (const char c : CodeName(code)) {
    if (c == '_') {
      upper = true;
      continue;
    }
    out += upper ? c : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    upper = false;
  }
  return out;
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::Family<Histogram>& operations = prometheus::BuildHistogram()
                                                  .Name("node_operations_seconds")
                                                  .Help("Duration of node operations")
                                                  .Register(registry);
  Histogram& hashing_dir = prometheus::BuildHistogram()
                               .Name("duration_hashing_dir")
                               .Help("Seconds to hash a saved directory")
                               .Register(registry)
                               .Add({}, kHashBuckets);
  Histogram& hashing_tensorstore = prometheus::BuildHistogram()
                                       .Name("duration_hashing_tensorstore")
                                       .Help("Seconds to hash a save with tensor stores")
                                       .Register(registry)
                                       .Add({}, kHashBuckets);

  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const prometheus::Labels& labels = {}) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Gauge& committed =
      Gauge("tierkeep_last_committed_step", "Step of the last committed generation, -1 before one");
  prometheus::Gauge& commit_age =
      Gauge("tierkeep_last_commit_age_seconds", "Seconds since the last commit, -1 before one");
  prometheus::Gauge& own = Gauge("tierkeep_store_bytes", "Bytes of shards held", {{"kind", "own"}});
  prometheus::Gauge& peer =
      Gauge("tierkeep_store_bytes", "Bytes of shards held", {{"kind", "peer"}});
  prometheus::Gauge& total = Gauge("tierkeep_volume_total_bytes", "Size of the RAM volume");
  prometheus::Gauge& free = Gauge("tierkeep_volume_free_bytes", "Free bytes of the RAM volume");
  prometheus::Gauge& advised = Gauge(
      "tierkeep_volume_advised_bytes",
      "Size of the RAM volume that keeps one generation until the next is committed, 0 if unknown");
  prometheus::Gauge& save =
      Gauge("tierkeep_save_bytes", "Bytes of this node's part of the last save, 0 if unknown");
  prometheus::Gauge& waiting =
      Gauge("tierkeep_pulls_waiting", "Copies that wait for memory before they are pulled");
  prometheus::Gauge& waiting_bytes =
      Gauge("tierkeep_pulls_waiting_bytes", "Bytes of the copies that wait for memory");
  prometheus::Gauge& lost = Gauge("tierkeep_peers_lost", "Ranks that the coordinator misses");
  prometheus::Gauge& restores =
      Gauge("tierkeep_restores_without_commit",
            "How often the job was restored from what it runs from, without a later commit");
  prometheus::Gauge& suspect =
      Gauge("tierkeep_restored_suspect", "1 when that is so often that the checkpoint is suspect");

  struct Total {
    prometheus::Counter& counter;
    uint64_t last = 0;
    // Our totals only grow; the registry wants increments.
    void Set(uint64_t value) {
      if (value > last) counter.Increment(static_cast<double>(value - last));
      last = value > last ? value : last;
    }
  };
  Total Counter(const std::string& name, const std::string& help) {
    return {prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({})};
  }
  Total pulled = Counter("tierkeep_pulled_bytes_total", "Bytes received from peers");
  Total served = Counter("tierkeep_served_bytes_total", "Bytes sent to peers");
  Total commits = Counter("tierkeep_commits_total", "Generations recorded as committed here");
  Total dropped =
      Counter("tierkeep_dropped_messages_total", "Control messages of another job, run or epoch");
  Total rejected = Counter("tierkeep_rejected_frames_total", "Malformed control frames");
  Total refused =
      Counter("tierkeep_rejected_data_requests_total", "Data connections and requests refused");

  prometheus::Counter& divergent =
      prometheus::BuildCounter()
          .Name("tierkeep_divergent_saves_total")
          .Help("Saves whose data-parallel replicas disagreed; counted by the job's coordinator")
          .Register(registry)
          .Add({});

  std::mutex mutex;  // of the totals
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::ObserveOperation(std::string_view method, std::string_view framework,
                               const Status& status, Duration took) {
  const Code code = status.ok() ? Code::kOk : status.error().code();
  families_->operations
      .Add({{"method_name", std::string(method)},
            {"framework", std::string(framework)},
            {"grpc_status_code", GrpcName(code)}},
           kOperationBuckets)
      .Observe(ToSeconds(took));
}

void Metrics::ObserveHashing(bool tensorstore, Duration took) {
  (tensorstore ? families_->hashing_tensorstore : families_->hashing_dir).Observe(ToSeconds(took));
}

void Metrics::CountDivergence() { families_->divergent.Increment(); }

std::string Metrics::Text(const MetricsSnapshot& s) {
  Families& f = *families_;
  {
    const std::lock_guard lock(f.mutex);
    f.committed.Set(s.has_commit ? static_cast<double>(s.last_committed_step) : -1);
    f.commit_age.Set(s.has_commit ? s.last_commit_age_seconds : -1);
    f.own.Set(static_cast<double>(s.own_bytes));
    f.peer.Set(static_cast<double>(s.peer_bytes));
    f.total.Set(static_cast<double>(s.volume_total_bytes));
    f.free.Set(static_cast<double>(s.volume_free_bytes));
    f.advised.Set(static_cast<double>(s.volume_advised_bytes));
    f.save.Set(static_cast<double>(s.save_bytes));
    f.waiting.Set(static_cast<double>(s.pulls_waiting));
    f.waiting_bytes.Set(static_cast<double>(s.bytes_waiting));
    f.lost.Set(static_cast<double>(s.peers_lost));
    f.restores.Set(static_cast<double>(s.restores_without_commit));
    f.suspect.Set(s.restored_is_suspect ? 1 : 0);
    f.pulled.Set(s.bytes_pulled);
    f.served.Set(s.bytes_served);
    f.commits.Set(s.commits);
    f.dropped.Set(s.dropped_messages);
    f.rejected.Set(s.rejected_frames);
    f.refused.Set(s.rejected_data_requests);
  }
  return prometheus::TextSerializer().Serialize(f.registry.Collect());
}

}  // namespace tierkeep
