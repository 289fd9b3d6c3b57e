#include "tiers/ram/store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "format/generation_record.h"
#include "format/store_names.h"
#include "tiers/ram/ram_testutil.h"
#include "tiers/ram/shard_state.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

class StoreTest : public testing::Test {
 protected:
  Blake3 StageRandom(Step step, const RandomTreeOptions& options = {}) {
    const std::string name = std::to_string(step);
    MakeRandomTree(prng_, node_.Client(name), options);
    auto staged = node_.Stage(name, TestIdentity(step));
    TK_CHECK_MSG(staged.ok(), staged.error().ToString());
    return staged->digest;
  }
  std::string Data(const Blake3& digest) { return node_.InStore(ShardDataPath(digest)); }
  std::string Verify(const Blake3& digest) {
    const VerifyResult result = node_.store().Verify(digest, nullptr);
    EXPECT_EQ(result.ok, result.problem.empty());
    return result.problem;
  }
  // The shard's files of at least one byte.
  std::vector<std::string> Files(const Blake3& digest) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(Data(digest))) {
      if (entry.is_symlink() || !entry.is_regular_file() || entry.file_size() == 0) continue;
      files.push_back(entry.path());
    }
    return files;
  }

  const uint64_t seed_ = TestSeed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("TIERKEEP_TEST_SEED={}", seed_)};
  Prng prng_{seed_};
  RamNode node_;
};

TEST_F(StoreTest, AnEmptyMountBecomesAStoreAndStaysIt) {
  EXPECT_TRUE(node_.store().Shards().empty());
  EXPECT_TRUE(node_.store().unreadable().empty());
  const std::string id = GetFile(node_.InStore("store-id"));
  EXPECT_FALSE(id.empty());
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_EQ(GetFile(node_.InStore("store-id")), id);
  EXPECT_TRUE(fs::is_empty(node_.path() + "/client"));
  EXPECT_EQ(fs::status(node_.InStore("")).permissions(), fs::perms::owner_all);
}

TEST_F(StoreTest, C2_FindsEveryFlippedBit) {
  const Blake3 digest = StageRandom(1, {.large_file = true});
  const auto files = Files(digest);
  ASSERT_FALSE(files.empty());
  for (int i = 0; i < 40; ++i) {
    const std::string& file = files[prng_.Below(files.size())];
    const uint64_t at = prng_.Below(fs::file_size(file));
    const auto flip = [&](unsigned bit) {
      FILE* f = fopen(file.c_str(), "r+b");
      TK_CHECK(f != nullptr);
      fseek(f, static_cast<long>(at), SEEK_SET);
      const int byte = fgetc(f) ^ static_cast<int>(1u << bit);
      fseek(f, static_cast<long>(at), SEEK_SET);
      fputc(byte, f);
      fclose(f);
    };
    const auto bit = static_cast<unsigned>(prng_.Below(8));
    flip(bit);
    EXPECT_NE(Verify(digest).find("differ"), std::string::npos) << file << " at " << at;
    EXPECT_TRUE(node_.store().Find(digest)->suspect);
    flip(bit);
    EXPECT_EQ(Verify(digest), "");
    EXPECT_FALSE(node_.store().Find(digest)->suspect);
  }
}

TEST_F(StoreTest, C3_FindsEveryChangeOfShape) {
  PutFile(node_.Client("5/a/f"), "12345");
  PutFile(node_.Client("5/empty"), "");
  fs::create_symlink("a/f", node_.Client("5/link"));
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok());
  const Blake3 digest = staged->digest;
  const std::string data = Data(digest);
  const auto expect = [&](const std::string& problem, const std::function<void()>& change,
                          const std::function<void()>& back) {
    change();
    EXPECT_NE(Verify(digest).find(problem), std::string::npos) << problem;
    back();
    EXPECT_EQ(Verify(digest), "") << problem;
  };
  expect(
      "belong", [&] { PutFile(data + "/b", ""); }, [&] { fs::remove(data + "/b"); });
  expect(
      "belong", [&] { fs::create_directory(data + "/zzz"); }, [&] { fs::remove(data + "/zzz"); });
  expect(
      "missing", [&] { fs::remove(data + "/empty"); }, [&] { PutFile(data + "/empty", ""); });
  expect(
      "another type",
      [&] {
        fs::remove(data + "/empty");
        fs::create_directory(data + "/empty");
      },
      [&] {
        fs::remove(data + "/empty");
        PutFile(data + "/empty", "");
      });
  expect(
      "bytes", [&] { PutFile(data + "/a/f", "1234"); }, [&] { PutFile(data + "/a/f", "12345"); });
  expect(
      "bytes", [&] { PutFile(data + "/a/f", "123456"); }, [&] { PutFile(data + "/a/f", "12345"); });
  expect(
      "leads elsewhere",
      [&] {
        fs::remove(data + "/link");
        fs::create_symlink("/etc/passwd", data + "/link");
      },
      [&] {
        fs::remove(data + "/link");
        fs::create_symlink("a/f", data + "/link");
      });
  expect(
      "device, pipe or socket",
      [&] {
        fs::remove(data + "/empty");
        ASSERT_EQ(::mkfifo((data + "/empty").c_str(), 0600), 0);
      },
      [&] {
        fs::remove(data + "/empty");
        PutFile(data + "/empty", "");
      });
  fs::rename(data, data + ".away");
  EXPECT_NE(Verify(digest), "");
  EXPECT_NE(Verify(Blake3{}), "");
}

