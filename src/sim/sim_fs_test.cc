#include "sim/sim_fs.h"

#include <cerrno>

#include "io/dir_conformance_testutil.h"

namespace tierkeep::sim {
namespace {

DirUnderTest MakeUnderTest(const SimFsOptions& options) {
  struct Owner {
    explicit Owner(const SimFsOptions& given) : fs(given) {}
    SimFs fs;
    std::unique_ptr<Dir> dir;
  };
  auto owner = std::make_shared<Owner>(options);
  owner->dir = *owner->fs.Open(std::make_shared<SimProcess>());
  Dir* dir = owner->dir.get();
  return {owner, dir, [owner] {
            owner->fs.Remount();
            return *owner->fs.Open(std::make_shared<SimProcess>());
          }};
}

}  // namespace
}  // namespace tierkeep::sim

namespace tierkeep {
INSTANTIATE_TEST_SUITE_P(
    Sim, DirConformanceTest,
    testing::Values(DirFactory{"Tmpfs", [] { return sim::MakeUnderTest({}); }},
                    DirFactory{"Disk", [] { return sim::MakeUnderTest({.disk = true}); }}),
    [](const auto& p) { return p.param.name; });
}  // namespace tierkeep

namespace tierkeep::sim {
namespace {

using Kind = DirChange::Kind;

template <typename R>
Code CodeOf(const R& result) {
  return result.has_value() ? Code::kOk : result.error().code();
}

class SimFsTest : public testing::Test {
 protected:
  void Make(SimFsOptions options) {
    dir_.reset();
    fs_ = std::make_unique<SimFs>(std::move(options));
    process_ = std::make_shared<SimProcess>();
    dir_ = *fs_->Open(process_);
  }
  void SetUp() override { Make({}); }
  std::string Read(std::string_view path) {
    const Result<std::string> content = fs_->Content(path);
    return content.ok() ? *content : content.error().ToString();
  }
  // A fresh process with the root open.
  std::unique_ptr<Dir> Other() { return *fs_->Open(std::make_shared<SimProcess>()); }

