#include "platform/doctor/collect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "io/stream.h"
#include "io/temp_dir_testutil.h"
#include "io/tls_testutil.h"

namespace tierkeep::doctor {
namespace {

namespace fs = std::filesystem;

void Put(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::trunc) << text;
}

// A /proc and a /sys of a test's own.
struct FakeSystem {
  TempDir temp;
  SystemPaths paths{temp.Path("proc"), temp.Path("sys")};
  void Proc(const std::string& name, const std::string& text) {
    Put(paths.proc + "/" + name, text);
  }
  void Sys(const std::string& name, const std::string& text) { Put(paths.sys + "/" + name, text); }
};

std::vector<std::string> AllFiles(const std::string& root) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(root)) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(FindMount, TheLastMountOfTheLongestPointCounts) {
  const std::string text =
      "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "30 22 0:25 / /mnt/a\\040b rw,nosuid shared:2 master:3 - tmpfs tmpfs rw,size=1g,huge=always\n"
      "31 22 0:26 / /mnt rw - xfs /dev/sdb rw\n"
      "32 31 0:27 / /mnt rw - tmpfs over rw\n"
      "broken line\n";
  EXPECT_EQ(FindMount(text, "/mnt/a b/client")->point, "/mnt/a b");
  EXPECT_EQ(FindMount(text, "/mnt/a b/client")->options, "rw,nosuid,rw,size=1g,huge=always");
  EXPECT_EQ(FindMount(text, "/mnt/ab")->file_system, "tmpfs");
  EXPECT_EQ(FindMount(text, "/mntx")->file_system, "ext4");
  EXPECT_FALSE(FindMount("", "/mnt").has_value());
}