TEST_F(StoreTest, ACancelledVerificationSaysNothingAboutTheCopy) {
  const Blake3 digest = StageRandom(1, {.large_file = true});
  const std::atomic<bool> cancelled{true};
  EXPECT_FALSE(node_.store().Verify(digest, &cancelled).ok);
  EXPECT_FALSE(node_.store().Find(digest)->suspect);
}

TEST_F(StoreTest, ShardsAndTheirStateSurviveARestart) {
  const Blake3 good = StageRandom(1);
  const Blake3 bad = StageRandom(2);
  PutFile(Data(bad) + "/extra", "x");
  EXPECT_NE(Verify(bad), "");
  const auto before = node_.store().Shards();
  const uint64_t bytes = node_.store().held_bytes();
  ASSERT_TRUE(node_.Reopen().ok());
  const auto after = node_.store().Shards();
  ASSERT_EQ(after.size(), 2u);
  EXPECT_TRUE(after[0].digest < after[1].digest);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after[i].digest, before[i].digest);
    EXPECT_EQ(*after[i].encoded, *before[i].encoded);
    EXPECT_EQ(after[i].volume_name, VolumeDataName(*after[i].manifest, after[i].digest));
    EXPECT_EQ(after[i].suspect, after[i].digest == bad);
  }
  EXPECT_EQ(node_.store().held_bytes(), bytes);
  EXPECT_EQ(Verify(good), "");
}

TEST_F(StoreTest, WhatCannotBeReadIsListedAndLeftAlone) {
  const Blake3 torn = StageRandom(1);
  const Blake3 foreign = StageRandom(2);
  const Blake3 hollow = StageRandom(3);
  const Blake3 good = StageRandom(4);
  const std::string manifest = GetFile(node_.InStore(ShardManifestPath(torn)));
  PutFile(node_.InStore(ShardManifestPath(torn)), manifest.substr(0, manifest.size() / 2));
  PutFile(node_.InStore(ShardManifestPath(foreign)), manifest);
  fs::remove_all(Data(hollow));
  fs::create_directory(node_.InStore("shards/nonsense"));
  PutFile(node_.InStore("generations/7-42000000000000000000000000000000/3"), "nonsense");
  PutFile(node_.InStore("generations/7-42000000000000000000000000000000/.4.ab.tmp"), "left over");
  PutFile(node_.InStore("store-id"), "nonsense");
  ASSERT_TRUE(node_.Reopen().ok());
  std::set<Blake3> unreadable;
  std::set<Blake3> damaged;
  size_t others = 0;
  size_t generations = 0;
  for (const UnreadableItem& item : node_.store().unreadable()) {
    EXPECT_FALSE(item.detail.empty());
    if (item.damaged) damaged.insert(item.digest.value_or(Blake3{}));
    if (item.digest) {
      unreadable.insert(*item.digest);
    } else if (item.generation) {
      ++generations;
      EXPECT_EQ(item.generation->save_number, 3u);
    } else {
      ++others;
    }
  }
  EXPECT_EQ(unreadable, (std::set<Blake3>{torn, foreign, hollow}));
  EXPECT_EQ(damaged, unreadable);  // by the names of their directories
  EXPECT_EQ(generations, 1u);
  EXPECT_EQ(others, 2u);  // the odd name and the store id
  ASSERT_EQ(node_.store().Shards().size(), 1u);
  EXPECT_EQ(node_.store().Shards()[0].digest, good);
  EXPECT_TRUE(Exists(Data(torn)));
  EXPECT_FALSE(Exists(node_.InStore("generations/7-42000000000000000000000000000000/.4.ab.tmp")));
  // Wanted away by name, they go.
  ASSERT_TRUE(node_.store().Delete(torn).ok());
  EXPECT_FALSE(Exists(node_.InStore(ShardPath(torn))));
  EXPECT_EQ(node_.store().unreadable().size(), 5u);
}

