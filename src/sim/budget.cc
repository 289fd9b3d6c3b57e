#include "sim/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/store_names.h"
#include "format/volume_names.h"
#include "sim/nemesis.h"
#include "tiers/ram/ram_store.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr uint64_t kManifestBytesMax = 1u << 20;
// What a commit makes obsolete is deleted beside other work.
constexpr Duration kSettle = 10s;
// A host without a rank looks now and then whether its job has a coordinator, and serves those of
// several jobs in turn.
constexpr Duration kSettleHolder = 30s;
constexpr Duration kSettleHolderInTurn = 150s;
// docs/memory.md, "Undecided saves": what a node tells of before it hears a decision, and of those
// after them the newest; and one that is being hashed.
constexpr size_t kUndecidedMax = 4 + 1 + 1;
// What the process of an earlier start left in the volume of a host that has no rank now: finished
// saves that nobody claims, and one that it was writing.
constexpr size_t kUnclaimedMax = 2 + 1;

// Of a save, finished or not.
bool IsOfSave(const DirEntry& entry) {
  if (entry.type == FileType::kSymlink) return false;  // a link to what was restored
  std::string_view name = entry.name;
  for (const std::string_view end : {".tmp", ".orbax-checkpoint-tmp-1"}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  return ParseStepName(name) || name.ends_with(".save") || name.ends_with("-unfinished");
}

// Left there by another job, which no save of this one comes near.
bool IsForeign(const DirEntry& entry) {
  return entry.name.find(fmt::format("step={}", kForeignStep / 1000)) != std::string::npos;
}

}  // namespace

std::string Budget::Held::ToString() const {
  return fmt::format(
      "{} in the store, {} in the volume, {} foreign there, {} others, {} undeletable, {} bytes",
      in_store, in_volume, foreign, other, undeletable, bytes);
}

void Budget::Begin(Stretch stretch) {
  stretch_ = stretch;
  since_ = world_->now();
  for (auto& [host, known] : known_) known.allowed.clear();
}

// ---- what is there -----------------------------------------------------------------------------

const ShardIdentity* Budget::IdentityOf(SimHost* host, const Blake3& digest) {
  const auto known = identities_.find(digest);
  if (known != identities_.end()) return &known->second;
  const auto encoded = host->outside().ReadSmallFile(JoinPath("store", ShardManifestPath(digest)),
                                                     kManifestBytesMax);
  if (!encoded.ok() || ManifestDigest(*encoded) != digest) return nullptr;
  auto manifest = DecodeManifest(*encoded);
  if (!manifest.ok()) return nullptr;
  return &(identities_[digest] = std::move(manifest->identity));
}

void Budget::CountVolume(SimHost* host, Held* held) const {
  for (const DirEntry& entry : host->Entries("client")) {
    if (IsOfSave(entry)) (IsForeign(entry) ? held->foreign : held->in_volume) += 1;
    held->other += entry.name == "shared-array" ? 1 : 0;  // the job's own
  }
}

Budget::Held Budget::HeldAt(SimHost* host) {
  Held held;
  held.bytes = host->mount().use().bytes;
  for (const DirEntry& entry : host->Entries(JoinPath("store", kShardsDir))) {
    const auto digest = ParseShardDirName(entry.name);
    const ShardIdentity* identity = digest ? IdentityOf(host, *digest) : nullptr;
    // What can't be read stays until somebody looks at it, what is another job's until that one is
    // back.
    const bool ours = identity != nullptr && identity->job == job_->shape().name;
    (ours ? held.in_store : held.other) += 1;
  }
  // What a file error kept from being deleted stays until the agent's next start.
  size_t* const trash = world_->HadFault("file errors") ? &held.undeletable : &held.in_store;
  for (const std::string_view part : {kStagedDir, kIncomingDir, kTrashDir}) {
    for (const DirEntry& entry : host->Entries(JoinPath("store", part))) {
      const bool counts = entry.type == FileType::kDirectory ||
                          (entry.type == FileType::kFile && part != kIncomingDir);
      *(part == kTrashDir ? trash : &held.in_store) += counts ? 1 : 0;
    }
  }
  CountVolume(host, &held);
  return held;
}

// ---- what may be there -------------------------------------------------------------------------

bool Budget::HasRank(size_t host) const {
  const auto& placement = job_->placement();
  const auto end = placement.begin() + job_->shape().nodes;
  return std::find(placement.begin(), end, host) != end;
}

// Of another save than the job's last committed one: that stays until the next commit.
bool Budget::HoldsOlder(SimHost* host) {
  NodeHost* const node = hosts_[job_->placement()[0]]->node();
  const SharedRecord committed = node == nullptr ? nullptr : node->machine().committed();
  if (committed == nullptr) return true;
  for (const DirEntry& entry : host->Entries(JoinPath("store", kShardsDir))) {
    const auto digest = ParseShardDirName(entry.name);
    const ShardIdentity* identity = digest ? IdentityOf(host, *digest) : nullptr;
    if (identity != nullptr && identity->job == job_->shape().name &&
        identity->save != FromProto(committed->save())) {
      return stretch_ == Stretch::kMoved || stretch_ == Stretch::kRebuilt;
    }
  }
  return false;
}

