#include "io/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <utime.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <thread>

#include "io/file_rendezvous.h"
#include "io/forwarding_dir_testutil.h"
#include "io/temp_dir_testutil.h"

namespace tierkeep {
namespace {

template <typename R>
Code CodeOf(const R& result) {
  return result.has_value() ? Code::kOk : result.error().code();
}

// Adds one to the number in the record, however many others do the same. False on an error.
bool Increment(Rendezvous& rendezvous, std::string_view job) {
  for (;;) {
    const auto read = rendezvous.Read(job);
    if (!read.ok()) {
      ADD_FAILURE() << read.error().ToString();
      return false;
    }
    const std::string before = *read ? (*read)->bytes : "0";
    const std::string after = std::to_string(std::atoi(before.c_str()) + 1);
    const auto swapped = rendezvous.CompareAndSwap(job, *read ? (*read)->version : "", after);
    if (swapped.ok()) return true;
    if (swapped.error().code() != Code::kAborted) {
      ADD_FAILURE() << swapped.error().ToString();
      return false;
    }
  }
}

class FileRendezvousTest : public testing::Test {
 protected:
  std::unique_ptr<Rendezvous> Open() {
    auto opened = OpenFileRendezvous(temp_.path());
    EXPECT_TRUE(opened.ok()) << opened.error().ToString();
    return std::move(*opened);
  }
  std::string BytesOf(Rendezvous& rendezvous, std::string_view job) {
    const auto read = rendezvous.Read(job);
    if (!read.ok()) return read.error().ToString();
    return *read ? (*read)->bytes : "no record";
  }
  std::vector<std::string> Names(const std::string& job) {
    std::vector<std::string> names;
    const auto entries = temp_.dir().List(job);
    EXPECT_TRUE(entries.ok());
    for (const DirEntry& entry : *entries) names.push_back(entry.name);
    return names;
  }
  TempDir temp_{"/dev/shm"};
};

TEST_F(FileRendezvousTest, StartsEmptyAndSwaps) {
  const auto rendezvous = Open();
  EXPECT_FALSE(rendezvous->Read("job")->has_value());
  const auto first = rendezvous->CompareAndSwap("job", "", std::string("a\0b\n", 4));
  ASSERT_TRUE(first.ok()) << first.error().ToString();
  const auto read = Open()->Read("job");
  ASSERT_TRUE(read.ok() && read->has_value());
  EXPECT_EQ((*read)->bytes, std::string("a\0b\n", 4));
  EXPECT_EQ((*read)->version, *first);
  EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap("job", "", "x")), Code::kAborted);
  EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap("job", "1-00", "x")), Code::kAborted);
  const auto second = rendezvous->CompareAndSwap("job", *first, "");
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap("job", *first, "x")), Code::kAborted);
  EXPECT_EQ(BytesOf(*rendezvous, "job"), "");
  EXPECT_EQ(BytesOf(*rendezvous, "other"), "no record");
}

TEST_F(FileRendezvousTest, EqualBytesAreANewVersion) {
  const auto rendezvous = Open();
  const auto first = rendezvous->CompareAndSwap("job", "", "same");
  const auto second = rendezvous->CompareAndSwap("job", *first, "same");
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap("job", *first, "x")), Code::kAborted);
}

TEST_F(FileRendezvousTest, RefusesNamesThatAreNoJobs) {
  const auto rendezvous = Open();
  for (const std::string& job :
       {std::string(), std::string("."), std::string(".."), std::string(".x"), std::string("a/b"),
        std::string("/a"), std::string("a\0b", 3)}) {
    EXPECT_EQ(CodeOf(rendezvous->Read(job)), Code::kInvalidArgument) << job;
    EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap(job, "", "x")), Code::kInvalidArgument) << job;
  }
  EXPECT_EQ(CodeOf(rendezvous->CompareAndSwap("job", "", std::string((1 << 20) + 1, 'x'))),
            Code::kInvalidArgument);
}

TEST_F(FileRendezvousTest, AMissingDirectoryIsAnErrorNotAnEmptyRendezvous) {
  EXPECT_EQ(CodeOf(OpenFileRendezvous(temp_.Path("not-mounted"))), Code::kNotFound);
}

