#include "agent/status_json.h"

#include <nlohmann/json.hpp>

#include "format/messages.h"
#include "format/restore_orders.h"

namespace tierkeep {
namespace {

using nlohmann::json;

json OptionalSeconds(const std::optional<Duration>& d) {
  return d ? json(ToSeconds(*d)) : json(nullptr);
}

json RunJson(const RunId& run) { return run.none() ? json(nullptr) : json(run.ToString()); }

json GenerationJson(const control::GenerationRecord& record) {
  return {{"step", record.save().step()},
          {"run", FromProto(record.save().run()).ToString()},
          {"save", record.save_number()},
          {"occurrence", record.save().occurrence()},
          {"committed", record.committed()}};
}

json JobJson(const NodeStatus& node) {
  if (!node.config) return nullptr;
  const JobConfig& c = *node.config;
  return {{"name", c.job},
          {"framework", FrameworkName(c.world.framework)},
          {"rank", c.rank},
          {"nodes", c.world.nodes},
          {"workers_per_node", c.world.workers_per_node},
          {"data_parallelism", c.world.data_parallelism}};
}

// The newest step at each tier, as far as this node knows.
json TiersJson(const NodeStatus& node) {
  json out = {{"staged", nullptr}, {"committed", nullptr}};
  if (node.committed) {
    out["committed"] = node.committed->save().step();
    out["staged"] = node.committed->save().step();
  }
  if (node.in_flight) out["staged"] = node.in_flight->step;
  return out;
}

bool IsOwn(const StatusInputs& in, const ShardIdentity& id) {
  return in.node.config && id.job == in.node.config->job && id.rank == in.node.config->rank;
}

json StoreJson(const StatusInputs& in) {
  const HeldBytes bytes = CountHeldBytes(in);
  json shards = json::array();
  for (const HeldShard& s : in.shards) {
    const ShardIdentity& id = s.manifest->identity;
    shards.push_back({{"digest", s.digest.Hex()},
                      {"name", s.volume_name},
                      {"job", id.job},
                      {"run", id.save.run.ToString()},
                      {"step", id.save.step},
                      {"rank", id.rank},
                      {"worker", id.worker},
                      {"bytes", s.manifest->TotalBytes()},
                      {"own", IsOwn(in, id)},
                      {"suspect", s.suspect}});
  }
  json unreadable = json::array();
  for (const UnreadableItem& item : in.unreadable) {
    unreadable.push_back({{"detail", item.detail}, {"damaged", item.damaged}});
  }
  return {{"own_bytes", bytes.own},
          {"peer_bytes", bytes.peer},
          {"shards", std::move(shards)},
          {"unreadable", std::move(unreadable)}};
}

json MembersJson(const NodeStatus& node) {
  json out = json::array();
  for (const control::Member& m : node.members) {
    out.push_back({{"node", m.node()},
                   {"rank", m.holder() ? json(nullptr) : json(m.rank())},
                   {"holder", m.holder()},
                   {"data", m.data().host() + ":" + std::to_string(m.data().port())}});
  }
  return out;
}

// Of members only: others may have spoken to us, too.
json ClocksJson(const StatusInputs& in) {
  json out = json::object();
  for (const control::Member& m : in.node.members) {
    const auto skew = in.clock_skews.find(m.node());
    if (skew != in.clock_skews.end()) out[m.node()] = skew->second;
  }
  return out;
}

// Every rank's newest steps; only the coordinator's node knows them.
json RanksJson(const std::vector<RankProgress>& progress) {
  json out = json::array();
  for (const RankProgress& p : progress) {
    const json staged = p.staged      ? json(*p.staged)
                        : p.committed ? json(*p.committed)
                                      : json(nullptr);
    out.push_back({{"rank", p.rank},
                   {"node", p.node},
                   {"connected", p.connected},
                   {"staged", staged},
                   {"committed", p.committed ? json(*p.committed) : json(nullptr)}});
  }
  return out;
}

// Replicas of the newest complete save that disagree, as the coordinator told.
json DivergenceJson(const control::Divergence& divergence) {
  json odd = json::array();
  for (const auto& replica : divergence.odd()) {
    json one = {{"rank", replica.rank()},
                {"worker", replica.worker()},
                {"node", replica.node()},
                {"reference_rank", replica.reference_rank()},
                {"reference_node", replica.reference_node()},
                {"outvoted", replica.outvoted()},
                {"differences", json::array()},
                {"differences_total", replica.total() > 0 ? json(replica.total()) : json(nullptr)}};
    for (const std::string& text : replica.differences()) one["differences"].push_back(text);
    if (!replica.unknown().empty()) one["unknown"] = replica.unknown();
    odd.push_back(std::move(one));
  }
  return {{"step", divergence.save().step()},
          {"occurrence", divergence.save().occurrence()},
          {"odd", std::move(odd)},
          {"odd_total", divergence.odd_total()}};
}

// What a restart of the job would get now, and why.
json RestorableJson(const NodeStatus& node, const std::optional<control::JobStatus>& job) {
  if (job && job->has_last_committed()) {
    json out = GenerationJson(job->last_committed());
    out["why"] = "the newest generation that the whole job has committed";
    return out;
  }
  if (node.committed) {
    json out = GenerationJson(*node.committed);
    out["why"] = "the newest generation recorded as committed on this node";
    return out;
  }
  if (node.restored && !node.restored->none() && node.restored->has_generation()) {
    json out = GenerationJson(node.restored->generation());
    out["why"] = "this run was restored from it and has not committed a save since";
    return out;
  }
  return {{"step", nullptr}, {"why", "nothing was saved and committed yet"}};
}

// What the volume should hold, from the first commit of a run on.
json SizingJson(const NodeStatus& node) {
  if (!node.sizing) return nullptr;
  const MemorySizing& s = *node.sizing;
  json out = {{"own_save_bytes", s.generation.own},        {"peers_save_bytes", s.generation.kept},
              {"needed_bytes", BytesNeeded(s.generation)}, {"advised_bytes", s.advised_bytes},
              {"volume_bytes", s.room.total_bytes},        {"memory_limit_bytes", nullptr},
              {"advised_memory_limit_bytes", nullptr},     {"fits", s.fits}};
  if (s.advised_limit_bytes) {
    out["memory_limit_bytes"] = *s.room.limit_bytes;
    out["advised_memory_limit_bytes"] = *s.advised_limit_bytes;
  }
  return out;
}

json OrdersJson(const NodeStatus& node) {
  json out = json::array();
  for (const auto& order : node.orders) {
    out.push_back({{"job", order.job()}, {"order", ToString(order)}});
  }
  return out;
}

// What the last restore decision stopped at, or the present one waits for.
json StopJson(const NodeStatus& node, const std::optional<control::JobStatus>& job) {
  const bool waits = job && job->has_waiting();
  if (!waits && !node.stop) return nullptr;
  const control::RestoreStop& stop = waits ? job->waiting() : *node.stop;
  return {{"job", stop.job()},
          {"waiting", waits},
          {"nodes", std::vector<std::string>(stop.nodes().begin(), stop.nodes().end())},
          {"given_up", std::vector<std::string>(stop.given_up().begin(), stop.given_up().end())},
          {"instead", stop.instead()}};
}

json RestoreJson(const StatusInputs& in) {
  json out = {{"seconds_to_decision", OptionalSeconds(in.restore.to_decision)},
              {"seconds_to_prepared", OptionalSeconds(in.restore.to_prepared)},
              {"seconds_to_release", OptionalSeconds(in.restore.to_release)},
              {"bytes_pulled", in.restore.bytes_pulled},
              {"step", nullptr},
              {"without_commit", in.node.restores_without_commit},
              {"suspect", in.node.restores_without_commit > 0 && in.node.restored &&
                              !in.node.restored->suspect().empty()}};
  if (in.node.restored) {
    out["reason"] = in.node.restored->reason();
    if (!in.node.restored->none()) out["step"] = in.node.restored->generation().save().step();
  }
  return out;
}

}  // namespace

HeldBytes CountHeldBytes(const StatusInputs& in) {
  HeldBytes out;
  for (const HeldShard& s : in.shards) {
    (IsOwn(in, s.manifest->identity) ? out.own : out.peer) += s.manifest->TotalBytes();
  }
  return out;
}

json StatusJson(const StatusInputs& in) {
  const std::optional<control::JobStatus>& job = in.coordinating ? in.coordinating : in.node.job;
  json out = {
      {"version", kStatusVersion},
      {"node", in.node_name},
      {"phase", in.node.phase},
      {"uptime_seconds", in.uptime_seconds},
      {"job", JobJson(in.node)},
      {"run", RunJson(in.node.run)},
      {"epoch", in.node.epoch},
      {"coordinator", in.coordinating.has_value()},
      {"tiers", TiersJson(in.node)},
      {"commits", in.node.commits},
      {"last_commit_age_seconds",
       in.last_commit_age_seconds ? json(*in.last_commit_age_seconds) : json(nullptr)},
      {"restore", RestoreJson(in)},
      {"restore_orders", OrdersJson(in.node)},
      {"restore_stop", StopJson(in.node, job)},
      {"restorable", RestorableJson(in.node, job)},
      {"members", MembersJson(in.node)},
      {"clock_skew_seconds", ClocksJson(in)},
      {"ranks", RanksJson(in.progress)},
      {"store", StoreJson(in)},
      {"volume", {{"total_bytes", in.space.total_bytes}, {"free_bytes", in.space.free_bytes}}},
      {"sizing", SizingJson(in.node)},
      {"waiting_for_memory", {{"copies", in.node.pulls_waiting}, {"bytes", in.node.bytes_waiting}}},
      {"network",
       {{"bytes_pulled", in.bytes_pulled},
        {"bytes_served", in.bytes_served},
        {"control_port", in.control_port},
        {"data_port", in.data_port},
        {"rejected_frames", in.rejected_frames},
        {"rejected_data_requests", in.rejected_data_requests},
        {"dropped_messages", in.node.dropped_messages}}},
      {"last_error", in.node.last_error},
      {"divergence", nullptr},
      {"problems", json::array()},
      {"missing_ranks", json::array()}};
  if (job) {
    out["job_state"] = job->state();
    for (const std::string& p : job->problems()) out["problems"].push_back(p);
    if (job->has_divergence()) out["divergence"] = DivergenceJson(job->divergence());
    for (const uint32_t rank : job->missing_ranks()) out["missing_ranks"].push_back(rank);
  }
  return out;
}

}  // namespace tierkeep
