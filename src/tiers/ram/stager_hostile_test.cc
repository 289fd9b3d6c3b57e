// A job that holds a directory of its save open changes what is in it between any two calls of the
// stager. Whatever it does: nothing outside is read or written, and what becomes a shard is what
// its manifest says, or the next verification finds it out.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>

#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSecret = "for no job's eyes";

// Changes the tree at `root` by plain calls. Every one may fail; that is as good.
class Meddler {
 public:
  Meddler(Prng& prng, std::string root, std::string outside)
      : prng_(prng), root_(std::move(root)), outside_(std::move(outside)) {}

  void Once() {
    const std::vector<std::string> paths = Paths();
    if (paths.empty()) return;
    const std::string& path = paths[prng_.Below(paths.size())];
    std::error_code ignored;
    switch (prng_.Below(10)) {
      case 0:  // an entry becomes a link to a file or a directory outside
        Replace(path, [&] { fs::create_symlink(outside_ + "/secret", path, ignored); });
        break;
      case 1:
        Replace(path, [&] { fs::create_directory_symlink(outside_, path, ignored); });
        break;
      case 2:
        Replace(path, [&] { ::mkfifo(path.c_str(), 0600); });
        break;
      case 3:
        Replace(path, [&] { fs::create_hard_link(outside_ + "/secret", path, ignored); });
        break;
      case 4:
      case 5:
        Overwrite(path);
        break;
      case 6:
        fs::remove_all(path, ignored);
        break;
      case 7:
        fs::create_directories(path + ".d/e/f", ignored);
        break;
      case 8:
        Write(path + ".new");
        break;
      default:
        fs::rename(path, path + ".moved", ignored);
    }
  }

