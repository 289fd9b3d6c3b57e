#include "sim/moments.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr std::string_view kShards = "store/shards/";
constexpr std::string_view kTrash = "store/trash/";
constexpr std::string_view kRecords = "store/generations/";
constexpr std::string_view kClient = "client/";

}  // namespace

void Moments::OnOpened(SimHost* host, Store& store) {
  const std::vector<UnreadableItem> unreadable = store.unreadable();
  const auto knows_not = [&](const std::optional<Blake3>& digest) {
    return std::any_of(unreadable.begin(), unreadable.end(),
                       [&](const UnreadableItem& item) { return item.digest == digest; });
  };
  if (knows_not(std::nullopt)) return;  // it knows that it doesn't know
  const auto entries = host->outside().List("store/shards");
  if (!entries.ok()) return;
  for (const DirEntry& entry : *entries) {
    const auto digest = ParseShardDirName(entry.name);
    if (!digest || store.Find(*digest) || knows_not(digest)) continue;
    if (!host->outside().Stat("store/" + ShardManifestPath(*digest)).ok()) continue;
    return world_->Fail(
        Checker::kShardOverlooked,
        fmt::format("n{} opens its store and overlooks shard {}", host->index(), entry.name));
  }
}

void Moments::OnMove(SimHost* host, const FsOp& op) {
  const std::string to = JoinPath(op.base, op.to);
  if (to.starts_with(kTrash)) {
    const std::string from = op.Path();
    const size_t at = from.find(kShards);
    if (at > 1 || at == std::string::npos) return;
    const auto digest = ParseShardDirName(std::string_view(from).substr(at + kShards.size()));
    if (digest) world_->After(1us, [this, digest] { ledger_->OnGone(*digest); });
  } else if (to.starts_with(kRecords)) {
    if (!recorded_.insert(to).second) return;
    world_->After(1us, [this] { ledger_->OnRecorded(); });
  } else if (to.starts_with(kClient) && to.ends_with(".restore")) {
    CheckDecision(host, to);
    world_->After(1us, [this, host, name = to] { OnLink(host, name); });
  }
}

// Clients of PyTorch wait for the decision and look for their links then: docs/protocol.md.
void Moments::CheckDecision(SimHost* host, const std::string& name) {
  if (host->outside().Stat(JoinPath("client", kPrerestoreName)).ok()) return;
  world_->Fail(Checker::kLinkBeforeDecision,
               fmt::format("n{}: {} appears before the decision does", host->index(), name));
}

// A client may look at once: what the link leads to is whole from the first moment on.
void Moments::OnLink(SimHost* host, const std::string& name) {
  const auto worker = ParseWorkerName(name.substr(kClient.size()), ".restore");
  const SimClient* client = worker ? job_->client(worker->rank) : nullptr;
  const bool asked = client != nullptr && client->alive() && client->host() == host->index() &&
                     worker->job == job_->shape().name;
  // One that trains was given its checkpoint, which it may have written into: an agent that died
  // before it could note that its links stand places them once more, and nobody looks at them.
  if (!asked || client->training()) return;
  if (ledger_->DamagedSince(host->index(), client->asked_at())) return;
  const auto target = host->outside().ReadLink(name);
  if (!target.ok()) return;  // "no checkpoint", or gone again
  // A client looks when its yaml is gone: until then these may be the attempt's before it, placed
  // once more by an agent that was restarted.
  if (host->outside().Stat("client/replicator.yaml").ok()) return;
  const auto id = IdentifyContent(host->outside(), std::string(kClient) + *target, job_->content());
  world_->Count("links looked at when they appeared");
  if (id.ok()) return;
  world_->Fail(Checker::kBadLink, fmt::format("n{}: {} appears and leads to something bad: {}",
                                              host->index(), name, id.error().ToString()));
}

}  // namespace tierkeep::sim
