#include "format/generation_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

std::string DigestOfAll(const google::protobuf::RepeatedPtrField<control::ShardInfo>& shards) {
  std::string all;
  for (const auto& shard : shards) all += shard.digest();
  return ComputeBlake3(all).Raw();
}

// Whether data-parallel replicas are known to hold the same values, position by position.
bool ReplicasAreEqual(const control::GenerationRecord& whole) {
  const uint32_t partitions = whole.world().data_parallelism();
  if (partitions <= 1) return false;
  const uint32_t slots = SlotsOf(whole) / partitions;  // of one partition
  for (int i = 0; i < whole.shards_size(); ++i) {
    const auto& first = whole.shards(i % static_cast<int>(slots));
    const auto& shard = whole.shards(i);
    if (shard.digest() == first.digest()) continue;
    if (shard.logical().empty() || shard.logical() != first.logical()) return false;
  }
  return true;
}

control::GenerationRecord HeaderOfPart(const control::GenerationRecord& record) {
  control::GenerationRecord header = HeaderOf(record);
  if (!IsWhole(record)) return header;
  header.set_whole(WholeKey(record));
  header.set_equal(ReplicasAreEqual(record));
  uint64_t ordinal = 0;
  bool stand_ins = false;
  for (int i = 0; i < record.shards_size(); ++i) {
    ordinal = std::max(ordinal, record.shards(i).ordinal());
    const auto rank = static_cast<uint32_t>(i) / record.world().workers_per_node();
    stand_ins = stand_ins || record.shards(i).rank() != rank;
  }
  header.set_ordinal(ordinal);
  header.set_stand_ins(stand_ins);
  return header;
}

using Entries = std::map<uint32_t, const control::ShardInfo*>;

void Add(control::GenerationRecord* record, const Entries& entries) {
  for (const auto& [slot, shard] : entries) {
    record->add_slots(slot);
    *record->add_shards() = *shard;
  }
}

// Empty unless the entries are all there and are those that the record was made of.
control::GenerationRecord Prove(const control::GenerationRecord& header, const Entries& entries) {
  if (entries.size() != SlotsOf(header)) return {};
  control::GenerationRecord record = header;
  for (const auto& [slot, shard] : entries) *record.add_shards() = *shard;
  if (DigestOfAll(record.shards()) != header.whole()) return {};
  record.clear_whole();
  record.clear_equal();
  record.clear_stand_ins();
  record.clear_ordinal();
  return record;
}

}  // namespace

uint32_t SlotsOf(const control::GenerationRecord& record) {
  return record.world().nodes() * record.world().workers_per_node();
}

uint32_t SlotOf(const control::GenerationRecord& record, Rank rank, Worker worker) {
  return rank * record.world().workers_per_node() + worker;
}

bool IsWhole(const control::GenerationRecord& record) { return record.whole().empty(); }

control::GenerationRecord WithoutShards(const control::GenerationRecord& record) {
  control::GenerationRecord header;
  header.set_job(record.job());
  *header.mutable_save() = record.save();
  header.set_save_number(record.save_number());
  *header.mutable_world() = record.world();
  header.set_committed(record.committed());
  if (record.has_parent_run()) *header.mutable_parent_run() = record.parent_run();
  header.set_parent_save_number(record.parent_save_number());
  return header;
}

control::GenerationRecord HeaderOf(const control::GenerationRecord& record) {
  control::GenerationRecord header = WithoutShards(record);
  header.set_whole(record.whole());
  header.set_equal(record.equal());
  header.set_stand_ins(record.stand_ins());
  header.set_ordinal(record.ordinal());
  return header;
}

uint32_t SlotAt(const control::GenerationRecord& record, int index) {
  return IsWhole(record) ? static_cast<uint32_t>(index) : record.slots(index);
}

const control::ShardInfo* EntryAt(const control::GenerationRecord& record, uint32_t slot) {
  if (IsWhole(record)) {
    const auto size = static_cast<uint32_t>(record.shards_size());
    return slot < size ? &record.shards(static_cast<int>(slot)) : nullptr;
  }
  const auto& slots = record.slots();
  const auto found = std::lower_bound(slots.begin(), slots.end(), slot);
  if (found == slots.end() || *found != slot) return nullptr;
  return &record.shards(static_cast<int>(found - slots.begin()));
}

