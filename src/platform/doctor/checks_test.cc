#include "platform/doctor/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "platform/doctor/doctor.h"

namespace tierkeep::doctor {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const WallTime kNow(std::chrono::hours(24 * 365 * 57));
constexpr uint64_t kGiB = uint64_t{1} << 30;

MountFacts GoodMount() {
  MountFacts mount;
  mount.path = "/mnt/ckpt";
  mount.file_system = "tmpfs";
  mount.options = "rw,relatime,rw,size=67108864k,huge=within_size,mode=755";
  mount.space = {.total_bytes = 64 * kGiB, .free_bytes = 64 * kGiB};
  return mount;
}

// Every warning and problem names what to do; what is well needs nothing.
void ExpectRemedies(const Findings& findings) {
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.check.empty());
    EXPECT_FALSE(finding.text.empty());
    EXPECT_EQ(finding.remedy.empty(), finding.verdict == Verdict::kOk) << finding.text;
  }
}

void Expect(const Findings& findings, Verdict worst, const std::string& part) {
  ExpectRemedies(findings);
  EXPECT_EQ(Worst(findings), worst);
  std::string all;
  for (const Finding& finding : findings) all += finding.text + " -> " + finding.remedy + "\n";
  EXPECT_THAT(all, HasSubstr(part));
}

TEST(CheckAgent, MayBeAwayButNotMute) {
  Expect(CheckAgent({}), Verdict::kOk, "not running");
  Expect(CheckAgent({.running = true, .node = "n1", .job = "train"}), Verdict::kOk, "job train");
  Expect(CheckAgent({.answer = Error(Code::kDeadlineExceeded, "no answer")}), Verdict::kProblem,
         "doesn't answer");
}

TEST(CheckMount, AGoodOneIsFine) {
  Expect(CheckMount(GoodMount()), Verdict::kOk, "renames and links work");
}

TEST(CheckMount, TwoMountsAreAProblem) {
  MountFacts mount = GoodMount();
  mount.layout = ErrnoError(EXDEV, "rename");
  Expect(CheckMount(mount), Verdict::kProblem, "one mount, /mnt/ckpt");
}

TEST(CheckMount, NoMountADiskAndNoImmutableFlag) {
  MountFacts mount = GoodMount();
  mount.opened = Error(Code::kNotFound, "mount /mnt/ckpt: no such directory");
  Expect(CheckMount(mount), Verdict::kProblem, "mount -t tmpfs");
  mount = GoodMount();
  mount.file_system = "ext4";
  Expect(CheckMount(mount), Verdict::kWarning, "not in RAM");
  mount = GoodMount();
  mount.immutable = Error(Code::kUnimplemented, "can't be changed");
  Expect(CheckMount(mount), Verdict::kWarning, "CAP_LINUX_IMMUTABLE");
  mount = GoodMount();
  mount.leases = false;
  Expect(CheckMount(mount), Verdict::kWarning, "writers");
}

TEST(CheckMemory, TheVolumeMustFitIntoMemoryAndControlGroups) {
  MemoryFacts memory{.total = 256 * kGiB, .available = 200 * kGiB};
  Expect(CheckMemory(memory, GoodMount()), Verdict::kOk, "64.0 GiB of 256 GiB");
  memory.limits = {{"/sys/fs/cgroup/a/memory.max", 100 * kGiB, kGiB}};
  Expect(CheckMemory(memory, GoodMount()), Verdict::kOk, "100 GiB");
  memory.limits[0].limit = 32 * kGiB;
  Expect(CheckMemory(memory, GoodMount()), Verdict::kWarning, "/sys/fs/cgroup/a/memory.max");
  memory.limits.clear();
  memory.total = 66 * kGiB;
  Expect(CheckMemory(memory, GoodMount()), Verdict::kWarning, "little is left");
  memory.total = 60 * kGiB;
  Expect(CheckMemory(memory, GoodMount()), Verdict::kProblem, "can't be filled");
}

