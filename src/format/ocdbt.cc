#include "format/ocdbt.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/escape_name.h"
#include "format/ocdbt_codec.h"

namespace tierkeep {
namespace {

using ocdbt::BtreeNode;
using ocdbt::DataFile;
using ocdbt::DecodeLimits;
using ocdbt::Manifest;
using ocdbt::Reference;
using ocdbt::Statistics;

constexpr uint64_t kBodyBytesFloor = 256ull << 20;
constexpr size_t kWarningsMax = 16;
constexpr int kManifestAttempts = 4;

Error Corrupt(std::string message) { return Error(Code::kDataLoss, std::move(message)); }

std::string Join(std::string_view dir, std::string_view path) {
  return dir.empty() ? std::string(path) : fmt::format("{}/{}", dir, path);
}

// The generation in a numbered manifest's name, "manifest." and 16 lower-case hex digits.
std::optional<uint64_t> NumberedGeneration(std::string_view name) {
  constexpr std::string_view kPrefix = "manifest.";
  if (name.size() != kPrefix.size() + 16 || !name.starts_with(kPrefix)) return std::nullopt;
  uint64_t value = 0;
  for (const char c : name.substr(kPrefix.size())) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

class Walker {
 public:
  Walker(OcdbtFiles& files, const std::string& dir, const OcdbtLimits& limits,
         const std::function<Status(OcdbtEntry&&)>& visit)
      : files_(files), dir_(dir), limits_(limits), visit_(visit) {}

  Result<OcdbtSummary> Run();

 private:
  // A node as its referrer describes it.
  struct Place {
    DataFile file;
    Reference reference;
    uint8_t height = 0;
    Statistics claimed;
    std::string prefix;                // inherited by all keys of the node
    std::string lower;                 // full keys are at or above this ...
    std::optional<std::string> upper;  // ... and below this
  };
  // A node on the way from the root. An interior one is read one entry ahead, since the next
  // sibling's key bounds the child.
  struct Frame {
    Place place;
    BtreeNode node;
    uint64_t held_bytes = 0;  // as counted when the node was read
    Statistics found = {};    // so far, of the subtree
    std::optional<std::string> ahead_key = {};
    Reference ahead_reference = {};
    Statistics ahead_claimed = {};
    size_t ahead_prefix_bytes = 0;
  };

  Result<std::string> ReadManifestFile(const std::string& name);
  Result<Manifest> ReadManifest();
  Result<std::optional<Manifest>> ReadNumbered(const Manifest& top);
  Status WalkTree(const Manifest& manifest);
  Status Push(Place place);
  Status VisitLeaf(Frame& frame);
  Status VisitEntry(const Frame& frame, const BtreeNode::Entry& entry, std::string key);
  // Descends into the top frame's next child, or pops the frame.
  Status Advance();
  Status ReadAhead(Frame& frame);
  // The full key of an entry, checked against the bounds of its node.
  Result<std::string> FullKey(const Frame& frame, std::string_view relative_key) const;
  void Pop();

  OcdbtFiles& files_;
  const std::string& dir_;
  const OcdbtLimits& limits_;
  const std::function<Status(OcdbtEntry&&)>& visit_;
  DecodeLimits decode_limits_;
  std::vector<Frame> stack_;
  uint64_t held_bytes_ = 0;
  uint64_t decoded_bytes_ = 0;
  std::optional<std::string> last_key_;
  OcdbtSummary summary_;
};

Result<std::string> Walker::ReadManifestFile(const std::string& name) {
  auto bytes = files_.ReadAll(Join(dir_, name), limits_.manifest_bytes_max);
  if (!bytes.ok()) return bytes.error().With(Join(dir_, name));
  return bytes;
}

Result<Manifest> Walker::ReadManifest() {
  const std::string name(kOcdbtManifestName);
  decode_limits_.body_bytes_max = limits_.manifest_bytes_max;
  TK_ASSIGN_OR_RETURN(std::string bytes, ReadManifestFile(name));
  auto manifest = ocdbt::DecodeManifest(std::move(bytes), decode_limits_);
  if (!manifest.ok()) return manifest.error().With(Join(dir_, name));
  return manifest;
}

// The newest numbered manifest; nullopt when there is none. Writers delete old ones, so one that
// was listed can be gone when it is read: then there is a newer one, and the list is read again.
Result<std::optional<Manifest>> Walker::ReadNumbered(const Manifest& top) {
  for (int attempt = 0; attempt < kManifestAttempts; ++attempt) {
    TK_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(dir_));
    uint64_t generation = 0;
    for (const std::string& name : names) {
      generation = std::max(generation, NumberedGeneration(name).value_or(0));
    }
    if (generation == 0) return std::optional<Manifest>();
    const std::string name = fmt::format("manifest.{:016x}", generation);
    auto bytes = ReadManifestFile(name);
    if (!bytes.ok() && bytes.error().code() == Code::kNotFound) continue;
    if (!bytes.ok()) return std::move(bytes.error());
    auto manifest = ocdbt::DecodeManifest(std::move(*bytes), decode_limits_);
    if (!manifest.ok()) return manifest.error().With(Join(dir_, name));
    if (manifest->kind != Manifest::Kind::kSingle || manifest->config != top.config) {
      return Corrupt(EscapeName(Join(dir_, name)) +
                     ": its configuration is not that of manifest.ocdbt");
    }
    if (manifest->latest.generation != generation) {
      return Corrupt(fmt::format("{}: its latest generation is {:x}", EscapeName(Join(dir_, name)),
                                 manifest->latest.generation));
    }
    return std::optional<Manifest>(std::move(*manifest));
  }
  return Error(Code::kAborted,
               EscapeName(Join(dir_, "manifest.*")) + ": every listed manifest was gone");
}

Result<OcdbtSummary> Walker::Run() {
  TK_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest());
  if (manifest.kind == Manifest::Kind::kNumbered) {
    TK_ASSIGN_OR_RETURN(std::optional<Manifest> numbered, ReadNumbered(manifest));
    if (!numbered.has_value()) return summary_;
    manifest = std::move(*numbered);
  }
  summary_.generation = manifest.latest.generation;
  const uint64_t hinted = 4ull * manifest.config.decoded_node_bytes_max;
  decode_limits_.body_bytes_max =
      std::min(limits_.node_bytes_max, std::max(kBodyBytesFloor, hinted));
  if (!manifest.latest.root.IsMissing()) TK_RETURN_IF_ERROR(WalkTree(manifest));
  return std::move(summary_);
}

Status Walker::WalkTree(const Manifest& manifest) {
  const auto& latest = manifest.latest;
  TK_RETURN_IF_ERROR(Push({.file = manifest.files[latest.root.file],
                           .reference = latest.root,
                           .height = latest.root_height,
                           .claimed = latest.statistics,
                           .prefix = {},
                           .lower = {},
                           .upper = {}}));
  while (!stack_.empty()) {
    if (stack_.back().node.height() > 0) {
      TK_RETURN_IF_ERROR(Advance());
    } else {
      TK_RETURN_IF_ERROR(VisitLeaf(stack_.back()));
      Pop();
    }
  }
  return OkStatus();
}

Status Walker::Push(Place place) {
  TK_RETURN_IF_ERROR(ocdbt::CheckDataPath(place.file.path));
  const std::string path = Join(dir_, place.file.path);
  const Reference& at = place.reference;
  const auto where = [&] { return fmt::format("{}, node at {}", EscapeName(path), at.offset); };
  if (at.length > limits_.node_bytes_max) {
    return Error(Code::kResourceExhausted, fmt::format("{}: {} bytes long", where(), at.length));
  }
  auto bytes = files_.ReadRange(path, at.offset, at.length);
  if (!bytes.ok() && bytes.error().code() == Code::kNotFound) {
    return Corrupt(where() + ": the file is missing");
  }
  if (!bytes.ok()) return bytes.error().With(where());
  if (bytes->size() != at.length) return Corrupt(where() + ": the file is too short");
  auto node = BtreeNode::Decode(std::move(*bytes), place.file.base(), place.height, decode_limits_);
  if (!node.ok()) return node.error().With(where());
  const uint64_t held = node->bytes_held();
  held_bytes_ += held;
  decoded_bytes_ += held;
  if (held_bytes_ > limits_.held_bytes_max || decoded_bytes_ > limits_.decoded_bytes_total_max) {
    return Error(Code::kResourceExhausted, where() + ": the tree takes too much memory");
  }
  Frame frame{.place = std::move(place), .node = std::move(*node), .held_bytes = held};
  frame.found.tree_bytes = frame.node.encoded_bytes();
  stack_.push_back(std::move(frame));
  if (stack_.back().node.height() > 0) return ReadAhead(stack_.back());
  return OkStatus();
}

Result<std::string> Walker::FullKey(const Frame& frame, std::string_view relative_key) const {
  const Place& place = frame.place;
  if (place.prefix.size() + relative_key.size() > ocdbt::kKeyBytesMax) {
    return Corrupt("a key is too long");
  }
  std::string key = place.prefix;
  key += relative_key;
  if (key < place.lower || (place.upper.has_value() && key >= *place.upper)) {
    return Corrupt(
        fmt::format("{}: a key is outside of its node's range", EscapeName(place.file.path)));
  }
  return key;
}

Status Walker::ReadAhead(Frame& frame) {
  BtreeNode::Entry entry;
  TK_ASSIGN_OR_RETURN(const bool more, frame.node.Next(entry));
  frame.ahead_key.reset();
  if (!more) return OkStatus();
  TK_ASSIGN_OR_RETURN(frame.ahead_key, FullKey(frame, entry.relative_key));
  frame.ahead_reference = entry.reference;
  frame.ahead_claimed = entry.statistics;
  frame.ahead_prefix_bytes = frame.place.prefix.size() + entry.common_prefix_bytes;
  return OkStatus();
}

Status Walker::Advance() {
  Frame& frame = stack_.back();
  if (!frame.ahead_key.has_value()) {
    Pop();
    return OkStatus();
  }
  Place child{.file = frame.node.files()[frame.ahead_reference.file],
              .reference = frame.ahead_reference,
              .height = static_cast<uint8_t>(frame.node.height() - 1),
              .claimed = frame.ahead_claimed,
              .prefix = frame.ahead_key->substr(0, frame.ahead_prefix_bytes),
              .lower = std::move(*frame.ahead_key),
              .upper = {}};
  TK_RETURN_IF_ERROR(ReadAhead(frame));
  child.upper = frame.ahead_key.has_value() ? frame.ahead_key : frame.place.upper;
  return Push(std::move(child));
}

Status Walker::VisitLeaf(Frame& frame) {
  BtreeNode::Entry entry;
  while (true) {
    TK_ASSIGN_OR_RETURN(const bool more, frame.node.Next(entry));
    if (!more) return OkStatus();
    TK_ASSIGN_OR_RETURN(std::string key, FullKey(frame, entry.relative_key));
    ++frame.found.keys;
    if (!entry.is_inline) frame.found.indirect_value_bytes += entry.reference.length;
    TK_RETURN_IF_ERROR(VisitEntry(frame, entry, std::move(key)));
  }
}

Status Walker::VisitEntry(const Frame& frame, const BtreeNode::Entry& entry, std::string key) {
  // The bounds of the nodes imply this; callers rely on it, so it is looked at once more.
  if (last_key_.has_value() && *last_key_ >= key) return Corrupt("keys are not in order");
  if (++summary_.keys > limits_.entries_max) {
    return Error(Code::kResourceExhausted, fmt::format("more than {} keys", limits_.entries_max));
  }
  last_key_ = key;
  OcdbtEntry out{.key = std::move(key), .value = {}};
  if (entry.is_inline) {
    out.value = std::string(entry.inline_value);
  } else if (entry.reference.length > 0) {
    const std::string& path = frame.node.files()[entry.reference.file].path;
    TK_RETURN_IF_ERROR(ocdbt::CheckDataPath(path));
    summary_.indirect_value_bytes += entry.reference.length;
    out.value = OcdbtLocation{Join(dir_, path), entry.reference.offset, entry.reference.length};
  }
  return visit_(std::move(out));
}

void Walker::Pop() {
  const Frame& frame = stack_.back();
  const Statistics found = frame.found;
  if (found != frame.place.claimed && summary_.warnings.size() < kWarningsMax) {
    const Statistics& claimed = frame.place.claimed;
    summary_.warnings.push_back(fmt::format(
        "{}, node at {}: {} keys, {} tree bytes, {} value bytes; its referrer says {}, {}, {}",
        EscapeName(Join(dir_, frame.place.file.path)), frame.place.reference.offset, found.keys,
        found.tree_bytes, found.indirect_value_bytes, claimed.keys, claimed.tree_bytes,
        claimed.indirect_value_bytes));
  }
  held_bytes_ -= frame.held_bytes;
  stack_.pop_back();
  if (stack_.empty()) return;
  Statistics& parent = stack_.back().found;
  parent.keys += found.keys;
  parent.tree_bytes += found.tree_bytes;
  parent.indirect_value_bytes += found.indirect_value_bytes;
}

}  // namespace

