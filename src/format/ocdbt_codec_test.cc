#include "format/ocdbt_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include "base/digest.h"
#include "format/ocdbt_testutil.h"

namespace tierkeep::ocdbt {
namespace {

using ::testing::HasSubstr;

DecodeLimits Limits() { return DecodeLimits{}; }

std::vector<std::string> Paths(const std::vector<DataFile>& files) {
  std::vector<std::string> out;
  for (const DataFile& file : files) {
    out.push_back(std::string(file.base()) + "|" + file.path.substr(file.base_bytes));
  }
  return out;
}

Result<std::vector<DataFile>> Table(std::string_view bytes, std::string_view transitive = "") {
  Cursor in(bytes);
  return DecodeDataFileTable(in, transitive, Limits());
}

TEST(Cursor, ReadsPrimitives) {
  const std::string bytes = FromHex("01020304050102030405060708ff");
  Cursor in(bytes);
  EXPECT_EQ(in.U8(), 1);
  EXPECT_EQ(in.U32be(), 0x02030405u);
  EXPECT_EQ(in.U64le(), 0x0807060504030201u);
  EXPECT_EQ(in.remaining(), 1u);
  EXPECT_FALSE(in.failed());
  EXPECT_EQ(in.U32le(), 0u);
  EXPECT_TRUE(in.failed());
  EXPECT_EQ(in.U8(), 0);  // stays failed
}

TEST(Cursor, ReadsVarintsWithinTheirWidth) {
  const auto v64 = [](std::string_view hex) {
    const std::string bytes = FromHex(hex);
    Cursor in(bytes);
    const uint64_t value = in.V64();
    return in.failed() ? std::string("failed") : std::to_string(value);
  };
  const auto v32 = [](std::string_view hex) {
    const std::string bytes = FromHex(hex);
    Cursor in(bytes);
    const uint64_t value = in.V32();
    return in.failed() ? std::string("failed") : std::to_string(value);
  };
  const auto v16 = [](std::string_view hex) {
    const std::string bytes = FromHex(hex);
    Cursor in(bytes);
    const uint64_t value = in.V16();
    return in.failed() ? std::string("failed") : std::to_string(value);
  };
  EXPECT_EQ(v64("00"), "0");
  EXPECT_EQ(v64("8000"), "0");  // longer than needed
  EXPECT_EQ(v64("e803"), "488");
  EXPECT_EQ(v64("ffffffffffffffffff01"), "18446744073709551615");
  EXPECT_EQ(v64("ffffffffffffffffff02"), "failed");
  EXPECT_EQ(v64("80808080808080808080"), "failed");
  EXPECT_EQ(v64("80"), "failed");
  EXPECT_EQ(v64(""), "failed");
  EXPECT_EQ(v32("ffffffff0f"), "4294967295");
  EXPECT_EQ(v32("ffffffff10"), "failed");
  EXPECT_EQ(v32("808080808000"), "failed");
  EXPECT_EQ(v16("ffff03"), "65535");
  EXPECT_EQ(v16("808004"), "failed");
}

TEST(Envelope, ChecksumIsCastagnoli) {
  EXPECT_EQ(ComputeCrc32c(AsBytes("123456789")), 0xE3069283u);
}

TEST(Envelope, OpensRawAndCompressed) {
  for (const Compress compress : {Compress::kNo, Compress::kZstd}) {
    for (const size_t n : {0u, 1u, 100'000u, 300'000u}) {
      const std::string body(n, 'x');
      auto opened = OpenEnvelope(Seal(kManifestMagic, body, compress), kManifestMagic, 1 << 20);
      if (n == 0 && compress == Compress::kNo) {  // 18 bytes, above the minimum of 16
        ASSERT_TRUE(opened.ok());
      }
      ASSERT_TRUE(opened.ok()) << n << opened.error().ToString();
      EXPECT_EQ(opened->view(), body);
    }
  }
}

TEST(Envelope, StreamsFramesWithoutContentSize) {
  const std::string body(200'000, 'y');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  frame.resize(ZSTD_compress2(context, frame.data(), frame.size(), body.data(), body.size()));
  ZSTD_freeCCtx(context);
  ASSERT_EQ(ZSTD_getFrameContentSize(frame.data(), frame.size()), ZSTD_CONTENTSIZE_UNKNOWN);
  std::string object = Seal(kManifestMagic, "");
  object[13] = 1;
  object.insert(14, frame);
  Reseal(object);
  auto opened = OpenEnvelope(object, kManifestMagic, 1 << 20);
  ASSERT_TRUE(opened.ok()) << opened.error().ToString();
  EXPECT_EQ(opened->view(), body);
}

TEST(Envelope, RefusesWhatIsNotExactlyRight) {
  const auto code = [](std::string object, uint64_t max = 1 << 20) {
    auto opened = OpenEnvelope(std::move(object), kManifestMagic, max);
    return opened.ok() ? Code::kOk : opened.error().code();
  };
  const std::string good = Seal(kManifestMagic, "0123456789", Compress::kZstd);
  ASSERT_EQ(code(good), Code::kOk);
  EXPECT_EQ(code(""), Code::kDataLoss);
  EXPECT_EQ(code(good.substr(0, 15)), Code::kDataLoss);
  EXPECT_EQ(code(good + "x"), Code::kDataLoss);
  EXPECT_EQ(code(Seal(kBtreeNodeMagic, "0123456789")), Code::kDataLoss);
  std::string bad = good;
  bad[12] = 1;  // version
  Reseal(bad);
  EXPECT_EQ(code(bad), Code::kDataLoss);
  bad = good;
  bad[13] = 2;  // compression
  Reseal(bad);
  EXPECT_EQ(code(bad), Code::kDataLoss);
  bad = good;
  bad.insert(bad.size() - 4, "x");  // after the frame
  Reseal(bad);
  EXPECT_EQ(code(bad), Code::kDataLoss);
  bad = good;
  bad.insert(bad.size() - 4, bad.substr(14, bad.size() - 18));  // a second frame
  Reseal(bad);
  EXPECT_EQ(code(bad), Code::kDataLoss);
  bad = good;
  bad.erase(bad.size() - 5, 1);  // the frame is cut short
  Reseal(bad);
  EXPECT_EQ(code(bad), Code::kDataLoss);
}

TEST(Envelope, LimitsWhatACompressedBodyMayBecome) {
  const std::string bomb = Seal(kManifestMagic, std::string(8 << 20, '\0'), Compress::kZstd);
  ASSERT_LT(bomb.size(), 2000u);
  auto opened = OpenEnvelope(bomb, kManifestMagic, 1 << 20);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), Code::kResourceExhausted);
  EXPECT_FALSE(OpenEnvelope(Seal(kManifestMagic, std::string(101, 'x')), kManifestMagic, 100).ok());
}

TEST(DataFileTable, DecodesTheVectorOfTheFormatPage) {
  auto files = Table(FromHex("020e140610106f636462742e70726f636573735f302f642f6161312f642f6262"));
  ASSERT_TRUE(files.ok()) << files.error().ToString();
  EXPECT_EQ(Paths(*files),
            (std::vector<std::string>{"ocdbt.process_0/|d/aa", "ocdbt.process_1/|d/bb"}));
}

TEST(DataFileTable, InheritsTheBasePath) {
  auto files = Table(OneFileTable("d/aa"), "child/");
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(Paths(*files), std::vector<std::string>{"child/|d/aa"});
  // Deeper still: base "sub/" inside "child/".
  files = Table(V(1) + V(8) + V(4) + "sub/d/aa", "child/");
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(Paths(*files), std::vector<std::string>{"child/sub/|d/aa"});
}

TEST(DataFileTable, EmptyTablesAndEmptyPathsAreLegal) {
  EXPECT_TRUE(Table(V(0)).ok());
  auto files = Table(V(1) + V(0) + V(0));
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(Paths(*files), std::vector<std::string>{"|"});
}

TEST(DataFileTable, RefusesWrongLengths) {
  const auto fails = [](std::string_view bytes, std::string_view transitive = "") {
    auto files = Table(bytes, transitive);
    return !files.ok() && files.error().code() == Code::kDataLoss;
  };
  EXPECT_TRUE(fails(""));
  EXPECT_TRUE(fails(V(5)));  // more than there is
  EXPECT_TRUE(fails(V(uint64_t{1} << 60) + "xxxx"));
  EXPECT_TRUE(fails(V(1) + V(4) + V(5) + "d/aa"));  // base longer than the path
  EXPECT_TRUE(fails(V(1) + V(4) + V(0) + "d/a"));   // suffix cut short
  EXPECT_TRUE(fails(V(2) + V(5) + V(4) + V(0) + V(0) + V(0) + "d/aa"));  // prefix too long
  // A prefix past the shorter base needs equal bases.
  EXPECT_TRUE(fails(V(2) + V(3) + V(4) + V(1) + V(2) + V(0) + "b/aab"));
  EXPECT_FALSE(fails(V(2) + V(2) + V(4) + V(1) + V(2) + V(2) + "b/aab"));
  EXPECT_TRUE(fails(OneFileTable(std::string(30'000, 'x')), std::string(40'000, 'y')));
  EXPECT_FALSE(fails(OneFileTable(std::string(25'535, 'x')), std::string(40'000, 'y')));
}

TEST(DataFileTable, LimitsWhatPrefixesMayExpandTo) {
  // 4000 paths of 60000 bytes from some 70 kB.
  std::string bytes = V(4000);
  for (int i = 1; i < 4000; ++i) bytes += V(60'000);
  bytes += V(60'000);
  for (int i = 1; i < 4000; ++i) bytes += V(0);
  bytes += std::string(4000, '\0') + std::string(60'000, 'x');
  auto files = Table(bytes);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.error().code(), Code::kResourceExhausted);
}

TEST(DataPath, OnlyPlainRelativePathsAreRead) {
  for (const char* good : {"d/aa", "ocdbt.process_0/d/aa", "a", "..a/b..", ".hidden"}) {
    EXPECT_TRUE(CheckDataPath(good).ok()) << good;
  }
  for (const char* bad : {"", "/", "/d/aa", "d//aa", "d/aa/", "../d/aa", "d/../aa", ".", "..",
                          "./d", "d/.", "d/.."}) {
    EXPECT_FALSE(CheckDataPath(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckDataPath(std::string_view("d\0a", 3)).ok());
}

TEST(ManifestCodec, DecodesTheNewestVersion) {
  TestManifest test;
  test.versions = {{.generation = 17},
                   {.generation = 18,
                    .height = 2,
                    .offset = 5,
                    .length = 7,
                    .keys = 3,
                    .tree_bytes = 7,
                    .indirect_bytes = 9}};
  test.nodes = {{.generation = 16, .height = 1}};
  auto manifest = DecodeManifest(test.Encode(), Limits());
  ASSERT_TRUE(manifest.ok()) << manifest.error().ToString();
  EXPECT_EQ(manifest->latest.generation, 18u);
  EXPECT_EQ(manifest->latest.root_height, 2);
  EXPECT_EQ(manifest->latest.root.offset, 5u);
  EXPECT_EQ(manifest->latest.statistics, (Statistics{3, 7, 9}));
}

using Change = std::function<void(TestManifest&)>;

// Each change makes a good manifest a bad one.
void ExpectRefused(const std::vector<std::pair<const char*, Change>>& cases) {
  ASSERT_TRUE(DecodeManifest(TestManifest{}.Encode(), Limits()).ok());
  for (const auto& [name, change] : cases) {
    TestManifest test;
    change(test);
    auto manifest = DecodeManifest(test.Encode(), Limits());
    ASSERT_FALSE(manifest.ok()) << name;
    EXPECT_EQ(manifest.error().code(), Code::kDataLoss) << name;
  }
}

TEST(ManifestCodec, RefusesEachBrokenRuleOfVersions) {
  constexpr uint64_t kMax = UINT64_MAX;
  ExpectRefused({
      {"kind", [](auto& m) { m.kind = 2; }},
      {"arity 0", [](auto& m) { m.arity_log2 = 0; }},
      {"arity 17", [](auto& m) { m.arity_log2 = 17; }},
      {"compression", [](auto& m) { m.compression = 2; }},
      {"a width of 33 bits", [](auto& m) { m.decoded_node_bytes_max = uint64_t{1} << 32; }},
      {"trailing", [](auto& m) { m.tail = "x"; }},
      {"no versions", [](auto& m) { m.versions.clear(); }},
      {"too many versions",
       [](auto& m) {
         m.arity_log2 = 1;
         m.versions = {{.generation = 1}, {.generation = 2}, {.generation = 3}};
       }},
      {"generation 0", [](auto& m) { m.versions[0].generation = 0; }},
      {"not increasing",
       [](auto& m) {
         m.versions = {{.generation = 2}, {.generation = 2}};
       }},
      {"two blocks",
       [](auto& m) {
         m.versions = {{.generation = 16}, {.generation = 17}};
       }},
      {"file index", [](auto& m) { m.versions[0].file = 1; }},
      {"range", [](auto& m) { m.versions[0].offset = kMax; }},
      {"range overflows",
       [](auto& m) { m.versions[0].offset = m.versions[0].length = kMax / 2 + 1; }},
      {"missing with height",
       [](auto& m) { m.versions[0] = {.height = 1, .offset = kMax, .length = kMax}; }},
      {"missing with keys",
       [](auto& m) { m.versions[0] = {.offset = kMax, .length = kMax, .keys = 1}; }},
      {"missing with file index",
       [](auto& m) { m.versions[0] = {.file = 1, .offset = kMax, .length = kMax}; }},
  });
}

TEST(ManifestCodec, RefusesEachBrokenRuleOfVersionNodes) {
  constexpr uint64_t kMax = UINT64_MAX;
  ExpectRefused({
      {"node count",
       [](auto& m) {
         m.arity_log2 = 16;
         m.versions = {{.generation = 70'000}};
         m.nodes = {{.generation = 1, .height = 3},
                    {.generation = 2, .height = 2},
                    {.generation = 3, .height = 1}};
       }},
      {"node as new as the versions", [](auto& m) { m.nodes = {{.generation = 1}}; }},
      {"node generation 0",
       [](auto& m) { m.versions[0].generation = 17, m.nodes = {{.generation = 0}}; }},
      {"node height 0", [](auto& m) { m.versions[0].generation = 17, m.nodes = {{.height = 0}}; }},
      {"node heights",
       [](auto& m) {
         m.versions[0].generation = 17;
         m.nodes = {{.generation = 1, .height = 1}, {.generation = 2, .height = 1}};
       }},
      {"node generations",
       [](auto& m) {
         m.versions[0].generation = 17;
         m.nodes = {{.generation = 2, .height = 2}, {.generation = 2, .height = 1}};
       }},
      {"node file", [](auto& m) { m.versions[0].generation = 17, m.nodes = {{.file = 1}}; }},
      {"node missing",
       [](auto& m) {
         m.versions[0].generation = 17;
         m.nodes = {{.offset = kMax, .length = kMax}};
       }},
  });
}

TEST(ManifestCodec, RefusesEveryTruncationOfTheBody) {
  TestManifest test;
  test.versions = {{.generation = 17}, {.generation = 18}};
  test.nodes = {{.generation = 16}};
  const std::string whole = test.Encode();
  ASSERT_TRUE(DecodeManifest(whole, Limits()).ok());
  for (size_t body = 0; body + 18 < whole.size(); ++body) {
    std::string cut = whole.substr(0, 14 + body) + "0000";
    Reseal(cut);
    EXPECT_FALSE(DecodeManifest(cut, Limits()).ok()) << body;
  }
}

TEST(BtreeNodeCodec, YieldsEntriesInOrder) {
  const std::string body =
      LeafBody(OneFileTable("d/v"), {{.key = "a", .inline_value = "1"},
                                     {.key = "ab", .indirect = true, .offset = 4, .length = 6}});
  auto node = BtreeNode::Decode(Node(body), "base/", 0, Limits());
  ASSERT_TRUE(node.ok()) << node.error().ToString();
  BtreeNode moved = std::move(*node);  // entries still come after a move
  BtreeNode::Entry entry;
  ASSERT_TRUE(moved.Next(entry).value());
  EXPECT_EQ(entry.relative_key, "a");
  EXPECT_TRUE(entry.is_inline);
  EXPECT_EQ(entry.inline_value, "1");
  ASSERT_TRUE(moved.Next(entry).value());
  EXPECT_EQ(entry.relative_key, "ab");
  EXPECT_FALSE(entry.is_inline);
  EXPECT_EQ(moved.files()[entry.reference.file].path, "base/d/v");
  EXPECT_EQ(entry.reference.offset, 4u);
  EXPECT_EQ(entry.reference.length, 6u);
  EXPECT_FALSE(moved.Next(entry).value());
}

// The first error of decoding a node and all of its entries.
Status DecodeAll(std::string_view body, uint8_t height) {
  TK_ASSIGN_OR_RETURN(BtreeNode node, BtreeNode::Decode(Node(body), "", height, Limits()));
  BtreeNode::Entry entry;
  while (true) {
    TK_ASSIGN_OR_RETURN(const bool more, node.Next(entry));
    if (!more) return OkStatus();
  }
}

TEST(BtreeNodeCodec, RefusesEachBrokenRule) {
  const std::string table = OneFileTable("d/v");
  const auto leaf = [&](std::vector<TestLeafEntry> entries) { return LeafBody(table, entries); };
  const std::string one = leaf({{.key = "a", .inline_value = "1"}});
  ASSERT_TRUE(DecodeAll(one, 0).ok());
  const std::string prefixed = std::string(1, '\0') + table;  // height and table of a leaf
  const std::string bad_kind = prefixed + V(1) + V(1) + "a" + V(1) + "\x02" + "1";
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"trailing", one + "x"},
      {"height", InteriorBody(1, table, {{.key = "a"}})},
      {"no entries", prefixed + V(0)},
      {"too many entries", prefixed + V(kNodeEntriesMax + 1) + std::string(5 << 20, '\0')},
      {"more entries than bytes", prefixed + V(100) + "xx"},
      {"unsorted", leaf({{.key = "b"}, {.key = "a"}})},
      {"twice", leaf({{.key = "a"}, {.key = "a"}})},
      {"unsorted as signed bytes", leaf({{.key = "\xff"}, {.key = "a"}})},
      {"prefix too long",
       prefixed + V(2) + V(2) + V(1) + V(1) + "ab" + V(0) + V(0) + std::string(2, '\0')},
      {"key too long", prefixed + V(2) + V(65535) + V(65535) + V(1) + std::string(65536, 'k') +
                           V(0) + V(0) + std::string(2, '\0')},
      {"inline value too long", leaf({{.key = "a", .inline_value = std::string(1048577, 'v')}})},
      {"value kind", bad_kind},
      {"file index", leaf({{.key = "a", .indirect = true, .file = 1, .length = 1}})},
      {"range", leaf({{.key = "a", .indirect = true, .offset = UINT64_MAX, .length = 1}})},
      {"missing value",
       leaf({{.key = "a", .indirect = true, .offset = UINT64_MAX, .length = UINT64_MAX}})},
      {"wide key length", prefixed + V(1) + V(65536) + "a"},
  };
  for (const auto& [name, body] : cases) {
    const Status status = DecodeAll(body, 0);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code(), Code::kDataLoss) << name;
  }
  const std::string interior = InteriorBody(1, table, {{.key = "a", .common = 1, .length = 9}});
  EXPECT_TRUE(DecodeAll(interior, 1).ok());
  EXPECT_FALSE(DecodeAll(InteriorBody(1, table, {{.key = "a", .common = 2}}), 1).ok());
  EXPECT_FALSE(DecodeAll(InteriorBody(1, table, {{.key = "a", .file = 1}}), 1).ok());
  EXPECT_FALSE(
      DecodeAll(InteriorBody(1, table, {{.key = "a", .offset = UINT64_MAX, .length = UINT64_MAX}}),
                1)
          .ok());
}

TEST(BtreeNodeCodec, RefusesEveryTruncationOfTheBody) {
  const std::string table = OneFileTable("d/v");
  const std::string leaf =
      LeafBody(table, {{.key = "a", .inline_value = "12"},
                       {.key = "b", .indirect = true, .offset = 300, .length = 6}});
  const std::string interior =
      InteriorBody(1, table, {{.key = "a", .length = 300}, {.key = "b", .length = 9}});
  for (size_t n = 0; n < leaf.size(); ++n) EXPECT_FALSE(DecodeAll(leaf.substr(0, n), 0).ok()) << n;
  for (size_t n = 0; n < interior.size(); ++n) {
    EXPECT_FALSE(DecodeAll(interior.substr(0, n), 1).ok()) << n;
  }
}

TEST(BtreeNodeCodec, ErrorsSayWhatIsWrong) {
  const Status status = DecodeAll(LeafBody(OneFileTable("d/v"), {{.key = "b"}, {.key = "a"}}), 0);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message(), HasSubstr("strictly increasing"));
}

}  // namespace
}  // namespace tierkeep::ocdbt