TEST_F(FileRendezvousTest, UnreadableIsNeverEmpty) {
  const auto rendezvous = Open();
  ASSERT_TRUE(rendezvous->CompareAndSwap("job", "", "first").ok());
  const std::string path = "job/00000000000000000001.record";
  const std::string good = *temp_.dir().ReadSmallFile(path, 1000);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    ASSERT_TRUE(temp_.dir().WriteFileAtomically(path, bad, 0644).ok());
    ASSERT_EQ(CodeOf(rendezvous->Read("job")), Code::kDataLoss) << i;
    ASSERT_EQ(CodeOf(rendezvous->CompareAndSwap("job", "", "x")), Code::kDataLoss) << i;
    ASSERT_TRUE(temp_.dir().WriteFileAtomically(path, good.substr(0, i), 0644).ok());
    ASSERT_EQ(CodeOf(rendezvous->Read("job")), Code::kDataLoss) << i;
  }
  ASSERT_TRUE(temp_.dir().Unlink(path).ok());
  ASSERT_TRUE(temp_.dir().MakeSymlink("/etc/passwd", path).ok());
  EXPECT_EQ(CodeOf(rendezvous->Read("job")), Code::kFailedPrecondition);
  ASSERT_TRUE(temp_.dir().WriteFileAtomically("file", "", 0644).ok());
  EXPECT_EQ(CodeOf(rendezvous->Read("file")), Code::kFailedPrecondition);
}

// A record moved to another counter's name isn't taken for that version.
TEST_F(FileRendezvousTest, ARecordUnderAForeignNameIsDamaged) {
  const auto rendezvous = Open();
  ASSERT_TRUE(rendezvous->CompareAndSwap("job", "", "first").ok());
  ASSERT_TRUE(temp_.dir()
                  .Rename("job/00000000000000000001.record", "job/00000000000000000007.record")
                  .ok());
  EXPECT_EQ(CodeOf(rendezvous->Read("job")), Code::kDataLoss);
}

TEST_F(FileRendezvousTest, ThreadsLoseNoIncrement) {
  constexpr int kThreads = 8;
  constexpr int kIncrements = 60;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const auto rendezvous = Open();
      for (int i = 0; i < kIncrements; ++i) failures += Increment(*rendezvous, "job") ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(BytesOf(*Open(), "job"), std::to_string(kThreads * kIncrements));
}

TEST_F(FileRendezvousTest, ProcessesLoseNoIncrementThoughOneIsKilled) {
  constexpr int kIncrements = 50;
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto rendezvous = OpenFileRendezvous(temp_.path());
      // The first goes on until it is killed, and counts in a record of its own as well.
      for (int i = 0; c == 0 || i < kIncrements; ++i) {
        const bool done = rendezvous.ok() && Increment(**rendezvous, c == 0 ? "victim" : "job");
        if (!done) ::_exit(1);
      }
      ::_exit(0);
    }
    ASSERT_GT(child, 0);
    children.push_back(child);
  }
  const auto rendezvous = Open();
  for (size_t c = 1; c < children.size(); ++c) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[c], &status, 0), children[c]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  while (!rendezvous->Read("victim")->has_value()) std::this_thread::yield();
  ASSERT_EQ(::kill(children[0], SIGKILL), 0);
  ASSERT_EQ(::waitpid(children[0], nullptr, 0), children[0]);
  EXPECT_EQ(BytesOf(*rendezvous, "job"), std::to_string(3 * kIncrements));
  // Wherever it was killed, the record is whole and the next writer goes on.
  const auto left = rendezvous->Read("victim");
  ASSERT_TRUE(left.ok() && left->has_value());
  EXPECT_TRUE(Increment(*rendezvous, "victim"));
  EXPECT_EQ(BytesOf(*rendezvous, "victim"), std::to_string(std::atoi((*left)->bytes.c_str()) + 1));
}

