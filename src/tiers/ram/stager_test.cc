#include "tiers/ram/stager.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

class StagerTest : public testing::Test {
 protected:
  std::string StagedData(const std::string& name) {
    return node_.InStore("staged/" + name + "/data");
  }

  RamNode node_;
};

TEST_F(StagerTest, RandomTreesBecomeShardsThatVerify) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(fmt::format("TIERKEEP_TEST_SEED={}", seed));
  Prng prng(seed);
  for (Step step = 0; step < 30; ++step) {
    const std::string name = std::to_string(step);
    MakeRandomTree(prng, node_.Client(name), {.large_file = step == 0});
    const std::string before = TreeText(node_.Client(name));
    const auto staged = node_.Stage(name, TestIdentity(step, step % 3));
    ASSERT_TRUE(staged.ok()) << staged.error().ToString();
    EXPECT_FALSE(Exists(node_.Client(name)));
    EXPECT_TRUE(node_.store().Staged()->empty());
    EXPECT_EQ(TreeText(node_.InStore("shards/" + staged->digest.Hex() + "/data")), before);
    const auto held = node_.store().Find(staged->digest);
    ASSERT_TRUE(held);
    EXPECT_EQ(*held->manifest, staged->manifest);
    EXPECT_FALSE(held->suspect);
    const VerifyResult verified = node_.store().Verify(staged->digest, nullptr);
    EXPECT_TRUE(verified.ok) << verified.problem;
    EXPECT_EQ(verified.bytes, staged->manifest.TotalBytes());
  }
  EXPECT_EQ(node_.store().Shards().size(), 30u);
}

