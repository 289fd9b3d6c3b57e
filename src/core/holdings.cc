#include "core/holdings.h"

#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "format/messages.h"

namespace tierkeep {

Blake3 DigestOf(const control::ShardInfo& shard) { return FixedFromProto<Blake3>(shard.digest()); }

void Holdings::SetNode(const std::string& node, const std::string& job,
                       const control::Inventory& inventory) {
  RemoveNode(node);
  for (const auto& shard : inventory.shards()) {
    const bool counts = !shard.suspect() || TK_MUTATION(kCountSuspectCopy);
    if (shard.job() == job) Add(node, shard, counts ? Copy::kVerified : Copy::kSuspect);
  }
  for (const auto& record : inventory.generations()) {
    if (record.job() != job) continue;
    records_[node].push_back(std::make_shared<const control::GenerationRecord>(record));
  }
  if (!inventory.unreadable().empty()) {
    unreadable_[node] = {inventory.unreadable().begin(), inventory.unreadable().end()};
  }
}

void Holdings::RemoveNode(const std::string& node) {
  const auto digests = std::move(by_node_[node]);
  by_node_.erase(node);
  for (const Blake3& digest : digests) RemoveCopy(node, digest);
  records_.erase(node);
  unreadable_.erase(node);
}

void Holdings::AddVerified(const std::string& node, const control::ShardInfo& shard) {
  Add(node, shard, Copy::kVerified);
}

void Holdings::Add(const std::string& node, const control::ShardInfo& shard, Copy copy) {
  const Blake3 digest = DigestOf(shard);
  TK_CHECK(!digest.IsZero());
  const auto [it, added] = shards_.emplace(digest, shard);
  if (added) it->second.clear_suspect();
  Copy& slot = copies_[digest].emplace(node, copy).first->second;
  if (slot == Copy::kVerified && copy == Copy::kSuspect) ++losses_;
  slot = copy;
  by_node_[node].insert(digest);
}

void Holdings::RemoveCopy(const std::string& node, const Blake3& digest) {
  if (const auto own = by_node_.find(node); own != by_node_.end()) own->second.erase(digest);
  const auto copies = copies_.find(digest);
  if (copies == copies_.end()) return;
  losses_ += copies->second.erase(node);
  if (!copies->second.empty()) return;
  copies_.erase(copies);
  shards_.erase(digest);
}

void Holdings::SetRecord(const std::string& node,
                         std::shared_ptr<const control::GenerationRecord> record) {
  records_[node] = {std::move(record)};
}

bool Holdings::Has(const std::string& node, const Blake3& digest) const {
  const auto copies = copies_.find(digest);
  return copies != copies_.end() && copies->second.count(node) != 0;
}

bool Holdings::HasVerified(const std::string& node, const Blake3& digest) const {
  const auto copies = copies_.find(digest);
  if (copies == copies_.end()) return false;
  const auto copy = copies->second.find(node);
  return copy != copies->second.end() && copy->second == Copy::kVerified;
}

std::vector<std::string> Holdings::HoldersOf(const Blake3& digest) const {
  std::vector<std::string> verified;
  std::vector<std::string> suspect;
  const auto copies = copies_.find(digest);
  if (copies == copies_.end()) return {};
  for (const auto& [node, copy] : copies->second) {
    (copy == Copy::kVerified ? verified : suspect).push_back(node);
  }
  verified.insert(verified.end(), suspect.begin(), suspect.end());
  return verified;
}

const control::ShardInfo* Holdings::Find(const Blake3& digest) const {
  const auto it = shards_.find(digest);
  return it == shards_.end() ? nullptr : &it->second;
}

}  // namespace tierkeep
