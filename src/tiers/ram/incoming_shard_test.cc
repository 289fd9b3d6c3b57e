#include "tiers/ram/incoming_shard.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>

#include "format/store_names.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

class IncomingShardTest : public testing::Test {
 protected:
  HeldShard StageRandom(Step step, const RandomTreeOptions& options = {}) {
    const std::string name = std::to_string(step);
    MakeRandomTree(prng_, from_.Client(name), options);
    const auto staged = from_.Stage(name, TestIdentity(step));
    TK_CHECK_MSG(staged.ok(), staged.error().ToString());
    return *from_.store().Find(staged->digest);
  }

  // Fills every file as a puller does: large ones by map, small ones by write.
  void Fill(const HeldShard& shard, IncomingShard& incoming) {
    const auto& entries = shard.manifest->entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].type != EntryType::kFile) continue;
      auto file = from_.store().OpenEntry(shard.digest, i);
      ASSERT_TRUE(file.ok());
      uint64_t at = 0;
      for (const Chunk& chunk : entries[i].chunks) {
        if (entries[i].bytes > 100'000) {
          const auto target = incoming.Target(i);
          ASSERT_TRUE(target.ok()) << target.error().ToString();
          ASSERT_EQ(target->size(), entries[i].bytes);
          ASSERT_TRUE((*file)->ReadExactly(at, target->subspan(at, chunk.bytes)).ok());
        } else {
          std::vector<std::byte> bytes(chunk.bytes);
          ASSERT_TRUE((*file)->ReadExactly(at, bytes).ok());
          ASSERT_TRUE(incoming.Write(i, at, bytes).ok());
        }
        at += chunk.bytes;
      }
    }
  }

  std::string FromData(const Blake3& digest) { return from_.InStore(ShardDataPath(digest)); }
  std::string ToData(const Blake3& digest) { return to_.InStore(ShardDataPath(digest)); }

  const uint64_t seed_ = TestSeed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("TIERKEEP_TEST_SEED={}", seed_)};
  Prng prng_{seed_};
  RamNode from_;
  RamNode to_;
};

TEST_F(IncomingShardTest, RandomShardsArriveWhole) {
  for (Step step = 0; step < 20; ++step) {
    const HeldShard shard = StageRandom(step, {.large_file = step % 5 == 0});
    auto incoming = to_.store().StartIncoming(*shard.encoded);
    ASSERT_TRUE(incoming.ok()) << incoming.error().ToString();
    EXPECT_EQ((*incoming)->digest(), shard.digest);
    EXPECT_EQ((*incoming)->manifest(), *shard.manifest);
    Fill(shard, **incoming);
    EXPECT_FALSE(to_.store().Find(shard.digest));
    const Status finished = (*incoming)->Finish();
    ASSERT_TRUE(finished.ok()) << finished.error().ToString();
    EXPECT_TRUE(to_.store().Find(shard.digest));
    EXPECT_EQ(TreeText(ToData(shard.digest)), TreeText(FromData(shard.digest)));
    const VerifyResult verified = to_.store().Verify(shard.digest, nullptr);
    EXPECT_TRUE(verified.ok) << verified.problem;
  }
  EXPECT_TRUE(fs::is_empty(to_.InStore("incoming")));
  ASSERT_TRUE(to_.Reopen().ok());
  EXPECT_EQ(to_.store().Shards().size(), 20u);
}

TEST_F(IncomingShardTest, E10_OneThatIsGivenUpLeavesNothing) {
  const HeldShard shard = StageRandom(1, {.large_file = true});
  {
    auto incoming = to_.store().StartIncoming(*shard.encoded);
    ASSERT_TRUE(incoming.ok());
    Fill(shard, **incoming);
    EXPECT_FALSE(fs::is_empty(to_.InStore("incoming")));
  }
  EXPECT_TRUE(fs::is_empty(to_.InStore("incoming")));
  EXPECT_TRUE(to_.store().Shards().empty());
}

