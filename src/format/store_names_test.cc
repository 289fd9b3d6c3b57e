#include "format/store_names.h"

#include <gtest/gtest.h>

#include "format/format_testutil.h"

namespace tierkeep {
namespace {

const RunId kRun{17, *Id128::FromHex("0a1b2c3d4e5f60718293a4b5c6d7e8f9")};
const SaveUnit kUnit{{kRun, 100, 2}, 3, 1};

TEST(StoreNames, Forms) {
  EXPECT_EQ(RunDirName(kRun), "17-0a1b2c3d4e5f60718293a4b5c6d7e8f9");
  EXPECT_EQ(StagedPath(kUnit), "staged/17-0a1b2c3d4e5f60718293a4b5c6d7e8f9-100-2-3-1");
  EXPECT_EQ(IncomingPath({kUnit, 0xabc}),
            "incoming/17-0a1b2c3d4e5f60718293a4b5c6d7e8f9-100-2-3-1.0000000000000abc");
  const Blake3 digest = ComputeBlake3("x");
  EXPECT_EQ(ShardPath(digest), "shards/" + digest.Hex());
  EXPECT_EQ(ShardManifestPath(digest), ShardPath(digest) + "/manifest");
  EXPECT_EQ(ShardDataPath(digest), ShardPath(digest) + "/data");
  EXPECT_EQ(ShardStatePath(digest), ShardPath(digest) + "/state");
  EXPECT_EQ(GenerationPath({kRun, 4}), "generations/17-0a1b2c3d4e5f60718293a4b5c6d7e8f9/4");
}

TEST(StoreNames, ReadBack) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 1000; ++i) {
    const SaveUnit unit{{RandomRun(&prng), prng.Next() >> prng.Below(64),
                         static_cast<uint32_t>(1 + prng.Below(UINT32_MAX))},
                        static_cast<Rank>(prng.Below(kNodesMax)),
                        static_cast<Worker>(prng.Below(kWorkersPerNodeMax))};
    ASSERT_EQ(ParseRunDirName(RunDirName(unit.save.run)), unit.save.run);
    ASSERT_EQ(ParseStagedName(StagedName(unit)), unit);
    const IncomingUnit incoming{unit, prng.Next()};
    ASSERT_EQ(ParseIncomingName(IncomingName(incoming)), incoming);
    ASSERT_EQ(ParseStagedName(IncomingName(incoming)), std::nullopt);
    ASSERT_EQ(ParseIncomingName(StagedName(unit)), std::nullopt);
    const uint64_t number = 1 + prng.Below(UINT64_MAX);
    ASSERT_EQ(ParseGenerationFileName(GenerationFileName(number)), number);
  }
}

// One changed character gives another name or none, never the same one.
TEST(StoreNames, WhatIsParsedFormatsBackToTheSameText) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string good = IncomingName({kUnit, 5});
  const std::string alphabet = "0123456789abcdefg-./ \n";
  for (int i = 0; i < 20000; ++i) {
    std::string name = good;
    const size_t place = prng.Below(name.size());
    if (prng.Chance(1, 3)) {
      name.erase(place, 1);
    } else if (prng.Chance(1, 2)) {
      name.insert(place, 1, alphabet[prng.Below(alphabet.size())]);
    } else {
      name[place] = alphabet[prng.Below(alphabet.size())];
    }
    if (const auto parsed = ParseIncomingName(name)) {
      ASSERT_EQ(IncomingName(*parsed), name);
    }
    const std::string staged = name.substr(0, name.find('.'));
    if (const auto parsed = ParseStagedName(staged)) {
      ASSERT_EQ(StagedName(*parsed), staged);
    }
  }
}

TEST(StoreNames, D14_OtherFormsAreRefused) {
  const std::string run = RunDirName(kRun);
  for (const std::string& bad :
       {std::string(), std::string("17"), std::string("17-"), "0-" + run.substr(3), "0" + run,
        run.substr(0, 20), run + "0", "17-0A1B2C3D4E5F60718293A4B5C6D7E8F9" + std::string(),
        "-" + run, "/" + run}) {
    EXPECT_EQ(ParseRunDirName(bad), std::nullopt) << bad;
  }
  for (const std::string& bad :
       {run, run + "-1-1-1", run + "-1-0-1-1", run + "-1-1-1-1-1", run + "-01-1-1-1",
        run + "-1-1-1048576-1", run + "-1-1-1-4096", run + "-1-1-1-1/", run + "-1-4294967296-1-1",
        std::string("....")}) {
    EXPECT_EQ(ParseStagedName(bad), std::nullopt) << bad;
  }
  for (const char* bad : {"", "0", "01", "+1", "1.tmp", "18446744073709551616"}) {
    EXPECT_EQ(ParseGenerationFileName(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(ParseShardDirName(std::string(64, 'A')), std::nullopt);
  EXPECT_EQ(ParseShardDirName(std::string(63, 'a')), std::nullopt);
}

}  // namespace
}  // namespace tierkeep
