#include "format/ocdbt.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "base/prng.h"
#include "format/legacy_names.h"
#include "format/ocdbt_codec.h"
#include "format/ocdbt_testutil.h"

namespace tierkeep {
namespace {

using ocdbt::Compress;
using ocdbt::InteriorBody;
using ocdbt::LeafBody;
using ocdbt::MemoryFiles;
using ocdbt::Node;
using ocdbt::OneFileTable;
using ocdbt::OneNode;
using ocdbt::TestManifest;
using ::testing::HasSubstr;

std::vector<std::string> Keys(const OcdbtListing& listing) {
  std::vector<std::string> keys;
  for (const OcdbtEntry& entry : listing.entries) keys.push_back(entry.key);
  return keys;
}

Code ListCode(MemoryFiles files, const OcdbtLimits& limits = {}) {
  auto listing = ListOcdbt(files, "", limits);
  return listing.ok() ? Code::kOk : listing.error().code();
}

// An interior root over leaves, all in d/n one after the other, with right statistics.
struct Tree {
  std::vector<ocdbt::TestChild> children;
  std::string bytes;
  uint64_t keys = 0;

  void Leaf(ocdbt::TestChild child, const std::vector<ocdbt::TestLeafEntry>& entries) {
    const std::string leaf = Node(LeafBody(OneFileTable("d/v"), entries));
    child.offset = bytes.size();
    child.length = child.tree_bytes = leaf.size();
    child.keys = entries.size();
    keys += entries.size();
    bytes += leaf;
    children.push_back(child);
  }
  MemoryFiles Files() const {
    const std::string root = Node(InteriorBody(1, OneFileTable("d/n"), children));
    TestManifest manifest;
    manifest.versions[0] = {.generation = 1,
                            .height = 1,
                            .offset = bytes.size(),
                            .length = root.size(),
                            .keys = keys,
                            .tree_bytes = bytes.size() + root.size()};
    MemoryFiles files;
    files.files["manifest.ocdbt"] = manifest.Encode();
    files.files["d/n"] = bytes + root;
    return files;
  }
};

TEST(ListOcdbt, ReadsTheHandMadeDatabase) {
  MemoryFiles files = ocdbt::SmallDatabase();
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  ASSERT_EQ(listing->entries.size(), 2u);
  EXPECT_EQ(listing->entries[0], (OcdbtEntry{"a", "1"}));
  EXPECT_EQ(listing->entries[1], (OcdbtEntry{"ab", OcdbtLocation{"ocdbt.process_0/d/v", 0, 3}}));
  EXPECT_EQ(listing->summary.keys, 2u);
  EXPECT_EQ(listing->summary.indirect_value_bytes, 3u);
  EXPECT_TRUE(listing->summary.warnings.empty());
}

TEST(ListOcdbt, PathsAreRelativeToTheRootOfTheFiles) {
  MemoryFiles files;
  for (const auto& [path, bytes] : ocdbt::SmallDatabase().files) {
    files.files["step/state/" + path] = bytes;
  }
  auto listing = ListOcdbt(files, "step/state");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(listing->entries[1].location()->path, "step/state/ocdbt.process_0/d/v");
}

TEST(ListOcdbt, NoManifestIsNotFound) { EXPECT_EQ(ListCode(MemoryFiles()), Code::kNotFound); }

TEST(ListOcdbt, MissingRootIsAnEmptyDatabase) {
  TestManifest manifest;
  manifest.versions[0].offset = manifest.versions[0].length = UINT64_MAX;
  MemoryFiles files;
  files.files["manifest.ocdbt"] = manifest.Encode();
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_TRUE(listing->entries.empty());
  EXPECT_EQ(listing->summary.generation, 1u);
}

TEST(ListOcdbt, ValuesOfLengthZeroOpenNothing) {
  // The table row is empty, as TensorStore writes it for references that name no file.
  MemoryFiles files = OneNode(Node(LeafBody(OneFileTable(""), {{.key = "a", .indirect = true}})));
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(listing->entries[0], (OcdbtEntry{"a", ""}));
}

TEST(ListOcdbt, ChildrenInheritKeyPrefixAndBasePath) {
  // The root refers to a leaf in base "child/", whose own table must be read relative to it.
  const std::string leaf = Node(
      LeafBody(OneFileTable("d/v"), {{.key = "1", .indirect = true, .length = 5}, {.key = "2"}}));
  const std::string table = ocdbt::V(1) + ocdbt::V(9) + ocdbt::V(6) + "child/d/n";
  const std::string root =
      Node(InteriorBody(1, table, {{.key = "k/1", .common = 2, .length = leaf.size()}}));
  MemoryFiles files = OneNode(root, 1);
  files.files["child/d/n"] = leaf;
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(Keys(*listing), (std::vector<std::string>{"k/1", "k/2"}));
  EXPECT_EQ(listing->entries[0].location()->path, "child/d/v");
}

TEST(ListOcdbt, ChecksKeysAgainstTheRangeOfTheirNode) {
  Tree good;
  good.Leaf({.key = "a"}, {{.key = "a"}, {.key = "b"}});
  good.Leaf({.key = "c"}, {{.key = "d"}, {.key = "e"}});
  MemoryFiles good_files = good.Files();
  auto listing = ListOcdbt(good_files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(Keys(*listing), (std::vector<std::string>{"a", "b", "d", "e"}));
  EXPECT_TRUE(listing->summary.warnings.empty()) << listing->summary.warnings[0];

  Tree below;
  below.Leaf({.key = "b"}, {{.key = "a"}});
  EXPECT_EQ(ListCode(below.Files()), Code::kDataLoss);
  Tree above;
  above.Leaf({.key = "a"}, {{.key = "a"}, {.key = "c"}});
  above.Leaf({.key = "c"}, {{.key = "d"}});
  EXPECT_EQ(ListCode(above.Files()), Code::kDataLoss);
}

TEST(ListOcdbt, ChecksFullKeyLength) {
  Tree tree;
  const std::string start(40'000, 'k');
  tree.Leaf({.key = start, .common = 40'000}, {{.key = std::string(25'535, 'x')}});
  EXPECT_EQ(ListCode(tree.Files()), Code::kOk);
  Tree longer;
  longer.Leaf({.key = start, .common = 40'000}, {{.key = std::string(25'536, 'x')}});
  EXPECT_EQ(ListCode(longer.Files()), Code::kDataLoss);
}

