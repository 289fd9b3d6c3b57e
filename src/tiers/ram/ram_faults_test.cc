// Every call of every operation fails once, every operation is cut off after every call, and the
// volume becomes full at every call. Whatever happens, the last committed generation stays whole,
// nothing half-made is ever taken for a shard, and with space again the operation works.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "format/generation_record.h"
#include "format/messages.h"
#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

// A node with a committed shard, and what is about to happen to it.
struct Scene {
  RamNode node;
  Prng prng{1};
  Blake3 older;
  control::GenerationRecord committed;
  std::string newer_encoded;  // of a shard that another node has
  std::string content = std::string(300'000, 'n');

  Scene() {
    MakeOlder();
    PutFile(node.Client("2/d/a"), content);
    PutFile(node.Client("2/e"), "");
    fs::create_symlink("e", node.Client("2/l"));
  }
  void MakeOlder() {
    PutFile(node.Client("1/d/a"), std::string(200'000, 'o'));
    PutFile(node.Client("1/b"), "older");
    const auto staged = node.Stage("1", TestIdentity(1));
    TK_CHECK(staged.ok());
    older = staged->digest;
    committed = NewRecord();
    TK_CHECK(node.store().WriteGeneration(Shared(committed)).ok());
  }
  control::GenerationRecord NewRecord() {
    return RandomGeneration(&prng, "train", TestIdentity(1).world);
  }
  bool HasCommitted() {
    const auto records = node.store().Generations();
    return std::any_of(records.begin(), records.end(), [&](const auto& record) {
      return record->SerializeAsString() == committed.SerializeAsString();
    });
  }
};

struct Operation {
  std::string name;
  std::function<void(Scene&)> prepare;
  std::function<Status(Scene&)> run;
  std::function<Status(Scene&)> again = {};  // after a failure, where that isn't `run`
};

Status Stage(Scene& scene) {
  TK_RETURN_IF_ERROR(scene.node.stager().Take("2", "s"));
  const auto staged = scene.node.stager().HashAndAdopt("s", TestIdentity(2), nullptr);
  return staged.ok() ? OkStatus() : Status(staged.error());
}

// Wherever the first try ended.
Status StageAgain(Scene& scene) {
  if (Exists(scene.node.Client("2"))) TK_RETURN_IF_ERROR(scene.node.stager().Take("2", "s"));
  if (!Exists(scene.node.InStore("staged/s"))) return OkStatus();
  const auto staged = scene.node.stager().HashAndAdopt("s", TestIdentity(2), nullptr);
  return staged.ok() ? OkStatus() : Status(staged.error());
}

const WorkerName kName{"train", 1, 0, 0};

// The newer shard as a pull brings it.
void PrepareIncoming(Scene& scene) {
  RamNode other;
  PutFile(other.Client("2/d/a"), scene.content);
  PutFile(other.Client("2/e"), "");
  fs::create_symlink("e", other.Client("2/l"));
  const auto staged = other.Stage("2", TestIdentity(2));
  TK_CHECK(staged.ok());
  scene.newer_encoded = *other.store().Find(staged->digest)->encoded;
}

Status Receive(Scene& scene) {
  TK_ASSIGN_OR_RETURN(auto incoming, scene.node.store().StartIncoming(scene.newer_encoded));
  const auto& entries = incoming->manifest().entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].bytes == 0) continue;
    TK_ASSIGN_OR_RETURN(const MutableByteSpan target, incoming->Target(i));
    const ByteSpan content = AsBytes(scene.content);
    std::copy(content.begin(), content.end(), target.begin());
  }
  return incoming->Finish();
}

std::string Older(Scene& scene) { return scene.node.store().Find(scene.older)->volume_name; }

