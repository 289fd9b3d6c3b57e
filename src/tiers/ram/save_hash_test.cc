#include "tiers/ram/save_hash.h"

#include <gtest/gtest.h>

#include <numeric>

#include "format/ocdbt_logical.h"
#include "format/ocdbt_testutil.h"
#include "tiers/ram/ram_testutil.h"

namespace tierkeep {
namespace {

TEST(CutChunksTest, CutsPlainFilesEvery8MiB) {
  EXPECT_TRUE(CutChunks(0, {}).empty());
  EXPECT_EQ(CutChunks(1, {}), (std::vector<uint64_t>{1}));
  EXPECT_EQ(CutChunks(kChunkBytes, {}), (std::vector<uint64_t>{kChunkBytes}));
  EXPECT_EQ(CutChunks(2 * kChunkBytes + 5, {}),
            (std::vector<uint64_t>{kChunkBytes, kChunkBytes, 5}));
}

TEST(CutChunksTest, E3_GivesLargeValuesChunksOfTheirOwn) {
  const uint64_t value = kChunkBytes + 1;
  EXPECT_EQ(CutChunks(value + 110, {{100, value}}),
            (std::vector<uint64_t>{100, kChunkBytes, 1, 10}));
  // Small ones, ones beyond the end and ones within another don't count.
  EXPECT_EQ(CutChunks(1000, {{10, 20}}), (std::vector<uint64_t>{1000}));
  EXPECT_EQ(CutChunks(1000, {{10, kChunkBytes}}), (std::vector<uint64_t>{1000}));
  EXPECT_EQ(CutChunks(1000, {{UINT64_MAX, kChunkBytes}}), (std::vector<uint64_t>{1000}));
  EXPECT_EQ(CutChunks(kChunkBytes, {{0, kOwnChunkBytesMin}, {5, kOwnChunkBytesMin}}),
            (std::vector<uint64_t>{kOwnChunkBytesMin, kChunkBytes - kOwnChunkBytesMin}));
}

TEST(CutChunksTest, AlwaysTilesTheFile) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(fmt::format("TIERKEEP_TEST_SEED={}", seed));
  Prng prng(seed);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bytes = prng.Below(100u << 20);
    std::vector<ByteRange> values;
    for (uint64_t n = prng.Below(30); n > 0; --n) {
      values.push_back({prng.Below(bytes + 100), prng.Below(30u << 20)});
    }
    const auto cuts = CutChunks(bytes, values);
    EXPECT_EQ(std::accumulate(cuts.begin(), cuts.end(), uint64_t{0}), bytes);
    for (const uint64_t cut : cuts) EXPECT_TRUE(cut > 0 && cut <= kChunkBytes);
  }
}

// Names as TensorStore makes them: others are not known to be its files.
const std::string kFileOne = "d/11112222333344445555666677778888";
const std::string kFileTwo = "ocdbt.process_1/d/aaaabbbbccccddddeeeeffff00001111";

// A step directory as Orbax leaves it, of which only the stored values are alike in replicas.
class ReplicaTest : public testing::Test {
 protected:
  // `values` by key; `pad` bytes of garbage lead the data file, whose name is `file`.
  void Save(const std::string& name, const std::map<std::string, std::string>& values,
            const std::string& file, size_t pad) {
    std::string data(pad, 'p');
    std::vector<ocdbt::TestLeafEntry> entries;
    for (const auto& [key, value] : values) {
      if (value.size() < 100) {
        entries.push_back({.key = key, .inline_value = value});
        continue;
      }
      entries.push_back(
          {.key = key, .indirect = true, .file = 0, .offset = data.size(), .length = value.size()});
      data += value + "gap";
    }
    const std::string node = ocdbt::Node(ocdbt::LeafBody(ocdbt::OneFileTable(file), entries));
    const std::string node_file = "d/" + ComputeXxh128(AsBytes(name)).Hex();
    ocdbt::TestManifest manifest;
    manifest.table = ocdbt::OneFileTable(node_file);
    manifest.versions[0].length = node.size();
    const std::string item = temp_.Path(name + "/state/");
    PutFile(item + "manifest.ocdbt", manifest.Encode());
    PutFile(item + node_file, node);
    PutFile(item + file, data);
    PutFile(item + "commit_success.txt", "written to " + item);
    PutFile(temp_.Path(name + "/commit_success.txt"), name);
  }

