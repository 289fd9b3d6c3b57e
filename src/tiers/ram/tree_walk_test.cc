#include "tiers/ram/tree_walk.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>

#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

class TreeWalkTest : public testing::Test {
 protected:
  Result<std::vector<TreeEntry>> Walk(const TreeLimits& limits = {}) {
    return WalkTree(temp_.dir(), "save", limits);
  }
  std::string Path(const std::string& name) { return temp_.Path("save/" + name); }

  void ExpectRefused(const Result<std::vector<TreeEntry>>& walked, const std::string& entry,
                     const std::string& rule) {
    ASSERT_FALSE(walked.ok());
    EXPECT_EQ(walked.error().code(), Code::kFailedPrecondition) << walked.error().ToString();
    EXPECT_NE(walked.error().message().find(entry), std::string::npos) << walked.error().ToString();
    EXPECT_NE(walked.error().message().find(rule), std::string::npos) << walked.error().ToString();
  }

  TempDir temp_{"/dev/shm"};
};

TEST_F(TreeWalkTest, D9_ListsParentsFirstAndKeepsLinksAsLinks) {
  PutFile(Path("a/b"), "12345");
  PutFile(Path("a-b"), "");
  std::filesystem::create_symlink("/etc", Path("a/etc"));
  const auto tree = Walk();
  ASSERT_TRUE(tree.ok()) << tree.error().ToString();
  std::vector<std::string> paths;
  for (const TreeEntry& entry : *tree) paths.push_back(entry.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"", "a", "a-b", "a/b", "a/etc"}));
  EXPECT_EQ((*tree)[3].stat.bytes, 5u);
  EXPECT_EQ((*tree)[4].stat.type, FileType::kSymlink);
  EXPECT_EQ((*tree)[4].link_target, "/etc");
}

TEST_F(TreeWalkTest, RootMayBeAFileOrAbsent) {
  EXPECT_EQ(Walk().error().code(), Code::kNotFound);
  PutFile(temp_.Path("save"), "1");
  const auto tree = Walk();
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->size(), 1u);
  EXPECT_EQ(tree->front().path, "");
}

TEST_F(TreeWalkTest, D13_RefusesPipesAndSockets) {
  std::filesystem::create_directory(temp_.Path("save"));
  ASSERT_EQ(::mkfifo(Path("pipe\n").c_str(), 0600), 0);
  ExpectRefused(Walk(), "pipe\\x0a", "device, pipe or socket");
  std::filesystem::remove(Path("pipe\n"));

  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(Path("s").size(), sizeof(address.sun_path));
  Path("s").copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ExpectRefused(Walk(), "\"s\"", "device, pipe or socket");
  ::close(fd);
}

TEST_F(TreeWalkTest, D13_RefusesWhatIsOverALimit) {
  PutFile(Path("a/b/c/d"), std::string(1000, 'x'));
  PutFile(Path("e"), std::string(1000, 'x'));
  EXPECT_TRUE(Walk({.depth_max = 4}).ok());
  ExpectRefused(Walk({.depth_max = 3}), "a/b/c", "deeper than 3 levels");
  EXPECT_TRUE(Walk({.entries_max = 6}).ok());
  ExpectRefused(Walk({.entries_max = 5}), "", "over 5 entries");
  EXPECT_TRUE(Walk({.bytes_max = 2000}).ok());
  ExpectRefused(Walk({.bytes_max = 1999}), "", "takes the tree over");
}

TEST_F(TreeWalkTest, RefusesAnEndlesslyDeepTreeWithoutGoingDownIt) {
  // Built by relative steps, since no path that long can be given to the kernel.
  auto dir = OpenPosixDir(temp_.path());
  ASSERT_TRUE(dir.ok());
  ASSERT_TRUE((*dir)->MakeDir("save", 0700).ok());
  auto at = (*dir)->OpenDir("save");
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(at.ok()) << at.error().ToString();
    ASSERT_TRUE((*at)->MakeDir("d", 0700).ok());
    at = (*at)->OpenDir("d");
  }
  at->reset();  // an open descriptor of the deepest makes the kernel's removal quadratic
  ExpectRefused(Walk(), "d/d/d", "deeper than 128 levels");
  ASSERT_TRUE((*dir)->RemoveTree("save").ok());
  EXPECT_FALSE(Exists(temp_.Path("save")));
}

TEST_F(TreeWalkTest, RefusesPathsThatTheKernelWouldNotTakeInTheStore) {
  std::string path;
  while (path.size() <= kEntryPathBytesMax) path.append(200, 'n').append("/");
  PutFile(Path(path + "f"), "x");
  ExpectRefused(Walk(), "nnn", "path of more than");
}

}  // namespace
}  // namespace tierkeep
