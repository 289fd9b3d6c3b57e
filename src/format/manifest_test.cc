#include "format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>

#include "base/escape_name.h"
#include "format/format_testutil.h"

namespace tierkeep {
namespace {

using ::testing::HasSubstr;

Xxh128 DigestOf(char fill) { return *Xxh128::FromBytes(std::string(16, fill)); }

// A directory with a file, a directory, a link and a file within.
Manifest SmallManifest() {
  Manifest m;
  m.identity.job = "j";
  m.identity.save = {{300, *Id128::FromBytes(std::string(16, '\x11'))}, 7, 1};
  m.identity.rank = 1;
  m.identity.ordinal = 2;
  m.identity.world = {Framework::kOrbax, 2, 1, 0};
  m.entries.push_back({"", EntryType::kDirectory, 0755, 0, 0, "", 0, {}});
  m.entries.push_back({"a", EntryType::kFile, 0644, 1000, 0, "", 5, {{5, DigestOf('\x22')}}});
  m.entries.push_back({"d", EntryType::kDirectory, 0700, 0, 0, "", 0, {}});
  m.entries.push_back({"d/empty", EntryType::kFile, 0600, 0, 0, "", 0, {}});
  m.entries.push_back({"l", EntryType::kSymlink, 0777, 0, 0, "d/empty", 0, {}});
  return m;
}

std::string MustEncode(const Manifest& m) {
  const auto encoded = EncodeManifest(m);
  EXPECT_TRUE(encoded.ok()) << encoded.error().message();
  return encoded.ok() ? *encoded : "";
}

// The encoding with its trailing digest made right again, so that a change reaches the rules.
std::string Resealed(std::string bytes) {
  bytes.resize(bytes.size() - Xxh128::kSize);
  return bytes + ComputeXxh128(AsBytes(bytes)).Raw();
}

TEST(Manifest, GoldenBytes) {
  const std::string expected =
      "544b4d46"  // magic
      "01"
      "01"
      "00"                                // version, XXH3-128, no logical digest
      "016a"                              // job "j"
      "ac02"                              // run sequence 300
      "11111111111111111111111111111111"  // run nonce
      "07"
      "01"
      "01"
      "00"
      "02"  // step, occurrence, rank, worker, ordinal
      "01"
      "02"
      "01"
      "00"  // orbax, 2 nodes, 1 worker, no partitions
      "05"  // entries
      "01"
      "00"
      "ed03"
      "00"
      "00"  // directory "", 0755
      "02"
      "0161"
      "a403"
      "e807"
      "00"  // file "a", 0644, uid 1000
      "05"
      "01"
      "05"
      "22222222222222222222222222222222"
      "01"
      "0164"
      "c003"
      "00"
      "00"  // directory "d", 0700
      "02"
      "07642f656d707479"
      "8003"
      "00"
      "00"
      "00"
      "00"  // file "d/empty", 0600
      "03"
      "016c"
      "ff03"
      "00"
      "00"
      "07642f656d707479";  // link "l" to "d/empty"
  const std::string encoded = MustEncode(SmallManifest());
  ASSERT_GT(encoded.size(), 16u);
  EXPECT_EQ(ToHex(AsBytes(encoded.substr(0, encoded.size() - 16))), expected);
  // As the xxhash and blake3 packages of Python give them.
  EXPECT_EQ(ToHex(AsBytes(encoded.substr(encoded.size() - 16))),
            "3c39f5fbe8932b1957f7df4787820103");
  EXPECT_EQ(ManifestDigest(encoded).Hex(),
            "f9083daae5b6e2c39bbddde747851af354bc83543e0fa40f6879a7c427d69cfd");
}

TEST(Manifest, TheDocumentsShowTheGoldenBytes) {
  std::ifstream file(TIERKEEP_SOURCE_DIR "/docs/formats.md");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  const std::string encoded = MustEncode(SmallManifest());
  EXPECT_THAT(text, HasSubstr(ToHex(AsBytes(encoded))));
  EXPECT_THAT(text, HasSubstr(ManifestDigest(encoded).Hex()));
}

TEST(Manifest, RandomOnesReadBackAndHaveOneEncoding) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 300; ++i) {
    const Manifest m = RandomManifest(&prng);
    const std::string encoded = MustEncode(m);
    const auto decoded = DecodeManifest(encoded);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message();
    ASSERT_EQ(*decoded, m);
    ASSERT_EQ(MustEncode(*decoded), encoded);
  }
}

TEST(Manifest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string encoded = MustEncode(RandomManifest(&prng));
  const std::string small = MustEncode(SmallManifest());
  for (const std::string& good : {small, encoded}) {
    for (size_t bit = 0; bit < good.size() * 8; ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
      const auto decoded = DecodeManifest(bad);
      ASSERT_FALSE(decoded.ok()) << "bit " << bit;
      ASSERT_EQ(decoded.error().code(), Code::kDataLoss);
    }
    for (size_t length = 0; length < good.size(); ++length) {
      ASSERT_FALSE(DecodeManifest(good.substr(0, length)).ok()) << "length " << length;
    }
    ASSERT_FALSE(DecodeManifest(good + '\0').ok());
  }
}