TEST_F(StagerTest, SingleFilesAreSavesToo) {
  PutFile(node_.Client("train-s1-n0-w0.save"), std::string(100'000, 'x'));
  const auto staged = node_.Stage("train-s1-n0-w0.save", TestIdentity(1));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  ASSERT_EQ(staged->manifest.entries.size(), 1u);
  EXPECT_TRUE(node_.store().Verify(staged->digest, nullptr).ok);
}

TEST_F(StagerTest, TakesNeitherLinksNorPipesNorWhatIsGone) {
  fs::create_directory(node_.Client("dir"));
  fs::create_symlink("dir", node_.Client("5"));
  EXPECT_EQ(node_.stager().Take("5", "s").error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(Exists(node_.Client("5")));
  ASSERT_EQ(::mkfifo(node_.Client("6").c_str(), 0600), 0);
  EXPECT_EQ(node_.stager().Take("6", "s").error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(node_.stager().Take("7", "s").error().code(), Code::kNotFound);
  for (const std::string name : {"", ".", "..", "a/b", "../store"}) {
    EXPECT_EQ(node_.stager().Take(name, "s").error().code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(node_.stager().Take("dir", name).error().code(), Code::kInvalidArgument) << name;
  }
  EXPECT_TRUE(node_.store().Staged()->empty());
}

TEST_F(StagerTest, NeverTakesOntoASaveThatIsStaged) {
  PutFile(node_.Client("5/a"), "first");
  PutFile(node_.Client("6/a"), "second");
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  EXPECT_EQ(node_.stager().Take("6", "s").error().code(), Code::kAlreadyExists);
  EXPECT_EQ(GetFile(StagedData("s") + "/a"), "first");
  EXPECT_TRUE(Exists(node_.Client("6")));
}

// The name's owner replaces the directory by a link between our look and the rename.
TEST_F(StagerTest, D9_AnEntryExchangedAtTheLastMomentIsNotTaken) {
  fs::create_directory(node_.Client("5"));
  node_.faults().Set([&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "RenameNew" && fs::is_directory(fs::symlink_status(node_.Client("5")))) {
      fs::remove(node_.Client("5"));
      fs::create_symlink("/etc", node_.Client("5"));
    }
    return std::nullopt;
  });
  EXPECT_EQ(node_.stager().Take("5", "s").error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(fs::is_symlink(node_.Client("5")));
  EXPECT_TRUE(node_.store().Staged()->empty());
}

TEST_F(StagerTest, RefusedSavesNameTheEntryAndStay) {
  PutFile(node_.Client("5/a/b"), "x");
  ASSERT_EQ(::mkfifo(node_.Client("5/a/pipe").c_str(), 0600), 0);
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  const auto refused = node_.stager().HashAndAdopt("s", TestIdentity(5), nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("a/pipe"), std::string::npos);
  EXPECT_EQ(*node_.store().Staged(), (std::vector<std::string>{"s"}));
  EXPECT_TRUE(node_.store().DeleteStaged("s").ok());
  EXPECT_TRUE(node_.store().Staged()->empty());
  EXPECT_TRUE(node_.store().DeleteStaged("s").ok());
}

TEST_F(StagerTest, D13_RefusesGiantHoles) {
  PutFile(node_.Client("5/a"), "x");
  ASSERT_EQ(::truncate(node_.Client("5/a").c_str(), int64_t{2} << 40), 0);
  const auto refused = node_.Stage("5", TestIdentity(5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("hole"), std::string::npos);
}

TEST_F(StagerTest, D13_ManyFilesThatAreAllHoleAreRefusedTogether) {
  fs::create_directory(node_.Client("5"));
  for (int i = 0; i < 40; ++i) {
    PutFile(node_.Client(fmt::format("5/{}", i)), "x");
    ASSERT_EQ(::truncate(node_.Client(fmt::format("5/{}", i)).c_str(), int64_t{1} << 29), 0);
  }
  const auto refused = node_.Stage("5", TestIdentity(5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("the save is nearly all hole"), std::string::npos);
}

TEST_F(StagerTest, SmallHolesAreHashedAsZeros) {
  PutFile(node_.Client("5/a"), "x");
  ASSERT_EQ(::truncate(node_.Client("5/a").c_str(), 20 << 20), 0);
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_TRUE(node_.store().Verify(staged->digest, nullptr).ok);
}

TEST_F(StagerTest, D9_FilesWithAnotherNameAreCopied) {
  const std::string outside = node_.path() + "/outside";
  PutFile(outside, std::string(700'000, 'o'), 0640);
  fs::create_directory(node_.Client("5"));
  fs::create_hard_link(outside, node_.Client("5/a"));
  PutFile(node_.Client("5/b"), "b");
  fs::create_hard_link(node_.Client("5/b"), node_.Client("5/c"));
  const std::string before = TreeText(node_.Client("5"));
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  const std::string data = node_.InStore("shards/" + staged->digest.Hex() + "/data");
  EXPECT_EQ(TreeText(data), before);
  PutFile(outside, "changed");
  EXPECT_TRUE(node_.store().Verify(staged->digest, nullptr).ok);
  for (const std::string name : {"/a", "/b", "/c"}) EXPECT_EQ(fs::hard_link_count(data + name), 1u);
}

TEST_F(StagerTest, AWriterThatStaysIsRefusedAndOneThatLeavesIsWaitedFor) {
  PutFile(node_.Client("5/a"), "before");
  const int fd = ::open(node_.Client("5/a").c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  const auto refused = node_.stager().HashAndAdopt("s", TestIdentity(5), nullptr);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message().find("open for writing"), std::string::npos);

  node_.stage_options().writers_limit = 1min;
  ASSERT_TRUE(node_.Reopen().ok());
  // Closes when the stager has been seen to look for writers.
  std::atomic<bool> closed{false};
  node_.faults().Set([&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "ProbeWriters" && !closed.exchange(true)) {
      EXPECT_EQ(::pwrite(fd, "after!", 6, 0), 6);
      ::close(fd);
    }
    return std::nullopt;
  });
  const auto staged = node_.stager().HashAndAdopt("s", TestIdentity(5), nullptr);
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_EQ(staged->manifest.entries[1].chunks.front().digest, ComputeXxh128(AsBytes("after!")));
}

TEST_F(StagerTest, AWritableMapIsAWriterToo) {
  PutFile(node_.Client("5/a"), std::string(4096, 'x'));
  const int fd = ::open(node_.Client("5/a").c_str(), O_RDWR);
  void* map = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  ::close(fd);
  const auto refused = node_.Stage("5", TestIdentity(5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kFailedPrecondition);
  ::munmap(map, 4096);
}

// Somebody with a descriptor of the directory writes while we hash.
TEST_F(StagerTest, ASaveThatChangesWhileHashedIsHashedAgain) {
  PutFile(node_.Client("5/a"), std::string(1000, 'x'));
  PutFile(node_.Client("5/b"), "b");
  node_.stage_options().writers_limit = 1min;
  ASSERT_TRUE(node_.Reopen().ok());
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  int changes = 0;
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call != "ReadExactly" || !path.ends_with("/b") || changes == 3) return std::nullopt;
    switch (changes++) {
      case 0:
        PutFile(StagedData("s") + "/a", std::string(1000, 'y'));
        break;
      case 1:
        fs::remove(StagedData("s") + "/a");
        break;
      default:
        PutFile(StagedData("s") + "/new", "new");
    }
    return std::nullopt;
  });
  const auto staged = node_.stager().HashAndAdopt("s", TestIdentity(5), nullptr);
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_EQ(changes, 3);
  EXPECT_EQ(staged->manifest.entries.size(), 3u);
  EXPECT_TRUE(node_.store().Verify(staged->digest, nullptr).ok);
}

TEST_F(StagerTest, CancellingStopsWithoutAShard) {
  PutFile(node_.Client("5/a"), "x");
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  const std::atomic<bool> cancelled{true};
  EXPECT_EQ(node_.stager().HashAndAdopt("s", TestIdentity(5), &cancelled).error().code(),
            Code::kCancelled);
  EXPECT_TRUE(node_.store().Shards().empty());
  EXPECT_EQ(node_.store().Staged()->size(), 1u);
}

TEST_F(StagerTest, AStagedSaveIsFoundAndHashedAfterARestart) {
  PutFile(node_.Client("5/a"), "x");
  ASSERT_TRUE(node_.stager().Take("5", "s").ok());
  // Killed after the manifest, before the rename, and with half a copy made.
  PutFile(node_.InStore("staged/s/manifest"), "torn");
  PutFile(node_.InStore("staged/s/copy"), "half");
  fs::create_directory(node_.InStore("staged/empty"));  // killed before the rename into it
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_EQ(*node_.store().Staged(), (std::vector<std::string>{"s"}));
  const auto staged = node_.stager().HashAndAdopt("s", TestIdentity(5), nullptr);
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_FALSE(Exists(node_.InStore("shards/" + staged->digest.Hex() + "/copy")));
  ASSERT_TRUE(node_.Reopen().ok());
  EXPECT_TRUE(node_.store().Verify(staged->digest, nullptr).ok);
}

}  // namespace
}  // namespace tierkeep