TEST(CheckSizing, FollowsTheAgentsAdvice) {
  AgentFacts agent{.running = true};
  EXPECT_THAT(CheckSizing(agent), IsEmpty());
  agent.sizing = {.advised_bytes = 10 * kGiB, .volume_bytes = 16 * kGiB};
  Expect(CheckSizing(agent), Verdict::kOk, "the last save advises 10.0 GiB");
  agent.sizing->volume_bytes = 8 * kGiB;
  Expect(CheckSizing(agent), Verdict::kWarning, "size=10737418240");
  agent.sizing->volume_bytes = 16 * kGiB;
  agent.sizing->limit_bytes = kGiB;
  agent.sizing->advised_limit_bytes = 2 * kGiB;
  Expect(CheckSizing(agent), Verdict::kWarning, "control group has 1.00 GiB");
}

TEST(CheckHugePages, DependsOnMountSystemAndKernel) {
  HugePageFacts pages{.shmem_enabled = "never", .kernel_major = 6, .kernel_minor = 14};
  MountFacts mount = GoodMount();
  Expect(CheckHugePages(pages, mount), Verdict::kOk, "all large files");
  pages.kernel_minor = 1;
  Expect(CheckHugePages(pages, mount), Verdict::kOk, "from 6.14 on");
  mount.options = "rw,size=1g";
  Expect(CheckHugePages(pages, mount), Verdict::kWarning, "remount,huge=within_size /mnt/ckpt");
  mount.options = "rw,huge=always";
  Expect(CheckHugePages(pages, mount), Verdict::kWarning, "2 MiB for each small file");
  pages.shmem_enabled = "force";
  Expect(CheckHugePages(pages, mount), Verdict::kOk, "forces");
  mount.options = "rw,huge=within_size";
  pages.shmem_enabled = "deny";
  Expect(CheckHugePages(pages, mount), Verdict::kWarning, "shmem_enabled");
  pages.shmem_enabled = "";
  Expect(CheckHugePages(pages, mount), Verdict::kWarning, "CONFIG_TRANSPARENT_HUGEPAGE");
}

LimitFacts GoodLimits() {
  return {.open_files = 65536,
          .open_files_hard = 65536,
          .map_count = 65530,
          .inotify_instances = 128,
          .inotify_watches = 65536};
}

TEST(CheckLimits, FilesMapsAndWatches) {
  Expect(CheckLimits(GoodLimits()), Verdict::kOk, "65536 files");
  LimitFacts limits = GoodLimits();
  limits.open_files = 256;
  Expect(CheckLimits(limits), Verdict::kProblem, "LimitNOFILE=");
  limits.open_files = 1024;
  Expect(CheckLimits(limits), Verdict::kWarning, "too few to coordinate a large job");
  limits = GoodLimits();
  limits.map_count = 1000;
  Expect(CheckLimits(limits), Verdict::kWarning, "vm.max_map_count=65530");
  limits = GoodLimits();
  limits.inotify_instances = 2;
  Expect(CheckLimits(limits), Verdict::kWarning, "max_user_instances");
  limits = GoodLimits();
  limits.watch = Status(Error(Code::kResourceExhausted, "too many"));
  Expect(CheckLimits(limits), Verdict::kProblem, "can't be watched");
}

TEST(CheckPort, FreeOursTakenOrNotOurAddress) {
  PortFacts port{.name = "data-port", .at = {"0.0.0.0", 4243}};
  for (const auto state :
       {PortFacts::State::kFree, PortFacts::State::kOurs, PortFacts::State::kAnyFree}) {
    port.state = state;
    Expect(CheckPort(port), Verdict::kOk, "data-port");
  }
  port.state = PortFacts::State::kTaken;
  Expect(CheckPort(port), Verdict::kProblem, "sport = :4243");
  port.state = PortFacts::State::kError;
  port.error = ErrnoError(EADDRNOTAVAIL, "listen");
  Expect(CheckPort(port), Verdict::kProblem, "--listen");
}