TEST_F(StoreTest, FailedListingsAreUnreadableNotEmpty) {
  StageRandom(1);
  for (const std::string part : {"shards", "generations", "incoming"}) {
    node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
      if (call == "List" && path == part) return ErrnoError(EIO, "list " + part);
      return std::nullopt;
    });
    ASSERT_TRUE(node_.Reopen().ok());
    EXPECT_EQ(node_.store().unreadable().size(), 1u) << part;
  }
  node_.faults().Clear();
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_TRUE(node_.store().unreadable().empty());
  EXPECT_EQ(node_.store().Shards().size(), 1u);
}

// What can't be read now may be read by another try: it isn't lost.
TEST_F(StoreTest, OnlyWhatIsProvenIsDamaged) {
  const Blake3 shard = StageRandom(1);
  for (const std::string& path : {ShardManifestPath(shard), ShardDataPath(shard)}) {
    node_.faults().Set([&](std::string_view, std::string_view called) -> std::optional<Error> {
      if (called == path) return ErrnoError(EIO, "read " + path);
      return std::nullopt;
    });
    ASSERT_TRUE(node_.Reopen().ok());
    ASSERT_EQ(node_.store().unreadable().size(), 1u) << path;
    EXPECT_EQ(node_.store().unreadable()[0].digest, shard);
    EXPECT_FALSE(node_.store().unreadable()[0].damaged) << path;
  }
  node_.faults().Clear();
  // As its name promises, but not understood: perhaps a newer version's.
  std::string manifest = GetFile(node_.InStore(ShardManifestPath(shard)));
  manifest[4] = 99;
  const Blake3 newer = ManifestDigest(manifest);
  fs::create_directory(node_.InStore(ShardPath(newer)));
  PutFile(node_.InStore(ShardManifestPath(newer)), manifest);
  ASSERT_TRUE(node_.Reopen().ok());
  ASSERT_EQ(node_.store().unreadable().size(), 1u);
  EXPECT_EQ(node_.store().unreadable()[0].digest, newer);
  EXPECT_FALSE(node_.store().unreadable()[0].damaged);
}

TEST_F(StoreTest, TwoMountsAreRefusedWithTheRemedy) {
  for (const std::string call : {"OpenDir", "RenameNew", "HardLink"}) {
    node_.faults().Set([&](std::string_view c, std::string_view) -> std::optional<Error> {
      if (c == call) return ErrnoError(EXDEV, "try");
      return std::nullopt;
    });
    const Status opened = node_.Reopen();
    ASSERT_FALSE(opened.ok()) << call;
    EXPECT_EQ(opened.error().code(), Code::kFailedPrecondition);
    EXPECT_NE(opened.error().message().find("bind-mount the whole directory"), std::string::npos);
  }
  node_.faults().Clear();
  EXPECT_TRUE(fs::is_empty(node_.path() + "/client"));
}

TEST_F(StoreTest, A8_StartSweepsWhatWasBeingReceivedAndNothingElse) {
  const Blake3 digest = StageRandom(1);
  PutFile(node_.InStore("incoming/x.0123456789abcdef/data/a"), "half");
  PutFile(node_.InStore("trash/1/a"), "old");
  PutFile(node_.InStore("staged/s/data/a"), "save");
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_TRUE(fs::is_empty(node_.InStore("incoming")));
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
  EXPECT_EQ(*node_.store().Staged(), (std::vector<std::string>{"s"}));
  EXPECT_EQ(Verify(digest), "");
}

TEST_F(StoreTest, A22_AnEqualShardThatIsBadIsReplacedAndAGoodOneStays) {
  PutFile(node_.Client("1/a"), "content");
  PutFile(node_.Client("2/a"), "content");
  PutFile(node_.Client("3/a"), "content");
  const auto first = node_.Stage("1", TestIdentity(1));
  ASSERT_TRUE(first.ok());
  const auto inode = [&] {
    struct stat st;
    TK_CHECK(::stat((Data(first->digest) + "/a").c_str(), &st) == 0);
    return st.st_ino;
  };
  const auto before = inode();
  const auto second = node_.Stage("2", TestIdentity(1));
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(second->digest, first->digest);
  EXPECT_EQ(inode(), before);
  EXPECT_TRUE(node_.store().Staged()->empty());

  PutFile(Data(first->digest) + "/a", "CONTENT");
  const auto third = node_.Stage("3", TestIdentity(1));
  ASSERT_TRUE(third.ok()) << third.error().ToString();
  EXPECT_EQ(third->digest, first->digest);
  EXPECT_NE(inode(), before);
  EXPECT_EQ(Verify(first->digest), "");
  EXPECT_FALSE(node_.store().Find(first->digest)->suspect);
  EXPECT_EQ(node_.store().Shards().size(), 1u);

  // Even one whose manifest is gone.
  PutFile(node_.Client("4/a"), "content");
  PutFile(node_.InStore(ShardManifestPath(first->digest)), "nonsense");
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_EQ(node_.store().unreadable().size(), 1u);
  ASSERT_TRUE(node_.Stage("4", TestIdentity(1)).ok());
  EXPECT_TRUE(node_.store().unreadable().empty());
  EXPECT_EQ(Verify(first->digest), "");
}

