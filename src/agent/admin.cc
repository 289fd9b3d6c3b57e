#include "agent/admin.h"

#include <algorithm>

#include "agent/json_answer.h"

namespace tierkeep {
namespace {

using nlohmann::json;

MetricsSnapshot ForMetrics(const StatusInputs& in) {
  MetricsSnapshot out;
  if (in.node.committed) {
    out.has_commit = true;
    out.last_committed_step = in.node.committed->save().step();
  }
  out.last_commit_age_seconds = in.last_commit_age_seconds.value_or(0);
  const HeldBytes held = CountHeldBytes(in);
  out.own_bytes = held.own;
  out.peer_bytes = held.peer;
  out.volume_total_bytes = in.space.total_bytes;
  out.volume_free_bytes = in.space.free_bytes;
  if (in.node.sizing) {
    out.volume_advised_bytes = in.node.sizing->advised_bytes;
    out.save_bytes = in.node.sizing->generation.own;
  }
  out.pulls_waiting = in.node.pulls_waiting;
  out.bytes_waiting = in.node.bytes_waiting;
  out.bytes_pulled = in.bytes_pulled;
  out.bytes_served = in.bytes_served;
  const auto& job = in.coordinating ? in.coordinating : in.node.job;
  if (job) {
    out.peers_lost =
        std::max(job->missing_total(), static_cast<uint32_t>(job->missing_ranks_size()));
  }
  out.commits = in.node.commits;
  if (in.node.restored) out.restores_without_commit = in.node.restores_without_commit;
  out.restored_is_suspect = in.node.restored && !in.node.restored->suspect().empty() &&
                            in.node.restores_without_commit > 0;
  out.dropped_messages = in.node.dropped_messages;
  out.rejected_frames = in.rejected_frames;
  out.rejected_data_requests = in.rejected_data_requests;
  return out;
}

HttpResponse VerifyAll(Store& store) {
  json results = json::array();
  bool all_good = true;
  for (const HeldShard& shard : store.Shards()) {
    VerifyResult r = store.Verify(shard.digest, nullptr);
    if (const Status there = CheckStands(store.mount()); !there.ok()) {
      r.ok = false;
      r.problem = there.error().message();
    }
    all_good = all_good && r.ok;
    const ShardIdentity& id = shard.manifest->identity;
    results.push_back({{"digest", shard.digest.Hex()},
                       {"job", id.job},
                       {"step", id.save.step},
                       {"rank", id.rank},
                       {"worker", id.worker},
                       {"bytes", r.bytes},
                       {"ok", r.ok},
                       {"problem", r.problem}});
  }
  json unreadable = json::array();
  for (const UnreadableItem& item : store.unreadable()) unreadable.push_back(item.detail);
  all_good = all_good && unreadable.empty();
  return JsonAnswer({{"version", 1},
                     {"ok", all_good},
                     {"shards", std::move(results)},
                     {"unreadable", std::move(unreadable)}});
}

}  // namespace

HttpHandler MakeAdminHandler(AdminSources sources) {
  return [sources = std::move(sources)](const HttpRequest& request) -> HttpResponse {
    if (request.path == "/v1/status" && request.method == "GET") {
      return JsonAnswer(StatusJson(sources.snapshot()));
    }
    if (request.path == "/v1/verify" && request.method == "POST") return VerifyAll(*sources.store);
    if (request.path.starts_with("/v1/restore/")) return sources.restore(request);
    if (request.path == "/metrics" && request.method == "GET") {
      return {200, "text/plain; version=0.0.4", sources.metrics(ForMetrics(sources.snapshot()))};
    }
    if (request.path == "/healthz" && request.method == "GET") {
      (void)sources.snapshot();
      return {200, "text/plain", "ok\n"};
    }
    return NoSuchResource(request);
  };
}

HttpHandler ReadOnly(HttpHandler handler) {
  return [handler = std::move(handler)](const HttpRequest& request) -> HttpResponse {
    if (request.method != "GET") {
      return {405, "application/json", "{\"error\": \"this port only reads\"}\n"};
    }
    return handler(request);
  };
}

}  // namespace tierkeep
