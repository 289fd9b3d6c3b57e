#include "sim/ledger.h"

namespace tierkeep::sim {

void Ledger::OnStarted(uint32_t) {}

void Ledger::OnReleased(uint32_t, const std::optional<SaveId>&) {}

void Ledger::OnCommit(size_t) { world_->Count("commits recorded"); }

bool Ledger::CommittedEverywhere(uint32_t, uint32_t) const {
  if (!job_->training()) return false;
  std::optional<std::pair<uint64_t, uint64_t>> all;
  for (Rank rank = 0; rank < job_->shape().nodes; ++rank) {
    SimHost& host = *hosts_[job_->placement()[rank]];
    NodeHost* node = host.node();
    if (node == nullptr) return false;
    const NodeStatus status = node->status();
    if (!status.committed || status.committed->save().run().sequence() != status.run.sequence) {
      return false;
    }
    const std::pair<uint64_t, uint64_t> id{status.run.sequence, status.committed->save_number()};
    if (all && *all != id) return false;
    all = id;
  }
  return all.has_value();
}

}  // namespace tierkeep::sim