std::vector<Operation> Operations() {
  const auto none = [](Scene&) {};
  const auto link = [](Scene& scene) {
    TK_CHECK(scene.node.store().LinkIntoVolume(scene.older).ok());
  };
  return {
      {"Stage", none, Stage, StageAgain},
      {"Receive", PrepareIncoming, Receive},
      {"Link", none, [](Scene& s) -> Status { return s.node.store().LinkIntoVolume(s.older); }},
      {"Relink", link,
       [](Scene& s) -> Status {
         TK_RETURN_IF_ERROR(s.node.store().UnlinkFromVolume(Older(s)));
         return s.node.store().LinkIntoVolume(s.older);
       }},
      {"Unlink", link,
       [](Scene& s) -> Status { return s.node.store().UnlinkFromVolume(Older(s)); }},
      {"Clean", link,
       [](Scene& s) -> Status {
         TK_RETURN_IF_ERROR(s.node.stager().Take("2", "s"));
         PutFile(s.node.Client("odd/a"), "x");
         return s.node.volume().Clean({});
       },
       [](Scene& s) -> Status { return s.node.volume().Clean({}); }},
      {"Verify", none,
       [](Scene& s) -> Status {
         const VerifyResult result = s.node.store().Verify(s.older, nullptr);
         // Its bytes are good: whatever fails says nothing against them.
         EXPECT_TRUE(result.ok || result.unread) << result.problem;
         return result.ok ? OkStatus() : Status(Error(Code::kUnknown, result.problem));
       }},
      {"DeleteStaged", [](Scene& s) { TK_CHECK(s.node.stager().Take("2", "s").ok()); },
       [](Scene& s) -> Status { return s.node.store().DeleteStaged("s"); }},
      {"Open", link, [](Scene& s) -> Status { return s.node.Reopen(); }},
      {"Record", none,
       [](Scene& s) -> Status { return s.node.store().WriteGeneration(Shared(s.NewRecord())); }},
      {"Meta", none, [](Scene& s) -> Status { return s.node.volume().WriteMeta(kName, Older(s)); }},
      {"Prerestore", none,
       [](Scene& s) -> Status { return s.node.volume().WritePrerestore(1, ""); }},
      {"PlaceLink", link,
       [](Scene& s) -> Status { return s.node.volume().PlaceRestoreLink(kName, Older(s)); }},
      {"Delete", [](Scene& s) { TK_CHECK(Stage(s).ok()); },
       [](Scene& s) -> Status {
         for (const HeldShard& shard : s.node.store().Shards()) {
           if (shard.digest == s.older) continue;
           TK_RETURN_IF_ERROR(s.node.store().Delete(shard.digest));
         }
         return OkStatus();
       }},
  };
}

class FaultsTest : public testing::TestWithParam<size_t> {
 protected:
  // After any trouble: restart on a sound file system.
  void ExpectSound(Scene& scene, const std::string& when) {
    scene.node.faults().Clear();
    const Status opened = scene.node.Reopen();
    ASSERT_TRUE(opened.ok()) << when << opened.error().ToString();
    Store& store = scene.node.store();
    EXPECT_TRUE(store.unreadable().empty()) << when << store.unreadable()[0].detail;
    EXPECT_TRUE(store.Find(scene.older)) << when;
    EXPECT_TRUE(scene.HasCommitted()) << when;
    EXPECT_LE(store.Shards().size(), 2u) << when;
    for (const HeldShard& shard : store.Shards()) {
      const VerifyResult verified = store.Verify(shard.digest, nullptr);
      EXPECT_TRUE(verified.ok) << when << verified.problem;
    }
    EXPECT_TRUE(fs::is_empty(scene.node.InStore("incoming"))) << when;
    EXPECT_TRUE(fs::is_empty(scene.node.InStore("trash"))) << when;
    const std::vector<std::string> staged = *store.Staged();
    for (const std::string& name : staged) {
      EXPECT_TRUE(Exists(scene.node.InStore("staged/" + name + "/data"))) << when;
    }
    ExpectLinksGuarded(scene, when);
  }

