// Every call of every operation fails once, and every operation is cut off after every call.
// Whatever happens, the older shard stays whole, and nothing half-made is ever taken for a shard.
#include <gtest/gtest.h>

#include <filesystem>

#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

// A node with a committed shard, and what is about to happen to it.
struct Scene {
  RamNode node;
  Blake3 older;
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
  }
};

struct Operation {
  std::string name;
  std::function<void(Scene&)> prepare;
  std::function<Status(Scene&)> run;
};

Status Stage(Scene& scene) {
  TK_RETURN_IF_ERROR(scene.node.stager().Take("2", "s"));
  const auto staged = scene.node.stager().HashAndAdopt("s", TestIdentity(2), nullptr);
  return staged.ok() ? OkStatus() : Status(staged.error());
}

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
      {"Stage", none, Stage},
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
       }},
      {"Verify", none,
       [](Scene& s) -> Status {
         const VerifyResult result = s.node.store().Verify(s.older, nullptr);
         return result.ok ? OkStatus() : Status(Error(Code::kUnknown, result.problem));
       }},
      {"DeleteStaged", [](Scene& s) { TK_CHECK(s.node.stager().Take("2", "s").ok()); },
       [](Scene& s) -> Status { return s.node.store().DeleteStaged("s"); }},
      {"Open", link, [](Scene& s) -> Status { return s.node.Reopen(); }},
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
    EXPECT_LE(store.Shards().size(), 2u) << when;
    for (const HeldShard& shard : store.Shards()) {
      const VerifyResult verified = store.Verify(shard.digest, nullptr);
      EXPECT_TRUE(verified.ok) << when << verified.problem;
    }
    EXPECT_TRUE(fs::is_empty(scene.node.InStore("incoming"))) << when;
    EXPECT_TRUE(fs::is_empty(scene.node.InStore("trash"))) << when;
    for (const std::string& name : store.Staged()) {
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
      // And then it works.
      if (operation.name == "Receive" || operation.name == "Link") {
        const Status again = operation.run(scene);
        EXPECT_TRUE(again.ok()) << when << again.error().ToString();
      }
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

INSTANTIATE_TEST_SUITE_P(Operations, FaultsTest, testing::Range<size_t>(0, 9),
                         [](const auto& test) { return Operations()[test.param].name; });

}  // namespace
}  // namespace tierkeep
