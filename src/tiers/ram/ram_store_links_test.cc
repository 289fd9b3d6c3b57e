// Shards in the volume: what the job can and can't do to them, and what is remembered of it.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

// Runs where flags can be set, and where they can't (by a Dir that says so).
class LinksTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (guarded() && !node_.HasImmutable()) GTEST_SKIP() << "no FS_IMMUTABLE_FL here or no rights";
    Restart();
    PutShardAgain();
    text_ = TreeText(node_.Client("5"));
    const auto staged = node_.Stage("5", TestIdentity(5));
    ASSERT_TRUE(staged.ok()) << staged.error().ToString();
    digest_ = staged->digest;
    h_ = node_.store().Find(digest_)->volume_name;
  }
  bool guarded() const { return GetParam(); }
  void PutShardAgain() {
    PutFile(node_.Client("5/d/a"), "content of a");
    PutFile(node_.Client("5/empty"), "");
    fs::create_symlink("d/a", node_.Client("5/link"));
    ASSERT_EQ(::chmod(node_.Client("5/d").c_str(), 0750), 0);
  }
  void Restart() {
    node_.faults().Set([this](std::string_view call, std::string_view) -> std::optional<Error> {
      if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
      return std::nullopt;
    });
    const Status opened = node_.Reopen();
    ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  }
  std::string Linked() { return node_.Client(DataName(h_)); }
  std::string Data() { return node_.InStore(ShardDataPath(digest_)); }
  bool suspect() { return node_.store().Find(digest_)->suspect; }
  bool Verify() { return node_.store().Verify(digest_, nullptr).ok; }
  ino_t Inode(const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::lstat(path.c_str(), &st), 0) << path;
    return st.st_ino;
  }
  bool CanWrite(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  }

  RamNode node_;
  std::string text_;
  Blake3 digest_;
  std::string h_;
};
INSTANTIATE_TEST_SUITE_P(Flags, LinksTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "Immutable" : "NoImmutable"; });

TEST_P(LinksTest, C4_TheVolumeShowsTheSameInodesAndNobodyCanWriteThemWhereFlagsExist) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  EXPECT_EQ(TreeText(Linked()), text_);
  EXPECT_EQ(Inode(Linked() + "/d/a"), Inode(Data() + "/d/a"));
  EXPECT_NE(Inode(Linked() + "/d"), Inode(Data() + "/d"));
  EXPECT_EQ(CanWrite(Linked() + "/d/a"), !guarded());
  EXPECT_EQ(suspect(), !guarded());
  // Even root can't make another name for it, or take it away.
  if (guarded()) {
    std::error_code error;
    fs::create_hard_link(Linked() + "/d/a", node_.Client("mine"), error);
    EXPECT_TRUE(error);
    EXPECT_FALSE(fs::remove(Linked() + "/d/a", error));
  }
  // A good verification helps only where it stays true.
  EXPECT_TRUE(Verify());
  EXPECT_EQ(suspect(), !guarded());
  Restart();
  EXPECT_EQ(suspect(), !guarded());
  EXPECT_EQ(CanWrite(Linked() + "/d/a"), !guarded());
}

// Data-parallel replicas are told apart by digest, but have one name in the volume.
TEST_P(LinksTest, DeletingAReplicaLeavesTheTreeOfItsEqual) {
  std::vector<Blake3> equals;
  for (const char* bookkeeping : {"one", "two"}) {
    PutFile(node_.Client("7/f"), "equal");
    PutFile(node_.Client("7/commit_success.txt"), bookkeeping);
    const auto staged = node_.Stage("7", TestIdentity(7, 2));
    ASSERT_TRUE(staged.ok()) << staged.error().ToString();
    equals.push_back(staged->digest);
    ASSERT_TRUE(node_.store().LinkIntoVolume(staged->digest).ok());
  }
  ASSERT_NE(equals[0], equals[1]);
  const std::string h = node_.store().Find(equals[0])->volume_name;
  ASSERT_EQ(node_.store().Find(equals[1])->volume_name, h);
  const std::string shown = node_.Client(DataName(h)) + "/commit_success.txt";
  ASSERT_EQ(GetFile(shown), "two");
  ASSERT_TRUE(node_.store().Delete(equals[0]).ok());
  ASSERT_TRUE(Exists(shown));
  EXPECT_EQ(GetFile(shown), "two");
  ASSERT_TRUE(node_.store().Delete(equals[1]).ok());
  EXPECT_FALSE(Exists(node_.Client(DataName(h))));
}