// Throws out of a chosen call, as a killed writer leaves its steps undone.
struct Killed {};
class KillingDir : public ForwardingDir {
 public:
  KillingDir(std::unique_ptr<Dir> inner, int* calls_left)
      : ForwardingDir(std::move(inner)), calls_left_(calls_left) {}
  Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) override {
    return Step([&] { return ForwardingDir::CreateFile(path, mode); });
  }
  Status MakeDir(std::string_view path, uint32_t mode) override {
    return Step([&] { return ForwardingDir::MakeDir(path, mode); });
  }
  Status HardLink(std::string_view from, std::string_view to) override {
    return Step([&] { return ForwardingDir::HardLink(from, to); });
  }
  Status Unlink(std::string_view path) override {
    return Step([&] { return ForwardingDir::Unlink(path); });
  }
  Status SyncDir(std::string_view path) override {
    return Step([&] { return ForwardingDir::SyncDir(path); });
  }

 protected:
  std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) override {
    return std::make_unique<KillingDir>(std::move(dir), calls_left_);
  }

 private:
  template <typename F>
  auto Step(F call) -> decltype(call()) {
    if ((*calls_left_)-- == 0) throw Killed();
    return call();
  }
  int* const calls_left_;
};

TEST_F(FileRendezvousTest, AWriterKilledBetweenAnyTwoStepsLeavesARecord) {
  bool finished = false;
  int step = 0;
  for (; !finished; ++step) {
    ASSERT_LT(step, 100);
    const std::string job = "job" + std::to_string(step);
    int calls_left = 1000;
    const auto rendezvous = MakeFileRendezvous(
        std::make_unique<KillingDir>(std::move(*OpenPosixDir(temp_.path())), &calls_left),
        std::make_shared<SystemRandom>());
    calls_left = step;
    try {
      ASSERT_TRUE(rendezvous->CompareAndSwap(job, "", "first").ok());
      finished = true;
    } catch (const Killed&) {
    }
    calls_left = 1000;
    const auto after = Open();
    const auto read = after->Read(job);
    ASSERT_TRUE(read.ok()) << step << read.error().ToString();
    if (*read) {
      EXPECT_EQ((*read)->bytes, "first");
    }
    EXPECT_TRUE(*read || !finished);
    ASSERT_TRUE(after->CompareAndSwap(job, *read ? (*read)->version : "", "second").ok()) << step;
    EXPECT_EQ(BytesOf(*after, job), "second");
  }
  EXPECT_GT(step, 5);  // it was really killed in between
}

TEST_F(FileRendezvousTest, HalfWrittenTemporaryFilesAreIgnored) {
  const auto rendezvous = Open();
  ASSERT_TRUE(rendezvous->CompareAndSwap("job", "", "first").ok());
  ASSERT_TRUE(temp_.dir().WriteFileAtomically("job/.new-00", "tierkeep rend", 0644).ok());
  EXPECT_EQ(BytesOf(*rendezvous, "job"), "first");
  EXPECT_TRUE(Increment(*rendezvous, "job"));
  EXPECT_TRUE(temp_.dir().Stat("job/.new-00").ok());  // too young to be swept
}

// A server that makes the link, and whose answer is lost.
class LostReplyDir : public ForwardingDir {
 public:
  using ForwardingDir::ForwardingDir;
  Status HardLink(std::string_view from, std::string_view to) override {
    EXPECT_TRUE(ForwardingDir::HardLink(from, to).ok());
    return ErrnoError(EEXIST, "link");
  }

 protected:
  std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) override {
    return std::make_unique<LostReplyDir>(std::move(dir));
  }
};

TEST_F(FileRendezvousTest, ALostReplyIsNotTakenForALostRace) {
  const auto rendezvous =
      MakeFileRendezvous(std::make_unique<LostReplyDir>(std::move(*OpenPosixDir(temp_.path()))),
                         std::make_shared<SystemRandom>());
  const auto version = rendezvous->CompareAndSwap("job", "", "first");
  ASSERT_TRUE(version.ok()) << version.error().ToString();
  EXPECT_EQ((*Open()->Read("job"))->version, *version);
}

