#include "sim/ledger.h"

#include <algorithm>

#include "format/generation_record.h"
#include "format/messages.h"
#include "format/store_names.h"
#include "tiers/ram/ram_store.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kManifestBytesMax = 1u << 20;
// From a keeper's word that it has a copy to the last member's record of the commit.
constexpr Duration kCommitWordMax = 200s;

uint64_t Pages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

std::string AtMount(const std::string& path) { return "store/" + path; }

}  // namespace

// ---- what happened -----------------------------------------------------------------------------

void Ledger::OnStarted(uint32_t) {
  started_at_ = world_->now();
  // Of another job or world nothing is promised to this one.
  if (floor_ && !IsSameWorld(floor_->shape, job_->shape())) GiveUpFloor();
}

bool Ledger::IsSameWorld(const JobShape& a, const JobShape& b) {
  return a.name == b.name && a.framework == b.framework && a.nodes == b.nodes &&
         a.workers == b.workers && a.replicas == b.replicas;
}

Ledger::Position Ledger::PositionOf(const SaveId& save) const {
  Position position{save.attempt, save.nth};
  for (const auto& [attempt, base] : bases_) {
    if (base == std::pair(save.attempt, save.nth)) position = std::max(position, {attempt, 0});
  }
  return position;
}

bool Ledger::IsBehind(const std::optional<SaveId>& restored) const {
  return floor_ && (!restored || PositionOf(*restored) < PositionOf(floor_->save));
}

void Ledger::OnWentOn(const std::optional<SaveId>& restored) {
  Refresh();
  if (!IsBehind(restored)) return;
  if (IsGivenUp(floor_->save.step)) {
    world_->Count("restores behind a commit, as ordered");
    GiveUpFloor();
  } else if (disturbances_ > 0 || disturbed_at_ >= started_at_) {
    world_->Count("restores behind a commit, while something was wrong");
    GiveUpFloor();
  }
  // Otherwise the release says it, if it comes.
}

void Ledger::OnReleased(uint32_t attempt, const std::optional<SaveId>& restored) {
  Refresh();
  // What was lost when it was being committed, or had rotted, is no longer there to go on from.
  if (IsBehind(restored)) CheckFloor("at a release");
  if (world_->failed()) return;
  if (IsBehind(restored)) {
    return world_->Fail(
        Checker::kBehindCommit,
        fmt::format("attempt {} goes on from {}, behind the committed {}", attempt,
                    restored ? restored->ToString() : "nothing", floor_->save.ToString()));
  }
  // Not before: what was given up, as ordered, may be gone with the commit of what came instead.
  CheckFloor("at a release");
  CheckBase(attempt, restored);
  if (restored) bases_[attempt] = {restored->attempt, restored->nth};
  Position& past = past_[job_->shape().name];
  past = std::max(past, {attempt, 0});
  // One that was given since may be for the next decision.
  if (without_since_ && *without_since_ < started_at_) without_since_.reset();
}

// By an operator.
bool Ledger::IsGivenUp(Step step) const { return without_since_ || skipped_.contains(step); }

// What was saved before the last release, and isn't what it was from, belongs to the past: as long
// as that base is there, though it may never have been committed.
void Ledger::CheckBase(uint32_t attempt, const std::optional<SaveId>& restored) {
  const std::optional<Base> base = std::exchange(base_, std::nullopt);
  if (const SharedRecord record = restored ? Restored() : nullptr) {
    base_ = Base{attempt, *restored, job_->shape(), record};
  }
  if (!base || !IsSameWorld(base->shape, job_->shape())) return;
  const bool same =
      restored && restored->attempt == base->save.attempt && restored->nth == base->save.nth;
  if (same || (restored && PositionOf(*restored) >= Position{base->attempt, 0})) return;
  if (IsGivenUp(base->save.step) || disturbances_ > 0 || disturbed_at_ >= started_at_) return;
  if (!IsAvailable(*base->record, std::nullopt, nullptr)) return;
  world_->Fail(Checker::kAbandonedBranch,
               fmt::format("attempt {} goes on from {}, of a branch that attempt {} left for {}",
                           attempt, restored ? restored->ToString() : "nothing", base->attempt,
                           base->save.ToString()));
}