// With a right digest at the end, the rules alone must hold: whatever is accepted is canonical.
TEST(Manifest, ChangedOnesWithARightDigestAreRefusedOrCanonical) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = MustEncode(RandomManifest(&prng));
    for (uint64_t changes = 1 + prng.Below(3); changes > 0; --changes) {
      const size_t place = prng.Below(bytes.size() - Xxh128::kSize);
      switch (prng.Below(3)) {
        case 0:
          bytes[place] = static_cast<char>(prng.Next());
          break;
        case 1:
          bytes.erase(place, 1 + prng.Below(3));
          break;
        default:
          bytes.insert(place, prng.Bytes(1 + prng.Below(3)));
      }
      if (bytes.size() < 40) break;
    }
    bytes = Resealed(bytes);
    const auto decoded = DecodeManifest(bytes);
    if (decoded.ok()) {
      ASSERT_EQ(MustEncode(*decoded), bytes);
    } else {
      ASSERT_EQ(decoded.error().code(), Code::kDataLoss);
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);  // structure is checked, not only the digest
}

TEST(Manifest, NumbersInLongerFormAreRefused) {
  std::string bytes = MustEncode(SmallManifest());
  const size_t step = 4 + 3 + 2 + 2 + 16;
  ASSERT_EQ(bytes[step], 7);
  bytes.replace(step, 1, "\x87\x00", 2);  // 7 in two bytes
  const auto decoded = DecodeManifest(Resealed(bytes));
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.error().message(), HasSubstr("bad number"));
  bytes.replace(step, 2, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02");  // 65 bits
  EXPECT_FALSE(DecodeManifest(Resealed(bytes)).ok());
  bytes.replace(step, 10, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");  // 64 bits
  const auto largest = DecodeManifest(Resealed(bytes));
  ASSERT_TRUE(largest.ok()) << largest.error().message();
  EXPECT_EQ(largest->identity.save.step, UINT64_MAX);
}

TEST(Manifest, HugeCountsAreRefusedBeforeAnythingIsAllocated) {
  Manifest m = SmallManifest();
  m.entries.resize(1);
  std::string bytes = MustEncode(m);
  const size_t count = bytes.size() - Xxh128::kSize - 7;
  ASSERT_EQ(bytes[count], 1);
  bytes.replace(count, 1, "\xff\xff\xff\xff\xff\xff\xff\xff\x7f");
  const auto decoded = DecodeManifest(Resealed(bytes));
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.error().message(), HasSubstr("count of entries too high"));

  m = SmallManifest();
  m.entries = {{"", EntryType::kFile, 0, 0, 0, "", 0, {}}};
  bytes = MustEncode(m);
  bytes.replace(bytes.size() - Xxh128::kSize - 1, 1, "\xff\xff\xff\xff\xff\xff\xff\xff\x7f");
  const auto chunks = DecodeManifest(Resealed(bytes));
  ASSERT_FALSE(chunks.ok());
  EXPECT_THAT(chunks.error().message(), HasSubstr("count of chunks too high"));
}

struct BrokenRule {
  std::string name;
  std::function<void(Manifest*)> breakit;
};

