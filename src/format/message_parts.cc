#include "format/message_parts.h"

#include <algorithm>
#include <set>

#include "base/escape_name.h"
#include "format/generation_record.h"
#include "format/restore_orders.h"

namespace tierkeep::checks {
namespace {

constexpr size_t kTextBytesMax = 8192;
constexpr size_t kHostBytesMax = 253;

}  // namespace

Status CheckFixed(const std::string& bytes, size_t size, std::string_view field,
                  Presence presence) {
  if (bytes.empty() && presence == Presence::kOptional) return OkStatus();
  if (bytes.size() != size) return Bad("{} has {} bytes, not {}", field, bytes.size(), size);
  if (bytes.find_first_not_of('\0') == std::string::npos) return Bad("{} is all zero", field);
  return OkStatus();
}

Status CheckNodeName(const std::string& name, std::string_view field) {
  if (IsValidNodeName(name)) return OkStatus();
  return Bad("{} '{}' is no node name", field, EscapeName(name, 64));
}

Status CheckText(const std::string& text, std::string_view field) {
  if (text.size() <= kTextBytesMax) return OkStatus();
  return Bad("{} has {} bytes, more than {}", field, text.size(), kTextBytesMax);
}

Status CheckNumber(uint64_t value, std::string_view field) {
  if (value > 0) return OkStatus();
  return Bad("{} is 0", field);
}

Status CheckJob(const std::string& found, const std::string& job) {
  if (found == job) return OkStatus();
  return Bad("job is '{}', not the sender's '{}'", EscapeName(found, 64), EscapeName(job, 64));
}

Status CheckRun(const control::RunId& run, std::string_view field, Presence presence) {
  if (run.sequence() == 0) {
    if (!run.nonce().empty()) return Bad("{} has a nonce without a sequence", field);
    if (presence == Presence::kRequired) return Bad("{} is missing", field);
    return OkStatus();
  }
  return CheckFixed(run.nonce(), Id128::kSize, field);
}

Status CheckAttempt(const control::AttemptId& attempt, Presence presence) {
  if (attempt.counter() == 0) {
    if (presence == Presence::kRequired || !attempt.agent().empty() || !attempt.boot().empty()) {
      return Bad("attempt has no counter");
    }
    return OkStatus();
  }
  TK_RETURN_IF_ERROR(CheckFixed(attempt.agent(), Id128::kSize, "attempt.agent"));
  return CheckFixed(attempt.boot(), Id128::kSize, "attempt.boot");
}

Status CheckSave(const control::SaveKey& save) {
  TK_RETURN_IF_ERROR(CheckRun(save.run(), "save.run", Presence::kRequired));
  return CheckNumber(save.occurrence(), "save.occurrence");
}

bool SameSave(const control::SaveKey& a, const control::SaveKey& b) {
  return a.run().sequence() == b.run().sequence() && a.run().nonce() == b.run().nonce() &&
         a.step() == b.step() && a.occurrence() == b.occurrence();
}

Status CheckWorld(const control::WorldShape& world) {
  if (world.framework() < 1 || world.framework() > 3) {
    return Bad("world.framework is {}", world.framework());
  }
  return CheckWorldShape({static_cast<Framework>(world.framework()), world.nodes(),
                          world.workers_per_node(), world.data_parallelism()});
}

bool SameWorld(const control::WorldShape& a, const control::WorldShape& b) {
  return a.framework() == b.framework() && a.nodes() == b.nodes() &&
         a.workers_per_node() == b.workers_per_node() &&
         a.data_parallelism() == b.data_parallelism();
}

Status CheckShard(const control::ShardInfo& shard, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckFixed(shard.digest(), Blake3::kSize, "shard.digest"));
  TK_RETURN_IF_ERROR(CheckJob(shard.job(), job));
  TK_RETURN_IF_ERROR(CheckSave(shard.save()));
  TK_RETURN_IF_ERROR(CheckWorld(shard.world()));
  if (shard.rank() >= shard.world().nodes()) return Bad("shard.rank {} is too high", shard.rank());
  if (shard.worker() >= shard.world().workers_per_node()) {
    return Bad("shard.worker {} is too high", shard.worker());
  }
  TK_RETURN_IF_ERROR(CheckNumber(shard.ordinal(), "shard.ordinal"));
  TK_RETURN_IF_ERROR(
      CheckFixed(shard.logical(), Blake3::kSize, "shard.logical", Presence::kOptional));
  if (!IsDataHash(shard.volume_name())) return Bad("shard.volume_name has another form");
  if (shard.manifest_bytes() == 0 || shard.manifest_bytes() > kManifestBytesMax) {
    return Bad("shard.manifest_bytes is {}", shard.manifest_bytes());
  }
  return OkStatus();
}

