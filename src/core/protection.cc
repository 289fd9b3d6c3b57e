#include "core/protection.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutation.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// Looks at one position of the partitions. Returns whether its replicas are known to be equal.
bool ColumnIsEqual(const control::GenerationRecord& record, Rank column, Worker worker,
                   uint32_t width, std::vector<Disagreement>* disagreements) {
  const uint32_t workers = record.world().workers_per_node();
  std::map<std::string, std::vector<Rank>> values;  // ranks by what they hold; "" is not known
  bool one_shard = true;
  const std::string& first = record.shards(static_cast<int>(column * workers + worker)).digest();
  for (Rank rank = column; rank < record.world().nodes(); rank += width) {
    const auto& shard = record.shards(static_cast<int>(rank * workers + worker));
    one_shard = one_shard && shard.digest() == first;
    values[shard.logical()].push_back(rank);
  }
  if (one_shard) return true;
  const bool known = values.erase("") == 0;
  if (values.size() < 2) return known;
  // The lowest rank decides between values held equally often, so that all say the same.
  const auto more = [](const auto& a, const auto& b) {
    if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
    return a.second.front() > b.second.front();
  };
  const auto best = std::max_element(values.begin(), values.end(), more);
  Disagreement found{.worker = worker,
                     .reference = best->second.front(),
                     .equal = static_cast<uint32_t>(best->second.size()),
                     .majority = true,
                     .odd = {}};
  for (const auto& [value, ranks] : values) {
    if (value == best->first) continue;
    found.majority = found.majority && ranks.size() < best->second.size();
    found.odd.insert(found.odd.end(), ranks.begin(), ranks.end());
  }
  std::sort(found.odd.begin(), found.odd.end());
  disagreements->push_back(std::move(found));
  return false;
}

}  // namespace

ProtectionPlan PlanProtection(const control::GenerationRecord& record,
                              const std::vector<std::string>& nodes,
                              const std::vector<std::vector<Rank>>& keepers) {
  TK_CHECK(nodes.size() == record.world().nodes() && keepers.size() == nodes.size());
  const uint32_t workers = record.world().workers_per_node();
  const uint32_t partitions = std::max(1U, record.world().data_parallelism());
  const uint32_t width = record.world().nodes() / partitions;
  ProtectionPlan plan;
  if (partitions > 1) {
    plan.copies_needed = false;
    for (Rank column = 0; column < width; ++column) {
      for (Worker worker = 0; worker < workers; ++worker) {
        if (!ColumnIsEqual(record, column, worker, width, &plan.disagreements) &&
            !TK_MUTATION(kDivergentCopies)) {
          plan.copies_needed = true;
        }
      }
    }
  }
  for (Rank rank = 0; rank < nodes.size(); ++rank) {
    plan.wanted[nodes[rank]];
    for (Worker worker = 0; worker < workers; ++worker) {
      const Blake3 digest = DigestOf(record.shards(static_cast<int>(rank * workers + worker)));
      plan.wanted[nodes[rank]].insert(digest);
      if (!plan.copies_needed) continue;
      for (const Rank keeper : keepers[rank]) plan.wanted[nodes[keeper]].insert(digest);
    }
  }
  return plan;
}

std::map<std::string, std::vector<Blake3>> Missing(const ProtectionPlan& plan,
                                                   const Holdings& holdings) {
  std::map<std::string, std::vector<Blake3>> missing;
  for (const auto& [node, digests] : plan.wanted) {
    for (const Blake3& digest : digests) {
      if (!holdings.HasVerified(node, digest)) missing[node].push_back(digest);
    }
  }
  return missing;
}

}  // namespace tierkeep
