// A whole step directory with OCDBT databases: every key and value, and the logical digest. The
// input is a list of files; wherever an object stands in one its checksum is made right, so that
// changes inside get past it.

#include <algorithm>

#include "base/check.h"
#include "base/digest.h"
#include "format/ocdbt.h"
#include "format/ocdbt_codec.h"
#include "format/ocdbt_logical.h"
#include "format/ocdbt_testutil.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

constexpr OcdbtLimits kLimits{.manifest_bytes_max = 1 << 20,
                              .node_bytes_max = 1 << 20,
                              .held_bytes_max = 4 << 20,
                              .decoded_bytes_total_max = 16 << 20,
                              .entries_max = 1 << 14,
                              .listed_bytes_max = 4 << 20};

// An object: magic, length of the whole as little-endian u64, ..., CRC-32C.
void RepairChecksums(std::string& bytes) {
  for (size_t at = 0; at + 16 <= bytes.size(); ++at) {
    ocdbt::Cursor in(std::string_view(bytes).substr(at));
    const uint32_t magic = in.U32be();
    if (magic != ocdbt::kManifestMagic && magic != ocdbt::kBtreeNodeMagic) continue;
    const uint64_t length = in.U64le();
    if (length < 16 || length > bytes.size() - at) continue;
    std::string object = bytes.substr(at, length);
    ocdbt::Reseal(object);
    bytes.replace(at, length, object);
    at += length - 1;
  }
}

ocdbt::MemoryFiles FilesOf(std::string_view input) {
  ocdbt::MemoryFiles files;
  Input in(input);
  while (!in.empty() && files.files.size() < 32) {
    const std::string path(in.Bytes(in.Byte()));
    std::string bytes(in.Text());
    RepairChecksums(bytes);
    if (ocdbt::CheckDataPath(path).ok()) files.files[path] = std::move(bytes);
  }
  return files;
}

std::string InputOf(const ocdbt::MemoryFiles& files) {
  std::string out;
  for (const auto& [path, bytes] : files.files) {
    if (path.size() > 255 || bytes.size() > 0xffff) return {};
    out += std::string(1, static_cast<char>(path.size())) + path + Text(bytes);
  }
  return out;
}

void CheckCode(const Error& error) {
  switch (error.code()) {
    case Code::kNotFound:
    case Code::kDataLoss:
    case Code::kResourceExhausted:
    case Code::kAborted:
      return;
    default:
      TK_CHECK_MSG(false, error.ToString());
  }
}

void CheckDatabase(ocdbt::MemoryFiles& files, const std::string& directory) {
  const auto listing = ListOcdbt(files, directory, kLimits);
  if (!listing.ok()) return CheckCode(listing.error());
  TK_CHECK(listing->summary.keys == listing->entries.size());
  TK_CHECK(listing->summary.warnings.size() <= 16);
  for (size_t i = 0; i < listing->entries.size(); ++i) {
    const OcdbtEntry& entry = listing->entries[i];
    TK_CHECK(i == 0 || listing->entries[i - 1].key < entry.key);
    if (entry.location() != nullptr) {
      TK_CHECK(ocdbt::CheckDataPath(entry.location()->path).ok());
      TK_CHECK(entry.location()->length > 0);
    }
    uint64_t read = 0;
    const Status status = ReadOcdbtValue(files, entry, 100, [&](std::string_view piece) {
      TK_CHECK(piece.size() <= 100);
      read += piece.size();
    });
    if (!status.ok()) {
      CheckCode(status.error());
      return;  // a length that the file doesn't have may be any number
    }
    TK_CHECK(read == entry.length());
  }
}

void CheckLogicalDigest(ocdbt::MemoryFiles& files) {
  const std::vector<StepEntry> entries = StepEntries(files);
  auto plan = PlanLogicalDigest(files, entries, kLimits);
  if (!plan.ok()) return CheckCode(plan.error());
  for (const LogicalPlan::Work& work : plan->work) TK_CHECK(work.line < plan->lines.size());
  const auto digest = LogicalDigest(plan->lines);
  TK_CHECK(digest.ok());
  std::reverse(plan->lines.begin(), plan->lines.end());
  TK_CHECK(*LogicalDigest(plan->lines) == *digest);
  TK_CHECK(CompareReplicas({"a", plan->lines}, {"b", plan->lines}).total == 0);
}

}  // namespace

void RunOne(std::string_view input) {
  ocdbt::MemoryFiles files = FilesOf(input);
  for (const auto& [path, bytes] : files.files) {
    if (path.ends_with("_CHECKPOINT_METADATA")) {
      const std::string neutral = NeutralCheckpointMetadata(bytes);
      TK_CHECK(NeutralCheckpointMetadata(neutral) == neutral);
    }
  }
  for (const std::string& item : OcdbtItems(StepEntries(files))) CheckDatabase(files, item);
  CheckLogicalDigest(files);
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {InputOf(ocdbt::SmallDatabase())};
  ocdbt::MemoryFiles step = ocdbt::SmallDatabase();
  ocdbt::MemoryFiles inside;
  for (const auto& [path, bytes] : step.files) inside.files["state/" + path] = bytes;
  inside.files["_CHECKPOINT_METADATA"] =
      R"({"item_handlers": {"state": "x"}, "init_timestamp_nsecs": 17, "performance_metrics": {}})";
  inside.files["metrics/metrics"] = R"({"loss": 1.5})";
  seeds.push_back(InputOf(inside));
  for (const char* name :
       {"emptied", "merged", "never", "numbered", "plain", "raw", "replica0", "tall", "versions"}) {
    const std::string input =
        InputOf(ocdbt::LoadTree(std::string(TIERKEEP_SOURCE_DIR "/tests/golden/ocdbt/") + name));
    if (!input.empty()) seeds.push_back(input);
  }
  return seeds;
}

}  // namespace tierkeep::fuzz