// Stops a writer between its look at the record and its link, while others write on.
class PausedDir : public ForwardingDir {
 public:
  PausedDir(std::unique_ptr<Dir> inner, std::function<void()> pause, Duration pause_length)
      : ForwardingDir(std::move(inner)), pause_(std::move(pause)), pause_length_(pause_length) {}
  Status HardLink(std::string_view from, std::string_view to) override {
    pause_();
    return ForwardingDir::HardLink(from, to);
  }
  Result<FileStat> Stat(std::string_view path) override {
    Result<FileStat> stat = ForwardingDir::Stat(path);
    if (stat.ok()) stat->change_time_ns += pause_length_.count();
    return stat;
  }

 protected:
  std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) override {
    return std::make_unique<PausedDir>(std::move(dir), pause_, pause_length_);
  }

 private:
  const std::function<void()> pause_;
  const Duration pause_length_;
};

// Where every record looks an hour old.
class OldDir : public ForwardingDir {
 public:
  using ForwardingDir::ForwardingDir;
  Result<FileStat> Stat(std::string_view path) override {
    Result<FileStat> stat = ForwardingDir::Stat(path);
    if (stat.ok() && path.ends_with(".record")) stat->change_time_ns -= Duration(1h).count();
    return stat;
  }

 protected:
  std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) override {
    return std::make_unique<OldDir>(std::move(dir));
  }
};

TEST_F(FileRendezvousTest, E11_OldRecordsAreSweptYoungOnesNot) {
  const auto young = Open();
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Increment(*young, "job"));
  EXPECT_EQ(Names("job").size(), 40u);
  const auto old =
      MakeFileRendezvous(std::make_unique<OldDir>(std::move(*OpenPosixDir(temp_.path()))),
                         std::make_shared<SystemRandom>());
  ASSERT_TRUE(Increment(*old, "job"));
  EXPECT_EQ(Names("job").size(), 16u);
  EXPECT_EQ(BytesOf(*young, "job"), "41");
}

TEST_F(FileRendezvousTest, AWriterStoppedForAnyTimeOverwritesNothing) {
  for (const int others : {1, 2, 15, 16, 17, 40}) {
    for (const bool long_pause : {false, true}) {
      const std::string job = fmt::format("job{}-{}", others, long_pause);
      std::unique_ptr<Dir> dir = std::move(*OpenPosixDir(temp_.path()));
      if (long_pause) dir = std::make_unique<OldDir>(std::move(dir));
      const auto healthy = MakeFileRendezvous(std::move(dir), std::make_shared<SystemRandom>());
      ASSERT_TRUE(Increment(*healthy, job));
      const auto write_others = [&] {
        for (int i = 0; i < others; ++i) ASSERT_TRUE(Increment(*healthy, job));
      };
      const auto stopped = MakeFileRendezvous(
          std::make_unique<PausedDir>(std::move(*OpenPosixDir(temp_.path())), write_others,
                                      long_pause ? Duration(1h) : Duration(0s)),
          std::make_shared<SystemRandom>());
      const auto before = healthy->Read(job);
      EXPECT_FALSE(stopped->CompareAndSwap(job, (*before)->version, "stale").ok()) << job;
      EXPECT_EQ(BytesOf(*healthy, job), std::to_string(1 + others));
      EXPECT_TRUE(Increment(*healthy, job));
      EXPECT_EQ(BytesOf(*healthy, job), std::to_string(2 + others));
    }
  }
}

TEST(StaticRendezvousTest, TheLocalOneKeepsItsRecord) {
  TempDir temp;
  StaticRendezvousOptions options{"host", 4242, true, temp.path()};
  {
    const auto rendezvous = OpenStaticRendezvous(options);
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.error().ToString();
    EXPECT_FALSE((*rendezvous)->Read("job")->has_value());
    ASSERT_TRUE((*rendezvous)->CompareAndSwap("job", "", "kept").ok());
  }
  const auto again = OpenStaticRendezvous(options);
  EXPECT_EQ((*(*again)->Read("job"))->bytes, "kept");
}

TEST(StaticRendezvousTest, OthersSeeTheAddressOnly) {
  const auto rendezvous = OpenStaticRendezvous({"::1", 4242, false, ""});
  ASSERT_TRUE(rendezvous.ok());
  EXPECT_EQ((*(*rendezvous)->Read("job"))->bytes, "[::1]:4242");
  EXPECT_EQ(CodeOf((*rendezvous)->CompareAndSwap("job", "static", "x")), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tierkeep