TEST(Manifest, EveryRuleIsChecked) {
  const std::vector<BrokenRule> cases = {
      {"no entry", [](Manifest* m) { m->entries.clear(); }},
      {"no root", [](Manifest* m) { m->entries.erase(m->entries.begin()); }},
      {"root is a link",
       [](Manifest* m) {
         m->entries = {{"", EntryType::kSymlink, 0, 0, 0, "x", 0, {}}};
       }},
      {"file root with children", [](Manifest* m) { m->entries[0].type = EntryType::kFile; }},
      {"order", [](Manifest* m) { std::swap(m->entries[1], m->entries[2]); }},
      {"twice", [](Manifest* m) { m->entries[2] = m->entries[1]; }},
      {"no parent", [](Manifest* m) { m->entries.erase(m->entries.begin() + 2); }},
      {"parent is a file", [](Manifest* m) { m->entries[2].type = EntryType::kFile; }},
      {"absolute", [](Manifest* m) { m->entries[4].path = "/l"; }},
      {"dot dot", [](Manifest* m) { m->entries[3].path = "d/.."; }},
      {"dot", [](Manifest* m) { m->entries[1].path = "."; }},
      {"empty component", [](Manifest* m) { m->entries[3].path = "d//e"; }},
      {"trailing slash", [](Manifest* m) { m->entries[3].path = "d/e/"; }},
      {"NUL in path", [](Manifest* m) { m->entries[4].path = std::string("l\0x", 3); }},
      {"long name", [](Manifest* m) { m->entries[4].path = std::string(256, 'l'); }},
      {"mode", [](Manifest* m) { m->entries[1].mode = 0100644; }},
      {"sum", [](Manifest* m) { m->entries[1].bytes = 6; }},
      {"empty chunk",
       [](Manifest* m) {
         m->entries[1].chunks.push_back({0, DigestOf('x')});
       }},
      {"large chunk",
       [](Manifest* m) {
         m->entries[1].bytes = m->entries[1].chunks[0].bytes = kChunkBytesMax + 1;
       }},
      {"directory with bytes",
       [](Manifest* m) {
         m->entries[2].bytes = 5;
         m->entries[2].chunks = {{5, DigestOf('x')}};
       }},
      {"link with bytes", [](Manifest* m) { m->entries[4].bytes = 1; }},
      {"link without target", [](Manifest* m) { m->entries[4].link_target.clear(); }},
      {"NUL in target", [](Manifest* m) { m->entries[4].link_target = std::string("\0", 1); }},
      {"long target", [](Manifest* m) { m->entries[4].link_target = std::string(4096, 't'); }},
      {"file with target", [](Manifest* m) { m->entries[1].link_target = "t"; }},
      {"job", [](Manifest* m) { m->identity.job = "a/b"; }},
      {"no run", [](Manifest* m) { m->identity.save.run = {}; }},
      {"occurrence", [](Manifest* m) { m->identity.save.occurrence = 0; }},
      {"ordinal", [](Manifest* m) { m->identity.ordinal = 0; }},
      {"rank", [](Manifest* m) { m->identity.rank = 2; }},
      {"worker", [](Manifest* m) { m->identity.worker = 1; }},
      {"nodes", [](Manifest* m) { m->identity.world.nodes = kNodesMax + 1; }},
      {"framework", [](Manifest* m) { m->identity.world.framework = static_cast<Framework>(4); }},
      {"partitions", [](Manifest* m) { m->identity.world.data_parallelism = 3; }},
  };
  for (const BrokenRule& c : cases) {
    Manifest m = SmallManifest();
    c.breakit(&m);
    const auto encoded = EncodeManifest(m);
    ASSERT_FALSE(encoded.ok()) << c.name;
    EXPECT_EQ(encoded.error().code(), Code::kInvalidArgument) << c.name;
  }
}

TEST(Manifest, SiblingsThatSortBetweenADirectoryAndItsChildrenAreFine) {
  Manifest m = SmallManifest();
  // '-' sorts before '/': the directory "d" and its child aren't neighbours.
  m.entries.insert(m.entries.begin() + 3, {"d-x", EntryType::kFile, 0, 0, 0, "", 0, {}});
  const auto decoded = DecodeManifest(MustEncode(m));
  ASSERT_TRUE(decoded.ok()) << decoded.error().message();
  EXPECT_EQ(*decoded, m);
}

TEST(Manifest, ErrorsEscapeNamesFromTheTree) {
  Manifest m = SmallManifest();
  m.entries[4].path = "l\nforged line";
  m.entries[4].mode = 0200000;
  const auto encoded = EncodeManifest(m);
  ASSERT_FALSE(encoded.ok());
  EXPECT_EQ(encoded.error().message().find('\n'), std::string::npos);
  EXPECT_THAT(encoded.error().message(), HasSubstr("\\x0a"));
}

TEST(Manifest, TotalsAndVolumeNames) {
  Manifest m = SmallManifest();
  EXPECT_EQ(m.TotalBytes(), 5u);
  EXPECT_EQ(m.ChunkCount(), 1u);
  const Blake3 digest = ComputeBlake3("digest");
  EXPECT_EQ(VolumeDataName(m, digest), "D" + digest.Hex());
  m.logical = ComputeBlake3("logical");
  EXPECT_EQ(VolumeDataName(m, digest), "D" + m.logical.Hex());
  m.entries = {{"", EntryType::kFile, 0644, 0, 0, "", 0, {}}};
  EXPECT_EQ(VolumeDataName(m, digest), m.logical.Hex());
}

TEST(Manifest, PieceDigests) {
  const Xxh128 a = ComputeXxh128(AsBytes("a"));
  const Xxh128 b = ComputeXxh128(AsBytes("b"));
  EXPECT_EQ(CombinePieceDigests({a}), a);
  EXPECT_EQ(CombinePieceDigests({a, b}), ComputeXxh128(AsBytes(a.Raw() + b.Raw())));
  EXPECT_NE(CombinePieceDigests({a, b}), CombinePieceDigests({b, a}));
  EXPECT_EQ(CombinePieceDigests({}), ComputeXxh128({}));
}

}  // namespace
}  // namespace tierkeep
