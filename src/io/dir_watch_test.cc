#include "io/dir_watch.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <condition_variable>
#include <fstream>
#include <mutex>
#include <vector>

#include "io/temp_dir_testutil.h"

namespace tierkeep {
namespace {

using Kind = DirChange::Kind;

class DirWatchTest : public testing::Test {
 protected:
  void StartWatch(const std::string& path) {
    auto watch = DirWatch::Start(path, [this](const DirChange& change) {
      std::unique_lock lock(mutex_);
      seen_.emplace_back(change.kind, change.name);
      changed_.notify_all();
      changed_.wait(lock, [&] { return !held_; });
    });
    ASSERT_TRUE(watch.ok()) << watch.error().ToString();
    watch_ = std::move(*watch);
  }
  bool Saw(Kind kind, const std::string& name) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      for (const auto& one : seen_) {
        if (one == std::pair(kind, name)) return true;
      }
      return false;
    });
  }
  void Hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<Kind, std::string>> seen_;
  bool held_ = false;
  TempDir temp_{"/dev/shm"};
  std::unique_ptr<DirWatch> watch_;  // last: destroyed before what its callback uses
};

TEST_F(DirWatchTest, B12_ReportsEveryKindOfChange) {
  ASSERT_TRUE(temp_.dir().MakeDir("old", 0755).ok());
  StartWatch(temp_.path());
  ASSERT_TRUE(temp_.dir().MakeDir("made", 0755).ok());
  EXPECT_TRUE(Saw(Kind::kCreated, "made"));
  { std::ofstream(temp_.Path("file")) << "x"; }
  EXPECT_TRUE(Saw(Kind::kCreated, "file"));
  EXPECT_TRUE(Saw(Kind::kWritten, "file"));
  ASSERT_TRUE(temp_.dir().Rename("file", "renamed").ok());
  EXPECT_TRUE(Saw(Kind::kGone, "file"));
  EXPECT_TRUE(Saw(Kind::kMovedIn, "renamed"));
  ASSERT_TRUE(temp_.dir().MakeSymlink("renamed", "link").ok());
  EXPECT_TRUE(Saw(Kind::kCreated, "link"));
  ASSERT_TRUE(temp_.dir().Unlink("renamed").ok());
  EXPECT_TRUE(Saw(Kind::kGone, "renamed"));
  ASSERT_TRUE(temp_.dir().RemoveDir("old").ok());
  EXPECT_TRUE(Saw(Kind::kGone, "old"));
}

TEST_F(DirWatchTest, KeepsOrder) {
  StartWatch(temp_.path());
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(temp_.dir().MakeDir(std::to_string(i), 0755).ok());
  }
  ASSERT_TRUE(Saw(Kind::kCreated, "299"));
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(seen_.size(), 300u);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(seen_[i].second, std::to_string(i));
}

TEST_F(DirWatchTest, B12_AnOverflowIsReported) {
  std::ifstream limit_file("/proc/sys/fs/inotify/max_queued_events");
  int limit = 0;
  limit_file >> limit;
  if (limit <= 0 || limit > 1 << 17) GTEST_SKIP() << "the queue is too long to fill: " << limit;
  StartWatch(temp_.path());
  Hold(true);
  const std::string a = temp_.Path("a");
  const std::string b = temp_.Path("b");
  ASSERT_EQ(::mkdir(a.c_str(), 0755), 0);
  for (int i = 0; i < limit; ++i) {  // two events each
    ASSERT_EQ(::rename(a.c_str(), b.c_str()), 0);
    ASSERT_EQ(::rename(b.c_str(), a.c_str()), 0);
  }
  Hold(false);
  EXPECT_TRUE(Saw(Kind::kOverflow, ""));
  ASSERT_EQ(::mkdir(temp_.Path("later").c_str(), 0755), 0);
  EXPECT_TRUE(Saw(Kind::kCreated, "later"));
}

TEST_F(DirWatchTest, TheLossOfTheDirectoryItselfIsReported) {
  ASSERT_TRUE(temp_.dir().MakeDir("d", 0755).ok());
  StartWatch(temp_.Path("d"));
  ASSERT_TRUE(temp_.dir().RemoveDir("d").ok());
  EXPECT_TRUE(Saw(Kind::kGone, ""));
}

TEST_F(DirWatchTest, NothingIsReportedAfterDestruction) {
  for (int i = 0; i < 50; ++i) {
    StartWatch(temp_.path());
    ASSERT_TRUE(temp_.dir().MakeDir("d" + std::to_string(i), 0755).ok());
    watch_.reset();
    size_t before;
    {
      const std::lock_guard lock(mutex_);
      before = seen_.size();
    }
    ASSERT_TRUE(temp_.dir().RemoveDir("d" + std::to_string(i)).ok());
    const std::lock_guard lock(mutex_);
    ASSERT_EQ(seen_.size(), before);
  }
}

TEST_F(DirWatchTest, OnlyADirectoryCanBeWatched) {
  { std::ofstream(temp_.Path("file")) << "x"; }
  const auto file = DirWatch::Start(temp_.Path("file"), [](const DirChange&) {});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code(), Code::kFailedPrecondition);
  const auto none = DirWatch::Start(temp_.Path("none"), [](const DirChange&) {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tierkeep