// What the job was released from. Of a large job each node knows a part, and all of them the whole;
// null where they don't, since some are down: of what no part tells nobody knows whether it is
// there.
SharedRecord Ledger::Restored() {
  SharedRecord whole;
  for (Rank rank = 0; rank < job_->shape().nodes; ++rank) {
    NodeHost* node = hosts_[job_->placement()[rank]]->node();
    if (node == nullptr || !node->machine().state().has_restored()) continue;
    const auto& generation = node->machine().state().restored().generation();
    whole = WithOtherParts(Shared(generation));
    if (static_cast<uint32_t>(whole->shards_size()) == SlotsOf(*whole)) return whole;
  }
  return nullptr;
}

std::optional<SaveId> Ledger::SaveOf(const control::GenerationRecord& record) {
  const GenerationId id = GenerationIdOf(record);
  if (const auto it = known_.find(id); it != known_.end()) return it->second;
  for (const auto& shard : record.shards()) {
    const auto digest = FixedFromProto<Blake3>(shard.digest());
    for (auto& host : hosts_) {
      const auto save =
          IdentifyContent(host->outside(), AtMount(ShardDataPath(digest)), job_->content());
      if (!save.ok()) continue;
      known_[id] = {save->attempt, save->nth, save->step, 0, 0};
      return known_[id];
    }
  }
  return std::nullopt;
}

// Of a large job each host has recorded a part: parts of one record count as that one.
void Ledger::NoteShardsOfFloor(const SharedRecord& record) {
  if (record == floor_->record) return;
  const std::string whole = WholeKey(*record);
  const auto same = [&](SharedRecord& other) {
    if (other != record && WholeKey(*other) != whole) return false;
    other = record;
    return true;
  };
  if (same(floor_->record)) return;
  if (std::none_of(floor_->others.begin(), floor_->others.end(), same)) {
    floor_->others.push_back(record);
  }
}

// Of a large job each host has recorded a part: what all of them tell by now.
SharedRecord Ledger::WithOtherParts(const SharedRecord& record) {
  if (IsWhole(*record)) return record;
  SharedRecord& known = parts_[{GenerationIdOf(*record), record->whole()}];
  if (known == nullptr) return known = record;
  std::map<uint32_t, const control::ShardInfo*> entries;
  for (const SharedRecord& part : {known, record}) {
    for (int i = 0; i < part->shards_size(); ++i) entries[part->slots(i)] = &part->shards(i);
  }
  control::GenerationRecord all = HeaderOf(*record);
  for (const auto& [slot, shard] : entries) {
    all.add_slots(slot);
    *all.add_shards() = *shard;
  }
  return known = Shared(std::move(all));
}

void Ledger::Consider(const SharedRecord& part) {
  const SharedRecord shared = WithOtherParts(part);
  const control::GenerationRecord& record = *shared;
  const JobShape& shape = job_->shape();
  const WorldShape world = FromProto(record.world());
  if (!record.committed() || record.job() != shape.name || world.nodes != shape.nodes ||
      world.replicas() != shape.replicas || world.workers_per_node != shape.workers) {
    return;
  }
  const GenerationId id = GenerationIdOf(record);
  if (floor_ && GenerationIdOf(*floor_->record) == id) return NoteShardsOfFloor(shared);
  const auto given_up = given_up_.find(shape.name);
  if (given_up != given_up_.end() && id <= given_up->second) return;
  const auto save = SaveOf(record);
  if (!save) return;
  if (floor_) {
    const auto order = [this](const SaveId& s, const control::GenerationRecord& r) {
      return std::pair(PositionOf(s), GenerationIdOf(r));
    };
    if (order(*save, record) < order(floor_->save, *floor_->record)) return;
  }
  floor_ = Floor{*save, shape, shared};
  past_[shape.name] = std::max(past_[shape.name], PositionOf(*save));
  world_->Count("generations committed");
}

bool Ledger::IsPast(const std::string& job, const SaveId& save) {
  Refresh();
  const auto past = past_.find(job);
  return past != past_.end() && Position{save.attempt, save.nth} <= past->second;
}

