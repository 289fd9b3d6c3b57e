#include "format/generation_record.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/prng.h"
#include "format/format_testutil.h"
#include "format/message_checks.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

constexpr WorldShape kWorld{
    .framework = Framework::kPytorch, .nodes = 6, .workers_per_node = 2, .data_parallelism = 3};

const control::ShardInfo* Nobody(uint32_t) { return nullptr; }

std::vector<const control::GenerationRecord*> Pointers(
    const std::vector<control::GenerationRecord>& parts) {
  std::vector<const control::GenerationRecord*> out;
  for (const auto& part : parts) out.push_back(&part);
  return out;
}

TEST(GenerationRecord, PartsMakeTheWholeInAnyOrder) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Prng prng(seed);
    const auto whole = RandomGeneration(&prng, "job", kWorld);
    const RecordCutter cutter(whole);
    std::vector<control::GenerationRecord> parts;
    for (uint32_t slot = 0; slot < SlotsOf(whole); ++slot) {
      std::set<uint32_t> slots = {slot, static_cast<uint32_t>(prng.Below(SlotsOf(whole)))};
      parts.push_back(cutter.Part(slots));
      EXPECT_TRUE(CheckGenerationRecord(parts.back()).ok()) << "seed " << seed;
      EXPECT_EQ(WholeKey(parts.back()), WholeKey(whole)) << "seed " << seed;
      EXPECT_EQ(EntryAt(parts.back(), slot)->digest(),
                whole.shards(static_cast<int>(slot)).digest());
    }
    for (size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[prng.Below(i)]);
    const AssembledRecord found = Assemble(Pointers(parts), Nobody);
    EXPECT_EQ(found.record.SerializeAsString(), whole.SerializeAsString()) << "seed " << seed;
    EXPECT_EQ(found.contradiction, "") << "seed " << seed;
    // A part of a part tells no more than it.
    const RecordCutter again(parts.front());
    EXPECT_LE(again.Part({0, 1, 2, 3}).shards_size(), parts.front().shards_size());
  }
}

TEST(GenerationRecord, WhatIsHeldFillsAPlaceOnlyWhereItIsRight) {
  Prng prng(7);
  const auto whole = RandomGeneration(&prng, "job", kWorld);
  std::set<uint32_t> some;
  for (uint32_t slot = 1; slot < SlotsOf(whole); ++slot) some.insert(slot);
  const std::vector<control::GenerationRecord> parts = {RecordCutter(whole).Part(some)};
  const AssembledRecord right = Assemble(
      Pointers(parts), [&](uint32_t slot) { return &whole.shards(static_cast<int>(slot)); });
  EXPECT_EQ(right.record.SerializeAsString(), whole.SerializeAsString());
  control::ShardInfo other = whole.shards(0);
  other.set_digest(std::string(Blake3::kSize, 'x'));
  const AssembledRecord wrong = Assemble(Pointers(parts), [&](uint32_t) { return &other; });
  EXPECT_FALSE(IsWhole(wrong.record));
  EXPECT_EQ(EntryAt(wrong.record, 0), nullptr);
  EXPECT_NE(EntryAt(wrong.record, 1), nullptr);
}

TEST(GenerationRecord, AContradictionIsTold) {
  Prng prng(8);
  const auto whole = RandomGeneration(&prng, "job", kWorld);
  std::set<uint32_t> all;
  for (uint32_t slot = 0; slot < SlotsOf(whole); ++slot) all.insert(slot);
  std::vector<control::GenerationRecord> parts = {RecordCutter(whole).Part(all),
                                                  RecordCutter(whole).Part({0, 3})};
  parts[1].mutable_shards(1)->set_digest(std::string(Blake3::kSize, 'x'));
  const AssembledRecord two_ways = Assemble(Pointers(parts), Nobody);
  EXPECT_NE(two_ways.contradiction, "");
  EXPECT_EQ(EntryAt(two_ways.record, 3), nullptr);
  EXPECT_NE(EntryAt(two_ways.record, 0), nullptr);
  // All places are told, and yet it isn't what was cut: nothing of it is trusted.
  parts.pop_back();
  parts[0].mutable_shards(3)->set_digest(std::string(Blake3::kSize, 'x'));
  const AssembledRecord forged = Assemble(Pointers(parts), Nobody);
  EXPECT_NE(forged.contradiction, "");
  EXPECT_EQ(forged.record.shards_size(), 0);
}

TEST(GenerationRecord, PartsAreChecked) {
  Prng prng(9);
  const auto whole = RandomGeneration(&prng, "job", kWorld);
  const auto part = RecordCutter(whole).Part({2, 5, 11});
  const auto broken = [&](auto change) {
    control::GenerationRecord record = part;
    change(&record);
    return !CheckGenerationRecord(record).ok();
  };
  EXPECT_FALSE(broken([](auto*) {}));
  EXPECT_TRUE(broken([](auto* r) { r->set_slots(1, 2); }));
  EXPECT_TRUE(broken([](auto* r) { r->set_slots(2, 12); }));
  EXPECT_TRUE(broken([](auto* r) { r->add_slots(11); }));
  EXPECT_TRUE(broken([](auto* r) { r->mutable_shards()->RemoveLast(); }));
  EXPECT_TRUE(broken([](auto* r) { r->set_slots(0, 3); }));  // of another worker
  EXPECT_TRUE(broken([](auto* r) { r->set_whole("short"); }));
  EXPECT_TRUE(broken([](auto* r) { r->clear_whole(); }));  // then it must be whole
}

}  // namespace
}  // namespace tierkeep
