#include "io/cgroup_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/temp_dir_testutil.h"

namespace tierkeep {
namespace {

// A tree as the kernel shows it.
class CgroupMemoryTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path full = temp_.path() + "/" + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  void Group(const std::string& path, const std::string& limit, const std::string& used,
             const std::string& stat = "") {
    const bool old = path.starts_with("cgroup/memory");
    Put(path + (old ? "/memory.limit_in_bytes" : "/memory.max"), limit + "\n");
    Put(path + (old ? "/memory.usage_in_bytes" : "/memory.current"), used + "\n");
    if (!stat.empty()) Put(path + "/memory.stat", stat);
  }
  Result<std::optional<CgroupMemory>> Read() {
    return ReadCgroupMemory({temp_.path() + "/self", temp_.path() + "/cgroup"});
  }

  TempDir temp_;
};

TEST_F(CgroupMemoryTest, NoGroupsOrNoLimitsIsNoLimit) {
  auto memory = Read();
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  EXPECT_FALSE(memory->has_value());
  Put("self", "0::/a\n");
  Group("cgroup/a", "max", "100");
  memory = Read();
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  EXPECT_FALSE(memory->has_value());
}

TEST_F(CgroupMemoryTest, Version2TakesTheTightestAncestor) {
  Put("self", "0::/pods/a\n");
  Group("cgroup/pods/a", "1000", "100", "anon 5\ninactive_file 30\nactive_file 7\n");
  Group("cgroup/pods", "5000", "4900");
  const auto memory = Read();
  ASSERT_TRUE(memory.ok() && *memory);
  EXPECT_EQ((*memory)->limit_bytes, 5000U);
  EXPECT_EQ((*memory)->free_bytes, 100U);
  Group("cgroup/pods", "5000", "1000");
  EXPECT_EQ((*Read())->limit_bytes, 1000U);
  EXPECT_EQ((*Read())->free_bytes, 930U);
}

TEST_F(CgroupMemoryTest, Version1AndItsWordForNoLimit) {
  Put("self", "9:name=systemd:/\n4:cpu,memory:/job/a\n0::/\n");
  Group("cgroup/memory/job/a", "2000", "500", "inactive_file 1\ntotal_inactive_file 100\n");
  Group("cgroup/memory", "9223372036854771712", "12345");
  const auto memory = Read();
  ASSERT_TRUE(memory.ok() && *memory);
  EXPECT_EQ((*memory)->limit_bytes, 2000U);
  EXPECT_EQ((*memory)->free_bytes, 1600U);
  EXPECT_TRUE((*memory)->group.ends_with("/memory/job/a"));
}

TEST_F(CgroupMemoryTest, AContainersMountBeginsAtItsOwnGroup) {
  Put("self", "4:memory:/docker/0123\n");
  Group("cgroup/memory", "3000", "4000");
  const auto memory = Read();
  ASSERT_TRUE(memory.ok() && *memory);
  EXPECT_EQ((*memory)->free_bytes, 0U);
}

TEST_F(CgroupMemoryTest, ALimitThatCannotBeReadIsAnError) {
  Put("self", "0::/a\n");
  Group("cgroup/a", "many", "100");
  EXPECT_FALSE(Read().ok());
  Put("cgroup/a/memory.max", "1000\n");
  std::filesystem::remove(temp_.path() + "/cgroup/a/memory.current");
  EXPECT_FALSE(Read().ok());
}

TEST(CgroupMemory, TheRealOneAnswers) {
  const auto memory = ReadCgroupMemory();
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  if (*memory) {
    EXPECT_GT((*memory)->limit_bytes, 0U);
  }
}

}  // namespace
}  // namespace tierkeep
