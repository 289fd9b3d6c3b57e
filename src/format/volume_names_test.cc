#include "format/volume_names.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "format/format_testutil.h"

namespace tierkeep {
namespace {

TEST(VolumeNames, Forms) {
  const WorkerName name{"my-job", 100, 3, 1};
  EXPECT_EQ(MetaName(name), "my-job-s100-n3-w1.meta");
  EXPECT_EQ(RestoreName(name), "my-job-s100-n3-w1.restore");
  EXPECT_EQ(SaveFileName(name), "my-job-s100-n3-w1.save");
  EXPECT_EQ(DataName("abc"), "abc.data");
}

TEST(VolumeNames, ReadBack) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string jobs[] = {"j", "0123", "a.b_c-d", "x-s1-n2-w3", "x-s1", std::string(128, 'z')};
  for (int i = 0; i < 1000; ++i) {
    const WorkerName name{jobs[prng.Below(std::size(jobs))], prng.Next() >> prng.Below(64),
                          static_cast<Rank>(prng.Below(kNodesMax)),
                          static_cast<Worker>(prng.Below(kWorkersPerNodeMax))};
    ASSERT_EQ(ParseWorkerName(MetaName(name), ".meta"), name);
    ASSERT_EQ(ParseWorkerName(RestoreName(name), ".restore"), name);
    ASSERT_EQ(ParseWorkerName(MetaName(name), ".restore"), std::nullopt);
  }
}

TEST(VolumeNames, C15OnlyCanonicalAnchoredNames) {
  ASSERT_TRUE(ParseWorkerName("j-s5-n0-w0.meta", ".meta").has_value());
  ASSERT_TRUE(ParseWorkerName("j-s18446744073709551615-n0-w0.meta", ".meta").has_value());
  for (const char* bad : {"j-s0005-n0-w0.meta",
                          "j-s5-n00-w0.meta",
                          "j-s5-n0-w01.meta",
                          "a/j-s5-n0-w0.meta",
                          "j-s5-n0-w0.meta.meta",
                          "j-s5-n0-w0.meta.tmp",
                          "j-s5-n0-w0",
                          ".meta",
                          "-s5-n0-w0.meta",
                          "j-s-n0-w0.meta",
                          "j-s5-n-w0.meta",
                          "j-s5-n0-w.meta",
                          "j-s+5-n0-w0.meta",
                          "j-s5-n-1-w0.meta",
                          "j-s5-n0-w0 .meta",
                          " j-s5-n0-w0.meta",
                          "j-s5-w0-n0.meta",
                          "j-s18446744073709551616-n0-w0.meta",
                          "j-s5-n4294967296-w0.meta",
                          "j-s5-n1048576-w0.meta",
                          "j-s5-n0-w4096.meta",
                          "js5-n0-w0.meta",
                          "j-s5-n0-w0\n.meta",
                          "*-s5-n0-w0.meta"}) {
    EXPECT_EQ(ParseWorkerName(bad, ".meta"), std::nullopt) << bad;
  }
}

TEST(VolumeNames, DataNames) {
  const std::string hex(64, 'a');
  EXPECT_EQ(ParseDataName(hex + ".data"), hex);
  EXPECT_EQ(ParseDataName(fmt::format("D{}.data", hex)), fmt::format("D{}", hex));
  EXPECT_EQ(ParseDataName(fmt::format("{:z>64}.data", "")), std::string(64, 'z'));
  EXPECT_EQ(ParseDataName(fmt::format("{:A>64}.data", "")), std::nullopt);
  EXPECT_EQ(ParseDataName(hex.substr(1) + ".data"), std::nullopt);
  for (const char* bad : {"{}", "{}.data.tmp", "DD{}.data", "x/{}.data", "d{}.data", "{}a.data",
                          "a{}.data", "D.data", ".data", "../../etc/passwd.data", "{}.data\n"}) {
    EXPECT_EQ(ParseDataName(fmt::format(fmt::runtime(bad), hex)), std::nullopt) << bad;
  }
}

TEST(VolumeNames, StepNames) {
  EXPECT_EQ(ParseStepName("0"), 0u);
  EXPECT_EQ(ParseStepName("100"), 100u);
  EXPECT_EQ(ParseStepName("000100"), 100u);
  EXPECT_EQ(ParseStepName("18446744073709551615"), UINT64_MAX);
  for (const char* bad : {"", "18446744073709551616", "1 ", " 1", "+1", "-1", "1.0", "step=1",
                          "1.orbax-checkpoint-tmp", "0x1", "१"}) {
    EXPECT_EQ(ParseStepName(bad), std::nullopt) << bad;
  }
}

TEST(VolumeNames, JobNames) {
  for (const char* good : {"j", "0123", "no", "2024-01-01", "A_b.c-d"}) {
    EXPECT_TRUE(IsValidJobName(good)) << good;
  }
  EXPECT_TRUE(IsValidJobName(std::string(128, 'j')));
  for (const std::string& bad :
       {std::string(""), std::string("."), std::string(".."), std::string("-x"), std::string("a/b"),
        std::string("a*"), std::string("a b"), std::string("$JOB_NAME"), std::string(129, 'j')}) {
    EXPECT_FALSE(IsValidJobName(bad)) << bad;
  }
}

}  // namespace
}  // namespace tierkeep