TEST_P(LinksTest, UnlinkedCopiesAreSuspectUntilVerified) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  EXPECT_FALSE(Exists(Linked()));
  EXPECT_TRUE(suspect());
  Restart();
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
  EXPECT_FALSE(suspect());
  Restart();
  EXPECT_FALSE(suspect());
  EXPECT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  EXPECT_FALSE(suspect());
  EXPECT_EQ(node_.store().UnlinkFromVolume("../x").error().code(), Code::kInvalidArgument);
}

TEST_P(LinksTest, LinkingAgainGivesAWholeTreeAgain) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
    ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
    EXPECT_EQ(TreeText(Linked()), text_);
    EXPECT_EQ(suspect(), !guarded());
    ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
    EXPECT_TRUE(Verify());
  }
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
  EXPECT_TRUE(fs::is_empty(node_.InStore("incoming")));
}

TEST_P(LinksTest, WhateverStandsAtTheNameIsReplaced) {
  const std::vector<std::function<void()>> plants{
      [&] { PutFile(Linked() + "/x/y", "planted"); },
      [&] { PutFile(Linked(), "planted"); },
      [&] { fs::create_symlink("/etc", Linked()); },
      [&] { ASSERT_EQ(::mkfifo(Linked().c_str(), 0600), 0); },
  };
  for (const auto& plant : plants) {
    plant();
    const Status linked = node_.store().LinkIntoVolume(digest_);
    ASSERT_TRUE(linked.ok()) << linked.error().ToString();
    EXPECT_EQ(TreeText(Linked()), text_);
    ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  }
  EXPECT_TRUE(Exists("/etc"));
}

TEST_P(LinksTest, ATreeThatTheJobTookApartIsSuspectAndCanBeRepaired) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  fs::rename(Linked() + "/d", node_.Client("stolen"));
  Restart();
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
  EXPECT_TRUE(suspect()) << "a name of its file is still in the volume, nobody knows for whom";
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  EXPECT_EQ(TreeText(Linked()), text_);
  ASSERT_TRUE(node_.store().RemoveFromVolume({"stolen"}).ok());
  EXPECT_FALSE(Exists(node_.Client("stolen")));
  ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  EXPECT_TRUE(Verify());
  EXPECT_FALSE(suspect());
}

TEST_P(LinksTest, RemovingAStolenPartFirstMakesTheCopySuspect) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  fs::rename(Linked() + "/d", node_.Client("stolen"));
  ASSERT_TRUE(node_.store().RemoveFromVolume({"stolen"}).ok());
  EXPECT_FALSE(Exists(node_.Client("stolen")));
  EXPECT_TRUE(suspect());
  EXPECT_EQ(GetFile(Data() + "/d/a"), "content of a");
}

TEST_P(LinksTest, AStagedSaveWithPartsOfALinkedTreeIsRefusedOrCopiedButNeverShared) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  fs::rename(Linked() + "/d", node_.Client("6"));
  const auto staged = node_.Stage("6", TestIdentity(6));
  if (guarded()) {
    ASSERT_FALSE(staged.ok());
    EXPECT_EQ(staged.error().code(), Code::kFailedPrecondition) << staged.error().ToString();
    EXPECT_NE(staged.error().message().find("\"a\""), std::string::npos);
    ASSERT_TRUE(node_.store().DeleteStaged(node_.store().Staged()->at(0)).ok());
  } else {
    ASSERT_TRUE(staged.ok()) << staged.error().ToString();
    EXPECT_NE(Inode(node_.InStore(ShardDataPath(staged->digest)) + "/a"), Inode(Data() + "/d/a"));
  }
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
}