// Null: it can't be decoded. The same few records are read again and again.
SharedRecord Ledger::Decoded(const std::string& bytes) {
  auto it = decoded_.find(bytes);
  if (it == decoded_.end()) {
    auto record = DecodeGenerationRecord(bytes);
    it = decoded_.emplace(bytes, record.ok() ? Shared(std::move(*record)) : nullptr).first;
  }
  return it->second;
}

void Ledger::Refresh() {
  for (auto& host : hosts_) {
    Dir& dir = host->outside();
    const auto runs = dir.List(AtMount(std::string(kGenerationsDir)));
    if (!runs.ok()) continue;
    for (const DirEntry& run : *runs) {
      const std::string path = JoinPath(AtMount(std::string(kGenerationsDir)), run.name);
      const auto files = dir.List(path);
      if (!files.ok()) continue;
      for (const DirEntry& file : *files) {
        const auto bytes = dir.ReadSmallFile(JoinPath(path, file.name), kManifestBytesMax);
        if (!bytes.ok()) continue;
        if (const SharedRecord record = Decoded(*bytes)) Consider(record);
      }
    }
  }
}

bool Ledger::CommittedEverywhere(uint32_t nth) {
  if (!job_->training()) return false;
  std::optional<GenerationId> all;
  for (Rank rank = 0; rank < job_->shape().nodes; ++rank) {
    NodeHost* node = hosts_[job_->placement()[rank]]->node();
    if (node == nullptr) return false;
    const SharedRecord& committed = node->machine().committed();
    if (!committed) return false;
    const GenerationId id = GenerationIdOf(*committed);
    if (all && *all != id) return false;
    all = id;
    if (rank + 1 < job_->shape().nodes) continue;
    const auto save = SaveOf(*committed);
    return save && save->attempt == job_->attempt() && save->nth >= nth;
  }
  return false;
}

// What is recorded by now counts no more.
void Ledger::GiveUpFloor() {
  Refresh();
  if (floor_) given_up_[floor_->record->job()] = GenerationIdOf(*floor_->record);
  floor_.reset();
}

// ---- copies ------------------------------------------------------------------------------------

// Where something stands in the place of a copy: nearly all that are asked have none.
std::vector<size_t> Ledger::HoldersOf(const Blake3& digest) const {
  const std::string path = AtMount(ShardManifestPath(digest));
  std::vector<size_t> holders;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host]->mount().Exists(path)) holders.push_back(host);
  }
  return holders;
}

bool Ledger::IsIntact(size_t host, const Blake3& digest) const {
  Dir& dir = hosts_[host]->outside();
  const auto encoded = dir.ReadSmallFile(AtMount(ShardManifestPath(digest)), kManifestBytesMax);
  if (!encoded.ok() || ManifestDigest(*encoded) != digest) return false;
  const auto manifest = DecodeManifest(*encoded);
  if (!manifest.ok()) return false;
  const std::string data = AtMount(ShardDataPath(digest));
  for (const ManifestEntry& entry : manifest->entries) {
    const std::string path = JoinPath(data, entry.path);
    if (entry.type != EntryType::kFile) {
      if (!dir.Stat(path).ok()) return false;
      continue;
    }
    const auto bytes = dir.ReadSmallFile(path, kManifestBytesMax);
    if (!bytes.ok() || bytes->size() != entry.bytes) return false;
    size_t at = 0;
    for (const Chunk& chunk : entry.chunks) {
      if (ComputeXxh128(AsBytes(*bytes).subspan(at, chunk.bytes)) != chunk.digest) return false;
      at += chunk.bytes;
    }
  }
  return true;
}

// Null when its manifest can't be read.
std::optional<ShardIdentity> Ledger::IdentityOf(size_t host, const Blake3& digest) const {
  const auto encoded =
      hosts_[host]->outside().ReadSmallFile(AtMount(ShardManifestPath(digest)), kManifestBytesMax);
  if (!encoded.ok()) return std::nullopt;
  auto manifest = DecodeManifest(*encoded);
  if (!manifest.ok()) return std::nullopt;
  return std::move(manifest->identity);
}

