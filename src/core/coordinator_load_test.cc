// What the coordinator says and hears in jobs of growing size: counts, never times.

#include <gtest/gtest.h>

#include "core/coordinator_load_testutil.h"

namespace tierkeep {
namespace {

// `large` has ten times the members; larger numbers take a byte more.
void ExpectLinear(uint64_t small, uint64_t large, const char* what) {
  EXPECT_LE(large, 10 * small + small / 5 + 10) << what;
}

TEST(CoordinatorLoad, AThousandMembersJoinAndStart) {
  CoordinatorLoad small(100, /*peers=*/1);
  CoordinatorLoad large(1000, /*peers=*/1);
  const CoordinatorLoad::Start few = small.StartRun();
  const CoordinatorLoad::Start many = large.StartRun();
  EXPECT_TRUE(large.all_released());
  EXPECT_EQ(large.restored_step(), 0u);
  // A member says Join and RestorePrepared, and is told a bounded number of things.
  EXPECT_EQ(many.gather.messages_in + many.restore.messages_in, 2 * 1000u);
  ExpectLinear(few.gather.messages_out, many.gather.messages_out, "messages of gathering");
  ExpectLinear(few.restore.messages_out, many.restore.messages_out, "messages of the decision");
  ExpectLinear(few.gather.bytes_in, many.gather.bytes_in, "bytes of joins");
  ExpectLinear(few.restore.bytes_in, many.restore.bytes_in, "bytes of answers");
  // RunStart names every member to every member.
  EXPECT_LE(many.restore.bytes_out, 1000u * 1000u * 100u);
}

struct Rounds {
  CoordinatorLoadRound save;
  CoordinatorLoad::Start again;
};

Rounds SaveAndRestore(uint32_t nodes) {
  CoordinatorLoad load(nodes, /*peers=*/1);
  load.StartRun();
  Rounds rounds;
  rounds.save = load.Save(7);
  EXPECT_EQ(load.committed_step(), 7u);
  rounds.again = load.StartRun();
  EXPECT_EQ(load.restored_step(), 7u);
  return rounds;
}

TEST(CoordinatorLoad, ASaveAndARestore) {
  const Rounds small = SaveAndRestore(25);
  const Rounds large = SaveAndRestore(250);
  // SaveStaged, Kept, CommitRecorded; then Join, RestorePrepared and, since what is restored is
  // the new run's first generation, CommitRecorded.
  EXPECT_EQ(large.save.messages_in, 3 * 250u);
  EXPECT_EQ(large.again.gather.messages_in + large.again.restore.messages_in, 3 * 250u);
  ExpectLinear(small.save.messages_out, large.save.messages_out, "messages of a save");
  ExpectLinear(small.again.restore.messages_out, large.again.restore.messages_out,
               "messages of a restore");
  ExpectLinear(small.save.bytes_in, large.save.bytes_in, "bytes said in a save");
  ExpectLinear(small.again.restore.bytes_in, large.again.restore.bytes_in, "bytes of answers");
  // A commit and a decision name every shard of the job to every member: so much for each.
  EXPECT_LE(large.save.bytes_out, 250u * 250u * 200u);
  EXPECT_LE(large.again.restore.bytes_out, 250u * 250u * 450u);
}

}  // namespace
}  // namespace tierkeep