Result<OcdbtSummary> WalkOcdbt(OcdbtFiles& files, const std::string& database_dir,
                               const OcdbtLimits& limits,
                               const std::function<Status(OcdbtEntry&&)>& visit) {
  return Walker(files, database_dir, limits, visit).Run();
}

Result<OcdbtListing> ListOcdbt(OcdbtFiles& files, const std::string& database_dir,
                               const OcdbtLimits& limits) {
  OcdbtListing listing;
  uint64_t listed_bytes = 0;
  const auto add = [&](OcdbtEntry&& entry) -> Status {
    listed_bytes += sizeof(OcdbtEntry) + entry.key.size();
    if (entry.inline_value() != nullptr) {
      listed_bytes += entry.inline_value()->size();
    } else {
      listed_bytes += entry.location()->path.size();
    }
    if (listed_bytes > limits.listed_bytes_max) {
      return Error(Code::kResourceExhausted,
                   fmt::format("{}: its keys take too much memory", EscapeName(database_dir)));
    }
    listing.entries.push_back(std::move(entry));
    return OkStatus();
  };
  TK_ASSIGN_OR_RETURN(listing.summary, WalkOcdbt(files, database_dir, limits, add));
  return listing;
}

Status ReadOcdbtValue(OcdbtFiles& files, const OcdbtEntry& entry, uint64_t piece_bytes,
                      const std::function<void(std::string_view)>& sink) {
  TK_CHECK(piece_bytes > 0);
  if (const std::string* bytes = entry.inline_value()) {
    for (size_t at = 0; at < bytes->size(); at += piece_bytes) {
      sink(std::string_view(*bytes).substr(at, piece_bytes));
    }
    return OkStatus();
  }
  const OcdbtLocation& location = *entry.location();
  for (uint64_t at = 0; at < location.length;) {
    const uint64_t want = std::min(piece_bytes, location.length - at);
    auto bytes = files.ReadRange(location.path, location.offset + at, want);
    if (!bytes.ok() && bytes.error().code() == Code::kNotFound) {
      return Corrupt(EscapeName(location.path) + ": the file is missing");
    }
    if (!bytes.ok()) return bytes.error().With(location.path);
    if (bytes->size() != want)
      return Corrupt(EscapeName(location.path) + ": the file is too short");
    sink(*bytes);
    at += want;
  }
  return OkStatus();
}

}  // namespace tierkeep