TEST_P(LinksTest, AWriterStopsTheLinking) {
  const int fd = ::open((Data() + "/d/a").c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  const Status linked = node_.store().LinkIntoVolume(digest_);
  ASSERT_FALSE(linked.ok());
  EXPECT_EQ(linked.error().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(Exists(Linked()));
  ::close(fd);
  EXPECT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
}

TEST_P(LinksTest, SingleFilesAreLinkedAndGuardedToo) {
  PutFile(node_.Client("train-s9-n0-w0.save"), "content", 0640);
  const auto staged = node_.Stage("train-s9-n0-w0.save", TestIdentity(9));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  const Blake3 digest = staged->digest;
  const std::string h = node_.store().Find(digest)->volume_name;
  const std::string linked = node_.Client(DataName(h));
  for (int i = 0; i < 2; ++i) {
    const Status done = node_.store().LinkIntoVolume(digest);
    ASSERT_TRUE(done.ok()) << done.error().ToString();
    EXPECT_EQ(GetFile(linked), "content");
    EXPECT_EQ(CanWrite(linked), !guarded());
    EXPECT_TRUE(node_.store().Find(digest)->suspect);
    EXPECT_TRUE(node_.store().Verify(digest, nullptr).ok);
    EXPECT_EQ(node_.store().Find(digest)->suspect, !guarded());
    Restart();
    EXPECT_EQ(node_.store().Find(digest)->suspect, !guarded());
    const Status gone = node_.store().UnlinkFromVolume(h);
    ASSERT_TRUE(gone.ok()) << gone.error().ToString();
    EXPECT_FALSE(Exists(linked));
    EXPECT_TRUE(node_.store().Find(digest)->suspect);
    EXPECT_TRUE(node_.store().Verify(digest, nullptr).ok);
    EXPECT_FALSE(node_.store().Find(digest)->suspect);
  }
  // Planted by somebody, and in the way.
  PutFile(linked, "planted");
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest).ok());
  EXPECT_EQ(GetFile(linked), "content");
  ASSERT_TRUE(node_.store().Delete(digest).ok());
  EXPECT_FALSE(Exists(linked));
}

TEST_P(LinksTest, DeletingAShardTakesItsLinksAlong) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  ASSERT_TRUE(node_.store().Delete(digest_).ok());
  EXPECT_FALSE(Exists(Linked()));
  EXPECT_TRUE(fs::is_empty(node_.InStore("shards")));
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
}

// A client that waits for its link, or reads by it late, finds the checkpoint all the same. That
// the old copy's trees can't be removed is nothing to it.
TEST_P(LinksTest, AReplacedCopyIsReplacedInTheVolumeToo) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  const ino_t before = Inode(Data() + "/d/a");
  ASSERT_EQ(Inode(Linked() + "/d/a"), before);
  PutShardAgain();
  bool installing = false;
  int unread = 0;
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    installing = installing || (call == "RenameNew" && path == ShardPath(digest_));
    if (installing && call == "List" && path == ShardDataPath(digest_) && unread++ == 0) {
      return Error(Code::kDataLoss, "injected");
    }
    if (call == "RemoveTree" && path.starts_with("trash/")) {
      return Error(Code::kDataLoss, "injected");
    }
    return std::nullopt;
  });
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  ASSERT_EQ(staged->digest, digest_);
  ASSERT_GE(unread, 1);
  EXPECT_NE(Inode(Data() + "/d/a"), before);
  EXPECT_EQ(Inode(Linked() + "/d/a"), Inode(Data() + "/d/a"));
  EXPECT_EQ(TreeText(Linked()), text_);
  EXPECT_EQ(CanWrite(Linked() + "/d/a"), !guarded());
  Restart();
  EXPECT_TRUE(Verify());
  // It is known to stand there.
  ASSERT_TRUE(node_.store().Delete(digest_).ok());
  EXPECT_FALSE(Exists(Linked()));
}