TEST(CollectMemory, ReadsLimitsOfBothKindsOfControlGroups) {
  FakeSystem system;
  system.Proc("meminfo", "MemTotal:       16 kB\nMemFree: 1 kB\nMemAvailable:    8 kB\n");
  system.Proc("self/cgroup", "0::/pods/job\n");
  system.Sys("fs/cgroup/pods/job/memory.max", "max\n");
  system.Sys("fs/cgroup/pods/memory.max", "4096\n");
  system.Sys("fs/cgroup/pods/memory.current", "100\n");
  MemoryFacts facts = CollectMemory(std::nullopt, system.paths);
  EXPECT_EQ(facts.total, 16384U);
  EXPECT_EQ(facts.available, 8192U);
  EXPECT_FALSE(facts.of_agent);
  ASSERT_EQ(facts.limits.size(), 1U);
  EXPECT_EQ(facts.limits[0].where, system.paths.sys + "/fs/cgroup/pods/memory.max");
  EXPECT_EQ(facts.limits[0].limit, 4096U);
  EXPECT_EQ(facts.limits[0].used, 100U);

  system.Proc("77/cgroup", "12:cpu,cpuacct:/x\n5:memory:/job\n1:name=systemd:/y\n");
  system.Sys("fs/cgroup/memory/job/memory.limit_in_bytes", "8192\n");
  system.Sys("fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  facts = CollectMemory(77, system.paths);
  EXPECT_TRUE(facts.of_agent);
  ASSERT_EQ(facts.limits.size(), 1U);
  EXPECT_EQ(facts.limits[0].limit, 8192U);

  // Within a control group namespace its root is all that shows.
  system.Proc("78/cgroup", "0::/\n");
  system.Sys("fs/cgroup/memory.max", "5000\n");
  EXPECT_EQ(CollectMemory(78, system.paths).limits[0].limit, 5000U);
  EXPECT_TRUE(CollectMemory(79, system.paths).limits.empty());
}

TEST(CollectHugePages, ReadsTheSetting) {
  FakeSystem system;
  EXPECT_EQ(CollectHugePages(system.paths).shmem_enabled, "");
  system.Sys("kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size advise never [deny] force\n");
  const HugePageFacts facts = CollectHugePages(system.paths);
  EXPECT_EQ(facts.shmem_enabled, "deny");
  EXPECT_GT(facts.kernel_major, 2);
}

TEST(CollectLimits, AreTheAgentsWhereThereIsOne) {
  FakeSystem system;
  system.Proc("9/limits",
              "Limit                     Soft Limit           Hard Limit           Units     \n"
              "Max processes             unlimited            unlimited            processes \n"
              "Max open files            1024                 unlimited            files     \n");
  system.Proc("sys/vm/max_map_count", "65530\n");
  system.Proc("sys/fs/inotify/max_user_instances", "128\n");
  const LimitFacts facts = CollectLimits(9, system.temp.path(), system.paths);
  EXPECT_EQ(facts.open_files, 1024U);
  EXPECT_EQ(facts.open_files_hard, UINT64_MAX);
  EXPECT_EQ(facts.map_count, 65530U);
  EXPECT_EQ(facts.inotify_instances, 128U);
  EXPECT_EQ(facts.inotify_watches, 0U);
  EXPECT_TRUE(facts.watch.has_value() && facts.watch->ok());
  EXPECT_GT(CollectLimits(std::nullopt, "/none", system.paths).open_files, 0U);
  EXPECT_FALSE(CollectLimits(std::nullopt, "/none", system.paths).watch.has_value());
}

TEST(CollectMount, TriesEverythingAndLeavesNothing) {
  TempDir temp("/dev/shm");
  SystemRandom random;
  const MountFacts facts = CollectMount(temp.path(), {}, &random);
  EXPECT_TRUE(facts.opened.ok());
  EXPECT_TRUE(facts.layout.ok()) << facts.layout.error().ToString();
  EXPECT_EQ(facts.file_system, "tmpfs");
  EXPECT_GT(facts.space.total_bytes, 0U);
  EXPECT_FALSE(facts.made_by_agent);
  EXPECT_TRUE(AllFiles(temp.path()).empty());
  // What the job has there stays as it is.
  Put(temp.Path("client/7/data"), "job's");
  const auto before = AllFiles(temp.path());
  EXPECT_TRUE(CollectMount(temp.path(), {}, &random).layout.ok());
  EXPECT_EQ(AllFiles(temp.path()), before);
  // client/ isn't a directory there.
  fs::remove_all(temp.Path("client"));
  Put(temp.Path("client"), "");
  EXPECT_FALSE(CollectMount(temp.path(), {}, &random).layout.ok());
  EXPECT_FALSE(CollectMount(temp.Path("none"), {}, &random).opened.ok());
}

TEST(CollectPort, TellsFreeTakenAndOurs) {
  auto listener = ListenStreams("127.0.0.1", 0, {});
  ASSERT_TRUE(listener.ok());
  const HostPort at{"127.0.0.1", (*listener)->port()};
  using State = PortFacts::State;
  EXPECT_EQ(CollectPort("p", at, 0).state, State::kTaken);
  EXPECT_EQ(CollectPort("p", at, at.port).state, State::kOurs);
  EXPECT_EQ(CollectPort("p", {"127.0.0.1", 0}, 0).state, State::kAnyFree);
  EXPECT_TRUE(ReachAll({at}, nullptr).front().ok());
  listener->reset();
  EXPECT_EQ(CollectPort("p", at, 0).state, State::kFree);
  EXPECT_FALSE(ReachAll({at}, nullptr).front().ok());
  EXPECT_EQ(CollectPort("p", {"192.0.2.1", at.port}, 0).state, State::kError);
}

TEST(ReadAgent, FormsOfStatus) {
  const auto away = ReadAgent(Error(Code::kUnavailable, "nobody"), "");
  EXPECT_FALSE(away.running);
  EXPECT_TRUE(away.answer.ok());
  EXPECT_FALSE(ReadAgent(Error(Code::kDeadlineExceeded, "hangs"), "").answer.ok());
  EXPECT_FALSE(ReadAgent(nlohmann::json{{"node", 7}}, "").answer.ok());
  const nlohmann::json status = {
      {"node", "n0"},
      {"job", {{"name", "train"}}},
      {"network", {{"control_port", 1}, {"data_port", 2}}},
      {"members", {{{"node", "n0"}, {"data", "10.0.0.1:5"}}, {{"node", "n1"}, {"data", "::1:6"}}}},
      {"clock_skew_seconds", {{"n1", 1.5}}},
      {"sizing", {{"advised_bytes", 10}, {"volume_bytes", 8}, {"memory_limit_bytes", nullptr}}}};
  const AgentFacts facts = ReadAgent(status, "");
  EXPECT_TRUE(facts.running);
  EXPECT_EQ(facts.job, "train");
  EXPECT_EQ(facts.data_port, 2);
  ASSERT_EQ(facts.members.size(), 2U);
  EXPECT_EQ(facts.members[1].data, (HostPort{"::1", 6}));
  EXPECT_EQ(facts.members[1].clock_skew_seconds, 1.5);
  EXPECT_FALSE(facts.members[0].clock_skew_seconds.has_value());
  EXPECT_EQ(facts.sizing->advised_bytes, 10U);
  EXPECT_FALSE(facts.sizing->limit_bytes.has_value());
}

TEST(CollectRendezvous, TriesTheDirectoryAndReadsItsRecords) {
  TempDir temp;
  SystemClock clock;
  SystemRandom random;
  AgentSettings settings;
  settings.rendezvous = "file:" + temp.path();
  RendezvousFacts facts = CollectRendezvous(settings, {}, nullptr, &clock, &random);
  EXPECT_TRUE(facts.usable.ok()) << facts.usable.error().ToString();
  EXPECT_TRUE(facts.records.empty());
  EXPECT_LT(*facts.clock_ahead, 1s);
  EXPECT_GT(*facts.clock_ahead, -1s);
  EXPECT_TRUE(AllFiles(temp.path()).empty());
  Put(temp.Path("train/00000000000000000001.record"), "damaged");
  Put(temp.Path(".hidden/x"), "");
  facts = CollectRendezvous(settings, {}, nullptr, &clock, &random);
  ASSERT_EQ(facts.records.size(), 1U);
  EXPECT_EQ(facts.records[0].read.error().code(), Code::kDataLoss);
  settings.rendezvous = "file:" + temp.Path("none");
  EXPECT_FALSE(CollectRendezvous(settings, {}, nullptr, &clock, &random).usable.ok());
  settings.rendezvous = "static:127.0.0.1:4242";
  settings.advertise = "127.0.0.1";
  EXPECT_TRUE(CollectRendezvous(settings, {}, nullptr, &clock, &random).ours);
}

TEST(CollectStateDir, ExistingMissingAndHopeless) {
  TempDir temp;
  SystemRandom random;
  EXPECT_TRUE(CollectStateDir(temp.path(), {}, &random).writable.ok());
  const StateDirFacts missing = CollectStateDir(temp.Path("new"), {}, &random);
  EXPECT_TRUE(missing.writable.ok());
  EXPECT_FALSE(missing.exists);
  EXPECT_FALSE(CollectStateDir(temp.Path("no/new"), {}, &random).writable.ok());
  EXPECT_TRUE(AllFiles(temp.path()).empty());
}

TEST(ReachAll, AStrangersCertificateIsRefused) {
  TestTls ours;
  TestTls theirs;
  StreamOptions options;
  options.tls = ours.Make("server");
  auto listener = ListenStreams("127.0.0.1", 0, options);
  ASSERT_TRUE(listener.ok());
  std::thread server([&] {
    while (auto stream = (*listener)->Accept()) {
      std::byte byte;
      (void)(*stream)->ReadExactly({&byte, 1});
    }
  });
  const HostPort at{"127.0.0.1", (*listener)->port()};
  EXPECT_TRUE(ReachAll({at}, ours.Make("client")).front().ok());
  const Status refused = ReachAll({at}, theirs.Make("client")).front();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kUnauthenticated);
  (*listener)->Shutdown();
  server.join();
}

}  // namespace
}  // namespace tierkeep::doctor