  // Names in the volume are either protected or known to be not.
  void ExpectLinksGuarded(Scene& scene, const std::string& when) {
    const auto held = scene.node.store().Find(scene.older);
    const std::string file = scene.node.Client(DataName(held->volume_name)) + "/b";
    if (!Exists(file) || held->suspect) return;
    EXPECT_EQ(fs::hard_link_count(file), 2u) << when;
    FILE* f = fopen(file.c_str(), "r+b");
    EXPECT_EQ(f, nullptr) << when << "a copy that counts can be written through the volume";
    if (f != nullptr) fclose(f);
  }

  void ExpectWorks(const Operation& operation, Scene& scene, const std::string& when) {
    const Status again = operation.again ? operation.again(scene) : operation.run(scene);
    EXPECT_TRUE(again.ok()) << when << "again: " << again.error().ToString();
  }

  // From one call on nothing that takes what is named can be had.
  void FillAtEachCall(const std::vector<std::string_view>& calls) {
    const Operation operation = Operations()[GetParam()];
    const auto fails = [&calls](std::string_view call) {
      return std::find(calls.begin(), calls.end(), call) != calls.end();
    };
    for (uint64_t n = 1;; ++n) {
      Scene scene;
      operation.prepare(scene);
      scene.node.faults().FailFrom(n, ErrnoError(ENOSPC, "injected"), fails);
      const Status done = operation.run(scene);
      const std::string when = fmt::format("{}, full from call {}: ", operation.name, n);
      if (!scene.node.faults().hit()) {
        EXPECT_TRUE(done.ok()) << when << done.error().ToString();
        return;
      }
      if (!done.ok() && operation.name != "Verify") {
        EXPECT_EQ(done.error().code(), Code::kResourceExhausted) << when;
      }
      if (operation.name != "Open" || done.ok()) {
        // Still full, and nothing is lost.
        const VerifyResult verified = scene.node.store().Verify(scene.older, nullptr);
        EXPECT_TRUE(verified.ok) << when << verified.problem;
        EXPECT_TRUE(scene.HasCommitted()) << when;
        scene.node.faults().Clear();
        ExpectWorks(operation, scene, when);
      }
      ExpectSound(scene, when);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
  }

  void RunAll(const Error& error, Faults::After after) {
    const Operation operation = Operations()[GetParam()];
    uint64_t n = 1;
    for (;; ++n) {
      Scene scene;
      operation.prepare(scene);
      scene.node.faults().FailAt(n, error, after);
      const Status done = operation.run(scene);
      const bool hit = scene.node.faults().hit();
      const std::string when = fmt::format("{}, call {}: ", operation.name, n);
      if (!hit) {
        EXPECT_TRUE(done.ok()) << when << done.error().ToString();
        break;
      }
      if (!done.ok() && after == Faults::After::kWorks && operation.name != "Verify") {
        EXPECT_NE(done.error().code(), Code::kUnknown) << when;
      }
      ExpectSound(scene, when);
      ExpectWorks(operation, scene, when);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
    EXPECT_GT(n, 2u) << "no call was ever made to fail";
  }
};

TEST_P(FaultsTest, EachCallFailsOnceForLackOfSpace) {
  RunAll(ErrnoError(ENOSPC, "injected"), Faults::After::kWorks);
}
TEST_P(FaultsTest, A7_EachCallFailsOnceWithAnIoError) {
  RunAll(ErrnoError(EIO, "injected"), Faults::After::kWorks);
}
TEST_P(FaultsTest, KilledBeforeEachCall) {
  RunAll(Error(Code::kInternal, "killed"), Faults::After::kFails);
}

// Pages, as on a full tmpfs; and what counts against its number of inodes.
TEST_P(FaultsTest, TheVolumeIsFullFromEachCallOn) {
  FillAtEachCall({"WriteAll", "Allocate", "WriteFileAtomically"});
}
TEST_P(FaultsTest, NoMoreFilesFromEachCallOn) {
  FillAtEachCall({"CreateFile", "MakeDir", "MakeDirs", "MakeSymlink", "WriteFileAtomically"});
}

INSTANTIATE_TEST_SUITE_P(Operations, FaultsTest, testing::Range<size_t>(0, 14),
                         [](const auto& test) { return Operations()[test.param].name; });

}  // namespace
}  // namespace tierkeep
