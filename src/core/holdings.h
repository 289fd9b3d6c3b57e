// Who in the job holds what, as the nodes told: the coordinator's picture of the cluster's stores.
// A copy listed here may serve; it counts for a promise only while it isn't suspect.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/digest.h"
#include "control.pb.h"

namespace tierkeep {

Blake3 DigestOf(const control::ShardInfo& shard);

class Holdings {
 public:
  // Replaces all that is known of the node. Other jobs' shards are left out.
  void SetNode(const std::string& node, const std::string& job,
               const control::Inventory& inventory);
  void RemoveNode(const std::string& node);
  // The node holds this shard and has verified it.
  void AddVerified(const std::string& node, const control::ShardInfo& shard);
  void RemoveCopy(const std::string& node, const Blake3& digest);
  // The node recorded this generation and forgot all others.
  void SetRecord(const std::string& node, std::shared_ptr<const control::GenerationRecord> record);

  // Removes the node's copies of which `gone(shard)` is true.
  template <typename F>
  void RemoveCopiesIf(const std::string& node, F gone) {
    const auto own = by_node_.find(node);
    if (own == by_node_.end()) return;
    std::vector<Blake3> digests;
    for (const Blake3& digest : own->second) {
      if (gone(shards_.at(digest))) digests.push_back(digest);
    }
    for (const Blake3& digest : digests) RemoveCopy(node, digest);
  }

  template <typename F>
  void ForEachCopy(const std::string& node, F f) const {
    const auto own = by_node_.find(node);
    if (own == by_node_.end()) return;
    for (const Blake3& digest : own->second) f(shards_.at(digest));
  }

  bool Has(const std::string& node, const Blake3& digest) const;
  bool HasVerified(const std::string& node, const Blake3& digest) const;
  // Grows whenever some copy was lost: while it stays, what a node had it still has.
  uint64_t losses() const { return losses_; }
  // Names of all nodes with a copy, verified ones first, each part sorted.
  std::vector<std::string> HoldersOf(const Blake3& digest) const;

  // A digest's description, its `suspect` unset; null when nobody has it.
  const control::ShardInfo* Find(const Blake3& digest) const;
  const std::map<Blake3, control::ShardInfo>& shards() const { return shards_; }
  // By node. What many nodes recorded at this coordinator's word is one object.
  using Records = std::vector<std::shared_ptr<const control::GenerationRecord>>;
  const std::map<std::string, Records>& records() const { return records_; }
  const std::map<std::string, std::vector<control::Unreadable>>& unreadable() const {
    return unreadable_;
  }

 private:
  enum class Copy { kSuspect, kVerified };
  void Add(const std::string& node, const control::ShardInfo& shard, Copy copy);

  std::map<Blake3, control::ShardInfo> shards_;
  std::map<Blake3, std::map<std::string, Copy>> copies_;
  uint64_t losses_ = 0;
  std::map<std::string, std::set<Blake3>> by_node_;
  std::map<std::string, Records> records_;
  std::map<std::string, std::vector<control::Unreadable>> unreadable_;
};

}  // namespace tierkeep