TEST(ListOcdbt, WrongStatisticsAreOnlyWarnings) {
  Tree tree;
  tree.Leaf({.key = "a"}, {{.key = "a"}});
  tree.children[0].keys = 7;
  MemoryFiles files = tree.Files();
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->summary.warnings.size(), 1u);
  EXPECT_THAT(listing->summary.warnings[0], HasSubstr("says 7"));
}

TEST(ListOcdbt, RefusesPathsThatLeaveTheRoot) {
  for (const char* path : {"../v", "/etc/passwd", "d/../../v", "d/", "d//v", ""}) {
    const auto value = LeafBody(OneFileTable(path), {{.key = "a", .indirect = true, .length = 1}});
    EXPECT_EQ(ListCode(OneNode(Node(value))), Code::kDataLoss) << path;
    const auto child = InteriorBody(1, OneFileTable(path), {{.key = "a", .length = 20}});
    EXPECT_EQ(ListCode(OneNode(Node(child), 1)), Code::kDataLoss) << path;
  }
}

TEST(ListOcdbt, MissingAndShortDataFilesAreDataLoss) {
  MemoryFiles files = ocdbt::SmallDatabase();
  files.files["d/n"].pop_back();
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
  files.files.erase("d/n");
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
}

TEST(ListOcdbt, BytesAfterTheNodeAreLegal) {
  MemoryFiles files = ocdbt::SmallDatabase();
  files.files["d/n"].resize(4096);
  files.files["d/unreferenced"] = "x";
  EXPECT_EQ(ListCode(files), Code::kOk);
  files.files["manifest.ocdbt"] += '\0';
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
}