std::vector<std::vector<Blake3>> Ledger::Places(const control::GenerationRecord& record) {
  std::vector<std::vector<Blake3>> places;
  const WorldShape world = FromProto(record.world());
  const uint32_t width = world.nodes / world.replicas();
  for (uint32_t slot = 0; slot < SlotsOf(record); ++slot) {
    const uint32_t rank = slot / world.workers_per_node;
    const uint32_t worker = slot % world.workers_per_node;
    std::vector<Blake3> place;
    bool known = true;
    for (uint32_t r = rank % width; r < world.nodes; r += width) {
      const control::ShardInfo* shard = EntryOf(record, r, worker);
      known = known && shard != nullptr;
      if (shard != nullptr) place.push_back(FixedFromProto<Blake3>(shard->digest()));
    }
    // Before every host has recorded its part, nothing is asked of the rest.
    if (known) places.push_back(std::move(place));
  }
  return places;
}

bool Ledger::Diverges(const control::GenerationRecord& record) {
  const WorldShape world = FromProto(record.world());
  const uint32_t width = world.nodes / world.replicas() * world.workers_per_node;
  std::map<uint32_t, std::string> logicals;  // by place in a partition
  for (int i = 0; i < record.shards_size(); ++i) {
    const std::string& logical = record.shards(i).logical();
    if (logicals.emplace(SlotAt(record, i) % width, logical).first->second != logical) return true;
  }
  return false;
}

bool Ledger::IsAvailable(const control::GenerationRecord& record,
                         std::optional<size_t> without_host, const Blake3* without_copy) const {
  std::map<Blake3, bool> known;
  const auto held = [&](const Blake3& digest) {
    const auto [it, fresh] = known.emplace(digest, false);
    if (!fresh) return it->second;
    for (const size_t host : HoldersOf(digest)) {
      const bool lost =
          without_host == host && (without_copy == nullptr || *without_copy == digest);
      it->second = it->second || (!lost && IsIntact(host, digest));
    }
    return it->second;
  };
  const auto places = Places(record);
  if (Diverges(record) && !places.empty()) {
    // Each place lists the partitions' shards in the same order.
    const size_t rows = places.front().size();
    const auto row_is_held = [&](size_t row) {
      return std::all_of(places.begin(), places.end(),
                         [&](const auto& place) { return held(place[row]); });
    };
    for (size_t row = 0; row < rows; ++row) {
      if (row_is_held(row)) return true;
    }
    return false;
  }
  return std::all_of(places.begin(), places.end(), [&](const std::vector<Blake3>& place) {
    return std::any_of(place.begin(), place.end(), held);
  });
}

bool Ledger::FloorIsAvailable(std::optional<size_t> without_host,
                              const Blake3* without_copy) const {
  // What nobody's part of the record tells of may have its only copy there.
  if (without_host &&
      static_cast<uint32_t>(floor_->record->shards_size()) != SlotsOf(*floor_->record) &&
      !ShardsAt(*without_host).empty()) {
    return false;
  }
  return IsAvailable(*floor_->record, without_host, without_copy) ||
         std::any_of(floor_->others.begin(), floor_->others.end(), [&](const auto& record) {
           const bool all_known = static_cast<uint32_t>(record->shards_size()) == SlotsOf(*record);
           return all_known && IsAvailable(*record, without_host, without_copy);
         });
}

bool Ledger::MayLose(size_t host) {
  Refresh();
  return !floor_ || FloorIsAvailable(host, nullptr);
}

bool Ledger::MayLoseCopy(size_t host, const Blake3& digest) {
  Refresh();
  return !floor_ || FloorIsAvailable(host, &digest);
}

bool Ledger::IsOfFloor(const Blake3& digest) const {
  const auto& shards = floor_->record->shards();
  return std::any_of(shards.begin(), shards.end(),
                     [&](const auto& shard) { return shard.digest() == digest.Raw(); });
}