// It may be bad: a pull of the same shard must replace it, not find it here.
TEST_P(LinksTest, ACopyThatCouldNotBeReadIsSuspectUntilItWas) {
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "List" && path == ShardDataPath(digest_)) return Error(Code::kDataLoss, "injected");
    return std::nullopt;
  });
  const VerifyResult result = node_.store().Verify(digest_, nullptr);
  EXPECT_TRUE(!result.ok && result.unread) << result.problem;
  EXPECT_TRUE(suspect());
  node_.faults().Set([](auto, auto) -> std::optional<Error> { return std::nullopt; });
  EXPECT_TRUE(Verify());
  EXPECT_FALSE(suspect());
}

// What can't be looked at may be what a client waits for.
TEST_P(LinksTest, AReplacedCopyIsReplacedInAVolumeThatCantBeRead) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  PutShardAgain();
  bool replaced = false;
  int unread = 0;
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    if (call == "List" && path == ShardDataPath(digest_) && !std::exchange(replaced, true)) {
      return Error(Code::kDataLoss, "injected");
    }
    if (replaced && call == "Stat" && path == DataName(h_) && unread++ == 0) {
      return ErrnoError(EIO, "injected");
    }
    return std::nullopt;
  });
  const auto staged = node_.Stage("5", TestIdentity(5));
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_EQ(unread, 1);
  EXPECT_EQ(Inode(Linked() + "/d/a"), Inode(Data() + "/d/a"));
  EXPECT_EQ(TreeText(Linked()), text_);
}

// The agent died, or an error came, between the old copy's going and the new one's coming.
TEST_P(LinksTest, ATreeWhoseCopyWentGetsTheNextOne) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  const ino_t before = Inode(Linked() + "/d/a");
  PutShardAgain();
  int unread = 0;
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    if (call == "List" && path == ShardDataPath(digest_) && unread++ == 0) {
      return Error(Code::kDataLoss, "injected");
    }
    if (call == "RenameNew" && path == ShardPath(digest_) && unread > 0) {
      return ErrnoError(EIO, "injected");
    }
    return std::nullopt;
  });
  ASSERT_FALSE(node_.Stage("5", TestIdentity(5)).ok());
  ASSERT_FALSE(Exists(Data()));
  EXPECT_EQ(Inode(Linked() + "/d/a"), before);
  Restart();
  const auto staged = node_.stager().HashAndAdopt(fmt::format("5-{}", TestIdentity(5).ordinal),
                                                  TestIdentity(5), nullptr);
  ASSERT_TRUE(staged.ok()) << staged.error().ToString();
  EXPECT_NE(Inode(Data() + "/d/a"), before);
  EXPECT_EQ(Inode(Linked() + "/d/a"), Inode(Data() + "/d/a"));
  EXPECT_EQ(TreeText(Linked()), text_);
  EXPECT_EQ(CanWrite(Linked() + "/d/a"), !guarded());
}

TEST_P(LinksTest, TheTreeOfACopyThatCantBeReadGoesWithTheLastOfThose) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  PutFile(node_.Client("6/a"), "another");
  const auto other = node_.Stage("6", TestIdentity(6));
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(other->digest).ok());
  const std::string kept = node_.Client(DataName(node_.store().Find(other->digest)->volume_name));
  PutFile(node_.Client("7/a"), "a third");
  const auto third = node_.Stage("7", TestIdentity(7));
  ASSERT_TRUE(third.ok());
  for (const Blake3& digest : {digest_, third->digest}) {
    PutFile(node_.InStore(ShardManifestPath(digest)), "damaged");
  }
  Restart();
  ASSERT_EQ(node_.store().unreadable().size(), 2U);
  ASSERT_TRUE(node_.store().Delete(third->digest).ok());
  EXPECT_TRUE(Exists(Linked())) << "it may be of the other one";
  ASSERT_TRUE(node_.store().Delete(digest_).ok());
  EXPECT_FALSE(Exists(Linked()));
  EXPECT_TRUE(Exists(kept));
}