namespace {

// The shards of a generation: one for each (rank, worker) in that order. With data parallelism an
// equal replica's shard may stand in a rank's place: same position within the partition.
Status CheckPlaces(const control::GenerationRecord& record) {
  TK_RETURN_IF_ERROR(CheckFixed(record.whole(), Blake3::kSize, "whole", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckSlots(record));
  const uint64_t workers = record.world().workers_per_node();
  const uint64_t partitions = std::max(1u, record.world().data_parallelism());
  const uint64_t columns = record.world().nodes() / partitions;
  for (int i = 0; i < record.shards_size(); ++i) {
    const control::ShardInfo& shard = record.shards(i);
    const uint64_t slot = SlotAt(record, i);
    if (shard.worker() != slot % workers || shard.rank() % columns != (slot / workers) % columns) {
      return Bad("generation's shard {} is of rank {}, worker {}", slot, shard.rank(),
                 shard.worker());
    }
    if (!SameSave(shard.save(), record.save()) || !SameWorld(shard.world(), record.world())) {
      return Bad("generation's shard {} is of another save or world", slot);
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckGeneration(const control::GenerationRecord& record, const std::string& job,
                       Shards shards) {
  TK_RETURN_IF_ERROR(CheckJob(record.job(), job));
  TK_RETURN_IF_ERROR(CheckSave(record.save()));
  TK_RETURN_IF_ERROR(CheckWorld(record.world()));
  if (record.committed()) TK_RETURN_IF_ERROR(CheckNumber(record.save_number(), "save_number"));
  TK_RETURN_IF_ERROR(CheckRun(record.parent_run(), "parent_run", Presence::kOptional));
  if (record.parent_run().sequence() == 0 && record.parent_save_number() != 0) {
    return Bad("generation has a parent's save number without its run");
  }
  for (const auto& shard : record.shards()) TK_RETURN_IF_ERROR(CheckShard(shard, job));
  const bool none = record.shards().empty() && record.slots().empty();
  if (shards == Shards::kCompleteOrNone && none) return OkStatus();
  return CheckPlaces(record);
}

Status CheckAddress(const control::Address& address, std::string_view field) {
  const std::string& host = address.host();
  if (host.empty() || host.size() > kHostBytesMax || host[0] == '-') {
    return Bad("{}.host is no host", field);
  }
  for (const char c : host) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && std::string_view(".:-_%").find(c) == std::string_view::npos) {
      return Bad("{}.host is no host", field);
    }
  }
  if (address.port() == 0 || address.port() > 65535) return Bad("{}.port is no port", field);
  return OkStatus();
}

Status CheckToken(const std::string& token) {
  if (token.size() >= kDataTokenBytesMin && token.size() <= kDataTokenBytesMax) return OkStatus();
  return Bad("data_token has {} bytes", token.size());
}

Status CheckSettings(const control::JobSettings& settings, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckJob(settings.job(), job));
  TK_RETURN_IF_ERROR(CheckWorld(settings.world()));
  if (!settings.has_peer_ranks() && !settings.peer_ranks().empty()) {
    return Bad("settings.peer_ranks are given without has_peer_ranks");
  }
  if (!settings.has_peers_per_node() && settings.peers_per_node() != 0) {
    return Bad("settings.peers_per_node is given without has_peers_per_node");
  }
  std::set<uint32_t> seen;
  for (const uint32_t peer : settings.peer_ranks()) {
    if (peer >= settings.world().nodes() || !seen.insert(peer).second) {
      return Bad("settings.peer_ranks has {} twice or too high", peer);
    }
  }
  if (settings.backup_interval_minutes() != 0 && settings.backup_interval_steps() != 0) {
    return Bad("settings have two backup intervals");
  }
  return OkStatus();
}

Status CheckStop(const control::RestoreStop& stop) {
  if (!IsValidJobName(stop.job())) return Bad("stop.job is no job name");
  for (const auto& text : stop.given_up()) TK_RETURN_IF_ERROR(CheckText(text, "stop.given_up"));
  TK_RETURN_IF_ERROR(CheckText(stop.instead(), "stop.instead"));
  return CheckNodeNames(stop.nodes(), "stop.nodes");
}

Status CheckChoice(const control::RestoreChoice& choice, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckNumber(choice.decision(), "choice.decision"));
  TK_RETURN_IF_ERROR(CheckText(choice.reason(), "choice.reason"));
  TK_RETURN_IF_ERROR(CheckText(choice.suspect(), "choice.suspect"));
  for (const auto* orders : {&choice.orders(), &choice.skipped()}) {
    TK_RETURN_IF_ERROR(CheckRestoreOrders(*orders, choice.none() ? std::string() : job));
  }
  if (choice.none() && choice.has_generation()) return Bad("choice is none and names a generation");
  if (choice.none()) return OkStatus();
  return CheckGeneration(choice.generation(), job, Shards::kComplete);
}

Status CheckMember(const control::Member& member) {
  TK_RETURN_IF_ERROR(CheckNodeName(member.node(), "member.node"));
  TK_RETURN_IF_ERROR(CheckFixed(member.agent(), Id128::kSize, "member.agent", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckAddress(member.data(), "member.data"));
  return CheckToken(member.data_token());
}

Status CheckSources(const control::SourceList& sources, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckShard(sources.shard(), job));
  for (const auto& member : sources.members()) TK_RETURN_IF_ERROR(CheckMember(member));
  return CheckNodeNames(sources.nodes(), "sources.nodes");
}

}  // namespace tierkeep::checks
