#include "sim/outcomes.h"

#include <algorithm>
#include <set>

#include "format/store_names.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLookEvery = 10s;
// A writer that keeps a save open is waited for, and what can't be hashed is tried again.
constexpr Duration kOutcomeMax = 150s;

}  // namespace

void Outcomes::Watch() {
  world_->After(kLookEvery, [this] {
    Look();
    Watch();
  });
}

void Outcomes::OnOverdue(size_t host, const std::string& what, Instant since) {
  if (hosts_[host]->disturbed_at() >= since) {
    world_->Count("waits without an outcome on disturbed hosts");
    return;
  }
  world_->Fail(Checker::kWaitsInVain,
               fmt::format("n{}: {} in vain for {}, and nobody says why", host, what,
                           FormatDuration(world_->now() - since)));
}

void Outcomes::OnSaved(size_t host, const std::string& name) {
  const auto stat = hosts_[host]->outside().Stat("client/" + name);
  if (stat.ok()) saved_[{host, name}] = {stat->inode, world_->now()};
}

bool Outcomes::IsOverdue(SimHost* host, Instant* since) const {
  NodeHost* node = host->node();
  // What the job saves without a run, or after its end, is found by the next attempt.
  const bool owes = node != nullptr && node->status().phase == "running";
  *since = owes ? std::max(*since, host->disturbed_at()) : world_->now();
  return world_->now() - *since > kOutcomeMax;
}

void Outcomes::Look() {
  for (auto& host : hosts_) {
    if (!world_->failed()) LookAt(host.get());
  }
}

void Outcomes::LookAt(SimHost* host) {
  const size_t index = host->index();
  const auto is_here = [&](const auto& entry) { return entry.first.first == index; };
  std::erase_if(saved_, [&](const auto& entry) {
    if (!is_here(entry)) return false;
    const auto stat = host->outside().Stat("client/" + entry.first.second);
    return !stat.ok() || stat->inode != entry.second.inode;
  });
  std::set<std::string> staged;
  for (const DirEntry& entry : host->Entries(JoinPath("store", kStagedDir))) {
    staged.insert(entry.name);
  }
  std::erase_if(staged_, [&](const auto& entry) {
    return is_here(entry) && !staged.contains(entry.first.second);
  });
  for (const std::string& name : staged) staged_.try_emplace({index, name}, world_->now());
  for (auto& [key, waiting] : saved_) {
    if (key.first != index || !IsOverdue(host, &waiting.since)) continue;
    return world_->Fail(
        Checker::kSaveLeft,
        fmt::format("n{}: the finished save {} is left in the volume", index, key.second));
  }
  for (auto& [key, since] : staged_) {
    if (key.first != index || !IsOverdue(host, &since)) continue;
    return world_->Fail(
        Checker::kSaveLeft,
        fmt::format("n{}: the save {} was taken, and nothing came of it", index, key.second));
  }
}

}  // namespace tierkeep::sim
