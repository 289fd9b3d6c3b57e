// What every Dir must do, real or simulated. Include this in one test file of a binary and
// instantiate: INSTANTIATE_TEST_SUITE_P(Posix, DirConformanceTest, testing::Values(factory...)).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/file_system.h"

namespace tierkeep {

// A fresh, empty directory; what keeps it alive comes with it.
struct DirUnderTest {
  std::shared_ptr<void> owner;
  Dir* dir = nullptr;
  // Puts an empty directory in its place; what is open stays open. Gives that, opened by the path.
  std::function<std::unique_ptr<Dir>()> replace;
};
struct DirFactory {
  std::string name;
  std::function<DirUnderTest()> make;
};
inline void PrintTo(const DirFactory& factory, std::ostream* out) { *out << factory.name; }

class DirConformanceTest : public testing::TestWithParam<DirFactory> {
 protected:
  DirConformanceTest() : fixture_(GetParam().make()), dir_(*fixture_.dir) {}

  void Write(std::string_view path, std::string_view content) {
    const Result<std::unique_ptr<File>> file = dir_.CreateFile(path, 0644);
    ASSERT_TRUE(file.ok()) << file.error().ToString();
    ASSERT_TRUE((*file)->WriteAll(0, AsBytes(content)).ok());
  }
  std::string Read(std::string_view path) {
    const Result<std::string> content = dir_.ReadSmallFile(path, 1 << 20);
    return content.ok() ? *content : content.error().ToString();
  }
  std::vector<std::string> Names(std::string_view path) {
    std::vector<std::string> names;
    const Result<std::vector<DirEntry>> entries = dir_.List(path);
    if (!entries.ok()) return {entries.error().ToString()};
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }
  template <typename R>
  static Code CodeOf(const R& result) {
    return result.has_value() ? Code::kOk : result.error().code();
  }

