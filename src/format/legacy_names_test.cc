#include "format/legacy_names.h"

#include <gtest/gtest.h>

#include "format/ocdbt_testutil.h"

namespace tierkeep {
namespace {

std::string D(std::string_view text) { return "D" + ComputeBlake3(text).Hex(); }

TEST(PythonBytesRepr, PrintsAsPythonDoes) {
  const auto repr = [](std::string_view hex) { return PythonBytesRepr(ocdbt::FromHex(hex)); };
  EXPECT_EQ(PythonBytesRepr("params.w/c/0/0"), "b'params.w/c/0/0'");
  EXPECT_EQ(PythonBytesRepr(""), "b''");
  EXPECT_EQ(repr("70c3a9"), "b'p\\xc3\\xa9'");
  EXPECT_EQ(repr("69742773"), "b\"it's\"");
  EXPECT_EQ(repr("622722"), "b'b\\'\"'");
  EXPECT_EQ(repr("22"), "b'\"'");
  EXPECT_EQ(repr("5c"), "b'\\\\'");
  EXPECT_EQ(repr("090a0d"), "b'\\t\\n\\r'");
  EXPECT_EQ(repr("000b1f207e7f80ff"), "b'\\x00\\x0b\\x1f ~\\x7f\\x80\\xff'");
}

TEST(LegacyNames, FileIsItsBlake3) {
  EXPECT_EQ(LegacyFileName(ComputeBlake3("")),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
}

TEST(LegacyNames, DirectoryHashesSortedChildren) {
  EXPECT_EQ(LegacyDirectoryName({}), D(""));
  EXPECT_EQ(LegacyDirectoryName({"b", "a", "Dc"}), D("Dc\na\nb"));
}

TEST(LegacyNames, TreeIgnoresNamesAndNestsDirectories) {
  const Blake3 one = ComputeBlake3("1"), two = ComputeBlake3("2");
  LegacyTreeName tree;
  tree.AddFile("x/y/a", one);
  tree.AddFile("b", two);
  tree.AddDirectory("empty");
  const std::string inner = LegacyDirectoryName({LegacyDirectoryName({one.Hex()})});
  EXPECT_EQ(tree.Finish(), LegacyDirectoryName({inner, two.Hex(), D("")}));
  LegacyTreeName renamed;
  renamed.AddDirectory("q");
  renamed.AddFile("z", two);
  renamed.AddFile("p/p/p", one);
  EXPECT_EQ(renamed.Finish(), tree.Finish());
}

TEST(LegacyNames, TensorStoreOfTheHandMadeDatabase) {
  ocdbt::MemoryFiles files = ocdbt::SmallDatabase();
  const std::string expected = "D44a79a6d45f0684b15f07e8f917485dcc5045aaaf2675e5902fde05573508b82";
  EXPECT_EQ(ComputeLegacyTensorStoreName(files, "").value(), expected);
  LegacyTensorStoreName name;
  name.Add("a", ComputeBlake3("1"));
  name.Add("ab", ComputeBlake3("xyz"));
  EXPECT_EQ(name.Finish(), expected);
  EXPECT_EQ(LegacyTensorStoreName().Finish(), D(""));
}

TEST(LegacyNames, TensorStoreFailsWhenAValueIsShort) {
  ocdbt::MemoryFiles files = ocdbt::SmallDatabase();
  files.files["ocdbt.process_0/d/v"].pop_back();
  EXPECT_EQ(ComputeLegacyTensorStoreName(files, "").error().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace tierkeep