void Ledger::OnGone(const Blake3& digest) {
  if (!floor_ || !IsOfFloor(digest)) return;
  Refresh();
  if (!floor_ || !IsOfFloor(digest)) return;
  // An attempt that isn't released yet may have given it up: that is judged at the release.
  const bool judged_later =
      !job_->training() &&
      (IsGivenUp(floor_->save.step) || disturbances_ > 0 || disturbed_at_ >= started_at_);
  if (!judged_later) CheckFloor("a copy is deleted");
}

void Ledger::OnRecorded() {
  const std::optional<GenerationId> before =
      floor_ ? std::optional(GenerationIdOf(*floor_->record)) : std::nullopt;
  Refresh();
  if (!floor_ || GenerationIdOf(*floor_->record) == before) return;
  world_->Count("commits looked at when they were recorded");
  // What was lost on the way is no fault of the commit: a word of it takes its time.
  if (UnnoticedLosses() > 0) return;
  for (const auto& place : Places(*floor_->record)) {
    const auto [copies, demanded] = CopiesOf(*floor_->record, place);
    // An agent takes its copy for good until it reads it again: it may have been right when it was
    // hashed, long before this commit of what the job was restored from.
    if (copies + RottenCopiesOf(place) >= demanded) continue;
    return world_->Fail(Checker::kCommitLacksCopies,
                        fmt::format("{} is committed with {} copies of a shard, not {}",
                                    floor_->save.ToString(), copies, demanded));
  }
}

size_t Ledger::UnnoticedLosses() const {
  return static_cast<size_t>(std::count_if(losses_.begin(), losses_.end(), [&](Instant at) {
    return at + kCommitWordMax > world_->now();
  }));
}

void Ledger::CheckFloor(const char* when) {
  Refresh();
  if (!floor_ || FloorIsAvailable(std::nullopt, nullptr)) return;
  // An agent takes its copy for good until it reads it again, and another's for one too many.
  const auto& shards = floor_->record->shards();
  const bool rotten = std::any_of(shards.begin(), shards.end(), [&](const auto& shard) {
    return damaged_.contains(FixedFromProto<Blake3>(shard.digest()));
  });
  if (rotten) {
    world_->Count("commits given up after damage at rest");
    return GiveUpFloor();
  }
  // More than were promised, before anybody noticed: a copy that goes now was one too many when its
  // agent was told so.
  const auto places = Places(*floor_->record);
  const bool promise_kept = std::all_of(places.begin(), places.end(), [&](const auto& place) {
    const auto [copies, demanded] = CopiesOf(*floor_->record, place);
    return copies > 0 || UnnoticedLosses() >= demanded;
  });
  if (promise_kept) {
    world_->Count("commits given up after more losses than promised");
    return GiveUpFloor();
  }
  world_->Fail(Checker::kLastCopyGone,
               fmt::format("{}: no good copy of some shard of the committed {} is left", when,
                           floor_->save.ToString()));
}

// ---- memory ------------------------------------------------------------------------------------

uint64_t Ledger::CheckpointBytes(const JobShape& shape) {
  // Data, and for each shard its manifest, its state and a page to spare.
  const uint64_t small = shape.framework == Framework::kPytorch ? 0 : 3;
  return shape.workers * (Pages(shape.file_bytes + 64) + small + 3) * kPageBytes;
}

void Ledger::CheckMemory() {
  const uint64_t unit = CheckpointBytes(job_->shape());
  for (auto& host : hosts_) {
    const uint64_t percent = host->mount().use().bytes * 100 / unit;
    peak_percent_ = std::max(peak_percent_, percent);
  }
}

std::set<SaveKey> Ledger::UncommittedAt(size_t host, Rank rank) const {
  std::set<SaveKey> saves;
  NodeHost* node = hosts_[host]->node();
  if (node == nullptr) return saves;
  const NodeStatus status = node->status();
  for (const Blake3& digest : ShardsAt(host)) {
    const auto identity = IdentityOf(host, digest);
    if (!identity || identity->job != job_->shape().name || identity->rank != rank) continue;
    if (identity->save.run == status.run) saves.insert(identity->save);
  }
  for (const DirEntry& entry : hosts_[host]->Entries(AtMount(std::string(kStagedDir)))) {
    const auto unit = ParseStagedName(entry.name);
    if (unit && unit->save.run == status.run) saves.insert(unit->save);
  }
  if (status.committed) saves.erase(FromProto(status.committed->save()));
  return saves;
}