  HashedSave Hash(const std::string& name, uint32_t data_parallelism = 2) {
    const auto tree = WalkTree(temp_.dir(), name, {});
    TK_CHECK(tree.ok());
    auto hashed = HashSave(temp_.dir(), name, *tree, TestIdentity(5, data_parallelism), &pool_,
                           nullptr, Logger(log_));
    TK_CHECK_MSG(hashed.ok(), hashed.error().ToString());
    return std::move(*hashed);
  }

  Prng prng_{1};
  TempDir temp_{"/dev/shm"};
  WorkerPool pool_{2};
  std::shared_ptr<MemoryLogSink> log_ = std::make_shared<MemoryLogSink>();
};

TEST_F(ReplicaTest, EqualStoredValuesAreEqualWhateverTheFilesLookLike) {
  const std::map<std::string, std::string> values{{"a", "inline"},
                                                  {"b", prng_.Bytes(20'000)},
                                                  {"c", prng_.Bytes(kOwnChunkBytesMin)},
                                                  {"d", prng_.Bytes(2 * kChunkBytes + 7)}};
  Save("one", values, kFileOne, 0);
  Save("two", values, kFileTwo, 12345);
  const HashedSave one = Hash("one");
  const HashedSave two = Hash("two");
  EXPECT_FALSE(one.manifest.logical.IsZero());
  EXPECT_EQ(one.manifest.logical, two.manifest.logical);
  // Only the small value was read again.
  EXPECT_EQ(one.second_pass_bytes, 20'000u);
  EXPECT_EQ(two.second_pass_bytes, 20'000u);
  EXPECT_FALSE(log_->Contains("can't be compared"));

  // The digests are those of the plan alone, without our cuts.
  auto files = ocdbt::LoadTree(temp_.Path("one"));
  auto plan = PlanLogicalDigest(files, ocdbt::StepEntries(files));
  ASSERT_TRUE(plan.ok());
  for (const auto& work : plan->work) {
    const auto value =
        files.ReadRange(work.location.path, work.location.offset, work.location.length);
    std::vector<Xxh128> pieces;
    for (uint64_t at = 0; at < value->size(); at += kChunkBytes) {
      pieces.push_back(ComputeXxh128(AsBytes(std::string_view(*value).substr(at, kChunkBytes))));
    }
    plan->lines[work.line].digest = CombinePieceDigests(pieces);
  }
  EXPECT_EQ(LogicalDigest(plan->lines).value(), one.manifest.logical);
}

TEST_F(ReplicaTest, AnyOtherValueOrFileMakesADifference) {
  std::map<std::string, std::string> values{{"b", prng_.Bytes(20'000)},
                                            {"d", prng_.Bytes(2 * kChunkBytes + 7)}};
  Save("one", values, kFileOne, 0);
  const Blake3 logical = Hash("one").manifest.logical;
  for (const std::string key : {"b", "d"}) {
    auto changed = values;
    changed[key].back() ^= 1;
    Save("two", changed, kFileTwo, 5);
    EXPECT_NE(Hash("two").manifest.logical, logical) << key;
    ASSERT_TRUE(temp_.dir().RemoveTree("two").ok());
  }
  Save("two", values, kFileTwo, 5);
  EXPECT_EQ(Hash("two").manifest.logical, logical);
  PutFile(temp_.Path("two/user_state"), "1");
  EXPECT_NE(Hash("two").manifest.logical, logical);
}

TEST_F(ReplicaTest, UnreadableArraysMeanNoLogicalDigestButNoRefusal) {
  Save("one", {{"b", prng_.Bytes(1000)}}, kFileOne, 0);
  PutFile(temp_.Path("one/state/d/" + ComputeXxh128(AsBytes("one")).Hex()), "no node");
  const HashedSave hashed = Hash("one");
  EXPECT_TRUE(hashed.manifest.logical.IsZero());
  EXPECT_TRUE(log_->Contains("can't be compared"));
  EXPECT_TRUE(EncodeManifest(hashed.manifest).ok());
}

TEST_F(ReplicaTest, WithoutDataParallelismNothingOfItIsRead) {
  Save("one", {{"b", prng_.Bytes(kOwnChunkBytesMin)}}, kFileOne, 10);
  const HashedSave hashed = Hash("one", 0);
  EXPECT_TRUE(hashed.manifest.logical.IsZero());
  for (const ManifestEntry& entry : hashed.manifest.entries) {
    if (entry.path == "state/" + kFileOne) {
      EXPECT_EQ(entry.chunks.size(), 1u);
    }
  }
}

TEST_F(ReplicaTest, SingleFilesCompareByTheirBytes) {
  PutFile(temp_.Path("a"), "same");
  PutFile(temp_.Path("b"), "same");
  PutFile(temp_.Path("c"), "other");
  PutFile(temp_.Path("empty"), "");
  EXPECT_EQ(Hash("a").manifest.logical, Hash("b").manifest.logical);
  EXPECT_NE(Hash("a").manifest.logical, Hash("c").manifest.logical);
  EXPECT_FALSE(Hash("empty").manifest.logical.IsZero());
}

TEST_F(ReplicaTest, ListingsNameTheValueThatDiffers) {
  std::map<std::string, std::string> values{
      {"a", "inline"}, {"b", prng_.Bytes(20'000)}, {"d", prng_.Bytes(2 * kChunkBytes + 7)}};
  Save("one", values, kFileOne, 0);
  values["d"].back() ^= 1;
  values["e"] = prng_.Bytes(300);
  Save("two", values, kFileTwo, 5);
  std::vector<ReplicaLines> sides;
  for (const std::string name : {"one", "two"}) {
    const Manifest manifest = Hash(name).manifest;
    const auto listing = ListLogically(temp_.dir(), name, manifest, nullptr, Logger(log_));
    ASSERT_TRUE(listing.ok()) << listing.error().ToString();
    const auto lines = DecodeLogicalListing(*listing, manifest.logical);
    ASSERT_TRUE(lines.ok()) << lines.error().ToString();
    sides.push_back({name, *lines});
  }
  const LogicalDifference found = CompareReplicas(sides[0], sides[1]);
  EXPECT_EQ(found.total, 2U);
  EXPECT_EQ(found.first, (std::vector<std::string>{"state: the value of b'd' differs",
                                                   "state: the value of b'e' is only in two"}));
}

TEST_F(ReplicaTest, ListingsOfBytesThatChangedOrThatNeverComparedAreRefused) {
  Save("one", {{"b", prng_.Bytes(20'000)}}, kFileOne, 0);
  const Manifest manifest = Hash("one").manifest;
  const std::string path = temp_.Path("one/state/" + kFileOne);
  std::string data = GetFile(path);
  data[7] ^= 1;
  PutFile(path, data);
  const Logger logger(log_);
  EXPECT_EQ(ListLogically(temp_.dir(), "one", manifest, nullptr, logger).error().code(),
            Code::kDataLoss);
  ASSERT_TRUE(temp_.dir().RemoveTree("one/state").ok());
  EXPECT_FALSE(ListLogically(temp_.dir(), "one", manifest, nullptr, logger).ok());
  PutFile(temp_.Path("file"), "same");
  EXPECT_TRUE(ListLogically(temp_.dir(), "file", Hash("file").manifest, nullptr, logger).ok());
  EXPECT_EQ(
      ListLogically(temp_.dir(), "file", Hash("file", 0).manifest, nullptr, logger).error().code(),
      Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tierkeep