  std::unique_ptr<SimFs> fs_;
  std::shared_ptr<SimProcess> process_;
  std::unique_ptr<Dir> dir_;
};

// Every prefix of an atomic write's calls leaves the old file or the new one.
TEST_F(SimFsTest, ACrashAtEveryCallOfAnAtomicWriteLeavesOldOrNew) {
  int killed = 0;
  for (uint64_t at = 0;; ++at) {
    Make({});
    ASSERT_TRUE(dir_->WriteFileAtomically("f", "old", 0644).ok());
    auto process = std::make_shared<SimProcess>();
    process->set_before([&](const FsOp& op) {
      if (op.number == at) process->Kill();
      return 0;
    });
    const std::unique_ptr<Dir> dir = *fs_->Open(process);
    const Status written = dir->WriteFileAtomically("f", "new", 0644);
    const std::string content = Read("f");
    EXPECT_TRUE(content == "old" || content == "new") << at << ": " << content;
    if (written.ok()) {
      EXPECT_EQ(content, "new");
      break;
    }
    ++killed;
    EXPECT_EQ(written.error().code(), Code::kCancelled);
    EXPECT_EQ(CodeOf(dir->Unlink("f")), Code::kCancelled);
    EXPECT_EQ(Read("f"), content);
    process->set_before(nullptr);
  }
  EXPECT_EQ(killed, 6);  // create, write, mode, sync, rename, sync of the directory
}

TEST_F(SimFsTest, InjectedErrorsChangeNothing) {
  process_->set_before(
      [](const FsOp& op) { return op.call == FsCall::kRename && op.Path() == "a" ? EIO : 0; });
  ASSERT_TRUE(dir_->WriteFileAtomically("a", "x", 0644).ok());
  const Status renamed = dir_->Rename("a", "b");
  EXPECT_EQ(CodeOf(renamed), Code::kDataLoss);
  EXPECT_EQ(Read("a"), "x");
}

TEST_F(SimFsTest, AnotherProcessMayActBetweenTwoCalls) {
  const std::unique_ptr<Dir> job = Other();
  ASSERT_TRUE(job->WriteFileAtomically("save", "one", 0644).ok());
  process_->set_before([&](const FsOp& op) {
    if (op.call == FsCall::kRead) {
      EXPECT_TRUE(job->WriteFileAtomically("save", "two", 0644).ok());
    }
    return 0;
  });
  EXPECT_EQ(*dir_->ReadSmallFile("save", 10), "one");  // it was open already
  EXPECT_EQ(Read("save"), "two");
}

TEST_F(SimFsTest, AKilledProcessHasNothingOpen) {
  std::vector<std::string> seen;
  const auto observer = std::make_shared<SimProcess>();
  const auto watch = *fs_->Watch(observer, "", [&](const DirChange& change) {
    if (change.kind == Kind::kWritten) seen.push_back(change.name);
  });
  const Result<std::unique_ptr<File>> file = dir_->CreateFile("f", 0644);
  ASSERT_TRUE((*file)->WriteAll(0, AsBytes("abc")).ok());
  const auto map = *(*file)->Map(0, 3, MapAccess::kReadWrite);
  const std::unique_ptr<Dir> other = Other();
  EXPECT_EQ(*other->ProbeWriters("f"), LeaseResult::kHasWriters);
  process_->Kill();
  EXPECT_EQ(*other->ProbeWriters("f"), LeaseResult::kNoWriters);
  map->data()[0] = std::byte{'x'};
  EXPECT_EQ(Read("f"), "abc");
  EXPECT_FALSE((*file)->WriteAll(0, AsBytes("x")).ok());
  fs_->DeliverChanges();
  EXPECT_EQ(seen, std::vector<std::string>{"f"});
}

TEST_F(SimFsTest, SpaceAndInodesEnd) {
  Make({.bytes_max = 3 * 4096, .inodes_max = 3});
  const Result<std::unique_ptr<File>> file = dir_->CreateFile("f", 0644);
  ASSERT_TRUE((*file)->Resize(1 << 20).ok());  // a hole takes nothing
  EXPECT_EQ(dir_->Space()->free_bytes, 3u * 4096);
  EXPECT_EQ(CodeOf((*file)->WriteAll(0, AsBytes(std::string(4 * 4096, 'x')))),
            Code::kResourceExhausted);
  EXPECT_EQ(dir_->Space()->free_bytes, 0u);
  ASSERT_TRUE((*file)->Resize(4096).ok());
  EXPECT_EQ(dir_->Space()->free_bytes, 2u * 4096);
  EXPECT_EQ(CodeOf((*file)->Allocate(4096, 3 * 4096)), Code::kResourceExhausted);
  ASSERT_TRUE(dir_->MakeDir("d", 0755).ok());
  EXPECT_EQ(CodeOf(dir_->CreateFile("g", 0644)), Code::kResourceExhausted);
  ASSERT_TRUE(dir_->Unlink("f").ok());
  EXPECT_EQ(fs_->use().inodes, 3u);  // still open
}

TEST_F(SimFsTest, DamageAtRestIsSilent) {
  ASSERT_TRUE(dir_->WriteFileAtomically("f", "abcdef", 0644).ok());
  ASSERT_TRUE(dir_->SetImmutable("f", true).ok());
  const FileStat before = *dir_->Stat("f");
  ASSERT_TRUE(fs_->FlipByte("f", 1, 1).ok());
  EXPECT_EQ(Read("f"), "accdef");
  ASSERT_TRUE(fs_->Zero("f", 2, 2).ok());
  EXPECT_EQ(Read("f"), std::string("ac\0\0ef", 6));
  ASSERT_TRUE(fs_->Cut("f", 3).ok());
  EXPECT_EQ(Read("f").size(), 3u);
  EXPECT_EQ(dir_->Stat("f")->change_time_ns, before.change_time_ns);
  EXPECT_EQ(CodeOf(fs_->FlipByte("f", 3, 1)), Code::kOutOfRange);
  ASSERT_TRUE(fs_->RemoveSilently("f").ok());
  EXPECT_EQ(CodeOf(dir_->Stat("f")), Code::kNotFound);
}

TEST_F(SimFsTest, OnADiskWhatIsSyncedSurvivesTheHost) {
  bool lost_name = false, lost_bytes = false, kept = false;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    Make({.disk = true});
    ASSERT_TRUE(dir_->WriteFileAtomically("safe", "safe", 0644).ok());
    {
      const std::unique_ptr<File> file = *dir_->CreateFile("loose", 0644);
      ASSERT_TRUE(file->WriteAll(0, AsBytes("loose")).ok());
    }
    Prng prng(seed);
    fs_->Reboot(&prng);
    EXPECT_EQ(CodeOf(dir_->Stat("safe")), Code::kUnavailable);  // ESTALE
    EXPECT_EQ(Read("safe"), "safe") << "seed " << seed;
    const Result<std::string> loose = fs_->Content("loose");
    lost_name |= !loose.ok();
    lost_bytes |= loose.ok() && *loose != "loose";
    kept |= loose.ok() && *loose == "loose";
  }
  EXPECT_TRUE(lost_name && lost_bytes && kept);
}

TEST_F(SimFsTest, ATmpfsVanishesWithItsHandlesAndWatches) {
  std::vector<DirChange> seen;
  ASSERT_TRUE(dir_->MakeDir("client", 0755).ok());
  const auto watch =
      *fs_->Watch(process_, "client", [&](const DirChange& change) { seen.push_back(change); });
  fs_->Vanish();
  fs_->DeliverChanges();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].kind, Kind::kGone);
  EXPECT_EQ(seen[0].name, "");
  EXPECT_EQ(CodeOf(dir_->List("")), Code::kUnavailable);
  EXPECT_TRUE(Other()->List("")->empty());
  EXPECT_EQ(fs_->use().inodes, 1u);
}