void Ledger::CheckUncommitted(size_t most) {
  for (Rank rank = 0; rank < job_->shape().nodes; ++rank) {
    const size_t host = job_->placement()[rank];
    const std::set<SaveKey> saves = UncommittedAt(host, rank);
    if (saves.size() <= most) continue;
    return world_->Fail(
        Checker::kSavesPileUp,
        fmt::format("n{} holds {} saves that aren't committed, not at most {}: {} to {}", host,
                    saves.size(), most, saves.begin()->ToString(), saves.rbegin()->ToString()));
  }
}

// ---- the end -----------------------------------------------------------------------------------

std::set<Blake3> Ledger::ShardsAt(size_t host) const {
  std::set<Blake3> shards;
  for (const DirEntry& entry : hosts_[host]->Entries(AtMount(std::string(kShardsDir)))) {
    if (const auto digest = ParseShardDirName(entry.name)) shards.insert(*digest);
  }
  return shards;
}

std::pair<size_t, size_t> Ledger::CopiesOf(const control::GenerationRecord& record,
                                           const std::vector<Blake3>& place) const {
  std::set<std::pair<Blake3, size_t>> copies;
  for (const Blake3& digest : place) {
    for (const size_t host : HoldersOf(digest)) {
      if (IsIntact(host, digest)) copies.insert({digest, host});
    }
  }
  const JobShape& shape = job_->shape();
  // Replicas that differ stand in for nothing: each has its own copies then.
  const size_t demanded =
      shape.replicas > 1 ? shape.replicas * (Diverges(record) ? 2 : 1) : 1 + shape.peers;
  return {copies.size(), demanded};
}

size_t Ledger::RottenCopiesOf(const std::vector<Blake3>& place) const {
  size_t copies = 0;
  for (const auto& [digest, host] : damaged_copies_) {
    if (std::find(place.begin(), place.end(), digest) == place.end()) continue;
    copies += ShardsAt(host).contains(digest) && !IsIntact(host, digest) ? 1 : 0;
  }
  return copies;
}

void Ledger::CheckAllInPlace() {
  const std::string problem = NotInPlace();
  if (!problem.empty()) world_->Fail(Checker::kNotInPlace, "in the end " + problem);
}

std::string Ledger::NotInPlace() {
  Refresh();
  if (!floor_) return "nothing is committed";
  std::string problem = NotInPlace(*floor_->record);
  for (const auto& record : floor_->others) {
    if (!problem.empty()) problem = NotInPlace(*record);
  }
  return problem;
}

std::string Ledger::NotInPlace(const control::GenerationRecord& record) const {
  const JobShape& shape = job_->shape();
  std::set<Blake3> wanted;
  for (const auto& place : Places(record)) {
    wanted.insert(place.begin(), place.end());
    const auto [copies, demanded] = CopiesOf(record, place);
    if (copies >= demanded) continue;
    return fmt::format("a shard has {} copies, not {}", copies, demanded);
  }
  for (Rank rank = 0; rank < shape.nodes; ++rank) {
    const size_t host = job_->placement()[rank];
    for (const Blake3& digest : ShardsAt(host)) {
      // What can't be read stays until somebody looks at it.
      const bool rotten = damaged_.contains(digest) && !IsIntact(host, digest);
      const auto identity = IdentityOf(host, digest);
      if (!wanted.contains(digest) && !rotten && identity && identity->job == shape.name) {
        return fmt::format("n{} still holds shard {}", host, digest.Hex().substr(0, 12));
      }
    }
    for (const std::string_view part : {kStagedDir, kIncomingDir, kTrashDir}) {
      const std::vector<DirEntry> entries = hosts_[host]->Entries(AtMount(std::string(part)));
      if (!entries.empty()) {
        return fmt::format("n{} has {} left in {}", host, entries.front().name, part);
      }
    }
  }
  return "";
}

}  // namespace tierkeep::sim