TEST_F(IncomingShardTest, AFileThatNobodyWroteFailsTheFinish) {
  const HeldShard shard = StageRandom(1, {.large_file = true});
  auto incoming = to_.store().StartIncoming(*shard.encoded);
  ASSERT_TRUE(incoming.ok());
  const Status finished = (*incoming)->Finish();
  ASSERT_FALSE(finished.ok());
  EXPECT_EQ(finished.error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(to_.store().Shards().empty());
}

TEST_F(IncomingShardTest, WrongEntriesAndRangesAreRefused) {
  PutFile(from_.Client("5/a"), "12345");
  const auto staged = from_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok());
  auto incoming = to_.store().StartIncoming(*from_.store().Find(staged->digest)->encoded);
  ASSERT_TRUE(incoming.ok());
  EXPECT_EQ((*incoming)->Target(0).error().code(), Code::kInvalidArgument);
  EXPECT_EQ((*incoming)->Target(2).error().code(), Code::kInvalidArgument);
  const auto bytes = AsBytes("123456");
  EXPECT_EQ((*incoming)->Write(1, 0, bytes).error().code(), Code::kOutOfRange);
  EXPECT_EQ((*incoming)->Write(1, 5, bytes.first(1)).error().code(), Code::kOutOfRange);
  EXPECT_EQ((*incoming)->Write(1, UINT64_MAX, bytes.first(1)).error().code(), Code::kOutOfRange);
  EXPECT_TRUE((*incoming)->Write(1, 4, bytes.first(1)).ok());
  EXPECT_EQ(to_.store().StartIncoming("nonsense").error().code(), Code::kDataLoss);
}

TEST_F(IncomingShardTest, TwoOfOneShardBothEndWell) {
  const HeldShard shard = StageRandom(1);
  auto first = to_.store().StartIncoming(*shard.encoded);
  auto second = to_.store().StartIncoming(*shard.encoded);
  ASSERT_TRUE(first.ok() && second.ok());
  Fill(shard, **first);
  Fill(shard, **second);
  EXPECT_TRUE((*first)->Finish().ok());
  EXPECT_TRUE((*second)->Finish().ok());
  EXPECT_EQ(to_.store().Shards().size(), 1u);
  EXPECT_TRUE(to_.store().Verify(shard.digest, nullptr).ok);
  EXPECT_TRUE(fs::is_empty(to_.InStore("incoming")));
}

TEST_F(IncomingShardTest, NoRoomIsSaidBeforeAnythingIsMade) {
  const HeldShard shard = StageRandom(1, {.large_file = true});
  // A mount of its own, too small by far.
  const std::string small = to_.path() + "/small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4M") != 0) {
    GTEST_SKIP() << "no right to mount";
  }
  {
    auto dir = OpenPosixDir(small);
    ASSERT_TRUE(dir.ok());
    SystemRandom random;
    auto store = Store::Open(std::shared_ptr<Dir>(std::move(*dir)), {}, &random, Logger());
    ASSERT_TRUE(store.ok()) << store.error().ToString();
    const auto incoming = (*store)->StartIncoming(*shard.encoded);
    ASSERT_FALSE(incoming.ok());
    EXPECT_EQ(incoming.error().code(), Code::kResourceExhausted);
    EXPECT_NE(incoming.error().message().find("MiB needed"), std::string::npos);
    EXPECT_NE(incoming.error().message().find("free"), std::string::npos);
    EXPECT_TRUE(fs::is_empty(small + "/store/incoming"));
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
}

TEST_F(IncomingShardTest, MemoryThatIsGoneAtTheMapIsAnErrorNotASignal) {
  PutFile(from_.Client("5/a"), std::string(3 << 20, 'x'));
  const auto staged = from_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok());
  const std::string small = to_.path() + "/small";
  fs::create_directory(small);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4M") != 0) {
    GTEST_SKIP() << "no right to mount";
  }
  {
    auto dir = OpenPosixDir(small);
    ASSERT_TRUE(dir.ok());
    SystemRandom random;
    auto store = Store::Open(std::shared_ptr<Dir>(std::move(*dir)), {}, &random, Logger());
    ASSERT_TRUE(store.ok());
    auto incoming = (*store)->StartIncoming(*from_.store().Find(staged->digest)->encoded);
    ASSERT_TRUE(incoming.ok()) << incoming.error().ToString();
    PutFile(small + "/client/other", std::string(2 << 20, 'y'));  // the job's next save
    const auto target = (*incoming)->Target(1);
    ASSERT_FALSE(target.ok());
    EXPECT_EQ(target.error().code(), Code::kResourceExhausted);
    incoming->reset();
    EXPECT_TRUE(fs::is_empty(small + "/store/incoming"));
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
}

}  // namespace
}  // namespace tierkeep
