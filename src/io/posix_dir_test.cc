// What only the real file system has: pipes, devices, mounts, permissions, great depth.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "io/dir_conformance_testutil.h"
#include "io/temp_dir_testutil.h"
#include "io/unique_fd.h"

namespace tierkeep {
namespace {

// The directory under test is one below the temporary one, so that what replaces it goes, too.
struct Below {
  explicit Below(const std::string& root) : temp(root) {
    EXPECT_TRUE(temp.dir().MakeDir("d", 0755).ok());
    dir = *OpenPosixDir(temp.Path("d"));
  }
  std::unique_ptr<Dir> Replace() {
    EXPECT_TRUE(temp.dir().Rename("d", "aside").ok());
    EXPECT_TRUE(temp.dir().MakeDir("d", 0755).ok());
    return *OpenPosixDir(temp.Path("d"));
  }
  TempDir temp;
  std::unique_ptr<Dir> dir;
};

DirFactory Factory(const std::string& name, const std::string& root) {
  return {name, [root] {
            auto owner = std::make_shared<Below>(root);
            Dir* dir = owner->dir.get();
            return DirUnderTest{owner, dir, [owner] { return owner->Replace(); }};
          }};
}

INSTANTIATE_TEST_SUITE_P(Posix, DirConformanceTest,
                         testing::Values(Factory("Disk", ""), Factory("Tmpfs", "/dev/shm")),
                         [](const auto& p) { return p.param.name; });

class PosixDirTest : public testing::Test {
 protected:
  template <typename R>
  static Code CodeOf(const R& result) {
    return result.has_value() ? Code::kOk : result.error().code();
  }
  TempDir temp_{"/dev/shm"};
  Dir& dir_ = temp_.dir();
};

TEST_F(PosixDirTest, PipesAndSocketsNeitherHangNorOpen) {
  ASSERT_EQ(::mkfifo(temp_.Path("pipe").c_str(), 0666), 0);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  struct sockaddr_un address {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, temp_.Path("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (const char* name : {"pipe", "socket"}) {
    EXPECT_EQ(CodeOf(dir_.OpenFile(name)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(CodeOf(dir_.OpenFileReadWrite(name)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(CodeOf(dir_.ReadSmallFile(name, 10)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(CodeOf(dir_.ProbeWriters(name)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(CodeOf(dir_.SetImmutable(name, true)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(CodeOf(dir_.SetOwnerAndMode(name, 0, 0, 0644)), Code::kFailedPrecondition) << name;
    EXPECT_EQ(dir_.Stat(name)->type, FileType::kOther) << name;
    EXPECT_EQ(CodeOf(dir_.CreateFile(name, 0644)), Code::kAlreadyExists) << name;
  }
  EXPECT_TRUE(dir_.WriteFileAtomically("pipe", "x", 0644).ok());  // replaces it
  EXPECT_EQ(*dir_.ReadSmallFile("pipe", 10), "x");
  EXPECT_TRUE(dir_.RemoveTree("socket").ok());
}

TEST_F(PosixDirTest, DevicesAreRefused) {
  if (::mknod(temp_.Path("zero").c_str(), S_IFCHR | 0666, makedev(1, 5)) != 0) {
    GTEST_SKIP() << "may not make devices";
  }
  EXPECT_EQ(CodeOf(dir_.OpenFile("zero")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_.ReadSmallFile("zero", 10)), Code::kFailedPrecondition);
  EXPECT_EQ(dir_.Stat("zero")->type, FileType::kOther);
}

TEST_F(PosixDirTest, MountsAreNotCrossed) {
  ASSERT_TRUE(dir_.MakeDirs("d/mount", 0755).ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("file", "below", 0644).ok());
  if (::mount("none", temp_.Path("d/mount").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "may not mount";
  }
  const Result<std::unique_ptr<Dir>> inside = OpenPosixDir(temp_.Path("d/mount"));
  EXPECT_TRUE(inside.ok());
  EXPECT_TRUE((*inside)->WriteFileAtomically("precious", "x", 0644).ok());
  const Code refused = Code::kFailedPrecondition;
  EXPECT_EQ(CodeOf(dir_.OpenDir("d/mount")), refused);
  EXPECT_EQ(CodeOf(dir_.Stat("d/mount")), refused);
  EXPECT_EQ(CodeOf(dir_.List("d/mount")), refused);
  EXPECT_EQ(CodeOf(dir_.OpenFile("d/mount/precious")), refused);
  EXPECT_EQ(CodeOf(dir_.WriteFileAtomically("d/mount/x", "x", 0644)), refused);
  EXPECT_EQ(CodeOf(dir_.MakeDirs("d/mount/x", 0755)), refused);
  EXPECT_EQ(CodeOf(dir_.RemoveTree("d")), refused);
  EXPECT_TRUE((*inside)->Stat("precious").ok());
  EXPECT_EQ(::umount2(temp_.Path("d/mount").c_str(), MNT_DETACH), 0);
  EXPECT_TRUE(dir_.RemoveTree("d").ok());
}

TEST_F(PosixDirTest, TenThousandLevelsAreRemovedWithFewDescriptors) {
  {
    UniqueFd at(::open(temp_.path().c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(::mkdirat(at.get(), "deep", 0755), 0);
    const char* name = "deep";
    for (int i = 0; i < 10000; ++i) {
      UniqueFd next(::openat(at.get(), name, O_RDONLY | O_DIRECTORY));
      ASSERT_TRUE(next.valid()) << i;
      at = std::move(next);
      name = "l";
      ASSERT_EQ(::mkdirat(at.get(), name, 0755), 0) << i;
      if (i % 1000 == 0) {
        UniqueFd file(::openat(at.get(), "f", O_CREAT | O_WRONLY, 0644));
        ASSERT_TRUE(file.valid());
      }
    }
  }
  const Status removed = dir_.RemoveTree("deep");
  EXPECT_TRUE(removed.ok()) << removed.error().ToString();
  EXPECT_TRUE(dir_.List("")->empty());
}

TEST_F(PosixDirTest, ATreeThatLosesItsPermissionsIsRemovedByItsOwner) {
  ASSERT_TRUE(dir_.MakeDirs("t/ro/sub", 0755).ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("t/ro/f", "x", 0400).ok());
  ASSERT_EQ(::chmod(temp_.Path("t/ro/sub").c_str(), 0), 0);
  ASSERT_EQ(::chmod(temp_.Path("t/ro").c_str(), 0500), 0);
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(temp_.path().c_str(), 65534, 65534), 0);
    for (const char* name : {"t", "t/ro", "t/ro/f", "t/ro/sub"}) {
      ASSERT_EQ(::chown(temp_.Path(name).c_str(), 65534, 65534), 0);
    }
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const Status removed = dir_.RemoveTree("t");
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_TRUE(removed.ok()) << removed.error().ToString();
}

TEST_F(PosixDirTest, ATreeMovedAwayDuringRemovalTakesNothingElseWithIt) {
  // A thread keeps swapping a directory of the tree in and out; whatever the removal meets, the
  // neighbours of the place it is moved to stay.
  ASSERT_TRUE(dir_.MakeDirs("outside", 0755).ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("outside/precious", "x", 0644).ok());
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(dir_.MakeDirs("t/moving/a/b/c", 0755).ok());
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(dir_.CreateFile("t/moving/a/f" + std::to_string(i), 0644).ok());
    }
    std::atomic<bool> done{false};
    std::thread mover([&] {
      while (!done) {
        (void)dir_.Rename("t/moving", "outside/moving").ok();
        (void)dir_.Rename("outside/moving", "t/moving").ok();
      }
    });
    (void)dir_.RemoveTree("t").ok();  // may give up, and says so
    done = true;
    mover.join();
    EXPECT_EQ(*dir_.ReadSmallFile("outside/precious", 10), "x");
    ASSERT_TRUE(dir_.RemoveTree("t").ok());
    ASSERT_TRUE(dir_.RemoveTree("outside/moving").ok());
  }
}

TEST_F(PosixDirTest, ProbingDisturbsNoOpener) {
  // The opener breaks our lease at times, which would end this process by SIGIO.
  ASSERT_TRUE(dir_.WriteFileAtomically("f", "x", 0644).ok());
  if (*dir_.ProbeWriters("f") == LeaseResult::kUnsupported) GTEST_SKIP() << "no leases here";
  std::atomic<bool> done{false};
  std::thread opener([&] {
    while (!done) {
      const UniqueFd fd(::open(temp_.Path("f").c_str(), O_WRONLY));
      EXPECT_TRUE(fd.valid());
    }
  });
  int quiet = 0;
  int busy = 0;
  for (int i = 0; i < 200000 && (quiet < 100 || busy < 100); ++i) {
    (*dir_.ProbeWriters("f") == LeaseResult::kNoWriters ? quiet : busy) += 1;
  }
  done = true;
  opener.join();
  EXPECT_GT(quiet, 0);
  EXPECT_GT(busy, 0);
}

TEST_F(PosixDirTest, AWriteFromATruncatedMapIsDataLoss) {
  const auto source = dir_.CreateFile("source", 0644);
  ASSERT_TRUE((*source)->Resize(8192).ok());
  const auto map = (*source)->Map(0, 8192, MapAccess::kRead);
  ASSERT_TRUE((*source)->Resize(0).ok());
  const auto target = dir_.CreateFile("target", 0644);
  EXPECT_EQ(CodeOf((*target)->WriteAll(0, {(*map)->data(), (*map)->size()})), Code::kDataLoss);
}

TEST_F(PosixDirTest, AFullFileSystemIsAnErrorAndLeavesTheOldFile) {
  ASSERT_TRUE(dir_.MakeDir("small", 0755).ok());
  if (::mount("none", temp_.Path("small").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "may not mount";
  }
  {
    const Result<std::unique_ptr<Dir>> small = OpenPosixDir(temp_.Path("small"));
    EXPECT_TRUE((*small)->WriteFileAtomically("f", "old", 0644).ok());
    EXPECT_EQ(CodeOf((*small)->WriteFileAtomically("f", std::string(1 << 20, 'n'), 0644)),
              Code::kResourceExhausted);
    EXPECT_EQ(*(*small)->ReadSmallFile("f", 10), "old");
    EXPECT_EQ((*small)->List("")->size(), 1u);
    const auto file = (*small)->OpenFileReadWrite("f");
    EXPECT_EQ(CodeOf((*file)->Allocate(0, 1 << 20)), Code::kResourceExhausted);
  }
  EXPECT_EQ(::umount2(temp_.Path("small").c_str(), MNT_DETACH), 0);
}

TEST_F(PosixDirTest, A14_ALazyUnmountIsSeenThoughTheDirectoryWorksOn) {
  ASSERT_TRUE(dir_.MakeDir("ram", 0755).ok());
  const std::string path = temp_.Path("ram");
  const auto mount = [&] { return ::mount("none", path.c_str(), "tmpfs", 0, "size=1m") == 0; };
  if (!mount()) GTEST_SKIP() << "may not mount";
  const std::unique_ptr<Dir> ram = *OpenPosixDir(path);
  EXPECT_TRUE(ram->CheckPath().ok());
  ASSERT_TRUE(ram->WriteFileAtomically("f", "x", 0644).ok());
  ASSERT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
  EXPECT_EQ(CodeOf(ram->CheckPath()), Code::kAborted);
  EXPECT_TRUE(ram->WriteFileAtomically("f", "y", 0644).ok());
  // One that is mounted anew has the same inode number for its root.
  ASSERT_TRUE(mount());
  EXPECT_EQ(CodeOf(ram->CheckPath()), Code::kAborted);
  EXPECT_THAT(ram->CheckPath().error().message(), testing::HasSubstr("another file system"));
  EXPECT_TRUE((*OpenPosixDir(path))->List("")->empty());
  // So it is when one is mounted over another.
  const std::unique_ptr<Dir> second = *OpenPosixDir(path);
  ASSERT_TRUE(mount());
  EXPECT_EQ(CodeOf(second->CheckPath()), Code::kAborted);
  ASSERT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
  EXPECT_TRUE(second->CheckPath().ok());
  ASSERT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
  ASSERT_TRUE(dir_.RemoveDir("ram").ok());
  EXPECT_THAT(second->CheckPath().error().message(), testing::HasSubstr("nothing is at"));
}

TEST_F(PosixDirTest, ABindMountOfTheSameTreeIsAsGood) {
  ASSERT_TRUE(dir_.MakeDir("ram", 0755).ok());
  const std::string path = temp_.Path("ram");
  if (::mount("none", path.c_str(), "tmpfs", 0, "size=1m") != 0) GTEST_SKIP() << "may not mount";
  const std::unique_ptr<Dir> ram = *OpenPosixDir(path);
  EXPECT_EQ(::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_TRUE(ram->CheckPath().ok());
  while (::umount2(path.c_str(), MNT_DETACH) == 0) {
  }
}

TEST_F(PosixDirTest, TheTopMayLeadOverLinksAndMustBeADirectory) {
  ASSERT_TRUE(dir_.MakeDir("d", 0755).ok());
  ASSERT_TRUE(dir_.MakeSymlink("d", "link").ok());
  ASSERT_TRUE(dir_.WriteFileAtomically("f", "", 0644).ok());
  EXPECT_TRUE(OpenPosixDir(temp_.Path("link")).ok());
  EXPECT_EQ(CodeOf(OpenPosixDir(temp_.Path("f"))), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(OpenPosixDir(temp_.Path("none"))), Code::kNotFound);
}

TEST_F(PosixDirTest, ErrorsNameThePathWithoutForgedLines) {
  const auto missing = dir_.OpenFile("evil\nname");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().message().find('\n'), std::string::npos);
  EXPECT_NE(missing.error().message().find("evil"), std::string::npos);
}

}  // namespace
}  // namespace tierkeep