TEST_F(SimFsTest, WatchesReportLikeInotify) {
  std::vector<std::pair<Kind, std::string>> seen;
  const auto watch = *fs_->Watch(
      process_, "", [&](const DirChange& change) { seen.emplace_back(change.kind, change.name); });
  ASSERT_TRUE(dir_->WriteFileAtomically("f", "x", 0644).ok());
  ASSERT_TRUE(dir_->MakeDir("d", 0755).ok());
  ASSERT_TRUE(dir_->Rename("f", "g").ok());
  ASSERT_TRUE(dir_->Rename("g", "d/g").ok());
  ASSERT_TRUE(dir_->RemoveTree("d").ok());
  EXPECT_TRUE(seen.empty());  // later, as from a kernel queue
  fs_->DeliverChanges();
  const std::string temporary = seen.at(0).second;
  EXPECT_EQ(seen, (std::vector<std::pair<Kind, std::string>>{{Kind::kCreated, temporary},
                                                             {Kind::kGone, temporary},
                                                             {Kind::kMovedIn, "f"},
                                                             {Kind::kWritten, "f"},
                                                             {Kind::kCreated, "d"},
                                                             {Kind::kGone, "f"},
                                                             {Kind::kMovedIn, "g"},
                                                             {Kind::kGone, "g"},
                                                             {Kind::kGone, "d"}}));
}

TEST_F(SimFsTest, AFullQueueIsOneOverflow) {
  Make({.watch_queue_max = 2});
  std::vector<Kind> seen;
  const auto watch =
      *fs_->Watch(process_, "", [&](const DirChange& change) { seen.push_back(change.kind); });
  for (const char* name : {"a", "b", "c", "d"}) ASSERT_TRUE(dir_->MakeDir(name, 0755).ok());
  fs_->DeliverChanges();
  EXPECT_EQ(seen, (std::vector<Kind>{Kind::kCreated, Kind::kCreated, Kind::kOverflow}));
}

TEST_F(SimFsTest, MountsAreNotCrossed) {
  ASSERT_TRUE(dir_->MakeDirs("d/mount", 0755).ok());
  ASSERT_TRUE(fs_->SetMounted("d/mount", true).ok());
  EXPECT_EQ(CodeOf(dir_->OpenDir("d/mount")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_->Stat("d/mount")), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_->MakeDirs("d/mount/x", 0755)), Code::kFailedPrecondition);
  EXPECT_EQ(CodeOf(dir_->RemoveTree("d")), Code::kFailedPrecondition);
  ASSERT_TRUE(fs_->SetMounted("d/mount", false).ok());
  EXPECT_TRUE(dir_->RemoveTree("d").ok());
}

}  // namespace
}  // namespace tierkeep::sim