const control::ShardInfo* EntryOf(const control::GenerationRecord& record, Rank rank,
                                  Worker worker) {
  if (worker >= record.world().workers_per_node()) return nullptr;
  return EntryAt(record, SlotOf(record, rank, worker));
}

Status CheckSlots(const control::GenerationRecord& record) {
  const uint32_t wanted = SlotsOf(record);
  const auto bad = [](std::string text) { return Error(Code::kInvalidArgument, std::move(text)); };
  if (IsWhole(record)) {
    const auto size = static_cast<uint32_t>(record.shards_size());
    if (size == wanted && record.slots().empty()) return OkStatus();
    return bad(fmt::format("generation has {} shards, not {}", size, wanted));
  }
  if (record.slots_size() != record.shards_size()) {
    return bad(fmt::format("generation's part has {} shards in {} places", record.shards_size(),
                           record.slots_size()));
  }
  for (int i = 0; i < record.slots_size(); ++i) {
    const bool ascends = i == 0 || record.slots(i) > record.slots(i - 1);
    if (record.slots(i) < wanted && ascends) continue;
    return bad(
        fmt::format("generation's part has place {} out of order or too high", record.slots(i)));
  }
  return OkStatus();
}

std::string WholeKey(const control::GenerationRecord& record) {
  return IsWhole(record) ? DigestOfAll(record.shards()) : record.whole();
}

RecordCutter::RecordCutter(const control::GenerationRecord& record)
    : record_(record), header_(HeaderOfPart(record)) {}

control::GenerationRecord RecordCutter::Part(const std::set<uint32_t>& slots) const {
  control::GenerationRecord part = header_;
  for (const uint32_t slot : slots) {
    const control::ShardInfo* shard = EntryAt(record_, slot);
    if (shard == nullptr) continue;
    part.add_slots(slot);
    *part.add_shards() = *shard;
  }
  return part;
}

AssembledRecord Assemble(const std::vector<const control::GenerationRecord*>& parts,
                         const std::function<const control::ShardInfo*(uint32_t slot)>& held) {
  TK_CHECK(!parts.empty());
  for (const auto* part : parts) {
    if (IsWhole(*part)) return {*part, ""};
  }
  AssembledRecord out;
  const control::GenerationRecord header = HeaderOf(*parts.front());
  Entries entries;
  std::set<uint32_t> doubtful;
  for (const auto* part : parts) {
    for (int i = 0; i < part->shards_size(); ++i) {
      const auto [it, added] = entries.emplace(part->slots(i), &part->shards(i));
      if (!added && it->second->digest() != part->shards(i).digest()) doubtful.insert(it->first);
    }
  }
  for (const uint32_t slot : doubtful) entries.erase(slot);
  Entries filled = entries;
  for (uint32_t slot = 0; slot < SlotsOf(header); ++slot) {
    if (entries.count(slot) != 0) continue;
    if (const auto* shard = held(slot)) filled.emplace(slot, shard);
  }
  out.record = Prove(header, filled);
  if (out.record.shards_size() > 0) return out;
  if (!doubtful.empty()) {
    const uint32_t workers = header.world().workers_per_node();
    out.contradiction = fmt::format("rank {} worker {}'s shard is recorded in two ways for {}",
                                    *doubtful.begin() / workers, *doubtful.begin() % workers,
                                    FromProto(header.save()).ToString());
  } else if (filled.size() == SlotsOf(header) && entries.size() == filled.size()) {
    out.contradiction = fmt::format("the records of {} contradict what all of them name as one",
                                    FromProto(header.save()).ToString());
    entries.clear();
  }
  out.record = header;
  // Nothing but the rank's own shard can have its place, unless replicas stood in for each other;
  // with all places filled it was just disproven.
  const bool trusted = !header.stand_ins() && doubtful.empty() && filled.size() != SlotsOf(header);
  Add(&out.record, trusted ? filled : entries);
  return out;
}

}  // namespace tierkeep