TEST_F(StoreTest, DeletedShardsAreGoneAndDeletingThemAgainIsFine) {
  const Blake3 digest = StageRandom(1);
  ASSERT_TRUE(node_.store().Delete(digest).ok());
  EXPECT_FALSE(node_.store().Find(digest));
  EXPECT_EQ(node_.store().held_bytes(), 0u);
  EXPECT_TRUE(fs::is_empty(node_.InStore("shards")));
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
  EXPECT_TRUE(node_.store().Delete(digest).ok());
  EXPECT_EQ(node_.store().OpenEntry(digest, 1).error().code(), Code::kNotFound);
}

TEST_F(StoreTest, OpensFilesOfAShardByTheirEntry) {
  PutFile(node_.Client("5/a"), "content");
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok());
  auto file = node_.store().OpenEntry(staged->digest, 1);
  ASSERT_TRUE(file.ok());
  std::string content(7, '\0');
  ASSERT_TRUE((*file)->ReadExactly(0, std::as_writable_bytes(std::span(content))).ok());
  EXPECT_EQ(content, "content");
  for (const size_t entry : {0, 2}) {
    EXPECT_EQ(node_.store().OpenEntry(staged->digest, entry).error().code(),
              Code::kInvalidArgument);
  }
}

TEST_F(StoreTest, RemembersGenerations) {
  WorldShape world;
  world.nodes = 3;
  const auto one = RandomGeneration(&prng_, "train", world);
  const auto two = RandomGeneration(&prng_, "train", world);
  ASSERT_TRUE(node_.store().WriteGeneration(Shared(one)).ok());
  ASSERT_TRUE(node_.store().WriteGeneration(Shared(two)).ok());
  ASSERT_TRUE(node_.store().WriteGeneration(Shared(two)).ok());
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_TRUE(node_.store().unreadable().empty());
  auto records = node_.store().Generations();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_LT(GenerationIdOf(*records[0]), GenerationIdOf(*records[1]));
  for (const auto& record : records) {
    const auto& wanted = GenerationIdOf(*record) == GenerationIdOf(one) ? one : two;
    EXPECT_EQ(record->SerializeAsString(), wanted.SerializeAsString());
  }
  ASSERT_TRUE(node_.store().DeleteGeneration(one).ok());
  ASSERT_TRUE(node_.store().DeleteGeneration(one).ok());
  ASSERT_TRUE(node_.Reopen().ok());
  ASSERT_EQ(node_.store().Generations().size(), 1u);
  EXPECT_EQ(GenerationIdOf(*node_.store().Generations()[0]), GenerationIdOf(two));
}

TEST_F(StoreTest, StandsUnlessItIsKnownThatItDoesNot) {
  Dir& mount = node_.store().mount();
  EXPECT_TRUE(CheckStands(mount).ok());
  const auto fail = [&](Error error) {
    node_.faults().Set([error](std::string_view call, std::string_view) {
      return call == "CheckPath" ? std::optional(error) : std::nullopt;
    });
  };
  fail(Error(Code::kDataLoss, "input/output error"));
  EXPECT_TRUE(CheckStands(mount).ok());
  fail(Error(Code::kAborted, "nothing is at it any more"));
  EXPECT_EQ(CheckStands(mount).error().message(), "nothing is at it any more");
}

TEST(ShardStateTest, RoundTripsAndFallsBackToCare) {
  for (int bits = 0; bits < 8; ++bits) {
    const ShardState state{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    EXPECT_EQ(DecodeShardState(EncodeShardState(state)), state);
  }
  const ShardState careful{.suspect = true, .linked = true, .guarded = false};
  EXPECT_EQ(DecodeShardState(""), careful);
  std::string bytes = EncodeShardState({.suspect = false, .linked = true, .guarded = true});
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string torn = bytes;
    torn[i] = static_cast<char>(torn[i] ^ 1);
    EXPECT_EQ(DecodeShardState(torn), careful) << i;
  }
}

}  // namespace
}  // namespace tierkeep
