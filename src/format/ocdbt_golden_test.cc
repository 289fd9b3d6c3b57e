// Stores that TensorStore and Orbax wrote (tests/golden/make_golden.py), whole and damaged.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/prng.h"
#include "format/legacy_names.h"
#include "format/ocdbt.h"
#include "format/ocdbt_testutil.h"

namespace tierkeep {
namespace {

using ocdbt::MemoryFiles;

const std::filesystem::path kGolden = TIERKEEP_SOURCE_DIR "/tests/golden/ocdbt";

MemoryFiles Load(const std::string& store) { return ocdbt::LoadTree((kGolden / store).string()); }

struct Expected {
  std::string store;
  std::string database;
  std::string name;
  nlohmann::json entries;
};

// All databases of all stores. Read once per test; a missing golden directory fails the tests.
std::vector<Expected> AllExpected() {
  std::vector<Expected> out;
  for (const auto& file : std::filesystem::directory_iterator(kGolden)) {
    if (file.path().extension() != ".json") continue;
    std::ifstream in(file.path());
    const auto json = nlohmann::json::parse(in);
    for (const auto& [directory, database] : json["databases"].items()) {
      out.push_back({file.path().stem().string(), directory, database["name"].get<std::string>(),
                     database["entries"]});
    }
  }
  return out;
}

TEST(OcdbtGolden, KeysAndValuesAreThoseThatTensorStoreReads) {
  const std::vector<Expected> all = AllExpected();
  ASSERT_GE(all.size(), 12u);
  for (const Expected& expected : all) {
    SCOPED_TRACE(expected.store + "/" + expected.database);
    MemoryFiles files = Load(expected.store);
    auto listing = ListOcdbt(files, expected.database);
    ASSERT_TRUE(listing.ok()) << listing.error().ToString();
    EXPECT_TRUE(listing->summary.warnings.empty()) << listing->summary.warnings[0];
    ASSERT_EQ(listing->entries.size(), expected.entries.size());
    for (size_t i = 0; i < listing->entries.size(); ++i) {
      const OcdbtEntry& entry = listing->entries[i];
      EXPECT_EQ(ToHex(AsBytes(entry.key)), expected.entries[i]["key"]);
      EXPECT_EQ(entry.length(), expected.entries[i]["length"]);
      Blake3Hasher hasher;
      const Status read =
          ReadOcdbtValue(files, entry, 100, [&](std::string_view piece) { hasher.Update(piece); });
      ASSERT_TRUE(read.ok()) << read.error().ToString();
      EXPECT_EQ(hasher.Finish().Hex(), expected.entries[i]["blake3"]);
    }
  }
}

TEST(OcdbtGolden, NamesAreThoseOfTheReference) {
  for (const Expected& expected : AllExpected()) {
    MemoryFiles files = Load(expected.store);
    auto name = ComputeLegacyTensorStoreName(files, expected.database);
    ASSERT_TRUE(name.ok()) << name.error().ToString();
    EXPECT_EQ(*name, expected.name) << expected.store << "/" << expected.database;
  }
}

// The stores exercise what they are there for; a regenerated set that no longer does is noticed.
TEST(OcdbtGolden, CoversTheFormat) {
  const auto manifest = [](const std::string& store, const std::string& name) {
    MemoryFiles files = Load(store);
    auto decoded = ocdbt::DecodeManifest(files.files.at(name), {});
    EXPECT_TRUE(decoded.ok());
    return *decoded;
  };
  EXPECT_GE(manifest("raw", "manifest.ocdbt").latest.root_height, 2);
  EXPECT_EQ(manifest("raw", "manifest.ocdbt").config.compression_method, 0u);
  EXPECT_GE(manifest("tall", "manifest.ocdbt").latest.root_height, 2);
  EXPECT_GE(manifest("tall", "manifest.ocdbt").latest.generation, 4u);
  EXPECT_GE(manifest("versions", "manifest.ocdbt").latest.generation, 20u);
  EXPECT_EQ(manifest("numbered", "manifest.ocdbt").kind, ocdbt::Manifest::Kind::kNumbered);
  EXPECT_EQ(manifest("never", "manifest.ocdbt").kind, ocdbt::Manifest::Kind::kNumbered);
  EXPECT_TRUE(manifest("emptied", "manifest.ocdbt").latest.root.IsMissing());
  // Indirect values of both processes under the merged root.
  MemoryFiles files = Load("merged");
  auto listing = ListOcdbt(files, "state");
  ASSERT_TRUE(listing.ok());
  std::set<std::string> heads;
  for (const OcdbtEntry& entry : listing->entries) {
    if (entry.location() == nullptr) continue;
    heads.insert(entry.location()->path.substr(0, entry.location()->path.find("/d/")));
  }
  EXPECT_EQ(heads, (std::set<std::string>{"state/ocdbt.process_0", "state/ocdbt.process_1"}));
}

// Which bytes of which file a reading of database `dir` and of all its values depends on.
std::map<std::string, std::vector<bool>> BytesThatCount(MemoryFiles files, const std::string& dir) {
  files.reads.clear();
  EXPECT_TRUE(ComputeLegacyTensorStoreName(files, dir).ok());
  std::map<std::string, std::vector<bool>> count;
  for (const auto& [path, bytes] : files.files) count[path].resize(bytes.size());
  for (const auto& range : files.reads) {
    for (uint64_t i = 0; i < range.length; ++i) count[range.path][range.offset + i] = true;
  }
  return count;
}

TEST(OcdbtGolden, EveryFlippedByteIsAnErrorOrChangesTheName) {
  for (const auto& [store, dir, stride] : {std::tuple{"plain", "", 1},
                                           {"raw", "", 1},
                                           {"versions", "", 5},
                                           {"numbered", "", 2},
                                           {"emptied", "", 1},
                                           {"tall", "", 211},
                                           {"merged", "state", 29}}) {
    MemoryFiles files = Load(store);
    const std::string name = ComputeLegacyTensorStoreName(files, dir).value();
    size_t counted = 0;
    for (const auto& [path, counts] : BytesThatCount(files, dir)) {
      std::string& bytes = files.files[path];
      for (size_t i = 0; i < bytes.size(); i += stride) {
        const char flip = static_cast<char>(1 << (i % 8));
        bytes[i] ^= flip;
        const auto damaged = ComputeLegacyTensorStoreName(files, dir);
        const bool noticed = !damaged.ok() || *damaged != name;
        EXPECT_EQ(noticed, counts[i]) << store << "/" << path << " at " << i;
        counted += counts[i];
        bytes[i] ^= flip;
      }
    }
    EXPECT_GT(counted, 50u) << store;
  }
}

TEST(OcdbtGolden, EveryTruncationOfAFileThatCountsIsAnError) {
  for (const auto& [store, dir] : {std::pair{"plain", ""}, {"raw", ""}, {"merged", "state"}}) {
    MemoryFiles files = Load(store);
    for (const auto& [path, counts] : BytesThatCount(files, dir)) {
      const auto last = std::find(counts.rbegin(), counts.rend(), true);
      const size_t needed = static_cast<size_t>(counts.rend() - last);
      const std::string whole = files.files[path];
      for (size_t n = 0; n < needed; n += 1 + n / 50) {
        files.files[path] = whole.substr(0, n);
        EXPECT_FALSE(ComputeLegacyTensorStoreName(files, dir).ok()) << store << "/" << path << n;
      }
      files.files[path] = whole;
    }
  }
}

// Damages a store at random, with checksums set right again so that the decoders behind them see
// the damage.
class Damager {
 public:
  Damager(const MemoryFiles& good, Prng& prng) : prng_(prng) {
    for (const auto& range : good.reads) {
      const std::string bytes = good.files.at(range.path).substr(range.offset, range.length);
      if (bytes.size() >= 18 && bytes.starts_with("\x0c\xdb")) objects_.push_back(range);
    }
  }