TEST(ListOcdbt, WrongHeightIsDataLoss) {
  const std::string leaf = Node(LeafBody(OneFileTable("d/v"), {{.key = "a"}}));
  EXPECT_EQ(ListCode(OneNode(leaf, 0)), Code::kOk);
  EXPECT_EQ(ListCode(OneNode(leaf, 1)), Code::kDataLoss);
  EXPECT_EQ(ListCode(OneNode(leaf, 255)), Code::kDataLoss);
}

// A chain of nodes to the greatest height there can be, each the only child of the one above.
TEST(ListOcdbt, DescendsTheGreatestHeight) {
  std::string node = Node(LeafBody(OneFileTable("d/v"), {{.key = "a"}}));
  MemoryFiles files;
  for (int height = 1; height <= 255; ++height) {
    const std::string path = "d/" + std::to_string(height - 1);
    files.files[path] = node;
    node = Node(InteriorBody(static_cast<uint8_t>(height), OneFileTable(path),
                             {{.key = "a", .length = node.size()}}));
  }
  for (auto& [path, bytes] : OneNode(node, 255).files) files.files[path] = bytes;
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(Keys(*listing), std::vector<std::string>{"a"});
  OcdbtLimits limits;
  limits.held_bytes_max = 1000;
  EXPECT_EQ(ListCode(files, limits), Code::kResourceExhausted);
}

// Two references to one child at every level under different prefixes: 2^h keys from h nodes.
TEST(ListOcdbt, SharedSubtreesMeetTheLimits) {
  constexpr int kHeight = 40;
  std::string node = Node(LeafBody(OneFileTable("d/v"), {{.key = ""}}));
  MemoryFiles files;
  for (int height = 1; height <= kHeight; ++height) {
    const std::string path = "d/" + std::to_string(height - 1);
    files.files[path] = node;
    node = Node(InteriorBody(static_cast<uint8_t>(height), OneFileTable(path),
                             {{.key = "a", .common = 1, .length = node.size()},
                              {.key = "b", .common = 1, .length = node.size()}}));
  }
  for (auto& [path, bytes] : OneNode(node, kHeight).files) files.files[path] = bytes;
  OcdbtLimits limits;
  limits.entries_max = 1000;
  EXPECT_EQ(ListCode(files, limits), Code::kResourceExhausted);
  limits = {};
  limits.listed_bytes_max = 1 << 20;
  EXPECT_EQ(ListCode(files, limits), Code::kResourceExhausted);
  limits = {};
  limits.decoded_bytes_total_max = 1 << 20;
  EXPECT_EQ(ListCode(files, limits), Code::kResourceExhausted);
}