TEST(CheckPeer, ReachedRefusedOrAway) {
  PeerFacts peer{.at = {"10.0.0.9", 4243}, .who = "node n9"};
  Expect(CheckPeer(peer), Verdict::kOk, "node n9 at 10.0.0.9:4243");
  peer.reached = Error(Code::kUnavailable, "refused");
  Expect(CheckPeer(peer), Verdict::kProblem, "firewalls");
  peer.reached = Error(Code::kUnauthenticated, "unknown authority");
  Expect(CheckPeer(peer), Verdict::kProblem, "one authority");
}

TlsFacts GoodTls() {
  TlsFacts tls;
  tls.dir = "/tls";
  tls.files.key_matches = true;
  tls.files.subject = "CN = node0";
  tls.files.names = {"DNS:node0"};
  tls.files.not_before = kNow - 24h;
  tls.files.not_after = kNow + 24h * 90;
  tls.files.authority_not_after = kNow + 24h * 900;
  tls.files.key_mode = 0600;
  return tls;
}

TEST(CheckTls, GoodFilesAndNone) {
  Expect(CheckTls(GoodTls(), kNow), Verdict::kOk, "CN = node0 (DNS:node0), valid for 90 days");
  Expect(CheckTls({.loopback_only = true}, kNow), Verdict::kOk, "within this machine");
  Expect(CheckTls({}, kNow), Verdict::kWarning, "--tls-dir");
}

TEST(CheckTls, EveryFaultIsNamedOnce) {
  TlsFacts tls = GoodTls();
  tls.files.not_after = kNow - 1h;
  tls.files.chain = Error(Code::kUnauthenticated, "certificate has expired");
  const Findings expired = CheckTls(tls, kNow);
  EXPECT_EQ(expired.size(), 1U);
  Expect(expired, Verdict::kProblem, "/tls/tls.crt expired on");
  tls = GoodTls();
  tls.files.not_after = kNow + 24h * 3;
  Expect(CheckTls(tls, kNow), Verdict::kWarning, "expires in 3 days");
  tls = GoodTls();
  tls.files.authority_not_after = kNow - 1h;
  Expect(CheckTls(tls, kNow), Verdict::kProblem, "/tls/ca.crt expired on");
  tls = GoodTls();
  tls.files.not_before = kNow + 1h;
  Expect(CheckTls(tls, kNow), Verdict::kProblem, "valid only from");
  tls = GoodTls();
  tls.files.key_matches = false;
  Expect(CheckTls(tls, kNow), Verdict::kProblem, "isn't the key of");
  tls = GoodTls();
  tls.files.chain = Error(Code::kUnauthenticated, "unable to get local issuer certificate");
  Expect(CheckTls(tls, kNow), Verdict::kProblem, "isn't vouched for");
  tls = GoodTls();
  tls.files.key = Error(Code::kNotFound, "TLS file /tls/tls.key");
  tls.files.key_matches.reset();
  Expect(CheckTls(tls, kNow), Verdict::kProblem, "cert-manager");
  tls = GoodTls();
  tls.files.key_mode = 0644;
  Expect(CheckTls(tls, kNow), Verdict::kWarning, "chmod 600");
}

TEST(CheckClocks, EachClockThatIsOffIsNamed) {
  AgentFacts agent{.running = true, .node = "n0"};
  RendezvousFacts rendezvous;
  Expect(CheckClocks(rendezvous, agent), Verdict::kOk, "nothing to compare");
  rendezvous.clock_ahead = 4ms;
  agent.members = {{"n1", {}, 0.2}, {"n2", {}, std::nullopt}};
  Expect(CheckClocks(rendezvous, agent), Verdict::kOk, "2 others");
  agent.members[0].clock_skew_seconds = -3.0;
  Expect(CheckClocks(rendezvous, agent), Verdict::kWarning, "node n1 is 3.00 s behind");
  rendezvous.clock_ahead = 1h;
  Expect(CheckClocks(rendezvous, agent), Verdict::kProblem, "file system is 1 h");
  agent.members[0].clock_skew_seconds = 1e300;
  Expect(CheckClocks(rendezvous, agent), Verdict::kProblem, "node n1");
}

