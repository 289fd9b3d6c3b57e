#include "tiers/ram/volume.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

class VolumeTest : public testing::Test {
 protected:
  Volume& volume() { return node_.volume(); }
  std::string Client(const std::string& name) { return node_.Client(name); }
  // Every way in which a job may have got to a name before us.
  std::vector<std::function<void(const std::string&)>> Plants() {
    return {
        [](const std::string&) {},
        [](const std::string& path) { PutFile(path, "planted"); },
        [](const std::string& path) { PutFile(path + "/d/f", "planted"); },
        [this](const std::string& path) {
          PutFile(node_.path() + "/victim", "victim");
          fs::create_symlink(node_.path() + "/victim", path);
        },
        [](const std::string& path) { fs::create_symlink("/nowhere/at/all", path); },
        [](const std::string& path) { TK_CHECK(::mkfifo(path.c_str(), 0600) == 0); },
        [this](const std::string& path) {
          PutFile(node_.path() + "/victim", "victim");
          fs::create_hard_link(node_.path() + "/victim", path);
        },
        [this](const std::string& path) {
          PutFile(path, "planted");
          const std::string name = path.substr(node_.path().size() + 1);
          (void)node_.real().SetImmutable(name, true);
        },
    };
  }
  // Calls `put` with everything planted at `name` in turn; then `name` must be a regular file with
  // `content`.
  void ExpectPut(const std::string& name, const std::string& content,
                 const std::function<Status()>& put) {
    for (size_t i = 0; i < Plants().size(); ++i) {
      ASSERT_TRUE(node_.real().RemoveTree("client/" + name).ok());
      Plants()[i](Client(name));
      const Status done = put();
      ASSERT_TRUE(done.ok()) << name << ", plant " << i << ": " << done.error().ToString();
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(Client(name)))) << name << i;
      EXPECT_EQ(GetFile(Client(name)), content) << name << i;
      EXPECT_EQ(fs::hard_link_count(Client(name)), 1u) << name << i;
      if (Exists(node_.path() + "/victim")) {
        EXPECT_EQ(GetFile(node_.path() + "/victim"), "victim");
      }
    }
    EXPECT_TRUE(fs::is_empty(node_.InStore("incoming")));
    EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
  }

  const WorkerName name_{"train", 100, 3, 1};
  const std::string h_ = "D" + std::string(64, 'a');
  RamNode node_;
};

TEST_F(VolumeTest, D8_WritesItsFilesOverWhateverIsPlantedThere) {
  ExpectPut("replicator.prerestore", "{}\n", [&] { return volume().WritePrerestore({}, ""); });
  ExpectPut("train-s100-n3-w1.meta", h_, [&] { return volume().WriteMeta(name_, h_); });
  ExpectPut("train-s0-n3-w1.restore", "", [&] { return volume().PlaceNoCheckpointMarker(name_); });
}