TEST(ListOcdbt, LongKeysFromPrefixesMeetTheLimit) {
  // 20000 keys of 60 kB out of 100 kB of node.
  constexpr int kKeys = 20'000;
  std::string body(1, '\0');
  body += OneFileTable("d/v") + ocdbt::V(kKeys);
  for (int i = 1; i < kKeys; ++i) body += ocdbt::V(60'000);
  body += ocdbt::V(60'000);
  for (int i = 1; i < kKeys; ++i) body += ocdbt::V(2);
  body += std::string(60'000, 'k');
  for (int i = 1; i < kKeys; ++i) {
    body += static_cast<char>(i >> 8);
    body += static_cast<char>(i & 0xFF);
  }
  body += std::string(2 * kKeys, '\0');
  OcdbtLimits limits;
  limits.listed_bytes_max = 16 << 20;
  EXPECT_EQ(ListCode(OneNode(Node(body, Compress::kZstd)), limits), Code::kResourceExhausted);
}

TEST(ListOcdbt, NodeLargerThanTheLimitIsNotRead) {
  TestManifest manifest;
  manifest.versions[0].length = uint64_t{1} << 50;
  MemoryFiles files;
  files.files["manifest.ocdbt"] = manifest.Encode();
  files.files["d/n"] = "x";
  EXPECT_EQ(ListCode(files), Code::kResourceExhausted);
  EXPECT_TRUE(std::none_of(files.reads.begin(), files.reads.end(),
                           [](const auto& r) { return r.path == "d/n"; }));
}

MemoryFiles Numbered(std::set<uint64_t> generations) {
  MemoryFiles files = ocdbt::SmallDatabase();
  TestManifest manifest;
  manifest.kind = 1;
  files.files["manifest.ocdbt"] = manifest.Encode();
  for (const uint64_t g : generations) {
    TestManifest numbered;
    numbered.versions[0] = {.generation = g, .length = files.files["d/n"].size()};
    files.files[fmt::format("manifest.{:016x}", g)] = numbered.Encode();
  }
  return files;
}

TEST(NumberedManifests, TheHighestGenerationCounts) {
  MemoryFiles files = Numbered({9, 10, 11});
  files.files["manifest.0000000000000000"] = "ignored";
  files.files["manifest.00000000000000FF"] = "ignored";
  files.files["manifest.000000000000000ff"] = "ignored";
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_EQ(listing->summary.generation, 11u);
  EXPECT_EQ(listing->entries.size(), 2u);
}

TEST(NumberedManifests, NoneIsAnEmptyDatabase) {
  MemoryFiles files = Numbered({});
  auto listing = ListOcdbt(files, "");
  ASSERT_TRUE(listing.ok()) << listing.error().ToString();
  EXPECT_TRUE(listing->entries.empty());
}

TEST(NumberedManifests, MustAgreeWithNameAndConfiguration) {
  MemoryFiles files = Numbered({9});
  files.files["manifest.000000000000000c"] = files.files["manifest.0000000000000009"];
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
  files = Numbered({});
  TestManifest other;
  other.decoded_node_bytes_max = 5;
  files.files["manifest.0000000000000001"] = other.Encode();
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
  files.files["manifest.0000000000000001"] = files.files["manifest.ocdbt"];  // numbered itself
  EXPECT_EQ(ListCode(files), Code::kDataLoss);
}

// A writer replaces the newest manifest between the listing and the reading.
class RacingFiles : public MemoryFiles {
 public:
  explicit RacingFiles(MemoryFiles tree) : MemoryFiles(std::move(tree)) {}
  Result<std::vector<std::string>> List(const std::string& path) override {
    auto names = MemoryFiles::List(path);
    if (races-- > 0) names->push_back("manifest.00000000000000aa");
    return names;
  }
  int races = 0;
};

TEST(NumberedManifests, AreListedAgainWhenTheChosenOneVanished) {
  RacingFiles files(Numbered({9}));
  files.races = 2;
  EXPECT_TRUE(ListOcdbt(files, "").ok());
  files.races = 1000;
  auto listing = ListOcdbt(files, "");
  ASSERT_FALSE(listing.ok());
  EXPECT_EQ(listing.error().code(), Code::kAborted);
}

TEST(ReadOcdbtValue, CutsIntoPiecesAndFailsOnShortFiles) {
  MemoryFiles files;
  files.files["v"] = "0123456789";
  std::vector<std::string> pieces;
  const auto sink = [&](std::string_view piece) { pieces.emplace_back(piece); };
  ASSERT_TRUE(ReadOcdbtValue(files, {"k", OcdbtLocation{"v", 1, 9}}, 4, sink).ok());
  EXPECT_EQ(pieces, (std::vector<std::string>{"1234", "5678", "9"}));
  pieces.clear();
  ASSERT_TRUE(ReadOcdbtValue(files, {"k", "abcde"}, 4, sink).ok());
  EXPECT_EQ(pieces, (std::vector<std::string>{"abcd", "e"}));
  const auto read = [&](OcdbtLocation location) {
    return ReadOcdbtValue(files, {"k", location}, 4, sink);
  };
  EXPECT_EQ(read({"v", 2, 9}).error().code(), Code::kDataLoss);
  EXPECT_EQ(read({"w", 0, 1}).error().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace tierkeep