TEST(CheckRendezvous, DirectoriesAndTheirRecords) {
  RendezvousFacts facts;
  facts.address.dir = "/shared";
  AgentFacts agent{.running = true, .node = "n0", .job = "train"};
  Expect(CheckRendezvous(facts, agent), Verdict::kOk, "/shared can be read and written");
  facts.records.push_back(
      {.job = "train", .epoch = 7, .node = "n3", .coordinator = {"10.0.0.3", 4242}, .age = 90s});
  facts.records[0].reached = OkStatus();
  Expect(CheckRendezvous(facts, agent), Verdict::kOk,
         "job train: node n3 at 10.0.0.3:4242, epoch 7");
  facts.records[0].reached = Status(Error(Code::kUnavailable, "refused"));
  Expect(CheckRendezvous(facts, agent), Verdict::kProblem, "can't be reached");
  agent.job = "other";
  Expect(CheckRendezvous(facts, agent), Verdict::kOk, "not running now");
  facts.records[0].read = Error(Code::kDataLoss, "damaged");
  Expect(CheckRendezvous(facts, agent), Verdict::kProblem, "the record of job train can't be read");
  facts.usable = Error(Code::kPermissionDenied, "create");
  Expect(CheckRendezvous(facts, agent), Verdict::kProblem, "that all nodes share");
}

TEST(CheckRendezvous, FixedAddresses) {
  RendezvousFacts facts;
  facts.address = {RendezvousAddress::Kind::kStatic, "", "10.0.0.3", 4242};
  Expect(CheckRendezvous(facts, {}), Verdict::kOk, "answers");
  facts.usable = Error(Code::kUnavailable, "refused");
  Expect(CheckRendezvous(facts, {}), Verdict::kProblem, "10.0.0.3:4242");
  facts.ours = true;
  Expect(CheckRendezvous(facts, {}), Verdict::kOk, "is this agent");
}

TEST(CheckStateDir, MustBeWritableAndShouldBeOnADisk) {
  Expect(CheckStateDir({.path = "/s"}), Verdict::kOk, "/s can be written");
  Expect(CheckStateDir({.path = "/s", .exists = false}), Verdict::kOk, "can be made");
  Expect(CheckStateDir({.path = "/s", .in_memory = true}), Verdict::kWarning, "in RAM");
  Expect(CheckStateDir({.path = "/s", .writable = Error(Code::kPermissionDenied, "no")}),
         Verdict::kProblem, "/s must be");
}

TEST(CheckBucket, IsHonest) { Expect(CheckBucket(), Verdict::kOk, "not configured"); }

TEST(Report, CountsAndKeepsForeignTextOnItsLine) {
  const Findings findings = {{"a", Verdict::kOk, "fine", ""},
                             {"b", Verdict::kWarning, "slow\nproblem forged", "do"},
                             {"c", Verdict::kProblem, "broken", "mend"}};
  EXPECT_EQ(Worst(findings), Verdict::kProblem);
  EXPECT_EQ(Worst({}), Verdict::kOk);
  const auto report = ReportJson(findings);
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["problems"], 1);
  EXPECT_EQ(report["warnings"], 1);
  EXPECT_EQ(report["findings"][2]["verdict"], "problem");
  EXPECT_EQ(report["findings"][2]["remedy"], "mend");
  const std::string text = ReportText(findings);
  EXPECT_THAT(text, HasSubstr("problem  c            broken\n"));
  EXPECT_THAT(text, HasSubstr("-> mend\n"));
  EXPECT_THAT(text, HasSubstr("3 looked at, 1 warnings, 1 problems\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nproblem forged")));
}

}  // namespace
}  // namespace tierkeep::doctor
