#include "tiers/peer/puller.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tiers/peer/data_connection.h"
#include "tiers/peer/peer_testutil.h"

namespace tierkeep {
namespace {

using Verdict = FaultyProxy::Verdict;

// Certificates for all tests of this binary.
std::shared_ptr<TlsContext> TestTls() {
  static TempDir dir;
  static const std::shared_ptr<TlsContext> tls = [] {
    const std::string command =
        std::string("sh " TIERKEEP_SOURCE_DIR "/scripts/make-test-certs.sh ") + dir.path() +
        " node";
    EXPECT_EQ(std::system(command.c_str()), 0);
    auto loaded = TlsContext::Load(dir.Path("node"));
    EXPECT_TRUE(loaded.ok()) << loaded.error().ToString();
    return loaded.ok() ? *loaded : nullptr;
  }();
  return tls;
}

PullerOptions SmallRequests(Prng& prng, const DataPortOptions& port = {}) {
  PullerOptions options;
  options.port = port;
  options.streams = 1 + static_cast<uint32_t>(prng.Below(5));
  options.request_bytes = 1 + prng.Below(300'000);
  return options;
}

// What every successful pull must have made of the shard.
void ExpectSameShard(PeerNode& from, PeerNode& to, const Blake3& digest) {
  const auto held = to.store().Find(digest);
  ASSERT_TRUE(held.has_value());
  EXPECT_FALSE(held->suspect);
  EXPECT_EQ(DescribeTree(from.DataPath(digest)), DescribeTree(to.DataPath(digest)));
  const VerifyResult verified = to.store().Verify(digest, nullptr);
  EXPECT_TRUE(verified.ok) << verified.problem;
}

void ExpectNothingLeft(PeerNode& node) {
  EXPECT_TRUE(node.store().Shards().empty());
  const auto left = node.store().root().List("incoming");
  ASSERT_TRUE(left.ok());
  EXPECT_TRUE(left->empty());
}

// Changes one byte of a held shard behind the store's back.
void FlipByteOnDisk(PeerNode& node, const Blake3& digest, size_t entry, uint64_t offset) {
  const auto held = node.store().Find(digest);
  ASSERT_TRUE(held.has_value());
  const std::string path = node.DataPath(digest) + "/" + held->manifest->entries[entry].path;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  ASSERT_TRUE(file.is_open()) << path;
  file.seekg(static_cast<std::streamoff>(offset));
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

size_t LargestEntry(PeerNode& node, const Blake3& digest) {
  const auto held = node.store().Find(digest);
  size_t best = 0;
  for (size_t i = 0; i < held->manifest->entries.size(); ++i) {
    if (held->manifest->entries[i].bytes > held->manifest->entries[best].bytes) best = i;
  }
  return best;
}

void RandomTreesCross(uint64_t seed, const DataPortOptions& port) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  PeerNode from("from", port);
  PeerNode to("to", port);
  const Blake3 digest = from.AddRandomShard(prng, prng.Below(6'000'000));
  Puller puller(&to.store(), &to.clock(), SmallRequests(prng, port), Logger());
  const PullResult result = puller.Pull({.digest = digest, .sources = {from.Source()}}, nullptr);
  ASSERT_TRUE(result.status.ok()) << result.status.error().ToString();
  EXPECT_TRUE(result.bad_sources.empty());
  ExpectSameShard(from, to, digest);
  const auto held = from.store().Find(digest);
  EXPECT_EQ(result.bytes_pulled, held->encoded->size() + held->manifest->TotalBytes());
  EXPECT_EQ(puller.bytes_pulled(), result.bytes_pulled);
  EXPECT_GE(from.server().bytes_sent(), result.bytes_pulled);
}

TEST(Puller, RandomTreesArriveByteForByte) {
  for (uint64_t seed = 1; seed <= 12; ++seed) RandomTreesCross(seed, {});
}

TEST(Puller, RandomTreesArriveByteForByteEncrypted) {
  DataPortOptions port;
  port.tls = TestTls();
  ASSERT_NE(port.tls, nullptr);
  for (uint64_t seed = 101; seed <= 106; ++seed) RandomTreesCross(seed, port);
}

TEST(Puller, AHeldShardCostsNoBytes) {
  Prng prng(1);
  PeerNode node("node");
  const Blake3 digest = node.AddRandomShard(prng, 100'000);
  Puller puller(&node.store(), &node.clock(), {}, Logger());
  const PullResult result = puller.Pull({.digest = digest, .sources = {}}, nullptr);
  EXPECT_TRUE(result.status.ok());
  EXPECT_EQ(result.bytes_pulled, 0u);
}

TEST(Puller, WithoutSourcesItIsUnavailable) {
  PeerNode node("node");
  Puller puller(&node.store(), &node.clock(), {}, Logger());
  const PullResult result = puller.Pull({.digest = ComputeBlake3("x"), .sources = {}}, nullptr);
  ASSERT_FALSE(result.status.ok());
  EXPECT_EQ(result.status.error().code(), Code::kUnavailable);
}

TEST(Puller, E2_AllSourcesAreUsedAtOnce) {
  Prng prng(3);
  PeerNode a("a");
  PeerNode b("b");
  PeerNode to("to");
  const Blake3 digest = a.AddRandomShard(prng, 4'000'000);
  PullerOptions options;
  options.request_bytes = 50'000;
  Puller to_b(&b.store(), &b.clock(), options, Logger());
  ASSERT_TRUE(to_b.Pull({.digest = digest, .sources = {a.Source()}}, nullptr).status.ok());
  const uint64_t a_before = a.server().bytes_sent();
  Puller puller(&to.store(), &to.clock(), options, Logger());
  const PullResult result =
      puller.Pull({.digest = digest, .sources = {a.Source(), b.Source()}}, nullptr);
  ASSERT_TRUE(result.status.ok());
  ExpectSameShard(a, to, digest);
  EXPECT_GT(a.server().bytes_sent() - a_before, 400'000u);
  EXPECT_GT(b.server().bytes_sent(), 400'000u);
}

TEST(Puller, ASourceWithoutTheShardIsNamedAndTheOtherServes) {
  Prng prng(4);
  PeerNode empty("empty");
  PeerNode good("good");
  PeerNode to("to");
  const Blake3 digest = good.AddRandomShard(prng, 500'000);
  Puller puller(&to.store(), &to.clock(), SmallRequests(prng), Logger());
  const PullResult result =
      puller.Pull({.digest = digest, .sources = {empty.Source(), good.Source()}}, nullptr);
  ASSERT_TRUE(result.status.ok()) << result.status.error().ToString();
  EXPECT_EQ(result.bad_sources, std::vector<std::string>{"empty"});
  ExpectSameShard(good, to, digest);
}

TEST(Puller, AnUnreachableSourceIsNamedAndTheOtherServes) {
  Prng prng(5);
  PeerNode gone("gone");
  PeerNode good("good");
  PeerNode to("to");
  const PullSource nobody = gone.Source();
  gone.StopServer();
  const Blake3 digest = good.AddRandomShard(prng, 500'000);
  Puller puller(&to.store(), &to.clock(), {.backoff_first = 1ms}, Logger());
  const PullResult both =
      puller.Pull({.digest = digest, .sources = {nobody, good.Source()}}, nullptr);
  ASSERT_TRUE(both.status.ok()) << both.status.error().ToString();
  ASSERT_TRUE(to.store().Delete(digest).ok());
  const PullResult alone = puller.Pull({.digest = digest, .sources = {nobody}}, nullptr);
  ASSERT_FALSE(alone.status.ok());
  EXPECT_EQ(alone.status.error().code(), Code::kUnavailable);
  EXPECT_EQ(alone.bad_sources, std::vector<std::string>{"gone"});
  ExpectNothingLeft(to);
}

TEST(Puller, AWrongTokenIsRefusedWithoutRetries) {
  Prng prng(6);
  PeerNode from("from");
  PeerNode to("to");
  const Blake3 digest = from.AddRandomShard(prng, 100'000);
  Puller puller(&to.store(), &to.clock(), {}, Logger());
  PullSource source = from.Source();
  source.token[31] = static_cast<char>(source.token[31] ^ 1);
  const PullResult result = puller.Pull({.digest = digest, .sources = {source}}, nullptr);
  ASSERT_FALSE(result.status.ok());
  EXPECT_EQ(result.bad_sources, std::vector<std::string>{"from"});
  EXPECT_EQ(from.server().rejected(), 1u);
  EXPECT_LT(from.server().bytes_sent(), 200u) << "more than the refusal was sent";
  ExpectNothingLeft(to);
}

// ---- faults in flight ----

// The shard is served by a proxy that breaks and by a good node. The pull must end well, and what
// it made be right.
PullResult PullPastFault(uint64_t seed, FaultyProxy::OnAnswer fault, bool with_good,
                         PullerOptions options = {}) {
  Prng prng(seed);
  PeerNode behind("behind");
  PeerNode good("good");
  PeerNode to("to");
  const Blake3 digest = behind.AddRandomShard(prng, 3'000'000);
  Prng again(seed);
  EXPECT_EQ(good.AddRandomShard(again, 3'000'000), digest);
  FaultyProxy proxy(behind.server().port(), std::move(fault));
  options.request_bytes = 100'000;
  options.backoff_first = 1ms;
  Puller puller(&to.store(), &to.clock(), options, Logger());
  PullRequest request{.digest = digest, .sources = {behind.SourceAt(proxy.port())}};
  if (with_good) request.sources.push_back(good.Source());
  PullResult result = puller.Pull(request, nullptr);
  if (result.status.ok()) {
    ExpectSameShard(good, to, digest);
  } else {
    ExpectNothingLeft(to);
  }
  return result;
}

// Flips one bit once, `at` bytes into the answers of one connection.
FaultyProxy::OnAnswer FlipBitOnce(uint64_t at, std::shared_ptr<std::atomic<bool>> done) {
  return [at, done](uint64_t offset, MutableByteSpan bytes) {
    if (at >= offset && at < offset + bytes.size() && !done->exchange(true)) {
      bytes[at - offset] ^= std::byte{0x04};
    }
    return Verdict::kPass;
  };
}

TEST(PullerFaults, AFlippedBitIsFoundAndTheOtherSourceUsed) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(1000 + seed);
    auto done = std::make_shared<std::atomic<bool>>(false);
    // Behind the response's header; the first connection's first bytes are the manifest.
    const uint64_t at = kDataResponseBytes + prng.Below(60'000);
    // A slow machine must not make the flipped chunk somebody else's before it is looked at.
    PullerOptions options;
    options.late_after = 300s;
    const PullResult result = PullPastFault(seed, FlipBitOnce(at, done), true, options);
    ASSERT_TRUE(result.status.ok()) << result.status.error().ToString();
    ASSERT_TRUE(*done) << "the fault never happened";
    EXPECT_EQ(result.bad_sources, std::vector<std::string>{"behind"});
  }
}

TEST(PullerFaults, AFlippedBitWithoutAnotherSourceFailsAndLeavesNothing) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto done = std::make_shared<std::atomic<bool>>(false);
    const PullResult result =
        PullPastFault(seed, FlipBitOnce(kDataResponseBytes + 20'000 * seed, done), false);
    ASSERT_TRUE(*done);
    ASSERT_FALSE(result.status.ok());
    EXPECT_EQ(result.status.error().code(), Code::kUnavailable);
    EXPECT_EQ(result.bad_sources, std::vector<std::string>{"behind"});
  }
}

TEST(PullerFaults, AConnectionThatIsCutIsTriedAgain) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto cuts = std::make_shared<std::atomic<int>>(0);
    const auto fault = [cuts, seed](uint64_t offset, MutableByteSpan) {
      if (offset > 10'000 * seed && cuts->fetch_add(1) < 3) return Verdict::kCut;
      return Verdict::kPass;
    };
    const PullResult result = PullPastFault(seed, fault, false);
    ASSERT_TRUE(result.status.ok()) << result.status.error().ToString();
    EXPECT_GT(*cuts, 0);
    EXPECT_TRUE(result.bad_sources.empty());
  }
}

TEST(PullerFaults, ASourceThatAlwaysCutsIsGivenUp) {
  const auto fault = [](uint64_t, MutableByteSpan) { return Verdict::kCut; };
  const PullResult with_good = PullPastFault(1, fault, true);
  EXPECT_TRUE(with_good.status.ok());
  const PullResult alone = PullPastFault(2, fault, false);
  ASSERT_FALSE(alone.status.ok());
  EXPECT_EQ(alone.status.error().code(), Code::kUnavailable);
  EXPECT_EQ(alone.bad_sources, std::vector<std::string>{"behind"});
}

TEST(PullerFaults, AStallingSourceIsPassedBy) {
  PullerOptions options;
  options.port.stall_limit = 300s;  // so that only the take-over can end it
  const auto stall = [](uint64_t offset, MutableByteSpan) {
    return offset > 100'000 ? Verdict::kStall : Verdict::kPass;
  };
  const PullResult result = PullPastFault(1, stall, true, options);
  EXPECT_TRUE(result.status.ok());
}

TEST(PullerFaults, B7_AStallingSourceAloneFailsAtTheStallLimit) {
  PullerOptions options;
  options.port.stall_limit = 100ms;
  const auto stall = [](uint64_t, MutableByteSpan) { return Verdict::kStall; };
  const PullResult result = PullPastFault(1, stall, false, options);
  ASSERT_FALSE(result.status.ok());
  EXPECT_EQ(result.status.error().code(), Code::kUnavailable);
  EXPECT_EQ(result.bad_sources, std::vector<std::string>{"behind"});
}

TEST(PullerFaults, CancellingBreaksOffAStalledPullAtOnce) {
  std::atomic<bool> cancelled = false;
  Prng prng(1);
  PeerNode behind("behind");
  PeerNode to("to");
  const Blake3 digest = behind.AddRandomShard(prng, 3'000'000);
  // The pull is cancelled when it is known to hang in the middle.
  FaultyProxy proxy(behind.server().port(), [&](uint64_t offset, MutableByteSpan) {
    if (offset < 100'000) return Verdict::kPass;
    cancelled = true;
    return Verdict::kStall;
  });
  PullerOptions options;
  options.port.stall_limit = 300s;
  Puller puller(&to.store(), &to.clock(), options, Logger());
  const PullResult result =
      puller.Pull({.digest = digest, .sources = {behind.SourceAt(proxy.port())}}, &cancelled);
  ASSERT_FALSE(result.status.ok());
  EXPECT_EQ(result.status.error().code(), Code::kCancelled);
  EXPECT_LT(result.took, 60s);
  ExpectNothingLeft(to);
}

// ---- faults at rest ----

TEST(PullerFaults, ABitFlippedAtRestIsFoundAndTheOtherSourceUsed) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    PeerNode bad("bad");
    PeerNode good("good");
    PeerNode to("to");
    const Blake3 digest = bad.AddRandomShard(prng, 1'000'000);
    Prng again(seed);
    ASSERT_EQ(good.AddRandomShard(again, 1'000'000), digest);
    const size_t entry = LargestEntry(bad, digest);
    FlipByteOnDisk(bad, digest, entry,
                   prng.Below(bad.store().Find(digest)->manifest->entries[entry].bytes));
    Puller puller(&to.store(), &to.clock(), {.request_bytes = 100'000}, Logger());
    const PullResult alone = puller.Pull({.digest = digest, .sources = {bad.Source()}}, nullptr);
    ASSERT_FALSE(alone.status.ok()) << "wrong bytes were taken";
    EXPECT_EQ(alone.bad_sources, std::vector<std::string>{"bad"});
    ExpectNothingLeft(to);
    const PullResult both =
        puller.Pull({.digest = digest, .sources = {bad.Source(), good.Source()}}, nullptr);
    ASSERT_TRUE(both.status.ok()) << both.status.error().ToString();
    ExpectSameShard(good, to, digest);
  }
}

TEST(PullerFaults, AFileCutShortAtTheSourceIsAnErrorNotACrash) {
  for (const bool encrypted : {false, true}) {
    SCOPED_TRACE(encrypted ? "encrypted" : "plain");
    DataPortOptions port;
    if (encrypted) port.tls = TestTls();
    Prng prng(9);
    PeerNode from("from", port);
    PeerNode to("to", port);
    const Blake3 digest = from.AddRandomShard(prng, 4'000'000);
    const size_t entry = LargestEntry(from, digest);
    const auto held = from.store().Find(digest);
    ASSERT_GT(held->manifest->entries[entry].bytes, 256u << 10) << "not a mapped file";
    const std::string path = from.DataPath(digest) + "/" + held->manifest->entries[entry].path;
    ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
    PullerOptions options;
    options.port = port;
    Puller puller(&to.store(), &to.clock(), options, Logger());
    const PullResult result = puller.Pull({.digest = digest, .sources = {from.Source()}}, nullptr);
    EXPECT_FALSE(result.status.ok());
    ExpectNothingLeft(to);
  }
}

TEST(Puller, ABadCopyHereIsReplaced) {
  Prng prng(11);
  PeerNode from("from");
  PeerNode to("to");
  const Blake3 digest = from.AddRandomShard(prng, 400'000);
  Puller puller(&to.store(), &to.clock(), {}, Logger());
  const PullRequest request{.digest = digest, .sources = {from.Source()}};
  ASSERT_TRUE(puller.Pull(request, nullptr).status.ok());
  FlipByteOnDisk(to, digest, LargestEntry(to, digest), 17);
  ASSERT_FALSE(to.store().Verify(digest, nullptr).ok);
  const PullResult again = puller.Pull(request, nullptr);
  ASSERT_TRUE(again.status.ok()) << again.status.error().ToString();
  EXPECT_GT(again.bytes_pulled, 400'000u);
  ExpectSameShard(from, to, digest);
}

TEST(Puller, SeveralPullsAtOnce) {
  Prng prng(12);
  PeerNode from("from");
  PeerNode to("to");
  std::vector<Blake3> digests;
  for (int i = 0; i < 6; ++i) digests.push_back(from.AddRandomShard(prng, 500'000));
  Puller puller(&to.store(), &to.clock(), {.streams = 3}, Logger());
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (size_t i = 0; i < digests.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto priority = static_cast<PullPriority>(i % 3);
      const PullResult result = puller.Pull(
          {.digest = digests[i], .sources = {from.Source()}, .priority = priority}, nullptr);
      if (result.status.ok()) ++good;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 6);
  for (const Blake3& digest : digests) ExpectSameShard(from, to, digest);
}

}  // namespace
}  // namespace tierkeep
