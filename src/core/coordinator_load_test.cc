// What the coordinator says and hears in jobs of growing size: counts, never times.

#include <gtest/gtest.h>

#include "core/coordinator.h"
#include "core/coordinator_load_testutil.h"

namespace tierkeep {
namespace {

// Above the size up to which every member is told everything.
constexpr uint32_t kSmall = 200;
constexpr uint32_t kLarge = 10 * kSmall;
static_assert(kSmall > 3 * kWholeViewMax);

// `large` has ten times the members; larger numbers take a byte more.
void ExpectLinear(uint64_t small, uint64_t large, const char* what) {
  EXPECT_LE(large, 10 * small + small / 2 + 10) << what;
}

void ExpectLinear(const CoordinatorLoadRound& small, const CoordinatorLoadRound& large,
                  const std::string& what) {
  ExpectLinear(small.messages_in, large.messages_in, (what + ": messages in").c_str());
  ExpectLinear(small.messages_out, large.messages_out, (what + ": messages out").c_str());
  ExpectLinear(small.bytes_in, large.bytes_in, (what + ": bytes in").c_str());
  ExpectLinear(small.bytes_out, large.bytes_out, (what + ": bytes out").c_str());
}

struct Rounds {
  CoordinatorLoad::Start first;
  CoordinatorLoadRound save;
  CoordinatorLoad::Start again;
};

Rounds SaveAndRestore(uint32_t nodes, uint32_t peers) {
  CoordinatorLoad load(nodes, peers);
  Rounds rounds;
  rounds.first = load.StartRun();
  EXPECT_TRUE(load.all_released());
  EXPECT_EQ(load.restored_step(), 0u);
  rounds.save = load.Save(7);
  EXPECT_EQ(load.committed_step(), 7u);
  rounds.again = load.StartRun();
  EXPECT_EQ(load.restored_step(), 7u);
  return rounds;
}

TEST(CoordinatorLoad, GrowsWithTheNumberOfMembers) {
  for (const uint32_t peers : {1u, 2u}) {
    const Rounds small = SaveAndRestore(kSmall, peers);
    const Rounds large = SaveAndRestore(kLarge, peers);
    // A member says Join and RestorePrepared; SaveStaged, Kept, CommitRecorded; then Join,
    // RestorePrepared and, since what is restored is the new run's first generation,
    // CommitRecorded.
    EXPECT_EQ(large.first.gather.messages_in + large.first.restore.messages_in, 2 * kLarge);
    EXPECT_EQ(large.save.messages_in, 3 * kLarge);
    EXPECT_EQ(large.again.gather.messages_in + large.again.restore.messages_in, 3 * kLarge);
    ExpectLinear(small.first.gather, large.first.gather, "joins");
    ExpectLinear(small.first.restore, large.first.restore, "start without a checkpoint");
    ExpectLinear(small.save, large.save, "save");
    ExpectLinear(small.again.gather, large.again.gather, "joins with a checkpoint");
    ExpectLinear(small.again.restore, large.again.restore, "restore");
  }
}

// Small jobs are told everything, which is bounded by their size.
TEST(CoordinatorLoad, ASmallJobKnowsAll) {
  const Rounds rounds = SaveAndRestore(kWholeViewMax, /*peers=*/1);
  EXPECT_LE(rounds.save.bytes_out, kWholeViewMax * kWholeViewMax * 200);
}

}  // namespace
}  // namespace tierkeep