  void Damage(MemoryFiles& files) {
    const MemoryFiles::Range& at = objects_[prng_.Below(objects_.size())];
    std::string& file = files.files[at.path];
    std::string object = file.substr(at.offset, at.length);
    for (uint64_t edits = 1 + prng_.Below(3); edits > 0; --edits) Edit(object);
    if (prng_.Chance(1, 4) && at.path.find("manifest") != std::string::npos) Resize(object);
    if (prng_.Chance(15, 16)) ocdbt::Reseal(object);
    file.replace(at.offset, at.length, object);
  }

 private:
  void Edit(std::string& object) {
    const size_t i = 12 + prng_.Below(object.size() - 16);
    switch (prng_.Below(4)) {
      case 0:
        object[i] ^= static_cast<char>(1u << prng_.Below(8));
        break;
      case 1:
        object[i] = static_cast<char>(prng_.Next());
        break;
      case 2:
        object[i] = prng_.Chance(1, 2) ? '\xff' : '\0';
        break;
      default:
        std::swap(object[i], object[12 + prng_.Below(object.size() - 16)]);
    }
  }
  void Resize(std::string& object) {
    const size_t i = 12 + prng_.Below(object.size() - 16);
    if (prng_.Chance(1, 2) && object.size() > 40) {
      object.erase(i, 1 + prng_.Below(3));
      object.append(object.size() < 18 ? 18 - object.size() : 0, '\0');
    } else {
      object.insert(i, prng_.Bytes(1 + prng_.Below(4)));
    }
  }

  Prng& prng_;
  std::vector<MemoryFiles::Range> objects_;
};

TEST(OcdbtGolden, RandomDamageNeverCrashes) {
  constexpr uint64_t kSeed = 20261129;
  constexpr int kRounds = 1500;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  OcdbtLimits limits;
  limits.listed_bytes_max = 16 << 20;
  limits.decoded_bytes_total_max = 256 << 20;
  for (const auto& [store, dir] : {std::pair{"raw", ""},
                                   {"plain", ""},
                                   {"versions", ""},
                                   {"numbered", ""},
                                   {"merged", "state"}}) {
    Prng prng(kSeed);
    MemoryFiles good = Load(store);
    ASSERT_TRUE(ListOcdbt(good, dir).ok());
    Damager damager(good, prng);
    good.reads.clear();
    size_t errors = 0;
    for (int round = 0; round < kRounds; ++round) {
      MemoryFiles files = good;
      damager.Damage(files);
      auto listing = ListOcdbt(files, dir, limits);
      if (!listing.ok()) {
        ++errors;
        EXPECT_NE(listing.error().code(), Code::kInternal);
        continue;
      }
      // What is listed can be read or is an error; and it is in order.
      for (size_t i = 0; i < listing->entries.size(); ++i) {
        ASSERT_TRUE(i == 0 || listing->entries[i - 1].key < listing->entries[i].key);
        (void)ReadOcdbtValue(files, listing->entries[i], 1 << 20, [](std::string_view) {});
      }
    }
    EXPECT_GT(errors, kRounds / 4u) << store;
  }
}

}  // namespace
}  // namespace tierkeep