TEST_F(VolumeTest, PrerestoreNamesStepAndBackup) {
  ASSERT_TRUE(volume().WritePrerestore(7, "2026-11-29_17-56").ok());
  const std::string text = GetFile(Client("replicator.prerestore"));
  EXPECT_NE(text.find("restore-step: 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("restore-backup: "), std::string::npos) << text;
}

TEST_F(VolumeTest, B11_OddMetasNeitherBlockNorStay) {
  const auto plants = Plants();
  for (size_t i = 1; i < plants.size(); ++i) plants[i](Client(fmt::format("odd{}.meta", i)));
  ASSERT_TRUE(volume().WriteMeta(name_, h_).ok());
  ASSERT_TRUE(volume().RemoveOtherMetas({name_}).ok());
  for (size_t i = 1; i < plants.size(); ++i) {
    EXPECT_FALSE(Exists(Client(fmt::format("odd{}.meta", i)))) << i;
    plants[i](Client(fmt::format("odd{}.meta", i)));
  }
  EXPECT_EQ(GetFile(Client("train-s100-n3-w1.meta")), h_);
  ASSERT_TRUE(volume().Clean({}).ok());
  EXPECT_TRUE(fs::is_empty(node_.path() + "/client"));
  EXPECT_EQ(GetFile(node_.path() + "/victim"), "victim");
}

TEST_F(VolumeTest, AppendsToErrorsOnlyWhatIsOurs) {
  ASSERT_TRUE(volume().AppendError("one").ok());
  ASSERT_TRUE(volume().AppendError("two").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "one\ntwo\n");
  EXPECT_FALSE(Exists(Client("replicator.failed")));
  ASSERT_TRUE(volume().AppendFailed("three").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "one\ntwo\nthree\n");
  EXPECT_EQ(GetFile(Client("replicator.failed")), "three\n");
  // A client reads and deletes.
  fs::remove(Client("replicator.errors"));
  ASSERT_TRUE(volume().AppendError("four").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "four\n");
  for (size_t i = 2; i < Plants().size(); ++i) {
    ASSERT_TRUE(node_.real().RemoveTree("client/replicator.errors").ok());
    Plants()[i](Client("replicator.errors"));
    ASSERT_TRUE(volume().AppendError("five").ok()) << i;
    const std::string text = GetFile(Client("replicator.errors"));
    EXPECT_TRUE(text == "five\n" || text == "planted\nfive\n") << i << text;
    EXPECT_EQ(fs::hard_link_count(Client("replicator.errors")), 1u);
    if (Exists(node_.path() + "/victim")) {
      EXPECT_EQ(GetFile(node_.path() + "/victim"), "victim");
    }
  }
}

TEST_F(VolumeTest, ErrorsStayWithinTheirBound) {
  for (int i = 0; i < 1100; ++i) {
    ASSERT_TRUE(volume().AppendError(fmt::format("line {:060}", i)).ok());
  }
  const std::string text = GetFile(Client("replicator.errors"));
  EXPECT_LE(text.size(), 64u << 10);
  EXPECT_GT(text.size(), 60u << 10);
  EXPECT_TRUE(text.starts_with("line "));
  EXPECT_TRUE(text.ends_with("1099\n"));
  ASSERT_TRUE(volume().AppendError(std::string(200'000, 'x')).ok());
  EXPECT_LE(GetFile(Client("replicator.errors")).size(), 64u << 10);
}

TEST_F(VolumeTest, ErrorsAreWrittenIntoAFullVolume) {
  ASSERT_TRUE(volume().AppendError("before").ok());
  const auto no_space = [](std::string_view call, std::string_view) -> std::optional<Error> {
    const bool takes = call == "CreateFile" || call == "WriteFileAtomically" || call == "MakeDir" ||
                       call == "Allocate";
    if (takes) return ErrnoError(ENOSPC, "injected");
    return std::nullopt;
  };
  node_.faults().Set(no_space);
  ASSERT_TRUE(volume().AppendError("full").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "before\nfull\n");
  // Once only, until there is space again.
  EXPECT_EQ(volume().AppendError("lost").error().code(), Code::kResourceExhausted);
  node_.faults().Clear();
  ASSERT_TRUE(volume().AppendError("after").ok());
  node_.faults().Set(no_space);
  ASSERT_TRUE(volume().AppendError("full again").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "before\nfull\nafter\nfull again\n");
  struct stat st;
  ASSERT_EQ(::stat(Client("replicator.errors").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0644u);
}

TEST_F(VolumeTest, MemoryIsKeptForTheNextStart) {
  const std::string reserve = node_.InStore("reserve");
  EXPECT_EQ(fs::file_size(reserve), 64u << 10);
  volume().MakeRoomForStart();
  EXPECT_TRUE(Exists(reserve)) << "there is room";
  EXPECT_TRUE(volume().GiveUpReserve());
  EXPECT_FALSE(Exists(reserve));
  EXPECT_FALSE(volume().GiveUpReserve());
  node_.faults().Set([](std::string_view call, std::string_view) -> std::optional<Error> {
    if (call == "Allocate") return ErrnoError(ENOSPC, "injected");
    return std::nullopt;
  });
  volume().KeepReserve();
  node_.faults().Clear();
  volume().KeepReserve();
  EXPECT_EQ(fs::file_size(reserve), 64u << 10);
}

TEST_F(VolumeTest, ErrorsAreWrittenBesideAStoreThatCannotBeWritten) {
  node_.faults().Set([](std::string_view call, std::string_view path) -> std::optional<Error> {
    const bool in_store = path.starts_with("incoming/") || path.starts_with("spare");
    if (call != "Stat" && in_store) return ErrnoError(EPERM, "injected");
    return std::nullopt;
  });
  ASSERT_TRUE(volume().AppendError("one").ok());
  ASSERT_TRUE(volume().AppendError("two").ok());
  EXPECT_EQ(GetFile(Client("replicator.errors")), "one\ntwo\n");
}

TEST_F(VolumeTest, LinesOfSeveralThreadsAllArrive) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_TRUE(volume().AppendError(fmt::format("{} {}", t, i)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = GetFile(Client("replicator.errors"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 200);
}

TEST_F(VolumeTest, ReadsTheConfigurationAsOneFile) {
  auto none = volume().ReadConfig();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  PutFile(Client("replicator.yaml"), "job-name: a\n");
  const auto first = volume().ReadConfig();
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->text, "job-name: a\n");
  EXPECT_EQ((*volume().ReadConfig())->id, (*first)->id);
  PutFile(Client("replicator.yaml"), "job-name: b\n");
  EXPECT_NE((*volume().ReadConfig())->id, (*first)->id);
  PutFile(Client("replicator.yaml"), "");
  EXPECT_EQ((*volume().ReadConfig())->text, "");
}

TEST_F(VolumeTest, B13AConfigurationThatIsStillWrittenIsNotTaken) {
  const std::string whole = "job-name: j\npeer-ranks:\n- 1\n- 2\n";
  for (const size_t part : {size_t{0}, size_t{12}, whole.size() - 4, whole.size()}) {
    fs::remove(Client("replicator.yaml"));
    std::ofstream writer(Client("replicator.yaml"));
    writer << whole.substr(0, part) << std::flush;
    const auto read = volume().ReadConfig();
    ASSERT_FALSE(read.ok()) << part;
    EXPECT_EQ(read.error().code(), Code::kAborted);
    writer << whole.substr(part);
    writer.close();
    const auto done = volume().ReadConfig();
    ASSERT_TRUE(done.ok()) << done.error().ToString();
    EXPECT_EQ((*done)->text, whole);
  }
}

TEST_F(VolumeTest, FilesThatAreStillWrittenAreNoSavesYet) {
  PutFile(Client("j-s5-n2-w0.save"), "whole");
  std::ofstream writer(Client("j-s5-n2-w1.save"));
  writer << "half" << std::flush;
  auto saves = volume().ListSaves(Framework::kPytorch, "j");
  ASSERT_TRUE(saves.ok());
  ASSERT_EQ(saves->size(), 1u);
  EXPECT_EQ(saves->front().rank, 2u);
  writer.close();
  saves = volume().ListSaves(Framework::kPytorch, "j");
  ASSERT_TRUE(saves.ok());
  EXPECT_EQ(saves->size(), 2u);
}

TEST_F(VolumeTest, OddConfigurationsAreInvalidAndCanBeRemoved) {
  PutFile(node_.path() + "/victim", "secret: 1");
  const std::vector<std::function<void(const std::string&)>> odd{
      [&](const std::string& path) { fs::create_symlink(node_.path() + "/victim", path); },
      [](const std::string& path) { PutFile(path + "/d", ""); },
      [](const std::string& path) { TK_CHECK(::mkfifo(path.c_str(), 0600) == 0); },
      [](const std::string& path) { PutFile(path, std::string((1 << 20) + 1, 'x')); },
  };
  for (const auto& plant : odd) {
    plant(Client("replicator.yaml"));
    const auto read = volume().ReadConfig();
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument) << read.error().ToString();
    EXPECT_EQ(read.error().message().find("secret"), std::string::npos);
    ASSERT_TRUE(volume().RemoveConfig("").ok());
    EXPECT_FALSE(Exists(Client("replicator.yaml")));
  }
  EXPECT_EQ(GetFile(node_.path() + "/victim"), "secret: 1");
  EXPECT_TRUE(volume().RemoveConfig("").ok());
  EXPECT_TRUE(volume().RemoveConfig("1:2:3").ok());
}

TEST_F(VolumeTest, RemovesOnlyTheConfigurationThatWasRead) {
  PutFile(Client("replicator.yaml"), "one");
  const std::string one = (*volume().ReadConfig())->id;
  PutFile(Client("new"), "two");
  fs::rename(Client("new"), Client("replicator.yaml"));
  ASSERT_TRUE(volume().RemoveConfig(one).ok());
  EXPECT_EQ(GetFile(Client("replicator.yaml")), "two");
  const std::string two = (*volume().ReadConfig())->id;
  ASSERT_TRUE(volume().RemoveConfig(two).ok());
  EXPECT_FALSE(Exists(Client("replicator.yaml")));
}

// The client replaces the file between the last look and the removal: it must not be lost.
TEST_F(VolumeTest, AConfigurationExchangedAtTheLastMomentStays) {
  PutFile(Client("replicator.yaml"), "one");
  const std::string one = (*volume().ReadConfig())->id;
  bool exchanged = false;
  node_.faults().Set([&](std::string_view call, std::string_view path) -> std::optional<Error> {
    if (call == "RenameNew" && path.starts_with("store/incoming/") && !exchanged) {
      exchanged = true;
      PutFile(Client("new"), "two");
      fs::rename(Client("new"), Client("replicator.yaml"));
    }
    return std::nullopt;
  });
  ASSERT_TRUE(volume().RemoveConfig(one).ok());
  EXPECT_TRUE(exchanged);
  EXPECT_EQ(GetFile(Client("replicator.yaml")), "two");
  EXPECT_TRUE(fs::is_empty(node_.InStore("incoming")));
}

TEST_F(VolumeTest, ListsSaves) {
  PutFile(Client("100/commit_success.txt"), "");
  PutFile(Client("99/state/x"), "");  // made in place, not done: no save when the job has gone
  PutFile(Client("0/commit_success.txt"), "");
  PutFile(Client("007/commit_success.txt"), "");
  PutFile(Client("5.orbax-checkpoint-tmp/commit_success.txt"), "");
  PutFile(Client("8"), "a file");
  fs::create_directory(Client("real"));
  PutFile(Client("real/commit_success.txt"), "");
  fs::create_symlink("real", Client("200"));
  PutFile(Client("train-s3-n0-w1.save"), "");
  PutFile(Client("train-s3-n0-w0.save"), "");
  PutFile(Client("other-s3-n0-w0.save"), "");
  fs::create_directory(Client("train-s4-n0-w0.save"));

  const auto names = [&](Framework framework, SaveScan scan) {
    std::vector<std::string> listed;
    const auto saves = volume().ListSaves(framework, "train", scan);
    EXPECT_TRUE(saves.ok());
    for (const FoundSave& save : *saves) listed.push_back(save.name + (save.finished ? "" : "?"));
    return listed;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(Framework::kOrbax, SaveScan::kRunning), (Names{"0", "007", "99?", "100"}));
  EXPECT_EQ(names(Framework::kOrbax, SaveScan::kAtStart), (Names{"0", "007", "100"}));
  EXPECT_EQ(names(Framework::kPytorchDistributed, SaveScan::kRunning),
            (Names{"0", "007", "99", "100"}));
  EXPECT_EQ(names(Framework::kPytorch, SaveScan::kRunning),
            (Names{"train-s3-n0-w0.save", "train-s3-n0-w1.save"}));
  const auto saves = volume().ListSaves(Framework::kPytorch, "train");
  EXPECT_EQ((*saves)[1].step, 3u);
  EXPECT_EQ((*saves)[1].worker, 1u);
}

TEST_F(VolumeTest, C13_CleaningLeavesOnlyWhatTheProtocolNames) {
  PutFile(Client("3/a"), "kept copy");
  const auto kept = node_.Stage("3", TestIdentity(3));
  PutFile(Client("4/a"), "other copy");
  const auto other = node_.Stage("4", TestIdentity(4));
  ASSERT_TRUE(kept.ok() && other.ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(kept->digest).ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(other->digest).ok());
  const std::string keep = node_.store().Find(kept->digest)->volume_name;

  PutFile(Client("replicator.yaml"), "yaml");
  PutFile(Client("jax-init-info.txt"), "0\nhost:1\n");
  PutFile(Client("replicator.errors"), "old");
  PutFile(Client("train-s3-n0-w0.meta"), "x");
  PutFile(Client(h_ + ".data/a"), "of nobody");
  PutFile(Client("9.orbax-checkpoint-tmp/d/e/f"), "half");
  fs::create_symlink(keep + ".data", Client("3"));
  fs::create_symlink("/nowhere", Client("x.meta"));
  fs::create_directory(Client("y.meta"));
  ASSERT_EQ(::mkfifo(Client("pipe").c_str(), 0600), 0);
  for (const std::string odd : {"replicator.a b", "\n", "\xff\xfe", "'", " ", "-rf", "*", "..x"}) {
    PutFile(Client(odd), "odd");
  }
  for (size_t i = 0; i < Plants().size(); ++i) Plants()[i](Client(fmt::format("plant{}", i)));

  const Status cleaned = volume().Clean({keep});
  ASSERT_TRUE(cleaned.ok()) << cleaned.error().ToString();
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(Client(""))) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"replicator.yaml", "jax-init-info.txt", keep + ".data"}));
  EXPECT_EQ(GetFile(Client(keep + ".data/a")), "kept copy");
  EXPECT_TRUE(node_.store().Verify(other->digest, nullptr).ok);
  EXPECT_EQ(GetFile(node_.path() + "/victim"), "victim");
  EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
}

TEST_F(VolumeTest, CleaningManyAndDeepEntriesTakesBoundedTime) {
  for (int i = 0; i < 20'000; ++i) PutFile(Client(fmt::format("f{}", i)), "");
  for (int i = 0; i < 2'000; ++i) fs::create_directory(Client(fmt::format("d{}", i)));
  auto at = node_.real().OpenDir("client");
  for (int i = 0; i < 5'000; ++i) {
    ASSERT_TRUE((*at)->MakeDir("deep", 0700).ok());
    at = (*at)->OpenDir("deep");
    ASSERT_TRUE(at.ok());
  }
  at->reset();
  ASSERT_TRUE(volume().Clean({}).ok());
  EXPECT_TRUE(fs::is_empty(Client("")));
}

TEST_F(VolumeTest, RestoreLinksLeadToDataThatIsThere) {
  EXPECT_EQ(volume().PlaceRestoreLink(name_, h_).error().code(), Code::kNotFound);
  EXPECT_EQ(volume().PlaceRestoreLink(name_, "../etc").error().code(), Code::kInvalidArgument);
  fs::create_symlink("/etc", Client(h_ + ".data"));
  EXPECT_EQ(volume().PlaceRestoreLink(name_, h_).error().code(), Code::kFailedPrecondition);
  fs::remove(Client(h_ + ".data"));

  PutFile(Client("3/a"), "content");
  const auto staged = node_.Stage("3", TestIdentity(3));
  ASSERT_TRUE(staged.ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(staged->digest).ok());
  const std::string h = node_.store().Find(staged->digest)->volume_name;
  const std::string link = Client("train-s100-n3-w1.restore");
  for (const auto& plant : Plants()) {
    plant(link);
    ASSERT_TRUE(volume().PlaceRestoreLink(name_, h).ok());
    EXPECT_EQ(fs::read_symlink(link), h + ".data");
    EXPECT_EQ(GetFile(link + "/a"), "content");
    fs::remove(link);
  }
}

TEST_F(VolumeTest, ARestoreLinkStandsUntilItsClientIsRidOfIt) {
  PutFile(Client("3/a"), "content");
  const auto staged = node_.Stage("3", TestIdentity(3));
  ASSERT_TRUE(staged.ok());
  ASSERT_TRUE(node_.store().LinkIntoVolume(staged->digest).ok());
  const std::string h = node_.store().Find(staged->digest)->volume_name;
  EXPECT_FALSE(volume().RestoreLinkStands(name_, h));
  ASSERT_TRUE(volume().PlaceRestoreLink(name_, h).ok());
  EXPECT_TRUE(volume().RestoreLinkStands(name_, h));
  EXPECT_FALSE(volume().RestoreLinkStands(name_, h_)) << "it leads elsewhere";
  std::string former = Client("train-s100-n3-w1.restore");
  for (const std::string& taken : {Client("100"), Client("step=100")}) {
    fs::rename(former, taken);
    EXPECT_TRUE(volume().RestoreLinkStands(name_, h));
    former = taken;
  }
  fs::rename(former, Client("elsewhere"));
  EXPECT_FALSE(volume().RestoreLinkStands(name_, h));
}

TEST_F(VolumeTest, RemovesMetasOfOtherSteps) {
  WorkerName old = name_;
  old.step = 99;
  WorkerName peer = name_;
  peer.rank = 2;
  for (const WorkerName& name : {name_, old, peer}) ASSERT_TRUE(volume().WriteMeta(name, h_).ok());
  PutFile(Client("odd.meta/f"), "");
  PutFile(Client("other"), "");
  ASSERT_TRUE(volume().RemoveOtherMetas({name_, peer}).ok());
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(Client(""))) left.insert(entry.path().filename());
  EXPECT_EQ(left,
            (std::set<std::string>{"train-s100-n3-w1.meta", "train-s100-n2-w1.meta", "other"}));
  EXPECT_EQ(volume().WriteMeta(name_, "a/b").error().code(), Code::kInvalidArgument);
}

TEST_F(VolumeTest, ReadsJaxInitInfoAndNothingElseOfThatName) {
  EXPECT_FALSE(volume().ReadJaxInit());
  PutFile(Client("jax-init-info.txt"), "0\nhost:8476\n");
  EXPECT_EQ(volume().ReadJaxInit(), "0\nhost:8476\n");
  PutFile(Client("jax-init-info.txt"), std::string(5000, 'x'));
  EXPECT_FALSE(volume().ReadJaxInit());
  fs::remove(Client("jax-init-info.txt"));
  fs::create_symlink("/etc/hostname", Client("jax-init-info.txt"));
  EXPECT_FALSE(volume().ReadJaxInit());
}

}  // namespace
}  // namespace tierkeep
