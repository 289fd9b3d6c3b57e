#include "format/ocdbt_logical.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/ocdbt_testutil.h"

namespace tierkeep {
namespace {

using ocdbt::LoadTree;
using ocdbt::MemoryFiles;
using ocdbt::StepEntries;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Xxh128 X(std::string_view bytes) { return ComputeXxh128(AsBytes(bytes)); }

MemoryFiles Golden(const std::string& store) {
  return LoadTree(std::string(TIERKEEP_SOURCE_DIR "/tests/golden/ocdbt/") + store);
}

// All lines of a step directory, values hashed whole.
std::vector<LogicalLine> Lines(MemoryFiles& files) {
  auto plan = PlanLogicalDigest(files, StepEntries(files));
  EXPECT_TRUE(plan.ok()) << plan.error().ToString();
  for (const LogicalPlan::Work& work : plan->work) {
    const OcdbtLocation& at = work.location;
    const std::string bytes = files.ReadRange(at.path, at.offset, at.length).value();
    EXPECT_EQ(bytes.size(), at.length);
    plan->lines[work.line].digest = X(bytes);
  }
  return plan->lines;
}

TEST(LogicalDigest, IsBlake3OfTheWrittenEncoding) {
  LogicalDigestBuilder builder;
  builder.AddFile("_METADATA", 2, X("{}"));
  builder.AddValue("state", "w", 3, X("xyz"));
  builder.AddItem("state");
  builder.AddLink("link", "target");
  const auto text = [](std::string_view s) { return ocdbt::Le64(s.size()) + std::string(s); };
  const std::string encoded =
      "tierkeep logical digest 1\n"
      "\x01" +
      text("state") + text("") + ocdbt::Le64(0) + std::string(16, '\0') + "\x02" + text("state") +
      text("w") + ocdbt::Le64(3) + X("xyz").Raw() + "\x03" + text("") + text("_METADATA") +
      ocdbt::Le64(2) + X("{}").Raw() + "\x04" + text("") + text("link") + ocdbt::Le64(6) +
      X("target").Raw();
  EXPECT_EQ(builder.Finish().value(), ComputeBlake3(encoded));
}

TEST(LogicalDigest, DoesNotDependOnTheOrderOfAdding) {
  LogicalDigestBuilder a, b;
  a.AddItem("s"), a.AddValue("s", "\x7f", 1, X("1")), a.AddValue("s", "\x80", 1, X("2"));
  b.AddValue("s", "\x80", 1, X("2")), b.AddValue("s", "\x7f", 1, X("1")), b.AddItem("s");
  EXPECT_EQ(a.Finish().value(), b.Finish().value());
}

TEST(LogicalDigest, EveryFieldCounts) {
  const LogicalLine item{LogicalLine::Kind::kItem, "s", "", 0, {}};
  const LogicalLine value{LogicalLine::Kind::kValue, "s", "key", 1, X("1")};
  const auto with = [&](auto change) {
    LogicalLine line = value;
    change(line);
    std::vector<LogicalLine> lines = {item, line};
    if (line.item != "s") lines[0].item = line.item;
    return LogicalDigest(lines).value().Hex();
  };
  const std::set<std::string> digests = {
      with([](auto&) {}),
      with([](auto& l) { l.kind = LogicalLine::Kind::kFile; }),
      with([](auto& l) { l.item = "t"; }),
      with([](auto& l) { l.item = "sk", l.name = "ey"; }),
      with([](auto& l) { l.name = "kez"; }),
      with([](auto& l) { l.length = 2; }),
      with([](auto& l) { l.digest = X("2"); }),
      LogicalDigest({item}).value().Hex(),
      LogicalDigest({}).value().Hex(),
  };
  EXPECT_EQ(digests.size(), 9u);
}

TEST(LogicalDigest, RefusesLinesTwiceAndValuesWithoutItem) {
  LogicalDigestBuilder twice;
  twice.AddItem("s");
  twice.AddValue("s", "k", 1, X("1"));
  twice.AddValue("s", "k", 1, X("2"));
  EXPECT_EQ(twice.Finish().error().code(), Code::kInvalidArgument);
  LogicalDigestBuilder homeless;
  homeless.AddItem("t");
  homeless.AddValue("s", "k", 1, X("1"));
  EXPECT_EQ(homeless.Finish().error().code(), Code::kInvalidArgument);
}

// As CompareReplicas names what differs.
std::vector<std::string> Difference(const std::vector<LogicalLine>& a,
                                    const std::vector<LogicalLine>& b) {
  const LogicalDifference found = CompareReplicas({"rank 0", a}, {"rank 1", b});
  EXPECT_EQ(found.total, found.first.size());
  return found.first;
}

TEST(CompareReplicas, NamesWhatDiffers) {
  LogicalDigestBuilder a, b;
  a.AddItem("state"), b.AddItem("state");
  a.AddValue("state", "same", 1, X("1")), b.AddValue("state", "same", 1, X("1"));
  a.AddValue("state", "it's", 1, X("1")), b.AddValue("state", "it's", 1, X("2"));
  a.AddValue("state", "len", 1, X("1")), b.AddValue("state", "len", 2, X("22"));
  a.AddValue("state", "mine", 1, X("1"));
  b.AddFile("extra", 0, X(""));
  EXPECT_THAT(Difference(a.lines(), b.lines()),
              ElementsAre("state: the value of b\"it's\" differs",
                          "state: the value of b'len' differs (1 and 2 bytes)",
                          "state: the value of b'mine' is only in rank 0",
                          "the file extra is only in rank 1"));
  const LogicalDifference cut = CompareReplicas({"rank 0", a.lines()}, {"rank 1", b.lines()}, 1);
  EXPECT_EQ(cut.total, 4U);
  EXPECT_THAT(cut.first, ElementsAre("state: the value of b\"it's\" differs"));
  EXPECT_THAT(Difference(a.lines(), a.lines()), IsEmpty());
}

TEST(CompareReplicas, LongAndForgedNamesAreCutAndEscaped) {
  LogicalDigestBuilder a, b;
  a.AddItem("s\n"), b.AddItem("s\n");
  a.AddValue("s\n", std::string(5000, 'k') + "\n", 1, X("1"));
  a.AddFile("\xff\nERROR forged", 1, X("1"));
  for (const std::string& text : Difference(a.lines(), b.lines())) {
    EXPECT_LT(text.size(), 400U);
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_EQ(text.find('\xff'), std::string::npos);
  }
}

TEST(LogicalListing, IsWhatTheDigestCoversAndComesBack) {
  MemoryFiles files = Golden("replica0");
  std::vector<LogicalLine> lines = Lines(files);
  const Blake3 logical = LogicalDigest(lines).value();
  const std::string listing = EncodeLogicalListing(lines).value();
  EXPECT_EQ(ComputeBlake3(listing), logical);
  const auto back = DecodeLogicalListing(listing, logical);
  ASSERT_TRUE(back.ok()) << back.error().ToString();
  EXPECT_THAT(Difference(*back, lines), IsEmpty());
}

TEST(LogicalListing, OtherBytesAreRefusedEvenWithTheirOwnDigest) {
  MemoryFiles files = Golden("replica0");
  const std::string listing = EncodeLogicalListing(Lines(files)).value();
  EXPECT_EQ(DecodeLogicalListing(listing, ComputeBlake3("")).error().code(), Code::kDataLoss);
  const std::string domain = EncodeLogicalListing({}).value();
  size_t refused = 0;
  for (size_t n = 0; n < listing.size(); ++n) {
    const std::string part = listing.substr(0, n);
    const auto back = DecodeLogicalListing(part, ComputeBlake3(part));
    if (back.ok()) {
      // Cut between two lines it is another listing, and reads as that.
      EXPECT_EQ(EncodeLogicalListing(*back).value(), part);
    } else {
      ++refused;
      EXPECT_EQ(back.error().code(), Code::kDataLoss);
    }
  }
  EXPECT_GT(refused, domain.size());
  for (const std::string_view wrong : {"\x05", "\x02", "\x02\xff\xff\xff\xff\xff\xff\xff\x7f"}) {
    const std::string bytes = domain + std::string(wrong);
    EXPECT_FALSE(DecodeLogicalListing(bytes, ComputeBlake3(bytes)).ok());
  }
}

TEST(LogicalListing, OfAHundredThousandKeysIsSmallAndComparesKeyByKey) {
  LogicalDigestBuilder a, b;
  a.AddItem("state"), b.AddItem("state");
  for (int i = 0; i < 100'000; ++i) {
    const std::string key = fmt::format("params.layers_{}.mlp.kernel/c/{}/0", i / 100, i % 100);
    a.AddValue("state", key, 4096, X(key));
    b.AddValue("state", key, 4096, X(i == 77'777 ? "flipped" : key));
  }
  EXPECT_LT(EncodeLogicalListing(a.lines()).value().size(), 12u << 20);
  EXPECT_THAT(Difference(a.lines(), b.lines()),
              ElementsAre("state: the value of b'params.layers_777.mlp.kernel/c/77/0' differs"));
}

TEST(Replicas, OfARealSaveAreEqual) {
  MemoryFiles first = Golden("replica0"), second = Golden("replica1");
  ASSERT_NE(first.files, second.files);
  const auto a = Lines(first), b = Lines(second);
  EXPECT_THAT(Difference(a, b), IsEmpty());
  EXPECT_EQ(LogicalDigest(a).value(), LogicalDigest(b).value());
  // All arrays' values are covered, and the files with the tree's structure.
  const auto covered = [&](LogicalLine::Kind kind) {
    return std::count_if(a.begin(), a.end(), [&](const auto& line) { return line.kind == kind; });
  };
  EXPECT_EQ(covered(LogicalLine::Kind::kItem), 1);
  EXPECT_EQ(covered(LogicalLine::Kind::kValue), 16);
  std::set<std::string> files;
  for (const LogicalLine& line : a) {
    if (line.kind == LogicalLine::Kind::kFile) files.insert(line.name);
  }
  EXPECT_THAT(
      files,
      ElementsAre("_CHECKPOINT_METADATA", "process_metadata/global_process_metadata.json",
                  "process_metadata/mesh_metadata.json", "state/_METADATA", "state/_sharding"));
}

TEST(Replicas, DifferInAnyValueOrStateFile) {
  MemoryFiles good = Golden("replica0");
  const auto lines = Lines(good);
  // One bit of one stored value outside of the tree.
  auto plan = PlanLogicalDigest(good, StepEntries(good));
  ASSERT_TRUE(plan.ok());
  const auto value = std::find_if(plan->work.begin(), plan->work.end(), [&](const auto& work) {
    return plan->lines[work.line].kind == LogicalLine::Kind::kValue;
  });
  ASSERT_NE(value, plan->work.end());
  MemoryFiles damaged = good;
  damaged.files[value->location.path][value->location.offset] ^= 1;
  EXPECT_EQ(Difference(lines, Lines(damaged)).size(), 1u);
  // A file that Orbax does not write, wherever it is.
  for (const char* path :
       {"state/d/extra", "state/extra.npz", "extra", "other/extra", "state/ocdbt.process_0/extra",
        "state/array_metadatas/extra", "process_metadata/x/commit_success.txt"}) {
    MemoryFiles more = good;
    more.files[path] = "state";
    EXPECT_THAT(Difference(lines, Lines(more)),
                ElementsAre(fmt::format("the file {} is only in rank 1", path)));
  }
  // Metrics and the user's metadata count, timestamps do not.
  MemoryFiles other = good;
  std::string& metadata = other.files["_CHECKPOINT_METADATA"];
  const size_t custom = metadata.find("\"custom_metadata\": {}");
  ASSERT_NE(custom, std::string::npos) << metadata;
  metadata.replace(custom, 21, "\"custom_metadata\": {\"position\": 7}");
  EXPECT_EQ(Difference(lines, Lines(other)).size(), 1u);
}

TEST(Replicas, BookkeepingIsExactlyWhatTheListSays) {
  const std::set<std::string> items = {"state"};
  const std::string hex(32, 'a');
  for (const std::string& path :
       {std::string("_BACKUP_REQUESTED"), std::string("commit_success.txt"),
        std::string("state/commit_success.txt"), std::string("process_metadata/commit_success.txt"),
        std::string("state/manifest.ocdbt"), std::string("state/manifest.0123456789abcdef"),
        "state/d/" + hex, "state/ocdbt_data/" + hex, "state/ocdbt_meta/" + hex,
        std::string("state/manifest.ocdbt.__lock"),
        std::string("state/ocdbt.process_12/manifest.ocdbt"),
        "state/ocdbt.process_replica_3/d/" + hex, std::string("state/array_metadatas/process_0")}) {
    EXPECT_TRUE(IsReplicaBookkeeping(path, items)) << path;
  }
  EXPECT_EQ(ClassifyReplicaFile("_CHECKPOINT_METADATA", items), ReplicaFile::kTimestamps);
  for (const std::string& path : {std::string("state/_METADATA"),
                                  std::string("state/_sharding"),
                                  std::string("manifest.ocdbt"),
                                  "d/" + hex,
                                  "other/d/" + hex,
                                  std::string("other/manifest.ocdbt"),
                                  std::string("state/d/xyz"),
                                  "state/d/" + hex + "a",
                                  "state/d/sub/" + hex,
                                  std::string("state/manifest.0123456789abcdeF"),
                                  std::string("state/manifest.ocdbt.old"),
                                  std::string("state/ocdbt.process_x/manifest.ocdbt"),
                                  std::string("state/ocdbt.process_/manifest.ocdbt"),
                                  "state/ocdbt.process_0/ocdbt.process_1/d/" + hex,
                                  "state/sub/d/" + hex,
                                  std::string("state/array_metadatas/process_0.json"),
                                  std::string("array_metadatas/process_0"),
                                  std::string("a/b/commit_success.txt"),
                                  std::string("state/_CHECKPOINT_METADATA"),
                                  std::string("state/_BACKUP_REQUESTED"),
                                  std::string("process_metadata/mesh_metadata.json"),
                                  std::string("d"),
                                  std::string("")}) {
    EXPECT_EQ(ClassifyReplicaFile(path, items), ReplicaFile::kContents) << path;
  }
}

TEST(Replicas, TheStepDirectoryItselfMayBeTheItem) {
  MemoryFiles files;
  for (const auto& [path, bytes] : ocdbt::SmallDatabase().files) files.files[path] = bytes;
  files.files["ocdbt.process_0/manifest.ocdbt"] = files.files["manifest.ocdbt"];
  files.files["other/manifest.ocdbt"] = files.files["manifest.ocdbt"];
  EXPECT_THAT(OcdbtItems(StepEntries(files)), ElementsAre("", "other"));
  const std::set<std::string> items = {""};
  EXPECT_TRUE(IsReplicaBookkeeping("manifest.ocdbt", items));
  EXPECT_TRUE(IsReplicaBookkeeping("ocdbt.process_0/d/" + std::string(32, '0'), items));
  EXPECT_TRUE(IsReplicaBookkeeping("array_metadatas/process_1", items));
  EXPECT_FALSE(IsReplicaBookkeeping("_METADATA", items));
}

TEST(Replicas, LinksAreNeverBookkeeping) {
  MemoryFiles files = Golden("replica0");
  auto entries = StepEntries(files);
  entries.push_back({"state/d/" + std::string(32, 'b'), true, 0, "../elsewhere"});
  entries.push_back({"linked/manifest.ocdbt", true, 0, "x"});
  auto plan = PlanLogicalDigest(files, entries);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  EXPECT_EQ(std::count_if(plan->lines.begin(), plan->lines.end(),
                          [](const auto& l) { return l.kind == LogicalLine::Kind::kLink; }),
            2);
}

TEST(Replicas, CorruptItemsAreErrorsThatNameThem) {
  MemoryFiles files = Golden("replica0");
  files.files["state/manifest.ocdbt"][40] ^= 1;
  auto plan = PlanLogicalDigest(files, StepEntries(files));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), Code::kDataLoss);
  EXPECT_THAT(plan.error().message(), ::testing::HasSubstr("state"));
}

TEST(NeutralCheckpointMetadata, CutsOutOnlyTheTopLevelTimes) {
  EXPECT_EQ(NeutralCheckpointMetadata(
                R"({"metrics": {}, "performance_metrics": {"a": [1, "}"]}, )"
                R"("init_timestamp_nsecs": 17, "commit_timestamp_nsecs": null,)"
                R"( "custom_metadata": {"init_timestamp_nsecs": 5, "s": "\"metrics\": {"}})"),
            R"({"metrics": {}, "performance_metrics": , "init_timestamp_nsecs": , )"
            R"("commit_timestamp_nsecs": ,)"
            R"( "custom_metadata": {"init_timestamp_nsecs": 5, "s": "\"metrics\": {"}})");
  EXPECT_EQ(NeutralCheckpointMetadata(R"({"init_timestamp_nsecs":1})"),
            R"({"init_timestamp_nsecs":})");
  for (const char* odd : {"", "{", "[]", "{}", "null", R"({"init_timestamp_nsecs": 1)",
                          R"({"init_timestamp_nsecs": "1\)", R"({"a": [1})", R"({"a"})",
                          R"({a: 1})", R"({"init_timestamp_nsecs": })"}) {
    EXPECT_EQ(NeutralCheckpointMetadata(odd), odd);
  }
}

}  // namespace
}  // namespace tierkeep