// Left without its shard the tree would take its room until the next start of a job.
TEST_P(LinksTest, ADeletionThatIsCutShortLeavesNoTreeWithoutACopy) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  int taken = 0;  // the tree, then the shard
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    if (call == "RenameNew" && path.starts_with("store/trash/") && ++taken == 2) {
      return ErrnoError(EIO, "injected");
    }
    return std::nullopt;
  });
  ASSERT_FALSE(node_.store().Delete(digest_).ok());
  EXPECT_FALSE(Exists(Linked()));
  EXPECT_TRUE(suspect()) << "its guard goes with the tree";
  Restart();
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
  ASSERT_TRUE(node_.store().Delete(digest_).ok());
  EXPECT_TRUE(fs::is_empty(node_.InStore("shards")));
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
}

TEST_P(LinksTest, ReplicasShareTheNameAndTheOneThatCountsIsTheLast) {
  PutFile(node_.Client("1/a"), "same");
  PutFile(node_.Client("2/a"), "same");
  const auto one = node_.Stage("1", TestIdentity(1, 2));
  const auto two = node_.Stage("2", TestIdentity(2, 2));
  ASSERT_TRUE(one.ok() && two.ok());
  const std::string h = node_.store().Find(one->digest)->volume_name;
  ASSERT_EQ(node_.store().Find(two->digest)->volume_name, h);
  const auto data = [&](const Blake3& digest) {
    return node_.InStore(ShardDataPath(digest)) + "/a";
  };
  ASSERT_TRUE(node_.store().LinkIntoVolume(one->digest).ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(two->digest).ok());
  const std::string linked = node_.Client(DataName(h)) + "/a";
  EXPECT_EQ(Inode(linked), Inode(data(two->digest)));
  EXPECT_TRUE(node_.store().Find(one->digest)->suspect);
  EXPECT_EQ(node_.store().Find(two->digest)->suspect, !guarded());
  EXPECT_TRUE(node_.store().Verify(one->digest, nullptr).ok);
  EXPECT_FALSE(node_.store().Find(one->digest)->suspect);
  // The one that isn't linked goes without the links.
  ASSERT_TRUE(node_.store().Delete(one->digest).ok());
  EXPECT_TRUE(Exists(linked));
  ASSERT_TRUE(node_.store().Delete(two->digest).ok());
  EXPECT_FALSE(Exists(linked));
}

TEST_P(LinksTest, AFullVolumeCanStillGiveMemoryBack) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  node_.faults().Set([&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    if (call == "WriteFileAtomically" || call == "WriteAll") return ErrnoError(ENOSPC, "write");
    return std::nullopt;
  });
  ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  EXPECT_FALSE(Exists(Linked()));
  EXPECT_TRUE(suspect());
  ASSERT_TRUE(node_.store().Delete(digest_).ok());
  EXPECT_TRUE(fs::is_empty(node_.InStore("shards")));
}

TEST_P(LinksTest, ThatLittleCanBeWrittenIsRemembered) {
  ASSERT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
  node_.faults().Set([&](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "WriteFileAtomically") return ErrnoError(ENOSPC, "write");
    return std::nullopt;
  });
  ASSERT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
  Restart();
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
  EXPECT_FALSE(suspect());
}

// A verification that began before the links were there says nothing about what came after.
TEST_P(LinksTest, AVerificationOvertakenByLinkingDoesNotClear) {
  std::atomic<bool> linked{false};
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "SetImmutable" && !guarded()) return Error(Code::kUnimplemented, "no flags here");
    if (call == "ReadExactly" && path.ends_with("/d/a") && !linked.exchange(true)) {
      EXPECT_TRUE(node_.store().LinkIntoVolume(digest_).ok());
      EXPECT_TRUE(node_.store().UnlinkFromVolume(h_).ok());
    }
    return std::nullopt;
  });
  EXPECT_TRUE(Verify());
  EXPECT_TRUE(linked);
  EXPECT_TRUE(suspect());
  EXPECT_TRUE(Verify());
  EXPECT_FALSE(suspect());
}

}  // namespace
}  // namespace tierkeep