void Budget::NoteCommit(SimHost* host, Known* known) {
  NodeHost* node = host->node();
  if (node == nullptr || !node->machine().committed()) return;
  const control::GenerationRecord& record = *node->machine().committed();
  if (record.job() != job_->shape().name) return;
  const auto save = ledger_->SaveOf(record);
  if (!save || (known->committed && known->committed->attempt == save->attempt &&
                known->committed->nth == save->nth)) {
    return;
  }
  known->before_commit = AllowedDisturbed(*known);
  known->commit_at = world_->now();
  known->committed = save;
  known->attempt_of_commit = known->attempt;
}

// Of a generation on one node. Replicas that differ need copies like others.
size_t Budget::Copies() const {
  const JobShape& shape = job_->shape();
  if (shape.replicas > 1) return shape.diverging ? 2 : 1;
  return 1 + std::min(shape.peers, shape.nodes - 1);
}

size_t Budget::AllowedByTable(const Known& known) const {
  const size_t c = Copies();
  // The job had to start once more, all by itself.
  if (!known.committed || known.committed->attempt != job_->attempt()) {
    return AllowedDisturbed(known);
  }
  const size_t in_flight = job_->SavesSince(known.committed->attempt, known.committed->nth);
  return in_flight == 0 ? c : in_flight == 1 ? 2 * c : 2 * c + 1;
}

// What was committed; what each start since then was restored from, where its ranks were; what was
// saved since then, as far as nodes keep it undecided; and what is being written.
size_t Budget::AllowedDisturbed(const Known& known) const {
  const size_t c = copies_most_;
  const size_t starts = job_->attempt() - known.attempt_of_commit + 1;
  const size_t saves = known.committed
                           ? job_->SavesSince(known.committed->attempt, known.committed->nth)
                           : job_->SavesSince(0, 0);
  return c + starts * c + std::min(saves, starts * kUndecidedMax) * c + 1;
}

// An agent that is cut short when it has recorded a commit deletes what that makes obsolete when it
// hears of its job again.
bool Budget::WasCutShort(SimHost* host, const Known& known) {
  return host->disturbed_at() + kSettle >= known.commit_at;
}

size_t Budget::Allowed(SimHost* host, const Known& known) const {
  if (stretch_ == Stretch::kDisturbed) {
    const size_t allowed = AllowedDisturbed(known);
    return WasCutShort(host, known) ? std::max(allowed, known.before_commit) : allowed;
  }
  const bool has_rank = HasRank(host->index());
  switch (stretch_) {
    case Stretch::kMoved:
      return has_rank ? 2 * Copies() : Copies();
    case Stretch::kRebuilt:
      return has_rank ? Copies() : 0;
    default:
      return has_rank ? AllowedByTable(known) : 0;
  }
}

void Budget::LookAt(SimHost* host) {
  Known& known = known_[host->index()];
  auto& recent = known.allowed;
  // A commit since the last look: what it was made beside may still be there.
  recent.emplace_back(world_->now(), Allowed(host, known));
  NoteCommit(host, &known);
  known.attempt = job_->attempt();
  recent.emplace_back(world_->now(), Allowed(host, known));
  const bool has_rank = HasRank(host->index());
  const Duration settle = has_rank                          ? kSettle
                          : world_->HadFault("another job") ? kSettleHolderInTurn
                                                            : kSettleHolder;
  // Its process, left there by an attempt of the past, waits for a rank: it is no holder yet.
  NodeHost* const node = host->node();
  const bool wants_rank = !has_rank && node != nullptr && node->status().phase == "joining";
  if (world_->now() < since_ + settle || wants_rank || (!has_rank && HoldsOlder(host))) {
    known.kept_at = world_->now();
    return;
  }
  while (recent.front().first + kSettle < world_->now()) recent.pop_front();
  const size_t allowed = std::max_element(recent.begin(), recent.end(), [](auto& a, auto& b) {
                           return a.second < b.second;
                         })->second;
  const uint32_t workers = job_->shape().workers;
  const Held held = HeldAt(host);
  // A save that an error kept from being taken stays in the volume until the next start: it was
  // told, and outcomes.cc looks at what stays there without a word.
  const bool quiet = stretch_ != Stretch::kDisturbed;
  const bool volume_counts = has_rank && quiet;
  const size_t unclaimed = quiet && !has_rank ? held.in_volume : 0;
  const size_t ours = held.in_store + (volume_counts ? held.in_volume + held.foreign : 0);
  const uint64_t each = Ledger::CheckpointBytes(job_->shape()) / workers;
  std::string over;
  if (ours > allowed * workers || unclaimed > kUnclaimedMax * workers) {
    over = fmt::format("{} checkpoints of {} worker(s)", allowed, workers);
  } else if (const uint64_t most =
                 (held.ours() + held.other + held.undeletable) * each + Ledger::kSmallFilesBytes;
             held.bytes > most && host->mount().named_bytes() > most) {
    over = fmt::format("its copies take, {} bytes each", each);
  }
  // What is being pulled once more, or was deleted while somebody had it open, is gone in a moment.
  if (over.empty()) known.kept_at = world_->now();
  if (world_->now() - known.kept_at <= kSettle) return;
  world_->Fail(Checker::kMemoryBudget,
               fmt::format("n{} holds more than {}: {}", host->index(), over, held.ToString()));
}

void Budget::Look() {
  copies_most_ = std::max(copies_most_, Copies());
  for (auto& host : hosts_) {
    if (stretch_ != Stretch::kUnknown && !world_->failed()) LookAt(host.get());
  }
}

}  // namespace tierkeep::sim