 private:
  std::vector<std::string> Paths() {
    std::vector<std::string> paths;
    std::error_code ignored;
    for (fs::recursive_directory_iterator it(root_, ignored), end; it != end;
         it.increment(ignored)) {
      paths.push_back(it->path().string());
    }
    return paths;
  }
  void Replace(const std::string& path, const std::function<void()>& by) {
    std::error_code ignored;
    fs::rename(path, fmt::format("{}/gone{}", outside_, gone_++), ignored);
    by();
  }
  void Overwrite(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    struct stat st;
    // Not through a second name of what lies outside.
    if (::fstat(fd, &st) == 0 && st.st_nlink == 1) {
      [[maybe_unused]] ssize_t n = ::pwrite(fd, "meddled", 7, 0);
      if (prng_.Below(2) == 0) n = ::ftruncate(fd, static_cast<off_t>(prng_.Below(100'000)));
    }
    ::close(fd);
  }
  void Write(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t n = ::write(fd, "new", 3);
    ::close(fd);
  }

  Prng& prng_;
  const std::string root_;
  const std::string outside_;
  int gone_ = 0;
};

class HostileStageTest : public testing::Test {
 protected:
  // One save, meddled with before some calls. Whether it became a shard.
  bool Try(Prng& prng, Step step) {
    const std::string name = std::to_string(step);
    const std::string outside = node_.path() + "/outside" + name;
    PutFile(outside + "/secret", kSecret);
    MakeRandomTree(prng, node_.Client(name), {.entries_max = 15, .file_bytes_max = 20'000});
    EXPECT_TRUE(node_.stager().Take(name, name).ok());
    const std::string data = node_.InStore("staged/" + name + "/data");
    Meddler meddler(prng, data, outside);
    std::mutex mutex;
    uint64_t left = 1 + prng.Below(6);
    const uint64_t every = 1 + prng.Below(30);
    node_.faults().Set([&](std::string_view, std::string_view) -> std::optional<Error> {
      const std::lock_guard lock(mutex);
      if (left > 0 && prng.Below(every) == 0) {
        --left;
        meddler.Once();
      }
      return std::nullopt;
    });
    const auto staged = node_.stager().HashAndAdopt(name, TestIdentity(step), nullptr);
    node_.faults().Clear();
    EXPECT_EQ(GetFile(outside + "/secret"), kSecret);
    if (!staged.ok()) {
      EXPECT_FALSE(staged.error().message().empty());
      EXPECT_TRUE(node_.store().DeleteStaged(name).ok());
      EXPECT_EQ(GetFile(outside + "/secret"), kSecret);
      return false;
    }
    // Two words for the same thing: the secret's bytes were never hashed unless they came in as
    // what the job itself could link, by a second name.
    const VerifyResult verified = node_.store().Verify(staged->digest, nullptr);
    const std::string shard = node_.InStore("shards/" + staged->digest.Hex() + "/data");
    if (verified.ok) ExpectIs(staged->manifest, shard);
    EXPECT_TRUE(node_.store().Delete(staged->digest).ok());
    EXPECT_EQ(GetFile(outside + "/secret"), kSecret);
    return true;
  }

  // Every entry of the manifest is what stands there, by a file's only name.
  void ExpectIs(const Manifest& manifest, const std::string& root) {
    for (const ManifestEntry& entry : manifest.entries) {
      const std::string path = entry.path.empty() ? root : root + "/" + entry.path;
      struct stat st;
      ASSERT_EQ(::lstat(path.c_str(), &st), 0) << path;
      switch (entry.type) {
        case EntryType::kDirectory:
          EXPECT_TRUE(S_ISDIR(st.st_mode)) << path;
          break;
        case EntryType::kSymlink:
          EXPECT_TRUE(S_ISLNK(st.st_mode)) << path;
          EXPECT_EQ(fs::read_symlink(path).string(), entry.link_target);
          break;
        case EntryType::kFile:
          EXPECT_TRUE(S_ISREG(st.st_mode)) << path;
          // Linked, copied and hashed, and in the last moment linked once more: the bytes are the
          // manifest's, and whoever changes them by the other name is found out as ever.
          if (st.st_nlink != 1) {
            EXPECT_EQ(GetFile(path), kSecret) << path;
          }
          EXPECT_EQ(static_cast<uint64_t>(st.st_size), entry.bytes) << path;
      }
    }
  }

  RamNode node_;
};

TEST_F(HostileStageTest, D9_D13_AnythingChangedBetweenAnyTwoCalls) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(fmt::format("TIERKEEP_TEST_SEED={}", seed));
  Prng prng(seed);
  node_.stage_options().writers_limit = 100ms;
  ASSERT_TRUE(node_.Reopen().ok());
  int shards = 0;
  constexpr int kSaves = 200;
  for (Step step = 0; step < kSaves && !HasFailure(); ++step) shards += Try(prng, step);
  // Both outcomes were seen, or the test tests nothing.
  EXPECT_GT(shards, 0);
  EXPECT_LT(shards, kSaves);
  EXPECT_TRUE(node_.store().Staged()->empty());
  EXPECT_TRUE(node_.store().Shards().empty());
}

// A directory in the middle of a path becomes a link between the listing and each later call.
TEST_F(HostileStageTest, D9_ADirectoryBecomesALinkBeforeEachCall) {
  const std::string outside = node_.path() + "/outside";
  PutFile(outside + "/f", kSecret);
  node_.stage_options().writers_limit = 50ms;
  ASSERT_TRUE(node_.Reopen().ok());
  for (uint64_t n = 1; n < 200; ++n) {
    const std::string name = std::to_string(n);
    PutFile(node_.Client(name + "/sub/f"), std::string(kSecret.size(), 'x'));
    ASSERT_TRUE(node_.stager().Take(name, name).ok());
    const std::string sub = node_.InStore("staged/" + name + "/data/sub");
    std::atomic<uint64_t> calls{0};
    node_.faults().Set([&](std::string_view, std::string_view) -> std::optional<Error> {
      if (++calls == n) {
        std::error_code ignored;
        fs::rename(sub, node_.path() + "/moved" + name, ignored);
        fs::create_directory_symlink(outside, sub, ignored);
      }
      return std::nullopt;
    });
    const auto staged = node_.stager().HashAndAdopt(name, TestIdentity(n), nullptr);
    node_.faults().Clear();
    if (staged.ok()) {
      for (const ManifestEntry& entry : staged->manifest.entries) {
        for (const Chunk& chunk : entry.chunks) {
          EXPECT_NE(chunk.digest, ComputeXxh128(AsBytes(kSecret))) << "read through the link";
        }
      }
      ASSERT_TRUE(node_.store().Delete(staged->digest).ok());
    } else {
      ASSERT_TRUE(node_.store().DeleteStaged(name).ok());
    }
    EXPECT_EQ(GetFile(outside + "/f"), kSecret) << "written or removed through the link";
    if (calls < n) return;  // every call had its turn
  }
  FAIL() << "staging one small file took 200 calls";
}

}  // namespace
}  // namespace tierkeep
