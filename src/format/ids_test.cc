#include "format/ids.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

const Id128 kNonce = *Id128::FromHex("0a1b2c3d000000000000000000000001");

TEST(Ids, ReadableForms) {
  const RunId run{17, kNonce};
  EXPECT_EQ(run.ToString(), "17-0a1b2c3d");
  EXPECT_EQ(RunId{}.ToString(), "none");
  EXPECT_EQ((SaveKey{run, 100, 1}).ToString(), "step 100 (run 17-0a1b2c3d)");
  EXPECT_EQ((SaveKey{run, 100, 2}).ToString(), "step 100 (run 17-0a1b2c3d, occurrence 2)");
}

TEST(Ids, NewestIsTheHighestRunThenTheHighestSaveNumber) {
  const GenerationId old_run{{3, Id128{}}, 900};
  const GenerationId first{{4, Id128{}}, 1};
  const GenerationId second{{4, Id128{}}, 2};
  EXPECT_LT(old_run, first);
  EXPECT_LT(first, second);
}

TEST(Ids, FrameworkNames) {
  for (const Framework f :
       {Framework::kOrbax, Framework::kPytorchDistributed, Framework::kPytorch}) {
    EXPECT_EQ(ParseFramework(FrameworkName(f)), f);
  }
  EXPECT_EQ(FrameworkName(Framework::kPytorchDistributed), "pytorch.distributed");
  EXPECT_EQ(ParseFramework("Orbax"), std::nullopt);
  EXPECT_EQ(ParseFramework(""), std::nullopt);
}

TEST(Ids, NodeNames) {
  for (const char* good : {"n", "node-1", "10.0.0.1", "a_b", "0", "gke-pool-1.c.internal"}) {
    EXPECT_TRUE(IsValidNodeName(good)) << good;
  }
  for (const char* bad : {"", ".", "..", "-n", "_n", "a/b", "a b", "a\n", "a*", "ä", "a:1"}) {
    EXPECT_FALSE(IsValidNodeName(bad)) << bad;
  }
  EXPECT_TRUE(IsValidNodeName(std::string(253, 'n')));
  EXPECT_FALSE(IsValidNodeName(std::string(254, 'n')));
  EXPECT_FALSE(IsValidNodeName(std::string("a\0b", 3)));
}

TEST(Ids, WorldShapes) {
  const WorldShape good{Framework::kOrbax, 8, 1, 2};
  EXPECT_TRUE(CheckWorldShape(good).ok());
  EXPECT_EQ(good.replicas(), 2u);
  EXPECT_EQ((WorldShape{Framework::kOrbax, 8, 1, 1}).replicas(), 1u);
  EXPECT_EQ((WorldShape{Framework::kOrbax, 8, 1, 0}).replicas(), 1u);
  EXPECT_TRUE(CheckWorldShape({Framework::kPytorch, kNodesMax, kWorkersPerNodeMax, 0}).ok());
  for (const WorldShape& bad : {
           WorldShape{Framework::kOrbax, 0, 1, 0},
           WorldShape{Framework::kOrbax, kNodesMax + 1, 1, 0},
           WorldShape{Framework::kOrbax, 1, 0, 0},
           WorldShape{Framework::kOrbax, 1, kWorkersPerNodeMax + 1, 0},
           WorldShape{Framework::kOrbax, 8, 1, 3},
           WorldShape{Framework::kOrbax, 8, 1, 16},
           WorldShape{static_cast<Framework>(0), 1, 1, 0},
       }) {
    EXPECT_FALSE(CheckWorldShape(bad).ok()) << bad.nodes << " " << bad.data_parallelism;
  }
}

}  // namespace
}  // namespace tierkeep
