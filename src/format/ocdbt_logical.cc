#include "format/ocdbt_logical.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "base/escape_name.h"
#include "base/log.h"
#include "format/legacy_names.h"
#include "format/volume_names.h"

namespace tierkeep {
namespace {

constexpr std::string_view kDomain = "tierkeep logical digest 1\n";
constexpr std::string_view kCheckpointMetadata = "_CHECKPOINT_METADATA";
constexpr uint64_t kCheckpointMetadataBytesMax = 64u << 20;
// Members of _CHECKPOINT_METADATA that each process measures for itself.
constexpr std::array<std::string_view, 3> kReplicaMembers = {
    "init_timestamp_nsecs", "commit_timestamp_nsecs", "performance_metrics"};

constexpr size_t kNameShownMax = 160;

using Kind = LogicalLine::Kind;

auto SortKey(const LogicalLine& line) { return std::tie(line.kind, line.item, line.name); }

void Sort(std::vector<LogicalLine>& lines) {
  std::sort(lines.begin(), lines.end(),
            [](const LogicalLine& a, const LogicalLine& b) { return SortKey(a) < SortKey(b); });
}

void AppendU64(std::string& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
}

// "state: the value of b'w/c/0/0'", without a verb.
std::string Subject(const LogicalLine& line) {
  const std::string item =
      line.item.empty() ? "the step directory" : EscapeName(line.item, kNameShownMax);
  switch (line.kind) {
    case Kind::kItem:
      return fmt::format("the array store {}", item);
    case Kind::kValue:
      return fmt::format("{}: the value of {}", item,
                         EscapeName(PythonBytesRepr(line.name), kNameShownMax));
    case Kind::kFile:
      return fmt::format("the file {}", EscapeName(line.name, kNameShownMax));
    case Kind::kLink:
      return fmt::format("the link {}", EscapeName(line.name, kNameShownMax));
  }
  return {};
}

// The digest's input, piece by piece.
template <typename F>
Status ForEachPiece(std::vector<LogicalLine> lines, F take) {
  Sort(lines);
  TK_RETURN_IF_ERROR(take(std::string(kDomain)));
  std::set<std::string_view> items;
  for (size_t i = 0; i < lines.size(); ++i) {
    const LogicalLine& line = lines[i];
    if (i > 0 && SortKey(lines[i - 1]) == SortKey(line)) {
      return Error(Code::kInvalidArgument, Subject(line) + " is listed twice");
    }
    // Items sort before values.
    if (line.kind == Kind::kItem) items.insert(line.item);
    if (line.kind == Kind::kValue && !items.contains(line.item)) {
      return Error(Code::kInvalidArgument, Subject(line) + " has no item");
    }
    std::string bytes(1, static_cast<char>(line.kind));
    AppendU64(bytes, line.item.size());
    bytes += line.item;
    AppendU64(bytes, line.name.size());
    bytes += line.name;
    AppendU64(bytes, line.length);
    bytes += line.digest.Raw();
    TK_RETURN_IF_ERROR(take(bytes));
  }
  return OkStatus();
}

bool TakeU64(std::string_view& bytes, uint64_t& value) {
  if (bytes.size() < 8) return false;
  value = 0;
  for (int i = 7; i >= 0; --i) {
    value = value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  }
  bytes.remove_prefix(8);
  return true;
}

bool TakeText(std::string_view& bytes, std::string& text) {
  uint64_t size = 0;
  if (!TakeU64(bytes, size) || size > bytes.size()) return false;
  text = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

bool TakeLine(std::string_view& bytes, LogicalLine& line) {
  if (bytes.empty()) return false;
  const auto kind = static_cast<uint8_t>(bytes.front());
  if (kind < static_cast<uint8_t>(Kind::kItem) || kind > static_cast<uint8_t>(Kind::kLink)) {
    return false;
  }
  line.kind = static_cast<Kind>(kind);
  bytes.remove_prefix(1);
  if (!TakeText(bytes, line.item) || !TakeText(bytes, line.name)) return false;
  if (!TakeU64(bytes, line.length) || bytes.size() < Xxh128::kSize) return false;
  line.digest = *Xxh128::FromBytes(bytes.substr(0, Xxh128::kSize));
  bytes.remove_prefix(Xxh128::kSize);
  return true;
}

bool IsLowerHex(std::string_view s, size_t digits) {
  return s.size() == digits && std::all_of(s.begin(), s.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool IsNumber(std::string_view s) {
  return !s.empty() && s.size() <= 10 &&
         std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "head/tail" → tail, when `path` begins with that head.
bool TakeHead(std::string_view& path, std::string_view head) {
  if (!path.starts_with(head) || path.size() <= head.size() || path[head.size()] != '/') {
    return false;
  }
  path.remove_prefix(head.size() + 1);
  return true;
}

// A file that one OCDBT database consists of, by its path within the database's directory: the
// manifests, and data files named by 128 random bits in the directories that TensorStore and
// Orbax use; each may have left a lock file.
bool IsDatabaseFile(std::string_view path) {
  constexpr std::string_view kLock = ".__lock";
  if (path.ends_with(kLock)) path.remove_suffix(kLock.size());
  if (path == kOcdbtManifestName) return true;
  constexpr std::string_view kNumbered = "manifest.";
  if (path.starts_with(kNumbered)) return IsLowerHex(path.substr(kNumbered.size()), 16);
  for (const std::string_view dir : {"d", "ocdbt_data", "ocdbt_meta"}) {
    std::string_view tail = path;
    if (TakeHead(tail, dir)) return IsLowerHex(tail, 32);
  }
  return false;
}

// Of an item: its own database and those that its processes wrote, ocdbt.process_<id>/ or
// ocdbt.process_replica_<id>/, whose values it refers to.
bool IsItemDatabaseFile(std::string_view path) {
  if (IsDatabaseFile(path)) return true;
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return false;
  std::string_view head = path.substr(0, slash);
  for (const std::string_view prefix : {"ocdbt.process_replica_", "ocdbt.process_"}) {
    if (!head.starts_with(prefix)) continue;
    head.remove_prefix(prefix.size());
    return IsNumber(head) && IsDatabaseFile(path.substr(slash + 1));
  }
  return false;
}

// Reads just enough JSON to find where the members of the outermost object begin and end.
class MemberScanner {
 public:
  explicit MemberScanner(std::string_view text) : text_(text) {}

  // Appends `text` to `out` with the values of `members` cut out. False: no JSON object.
  bool CutOut(std::span<const std::string_view> members, std::string& out) {
    Space();
    if (!Take('{')) return false;
    size_t copied = 0;
    Space();
    while (at_ < text_.size() && text_[at_] != '}') {
      const size_t name_begin = at_;
      if (!String()) return false;
      const std::string_view name = text_.substr(name_begin + 1, at_ - name_begin - 2);
      Space();
      if (!Take(':')) return false;
      Space();
      const size_t value_begin = at_;
      if (!Value()) return false;
      if (std::find(members.begin(), members.end(), name) != members.end()) {
        out.append(text_.substr(copied, value_begin - copied));
        copied = at_;
      }
      Space();
      if (!Take(',')) break;
      Space();
    }
    if (!Take('}')) return false;
    out.append(text_.substr(copied));
    return true;
  }

 private:
  void Space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool String() {
    if (!Take('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    return Take('"');
  }
  // To the end of a value: the first comma or closing bracket outside of strings and brackets.
  bool Value() {
    const size_t begin = at_;
    size_t depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!String()) return false;
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
      if (c == '}' || c == ']') --depth;
      ++at_;
    }
    return depth == 0 && at_ > begin;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Status AddItemLines(OcdbtFiles& files, const std::string& item, const OcdbtLimits& limits,
                    LogicalPlan& plan) {
  plan.lines.push_back({.kind = Kind::kItem, .item = item, .name = {}, .length = 0, .digest = {}});
  uint64_t listed_bytes = 0;
  const auto add = [&](OcdbtEntry&& entry) -> Status {
    listed_bytes += sizeof(LogicalLine) + sizeof(LogicalPlan::Work) + entry.key.size() +
                    item.size() + (entry.location() ? entry.location()->path.size() : 0);
    if (listed_bytes > limits.listed_bytes_max) {
      return Error(Code::kResourceExhausted, "its keys take too much memory");
    }
    LogicalLine line{.kind = Kind::kValue,
                     .item = item,
                     .name = std::move(entry.key),
                     .length = entry.length(),
                     .digest = {}};
    if (const std::string* bytes = entry.inline_value()) {
      line.digest = ComputeXxh128(AsBytes(*bytes));
    } else {
      plan.work.push_back({plan.lines.size(), *entry.location()});
    }
    plan.lines.push_back(std::move(line));
    return OkStatus();
  };
  auto summary = WalkOcdbt(files, item, limits, add);
  if (!summary.ok()) return summary.error().With(item.empty() ? "step directory" : item);
  for (const std::string& warning : summary->warnings) plan.warnings.push_back(warning);
  return OkStatus();
}

Status AddFileLine(OcdbtFiles& files, const StepEntry& entry, ReplicaFile role, LogicalPlan& plan) {
  LogicalLine line{.kind = Kind::kFile,
                   .item = {},
                   .name = entry.path,
                   .length = entry.bytes,
                   .digest = ComputeXxh128({})};
  if (role == ReplicaFile::kTimestamps) {
    auto contents = files.ReadAll(entry.path, kCheckpointMetadataBytesMax);
    if (!contents.ok()) return contents.error().With(entry.path);
    const std::string neutral = NeutralCheckpointMetadata(*contents);
    line.length = neutral.size();
    line.digest = ComputeXxh128(AsBytes(neutral));
  } else if (entry.bytes > 0) {
    plan.work.push_back({plan.lines.size(), {entry.path, 0, entry.bytes}});
  }
  plan.lines.push_back(std::move(line));
  return OkStatus();
}

}  // namespace

Result<Blake3> LogicalDigest(std::vector<LogicalLine> lines) {
  Blake3Hasher hasher;
  TK_RETURN_IF_ERROR(ForEachPiece(std::move(lines), [&](const std::string& piece) {
    hasher.Update(piece);
    return OkStatus();
  }));
  return hasher.Finish();
}

Result<std::string> EncodeLogicalListing(std::vector<LogicalLine> lines) {
  std::string out;
  TK_RETURN_IF_ERROR(ForEachPiece(std::move(lines), [&](const std::string& piece) -> Status {
    if (out.size() + piece.size() > kLogicalListingBytesMax) {
      return Error(Code::kResourceExhausted, "it has too many keys to be listed");
    }
    out += piece;
    return OkStatus();
  }));
  return out;
}

Result<std::vector<LogicalLine>> DecodeLogicalListing(std::string_view bytes,
                                                      const Blake3& logical) {
  const Error bad(Code::kDataLoss, "the listing isn't what its logical digest says");
  if (ComputeBlake3(bytes) != logical || !bytes.starts_with(kDomain)) return bad;
  bytes.remove_prefix(kDomain.size());
  std::vector<LogicalLine> lines;
  std::set<std::string> items;
  while (!bytes.empty()) {
    LogicalLine line;
    if (!TakeLine(bytes, line)) return bad;
    if (!lines.empty() && !(SortKey(lines.back()) < SortKey(line))) return bad;
    if (line.kind == Kind::kItem) items.insert(line.item);
    if (line.kind == Kind::kValue && !items.contains(line.item)) return bad;
    lines.push_back(std::move(line));
  }
  return lines;
}

void LogicalDigestBuilder::AddItem(std::string item) {
  lines_.push_back(
      {.kind = Kind::kItem, .item = std::move(item), .name = {}, .length = 0, .digest = {}});
}

void LogicalDigestBuilder::AddValue(std::string item, std::string key, uint64_t length,
                                    const Xxh128& digest) {
  lines_.push_back({Kind::kValue, std::move(item), std::move(key), length, digest});
}

void LogicalDigestBuilder::AddFile(std::string path, uint64_t bytes, const Xxh128& digest) {
  lines_.push_back({Kind::kFile, {}, std::move(path), bytes, digest});
}

void LogicalDigestBuilder::AddLink(std::string path, std::string_view target) {
  lines_.push_back(
      {Kind::kLink, {}, std::move(path), target.size(), ComputeXxh128(AsBytes(target))});
}

LogicalDifference CompareReplicas(ReplicaLines a, ReplicaLines b, size_t first_max) {
  Sort(a.lines);
  Sort(b.lines);
  LogicalDifference out;
  const auto note = [&](const LogicalLine& line, std::string_view what) {
    if (++out.total <= first_max) out.first.push_back(fmt::format("{} {}", Subject(line), what));
  };
  const std::string only_a = fmt::format("is only in {}", a.name);
  const std::string only_b = fmt::format("is only in {}", b.name);
  for (size_t i = 0, j = 0; i < a.lines.size() || j < b.lines.size();) {
    const LogicalLine* x = i < a.lines.size() ? &a.lines[i] : nullptr;
    const LogicalLine* y = j < b.lines.size() ? &b.lines[j] : nullptr;
    if (y == nullptr || (x != nullptr && SortKey(*x) < SortKey(*y))) {
      note(*x, only_a);
      ++i;
    } else if (x == nullptr || SortKey(*y) < SortKey(*x)) {
      note(*y, only_b);
      ++j;
    } else {
      if (*x != *y) {
        note(*x, x->length == y->length
                     ? "differs"
                     : fmt::format("differs ({} and {} bytes)", x->length, y->length));
      }
      ++i, ++j;
    }
  }
  return out;
}

std::set<std::string> OcdbtItems(std::span<const StepEntry> entries) {
  std::set<std::string> items;
  for (const StepEntry& entry : entries) {
    if (entry.is_link) continue;
    if (entry.path == kOcdbtManifestName) items.insert("");
    const size_t slash = entry.path.find('/');
    if (slash != std::string::npos && entry.path.substr(slash + 1) == kOcdbtManifestName) {
      items.insert(entry.path.substr(0, slash));
    }
  }
  // With the step directory as the item, the databases of its processes are part of it.
  if (items.contains("")) {
    std::erase_if(items, [](const std::string& item) {
      return IsItemDatabaseFile(fmt::format("{}/{}", item, kOcdbtManifestName));
    });
  }
  return items;
}

ReplicaFile ClassifyReplicaFile(std::string_view path, const std::set<std::string>& items) {
  if (path == kCheckpointMetadata) return ReplicaFile::kTimestamps;
  if (path == kBackupRequestedName) return ReplicaFile::kBookkeeping;
  if (items.contains("") && IsItemDatabaseFile(path)) return ReplicaFile::kBookkeeping;
  // commit_success.txt stands in the step directory and in each item, OCDBT or not.
  constexpr std::string_view kCommitSuccess = "commit_success.txt";
  constexpr std::string_view kArrayMetadata = "array_metadatas/process_";
  const size_t slash = path.find('/');
  const std::string_view item = slash == path.npos ? std::string_view() : path.substr(0, slash);
  const std::string_view within = slash == path.npos ? path : path.substr(slash + 1);
  if (within == kCommitSuccess) return ReplicaFile::kBookkeeping;
  if (items.contains("") && path.starts_with(kArrayMetadata) &&
      IsNumber(path.substr(kArrayMetadata.size()))) {
    return ReplicaFile::kBookkeeping;
  }
  if (slash == path.npos || !items.contains(std::string(item))) return ReplicaFile::kContents;
  if (within.starts_with(kArrayMetadata) && IsNumber(within.substr(kArrayMetadata.size()))) {
    return ReplicaFile::kBookkeeping;
  }
  return IsItemDatabaseFile(within) ? ReplicaFile::kBookkeeping : ReplicaFile::kContents;
}

std::string NeutralCheckpointMetadata(std::string_view contents) {
  std::string out;
  if (!MemberScanner(contents).CutOut(kReplicaMembers, out)) return std::string(contents);
  return out;
}

Result<LogicalPlan> PlanLogicalDigest(OcdbtFiles& files, std::span<const StepEntry> entries,
                                      const OcdbtLimits& limits) {
  LogicalPlan plan;
  const std::set<std::string> items = OcdbtItems(entries);
  for (const std::string& item : items) {
    TK_RETURN_IF_ERROR(AddItemLines(files, item, limits, plan));
  }
  for (const StepEntry& entry : entries) {
    const ReplicaFile role = ClassifyReplicaFile(entry.path, items);
    // A link is never bookkeeping: what it points at is nowhere covered.
    if (entry.is_link) {
      plan.lines.push_back({Kind::kLink,
                            {},
                            entry.path,
                            entry.link_target.size(),
                            ComputeXxh128(AsBytes(entry.link_target))});
    } else if (role != ReplicaFile::kBookkeeping) {
      TK_RETURN_IF_ERROR(AddFileLine(files, entry, role, plan));
    }
  }
  return plan;
}

}  // namespace tierkeep