  DirUnderTest fixture_;
  Dir& dir_;
};

TEST_P(DirConformanceTest, WritesAndReadsAFile) {
  const Result<std::unique_ptr<File>> file = dir_.CreateFile("f", 0640);
  ASSERT_TRUE(file.ok()) << file.error().ToString();
  ASSERT_TRUE((*file)->Resize(10).ok());
  ASSERT_TRUE((*file)->WriteAll(3, AsBytes("abc")).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(Read("f"), std::string("\0\0\0abc\0\0\0\0", 10));
  std::string part(4, '?');
  ASSERT_TRUE((*file)->ReadExactly(2, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, std::string("\0abc", 4));
  const Result<FileStat> stat = dir_.Stat("f");
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->type, FileType::kFile);
  EXPECT_EQ(stat->bytes, 10u);
  EXPECT_EQ(stat->links, 1u);
  EXPECT_EQ(stat->mode, 0640u);
}

TEST_P(DirConformanceTest, ReadingPastTheEndIsDataLoss) {
  Write("f", "12345");
  const Result<std::unique_ptr<File>> file = dir_.OpenFile("f");
  ASSERT_TRUE(file.ok());
  std::string part(4, '?');
  EXPECT_EQ(CodeOf((*file)->ReadExactly(2, std::as_writable_bytes(std::span(part)))),
            Code::kDataLoss);
}

TEST_P(DirConformanceTest, AFileOpenedToReadCannotBeWritten) {
  Write("f", "12345");
  const Result<std::unique_ptr<File>> file = dir_.OpenFile("f");
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE((*file)->WriteAll(0, AsBytes("x")).ok());
  EXPECT_EQ(Read("f"), "12345");
}

TEST_P(DirConformanceTest, MapsAreSharedWithTheFile) {
  Write("f", std::string(20000, 'a'));
  const Result<std::unique_ptr<File>> file = dir_.OpenFileReadWrite("f");
  ASSERT_TRUE(file.ok());
  // At an offset that is no page's beginning.
  const auto map = (*file)->Map(4100, 5000, MapAccess::kReadWrite);
  ASSERT_TRUE(map.ok()) << map.error().ToString();
  ASSERT_EQ((*map)->size(), 5000u);
  (*map)->data()[0] = std::byte{'b'};
  (*map)->data()[4999] = std::byte{'c'};
  const std::string content = Read("f");
  EXPECT_EQ(content[4099], 'a');
  EXPECT_EQ(content[4100], 'b');
  EXPECT_EQ(content[9099], 'c');
  EXPECT_EQ(content[9100], 'a');
  const auto none = (*file)->Map(0, 0, MapAccess::kRead);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ((*none)->size(), 0u);
}

TEST_P(DirConformanceTest, AllocatingGrowsAndKeepsWhatIsThere) {
  Write("f", "abc");
  const Result<std::unique_ptr<File>> file = dir_.OpenFileReadWrite("f");
  ASSERT_TRUE((*file)->Allocate(0, 0).ok());
  ASSERT_TRUE((*file)->Allocate(0, 100000).ok());
  const FileStat stat = *(*file)->Stat();
  EXPECT_EQ(stat.bytes, 100000u);
  EXPECT_GE(stat.blocks_bytes, 100000u);
  EXPECT_EQ(Read("f").substr(0, 4), std::string("abc\0", 4));
}

TEST_P(DirConformanceTest, CreatingTwiceIsAlreadyExists) {
  Write("f", "first");
  EXPECT_EQ(CodeOf(dir_.CreateFile("f", 0644)), Code::kAlreadyExists);
  EXPECT_EQ(Read("f"), "first");
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  EXPECT_EQ(CodeOf(dir_.MakeDir("d", 0755)), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(dir_.MakeDir("f", 0755)), Code::kAlreadyExists);
}

TEST_P(DirConformanceTest, AbsentNamesAreNotFound) {
  EXPECT_EQ(CodeOf(dir_.OpenFile("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.OpenDir("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.Stat("x/y")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.List("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.ReadLink("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.Unlink("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.RemoveDir("x")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.Rename("x", "y")), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.CreateFile("x/y", 0644)), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.WriteFileAtomically("x/y", "", 0644)), Code::kNotFound);
  EXPECT_EQ(CodeOf(dir_.ReadSmallFile("x", 10)), Code::kNotFound);
  EXPECT_TRUE(dir_.RemoveTree("x").ok());
  EXPECT_TRUE(dir_.RemoveTree("x/y").ok());
}

TEST_P(DirConformanceTest, MakesAllMissingDirectories) {
  ASSERT_TRUE(dir_.MakeDirs("a/b/c", 0755).ok());
  ASSERT_TRUE(dir_.MakeDirs("a/b/c", 0755).ok());
  ASSERT_TRUE(dir_.MakeDirs("a/x", 0755).ok());
  EXPECT_EQ(Names("a"), (std::vector<std::string>{"b", "x"}));
  Write("a/file", "");
  EXPECT_EQ(CodeOf(dir_.MakeDirs("a/file", 0755)), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.MakeDirs("a/file/y", 0755)), Code::kFailedPrecondition);
}

TEST_P(DirConformanceTest, SubdirectoriesAreDirsOfTheirOwn) {
  ASSERT_TRUE(dir_.MakeDirs("a/b", 0755).ok());
  const Result<std::unique_ptr<Dir>> sub = dir_.OpenDir("a");
  ASSERT_TRUE(sub.ok());
  ASSERT_TRUE((*sub)->WriteFileAtomically("b/f", "x", 0600).ok());
  EXPECT_EQ(Read("a/b/f"), "x");
  // The object is the directory, not its path.
  ASSERT_TRUE(dir_.Rename("a", "z").ok());
  EXPECT_TRUE((*sub)->Stat("b/f").ok());
  EXPECT_EQ((*sub)->Stat("")->type, FileType::kDirectory);
  const Result<std::unique_ptr<Dir>> same = (*sub)->OpenDir("");
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE((*same)->Stat("b").ok());
}

TEST_P(DirConformanceTest, ListsSortedWithTypes) {
  Write("b", "");
  ASSERT_TRUE(dir_.MakeDir("a", 0755).ok());
  ASSERT_TRUE(dir_.MakeSymlink("nowhere", "c").ok());
  Write("\xff\n", "");  // names are bytes
  const Result<std::vector<DirEntry>> entries = dir_.List("");
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 4u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].type, FileType::kDirectory);
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].type, FileType::kFile);
  EXPECT_EQ((*entries)[2].name, "c");
  EXPECT_EQ((*entries)[2].type, FileType::kSymlink);
  EXPECT_EQ((*entries)[3].name, "\xff\n");
}

TEST_P(DirConformanceTest, RenameReplacesAndRenameNewDoesNot) {
  Write("a", "A");
  Write("b", "B");
  EXPECT_EQ(CodeOf(dir_.RenameNew("a", "b")), Code::kAlreadyExists);
  EXPECT_EQ(Read("b"), "B");
  EXPECT_TRUE(dir_.Rename("a", "b").ok());
  EXPECT_EQ(Read("b"), "A");
  EXPECT_EQ(CodeOf(dir_.Stat("a")), Code::kNotFound);
  ASSERT_TRUE(dir_.MakeDirs("d/e", 0755).ok());
  EXPECT_TRUE(dir_.RenameNew("b", "d/e/b").ok());
  EXPECT_EQ(Read("d/e/b"), "A");
  ASSERT_TRUE(dir_.MakeDir("empty", 0755).ok());
  EXPECT_TRUE(dir_.Rename("d", "empty").ok());
  EXPECT_EQ(Read("empty/e/b"), "A");
  ASSERT_TRUE(dir_.MakeDir("other", 0755).ok());
  EXPECT_FALSE(dir_.Rename("other", "empty").ok());  // not empty any more
}

TEST_P(DirConformanceTest, HardLinksShareTheFile) {
  Write("a", "A");
  ASSERT_TRUE(dir_.HardLink("a", "b").ok());
  EXPECT_EQ(dir_.Stat("a")->inode, dir_.Stat("b")->inode);
  EXPECT_EQ(dir_.Stat("a")->links, 2u);
  EXPECT_EQ(CodeOf(dir_.HardLink("a", "b")), Code::kAlreadyExists);
  ASSERT_TRUE(dir_.Unlink("a").ok());
  EXPECT_EQ(Read("b"), "A");
}

TEST_P(DirConformanceTest, LinksAreSeenAndNeverFollowed) {
  ASSERT_TRUE(dir_.MakeDirs("real/sub", 0755).ok());
  Write("real/f", "secret");
  ASSERT_TRUE(dir_.MakeSymlink("real", "link").ok());
  ASSERT_TRUE(dir_.MakeSymlink("real/f", "flink").ok());
  ASSERT_TRUE(dir_.MakeSymlink("..", "real/up").ok());
  EXPECT_EQ(*dir_.ReadLink("link"), "real");
  EXPECT_EQ(dir_.Stat("link")->type, FileType::kSymlink);
  EXPECT_EQ(CodeOf(dir_.ReadLink("real")), Code::kFailedPrecondition);
  const Code refused = Code::kFailedPrecondition;
  EXPECT_EQ(CodeOf(dir_.OpenFile("flink")), refused);
  EXPECT_EQ(CodeOf(dir_.OpenFileReadWrite("flink")), refused);
  EXPECT_EQ(CodeOf(dir_.ReadSmallFile("flink", 100)), refused);
  EXPECT_EQ(CodeOf(dir_.ProbeWriters("flink")), refused);
  EXPECT_EQ(CodeOf(dir_.CreateFile("flink", 0644)), Code::kAlreadyExists);
  EXPECT_EQ(CodeOf(dir_.OpenDir("link")), refused);
  EXPECT_EQ(CodeOf(dir_.List("link")), refused);
  EXPECT_EQ(CodeOf(dir_.SyncDir("link")), refused);
  EXPECT_EQ(CodeOf(dir_.MakeDirs("link", 0755)), refused);
  // In the middle of a path, for every call.
  for (const std::string& path : {std::string("link/f"), std::string("real/up/real/f")}) {
    EXPECT_EQ(CodeOf(dir_.OpenFile(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.OpenFileReadWrite(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.CreateFile(path + "2", 0644)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.MakeDir(path + "2", 0755)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.MakeDirs(path + "2", 0755)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.MakeSymlink("x", path + "2")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.ReadLink(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.Stat(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.Rename(path, "x")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.Rename("real/f", path + "2")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.RenameNew("real/f", path + "2")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.HardLink(path, "x")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.HardLink("real/f", path + "2")), refused) << path;
    EXPECT_EQ(CodeOf(dir_.Unlink(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.RemoveDir(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.RemoveTree(path)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.ReadSmallFile(path, 100)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.WriteFileAtomically(path, "x", 0644)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.SetOwnerAndMode(path, 0, 0, 0644)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.SetImmutable(path, true)), refused) << path;
    EXPECT_EQ(CodeOf(dir_.ProbeWriters(path)), refused) << path;
  }
  EXPECT_EQ(Read("real/f"), "secret");
  EXPECT_EQ(Names("real"), (std::vector<std::string>{"f", "sub", "up"}));
}

TEST_P(DirConformanceTest, ALinkIsReplacedRemovedAndLinkedAsItself) {
  Write("target", "untouched");
  ASSERT_TRUE(dir_.MakeSymlink("target", "a").ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("a", "mine", 0644).ok());
  EXPECT_EQ(Read("a"), "mine");
  EXPECT_EQ(Read("target"), "untouched");
  ASSERT_TRUE(dir_.MakeSymlink("target", "b").ok());
  ASSERT_TRUE(dir_.HardLink("b", "c").ok());
  EXPECT_EQ(dir_.Stat("c")->type, FileType::kSymlink);
  ASSERT_TRUE(dir_.Unlink("b").ok());
  ASSERT_TRUE(dir_.RemoveTree("c").ok());
  EXPECT_EQ(Read("target"), "untouched");
}

TEST_P(DirConformanceTest, D5_PathsThatCouldLeaveAreRefused) {
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  for (const std::string& path :
       {std::string("/etc/passwd"), std::string(".."), std::string("../x"), std::string("d/../x"),
        std::string("d/.."), std::string("."), std::string("d//x"), std::string("d/"),
        std::string("./d"), std::string("d\0x", 3)}) {
    EXPECT_EQ(CodeOf(dir_.OpenFile(path)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.Stat(path)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.MakeDir(path, 0755)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.MakeDirs(path, 0755)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.RemoveTree(path)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.Rename("d", path)), Code::kInvalidArgument) << path;
    EXPECT_EQ(CodeOf(dir_.WriteFileAtomically(path, "", 0644)), Code::kInvalidArgument) << path;
  }
  EXPECT_EQ(CodeOf(dir_.RemoveTree("")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(dir_.Unlink("")), Code::kInvalidArgument);
}

TEST_P(DirConformanceTest, TheWrongTypeIsRefused) {
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  Write("f", "x");
  EXPECT_EQ(CodeOf(dir_.OpenFile("d")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.OpenFileReadWrite("d")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.ReadSmallFile("d", 10)), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.ProbeWriters("d")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.OpenDir("f")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.List("f")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.Stat("f/x")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.RemoveDir("f")), Code::kFailedPrecondition);
}

TEST_P(DirConformanceTest, SmallFilesHaveALimit) {
  Write("f", std::string(100, 'x'));
  EXPECT_EQ(dir_.ReadSmallFile("f", 100)->size(), 100u);
  EXPECT_EQ(CodeOf(dir_.ReadSmallFile("f", 99)), Code::kResourceExhausted);
  Write("empty", "");
  EXPECT_EQ(*dir_.ReadSmallFile("empty", 0), "");
}

TEST_P(DirConformanceTest, AtomicWritesReplaceAndLeaveNothingBehind) {
  ASSERT_TRUE(dir_.WriteFileAtomically("f", "one", 0604).ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("f", "two", 0640).ok());
  EXPECT_EQ(Read("f"), "two");
  EXPECT_EQ(dir_.Stat("f")->mode, 0640u);
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  EXPECT_FALSE(dir_.WriteFileAtomically("d", "x", 0644).ok());
  const std::string longest(255, 'n');
  EXPECT_TRUE(dir_.WriteFileAtomically(longest, "long", 0644).ok());
  EXPECT_EQ(Names(""), (std::vector<std::string>{"d", "f", longest}));
}

TEST_P(DirConformanceTest, RemovesWholeTrees) {
  ASSERT_TRUE(dir_.MakeDirs("t/a/b/c", 0755).ok());
  ASSERT_TRUE(dir_.MakeDirs("t/d", 0755).ok());
  Write("t/f", "x");
  Write("t/a/f", "x");
  Write("t/a/b/c/f", "x");
  Write("keep", "kept");
  ASSERT_TRUE(dir_.HardLink("keep", "t/d/keep").ok());
  ASSERT_TRUE(dir_.MakeSymlink("../../keep", "t/d/link").ok());
  ASSERT_TRUE(dir_.MakeSymlink("..", "t/a/b/up").ok());
  EXPECT_TRUE(dir_.RemoveTree("t").ok());
  EXPECT_EQ(Names(""), std::vector<std::string>{"keep"});
  EXPECT_EQ(Read("keep"), "kept");
  EXPECT_TRUE(dir_.RemoveTree("keep").ok());
  EXPECT_EQ(CodeOf(dir_.Stat("keep")), Code::kNotFound);
}

TEST_P(DirConformanceTest, FindsWriters) {
  Write("f", "x");
  const Result<LeaseResult> quiet = dir_.ProbeWriters("f");
  ASSERT_TRUE(quiet.ok());
  if (*quiet == LeaseResult::kUnsupported) GTEST_SKIP() << "no leases here";
  EXPECT_EQ(*quiet, LeaseResult::kNoWriters);
  {
    const Result<std::unique_ptr<File>> reader = dir_.OpenFile("f");
    EXPECT_EQ(*dir_.ProbeWriters("f"), LeaseResult::kNoWriters);
    const Result<std::unique_ptr<File>> writer = dir_.OpenFileReadWrite("f");
    EXPECT_EQ(*dir_.ProbeWriters("f"), LeaseResult::kHasWriters);
  }
  EXPECT_EQ(*dir_.ProbeWriters("f"), LeaseResult::kNoWriters);
  // A writable map keeps writing possible after its descriptor is closed.
  Result<std::unique_ptr<File>> writer = dir_.OpenFileReadWrite("f");
  auto map = (*writer)->Map(0, 1, MapAccess::kReadWrite);
  ASSERT_TRUE(map.ok());
  writer->reset();
  EXPECT_EQ(*dir_.ProbeWriters("f"), LeaseResult::kHasWriters);
  map->reset();
  EXPECT_EQ(*dir_.ProbeWriters("f"), LeaseResult::kNoWriters);
}

TEST_P(DirConformanceTest, ImmutableFilesStayAsTheyAre) {
  Write("f", "x");
  const Status set = dir_.SetImmutable("f", true);
  if (CodeOf(set) == Code::kUnimplemented) GTEST_SKIP() << "no immutable files here";
  ASSERT_TRUE(set.ok()) << set.error().ToString();
  EXPECT_FALSE(dir_.OpenFileReadWrite("f").ok());
  EXPECT_FALSE(dir_.Unlink("f").ok());
  EXPECT_FALSE(dir_.HardLink("f", "g").ok());
  EXPECT_FALSE(dir_.Rename("f", "g").ok());
  EXPECT_EQ(Read("f"), "x");
  ASSERT_TRUE(dir_.SetImmutable("f", false).ok());
  EXPECT_TRUE(dir_.Unlink("f").ok());
}

TEST_P(DirConformanceTest, RemovingATreeClearsFlagsButNotThoseOfOtherNames) {
  ASSERT_TRUE(dir_.MakeDirs("t/locked", 0755).ok());
  Write("t/locked/f", "x");
  Write("t/locked/shared", "x");
  ASSERT_TRUE(dir_.HardLink("t/locked/shared", "other").ok());
  if (!dir_.SetImmutable("t/locked/f", true).ok()) GTEST_SKIP() << "no immutable files here";
  ASSERT_TRUE(dir_.SetImmutable("t/locked/shared", true).ok());
  ASSERT_TRUE(dir_.SetImmutable("t/locked", true).ok());
  const Status removed = dir_.RemoveTree("t");
  EXPECT_TRUE(removed.ok()) << removed.error().ToString();
  EXPECT_EQ(Names(""), std::vector<std::string>{"other"});
  EXPECT_FALSE(dir_.OpenFileReadWrite("other").ok());
}

TEST_P(DirConformanceTest, SetsModes) {
  Write("f", "x");
  const FileStat before = *dir_.Stat("f");
  ASSERT_TRUE(dir_.SetOwnerAndMode("f", before.uid, before.gid, 0400).ok());
  EXPECT_EQ(dir_.Stat("f")->mode, 0400u);
  ASSERT_TRUE(dir_.MakeDir("d", 0700).ok());
  ASSERT_TRUE(dir_.SetOwnerAndMode("d", before.uid, before.gid, 0751).ok());
  EXPECT_EQ(dir_.Stat("d")->mode, 0751u);
}

TEST_P(DirConformanceTest, KnowsThatItsPathLeadsElsewhere) {
  Write("f", "kept");
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  EXPECT_TRUE(dir_.CheckPath().ok()) << dir_.CheckPath().error().ToString();
  EXPECT_EQ(CodeOf((*dir_.OpenDir("d"))->CheckPath()), Code::kUnimplemented);
  const std::unique_ptr<Dir> other = fixture_.replace();
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(CodeOf(dir_.CheckPath()), Code::kAborted);
  EXPECT_TRUE(other->CheckPath().ok());
  // Nothing else shows it: the open directory is the old one, and works.
  EXPECT_EQ(Read("f"), "kept");
  EXPECT_TRUE(dir_.WriteFileAtomically("d/g", "late", 0644).ok());
  EXPECT_TRUE(dir_.Rename("d/g", "g").ok());
  EXPECT_EQ(Read("g"), "late");
  EXPECT_TRUE(other->List("")->empty());
  EXPECT_TRUE(dir_.Space().ok());
}

TEST_P(DirConformanceTest, ReportsSpace) {
  const Result<SpaceInfo> space = dir_.Space();
  ASSERT_TRUE(space.ok());
  EXPECT_GT(space->total_bytes, 0u);
  EXPECT_LE(space->free_bytes, space->total_bytes);
}

}  // namespace tierkeep
