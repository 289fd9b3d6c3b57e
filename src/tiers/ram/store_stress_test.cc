// Many threads do everything at once to a few shards; what is held in the end must be whole.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "format/store_names.h"
#include "format/volume_names.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

constexpr int kShards = 3;
constexpr int kThreads = 4;
constexpr int kRounds = 60;

class StoreStressTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kShards; ++i) {
      PutFile(other_.Client("1/d/a"), std::string(150'000, static_cast<char>('a' + i)));
      PutFile(other_.Client("1/b"), std::to_string(i));
      const auto staged = other_.Stage("1", TestIdentity(static_cast<Step>(i)));
      ASSERT_TRUE(staged.ok());
      shards_.push_back(*other_.store().Find(staged->digest));
    }
  }

  Status Receive(const HeldShard& shard) {
    TK_ASSIGN_OR_RETURN(auto incoming, node_.store().StartIncoming(*shard.encoded));
    const auto& entries = shard.manifest->entries;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].type != EntryType::kFile) continue;
      TK_ASSIGN_OR_RETURN(auto file, other_.store().OpenEntry(shard.digest, i));
      TK_ASSIGN_OR_RETURN(const MutableByteSpan target, incoming->Target(i));
      TK_RETURN_IF_ERROR(file->ReadExactly(0, target));
    }
    return incoming->Finish();
  }

  // Whatever a call says, it must not be damage.
  static void ExpectNoDamage(const Status& status) {
    if (status.ok()) return;
    EXPECT_NE(status.error().code(), Code::kDataLoss) << status.error().message();
  }

  void DoSomething(Prng& prng, int thread, int round) {
    Store& store = node_.store();
    const HeldShard& shard = shards_[prng.Below(shards_.size())];
    switch (prng.Below(8)) {
      case 0:
      case 1:
        ExpectNoDamage(Receive(shard));
        break;
      case 2: {
        // A bad result is right only when the shard went meanwhile.
        const VerifyResult verified = store.Verify(shard.digest, nullptr);
        EXPECT_EQ(verified.problem.find("differ"), std::string::npos) << verified.problem;
        break;
      }
      case 3:
        ExpectNoDamage(store.LinkIntoVolume(shard.digest));
        break;
      case 4:
        ExpectNoDamage(store.UnlinkFromVolume(shard.volume_name));
        break;
      case 5:
        ExpectNoDamage(store.Delete(shard.digest));
        break;
      case 6: {
        const std::string name = fmt::format("{}{}", thread + 1, round);
        PutFile(node_.Client(name + "/f"), name);
        ExpectNoDamage(node_.stager().Take(name, name));
        ExpectNoDamage(store.DeleteStaged(name));
        break;
      }
      default:
        ExpectNoDamage(node_.volume().AppendError("line"));
        for (const HeldShard& held : store.Shards()) EXPECT_FALSE(held.encoded->empty());
        (void)store.held_bytes();
    }
  }

  const uint64_t seed_ = TestSeed();
  testing::ScopedTrace trace_{__FILE__, __LINE__, fmt::format("TIERKEEP_TEST_SEED={}", seed_)};
  RamNode node_;
  RamNode other_;
  std::vector<HeldShard> shards_;
};

TEST_F(StoreStressTest, EverythingAtOnceLeavesWholeShards) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      Prng prng(seed_ + static_cast<uint64_t>(thread));
      for (int round = 0; round < kRounds; ++round) DoSomething(prng, thread, round);
    });
  }
  for (std::thread& thread : threads) thread.join();

  for (int restart = 0; restart < 2; ++restart) {
    Store& store = node_.store();
    EXPECT_TRUE(store.unreadable().empty());
    EXPECT_EQ(static_cast<size_t>(std::distance(fs::directory_iterator(node_.InStore("shards")),
                                                fs::directory_iterator())),
              store.Shards().size());
    for (const HeldShard& shard : store.Shards()) {
      const VerifyResult verified = store.Verify(shard.digest, nullptr);
      EXPECT_TRUE(verified.ok) << verified.problem;
    }
    EXPECT_TRUE(fs::is_empty(node_.InStore("incoming")));
    EXPECT_TRUE(fs::is_empty(node_.InStore("trash")));
    for (const HeldShard& shard : shards_) {
      const bool linked = Exists(node_.Client(DataName(shard.volume_name)));
      EXPECT_TRUE(!linked || store.Find(shard.digest)) << "links of a shard that is gone";
    }
    ASSERT_TRUE(node_.Reopen().ok());
  }
}

}  // namespace
}  // namespace tierkeep
