#include "core/protection.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// The value that most replicas of a column hold, so that the odd one out can be named.
std::string MostCommon(const std::vector<std::string>& values) {
  std::map<std::string, size_t> counts;
  for (const std::string& value : values) ++counts[value];
  const auto best =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return best == counts.end() ? std::string() : best->first;
}

// Looks at one position of the partitions. Returns whether its replicas are known to be equal.
bool ColumnIsEqual(const control::GenerationRecord& record, Rank column, Worker worker,
                   uint32_t width, std::vector<std::string>* disagreements) {
  const uint32_t workers = record.world().workers_per_node();
  std::vector<std::string> values;
  bool known = true;
  bool one_shard = true;
  const std::string& first = record.shards(static_cast<int>(column * workers + worker)).digest();
  for (Rank rank = column; rank < record.world().nodes(); rank += width) {
    const auto& shard = record.shards(static_cast<int>(rank * workers + worker));
    one_shard = one_shard && shard.digest() == first;
    known = known && !shard.logical().empty();
    values.push_back(shard.logical());
  }
  if (one_shard) return true;
  if (!known) return false;
  const std::string common = MostCommon(values);
  bool equal = true;
  for (size_t row = 0; row < values.size(); ++row) {
    if (values[row] == common) continue;
    equal = false;
    disagreements->push_back(
        fmt::format("rank {} worker {} holds other values than its replicas at step {}",
                    column + row * width, worker, record.save().step()));
  }
  return equal;
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
        if (!ColumnIsEqual(record, column, worker, width, &plan.disagreements)) {
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
