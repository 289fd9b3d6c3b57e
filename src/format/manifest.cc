#include "format/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/escape_name.h"
#include "format/volume_names.h"

namespace tierkeep {
namespace {

constexpr std::string_view kMagic = "TKMF";
constexpr uint8_t kVersion = 1;
constexpr uint8_t kChunkDigestXxh128 = 1;
constexpr uint8_t kLogicalNone = 0;
constexpr uint8_t kLogicalBlake3 = 1;

// Linux's own limits on names and link targets; the path's is generous.
constexpr size_t kNameBytesMax = 255;
constexpr size_t kPathBytesMax = 64 << 10;
constexpr size_t kLinkTargetBytesMax = 4095;
constexpr uint64_t kFileBytesMax = INT64_MAX;
// The least an entry and a chunk take, so that a count can be refused before it is believed.
constexpr size_t kEntryBytesMin = 6;
constexpr size_t kChunkEncodedMin = 1 + Xxh128::kSize;

Error Invalid(std::string what) { return Error(Code::kInvalidArgument, std::move(what)); }

Error InvalidEntry(const ManifestEntry& e, std::string_view rule) {
  return Invalid(fmt::format("manifest: entry '{}': {}", EscapeName(e.path, 200), rule));
}

// ---- rules -------------------------------------------------------------------------------------

bool IsGoodPath(std::string_view path) {
  if (path.size() > kPathBytesMax || path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t end = path.find('/');
    const std::string_view name = path.substr(0, end);
    if (name.empty() || name == "." || name == ".." || name.size() > kNameBytesMax) return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

Status CheckContent(const ManifestEntry& e) {
  if (e.mode > 07777) return InvalidEntry(e, "its mode has more than permission bits");
  if (e.type != EntryType::kSymlink && !e.link_target.empty()) {
    return InvalidEntry(e, "only a link has a target");
  }
  if (e.type == EntryType::kSymlink &&
      (e.link_target.empty() || e.link_target.size() > kLinkTargetBytesMax ||
       e.link_target.find('\0') != std::string::npos)) {
    return InvalidEntry(e, "its link target is empty, too long or holds a NUL");
  }
  if (e.type != EntryType::kFile && (e.bytes != 0 || !e.chunks.empty())) {
    return InvalidEntry(e, "only a file has bytes");
  }
  uint64_t sum = 0;
  for (const Chunk& c : e.chunks) {
    if (c.bytes == 0 || c.bytes > kChunkBytesMax) {
      return InvalidEntry(e, fmt::format("a chunk of {} bytes", c.bytes));
    }
    sum += c.bytes;
    if (sum > kFileBytesMax) return InvalidEntry(e, "it is too large");
  }
  if (sum != e.bytes) {
    return InvalidEntry(e, fmt::format("{} bytes, but its chunks have {}", e.bytes, sum));
  }
  return OkStatus();
}

// Entries before `index` are good already.
Status CheckPlace(const std::vector<ManifestEntry>& entries, size_t index) {
  const ManifestEntry& e = entries[index];
  if (index == 0) {
    if (!e.path.empty()) return InvalidEntry(e, "the first entry must be the root");
    if (e.type == EntryType::kSymlink) return InvalidEntry(e, "the root can't be a link");
    return OkStatus();
  }
  if (!IsGoodPath(e.path)) return InvalidEntry(e, "it has no allowed path");
  if (entries[index - 1].path >= e.path) return InvalidEntry(e, "it is out of order");
  const size_t slash = e.path.rfind('/');
  const std::string_view parent =
      slash == std::string::npos ? std::string_view() : std::string_view(e.path).substr(0, slash);
  const auto found =
      std::lower_bound(entries.begin(), entries.begin() + static_cast<ptrdiff_t>(index), parent,
                       [](const ManifestEntry& a, std::string_view path) { return a.path < path; });
  if (found->path != parent || found->type != EntryType::kDirectory) {
    return InvalidEntry(e, "its parent is no directory of the manifest");
  }
  return OkStatus();
}

Status CheckIdentity(const ShardIdentity& id) {
  if (!IsValidJobName(id.job)) return Invalid("manifest: its job name has another form");
  if (id.save.run.none()) return Invalid("manifest: it has no run");
  if (id.save.occurrence == 0) return Invalid("manifest: its occurrence is 0");
  if (id.ordinal == 0) return Invalid("manifest: its ordinal is 0");
  TK_RETURN_IF_ERROR(
      CheckWorldShape(id.world).map_error([](const Error& e) { return e.With("manifest"); }));
  if (id.rank >= id.world.nodes) return Invalid("manifest: its rank is too high");
  if (id.worker >= id.world.workers_per_node) return Invalid("manifest: its worker is too high");
  return OkStatus();
}

Status CheckManifest(const Manifest& m) {
  TK_RETURN_IF_ERROR(CheckIdentity(m.identity));
  if (m.entries.empty()) return Invalid("manifest: it has no entry");
  uint64_t total = 0;
  for (size_t i = 0; i < m.entries.size(); ++i) {
    TK_RETURN_IF_ERROR(CheckPlace(m.entries, i));
    TK_RETURN_IF_ERROR(CheckContent(m.entries[i]));
    if (m.entries[i].bytes > kFileBytesMax - total) return Invalid("manifest: it is too large");
    total += m.entries[i].bytes;
  }
  return OkStatus();
}

// ---- writing -----------------------------------------------------------------------------------

class Writer {
 public:
  void Byte(uint8_t value) { out_ += static_cast<char>(value); }
  void Raw(std::string_view bytes) { out_ += bytes; }
  // LEB128: seven bits a byte, lowest first.
  void Number(uint64_t value) {
    while (value >= 0x80) {
      Byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    Byte(static_cast<uint8_t>(value));
  }
  void Text(std::string_view text) {
    Number(text.size());
    Raw(text);
  }
  std::string out_;
};

void WriteIdentity(const ShardIdentity& id, Writer* w) {
  w->Text(id.job);
  w->Number(id.save.run.sequence);
  w->Raw(id.save.run.nonce.Raw());
  w->Number(id.save.step);
  w->Number(id.save.occurrence);
  w->Number(id.rank);
  w->Number(id.worker);
  w->Number(id.ordinal);
  w->Byte(static_cast<uint8_t>(id.world.framework));
  w->Number(id.world.nodes);
  w->Number(id.world.workers_per_node);
  w->Number(id.world.data_parallelism);
}

void WriteEntry(const ManifestEntry& e, Writer* w) {
  w->Byte(static_cast<uint8_t>(e.type));
  w->Text(e.path);
  w->Number(e.mode);
  w->Number(e.uid);
  w->Number(e.gid);
  if (e.type == EntryType::kSymlink) w->Text(e.link_target);
  if (e.type != EntryType::kFile) return;
  w->Number(e.bytes);
  w->Number(e.chunks.size());
  for (const Chunk& c : e.chunks) {
    w->Number(c.bytes);
    w->out_.append(reinterpret_cast<const char*>(c.digest.bytes.data()), Xxh128::kSize);
  }
}

// ---- reading -----------------------------------------------------------------------------------

// Every getter returns a value of its kind or marks the reader bad, after which all return zeros;
// the caller asks once at the end of each part.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  uint8_t Byte() {
    const std::string_view one = Raw(1);
    return one.empty() ? 0 : static_cast<uint8_t>(one[0]);
  }
  std::string_view Raw(size_t n) {
    if (n > rest_.size()) return Fail();
    const std::string_view bytes = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return bytes;
  }
  uint64_t Number(uint64_t max = UINT64_MAX) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = Byte();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte & 0x80) continue;
      // Shortest form only: no zero group at the end, nothing beyond 64 bits.
      if ((shift > 0 && byte == 0) || (shift == 63 && byte > 1) || value > max) break;
      return value;
    }
    Fail();
    return 0;
  }
  std::string_view Text(size_t max) { return Raw(Number(max)); }
  template <typename Fixed>
  Fixed Digest() {
    return Fixed::FromBytes(Raw(Fixed::kSize)).value_or(Fixed{});
  }

  bool good() const { return good_; }
  size_t rest() const { return rest_.size(); }
  size_t offset() const { return size_ - rest_.size(); }

 private:
  std::string_view Fail() {
    if (good_) fail_offset_ = offset();
    good_ = false;
    rest_ = {};
    size_ = fail_offset_;
    return {};
  }

  std::string_view rest_;
  size_t size_;
  size_t fail_offset_ = 0;
  bool good_ = true;
};

Error Damaged(std::string_view what) {
  return Error(Code::kDataLoss, fmt::format("manifest: {}", what));
}

Error DamagedAt(const Reader& r, std::string_view what) {
  return Damaged(fmt::format("{} at byte {}", what, r.offset()));
}

ShardIdentity ReadIdentity(Reader* r) {
  ShardIdentity id;
  id.job = r->Text(kPathBytesMax);
  id.save.run.sequence = r->Number();
  id.save.run.nonce = r->Digest<Id128>();
  id.save.step = r->Number();
  id.save.occurrence = static_cast<uint32_t>(r->Number(UINT32_MAX));
  id.rank = static_cast<Rank>(r->Number(UINT32_MAX));
  id.worker = static_cast<Worker>(r->Number(UINT32_MAX));
  id.ordinal = r->Number();
  id.world.framework = static_cast<Framework>(r->Byte());
  id.world.nodes = static_cast<uint32_t>(r->Number(UINT32_MAX));
  id.world.workers_per_node = static_cast<uint32_t>(r->Number(UINT32_MAX));
  id.world.data_parallelism = static_cast<uint32_t>(r->Number(UINT32_MAX));
  return id;
}

Result<ManifestEntry> ReadEntry(Reader* r) {
  ManifestEntry e;
  const uint8_t type = r->Byte();
  if (type < 1 || type > 3) return DamagedAt(*r, fmt::format("an entry of type {}", type));
  e.type = static_cast<EntryType>(type);
  e.path = r->Text(kPathBytesMax);
  e.mode = static_cast<uint32_t>(r->Number(UINT32_MAX));
  e.uid = static_cast<uint32_t>(r->Number(UINT32_MAX));
  e.gid = static_cast<uint32_t>(r->Number(UINT32_MAX));
  if (e.type == EntryType::kSymlink) e.link_target = r->Text(kLinkTargetBytesMax);
  if (e.type == EntryType::kFile) {
    e.bytes = r->Number();
    const uint64_t count = r->Number();
    if (count > r->rest() / kChunkEncodedMin) return DamagedAt(*r, "a count of chunks too high");
    e.chunks.reserve(count);
    for (uint64_t i = 0; i < count && r->good(); ++i) {
      const uint64_t bytes = r->Number();
      e.chunks.push_back({bytes, r->Digest<Xxh128>()});
    }
  }
  if (!r->good()) return DamagedAt(*r, "an entry ends too early or has a bad number");
  return e;
}

Result<Manifest> ReadManifest(Reader* r) {
  Manifest m;
  if (r->Raw(kMagic.size()) != kMagic) return Damaged("it does not begin with TKMF");
  const uint8_t version = r->Byte();
  if (version != kVersion) return Damaged(fmt::format("version {} is not known", version));
  const uint8_t chunk_digest = r->Byte();
  if (chunk_digest != kChunkDigestXxh128) {
    return Damaged(fmt::format("chunk digest {} is not known", chunk_digest));
  }
  const uint8_t logical = r->Byte();
  if (logical > kLogicalBlake3) {
    return Damaged(fmt::format("logical digest {} is not known", logical));
  }
  m.identity = ReadIdentity(r);
  if (logical == kLogicalBlake3) {
    m.logical = r->Digest<Blake3>();
    if (r->good() && m.logical.IsZero()) return DamagedAt(*r, "a logical digest of zeros");
  }
  const uint64_t count = r->Number();
  if (!r->good()) return DamagedAt(*r, "it ends too early or has a bad number");
  if (count > r->rest() / kEntryBytesMin) return DamagedAt(*r, "a count of entries too high");
  for (uint64_t i = 0; i < count; ++i) {
    TK_ASSIGN_OR_RETURN(ManifestEntry entry, ReadEntry(r));
    m.entries.push_back(std::move(entry));
  }
  if (r->rest() != 0) return DamagedAt(*r, "more bytes than the manifest");
  return m;
}

}  // namespace

uint64_t Manifest::TotalBytes() const {
  uint64_t total = 0;
  for (const ManifestEntry& e : entries) total += e.bytes;
  return total;
}

uint64_t Manifest::ChunkCount() const {
  uint64_t count = 0;
  for (const ManifestEntry& e : entries) count += e.chunks.size();
  return count;
}

Result<std::string> EncodeManifest(const Manifest& manifest) {
  TK_RETURN_IF_ERROR(CheckManifest(manifest));
  Writer w;
  w.Raw(kMagic);
  w.Byte(kVersion);
  w.Byte(kChunkDigestXxh128);
  w.Byte(manifest.logical.IsZero() ? kLogicalNone : kLogicalBlake3);
  WriteIdentity(manifest.identity, &w);
  if (!manifest.logical.IsZero()) w.Raw(manifest.logical.Raw());
  w.Number(manifest.entries.size());
  for (const ManifestEntry& e : manifest.entries) {
    WriteEntry(e, &w);
    if (w.out_.size() > kManifestBytesMax - Xxh128::kSize) {
      return Invalid(fmt::format("manifest: over {} bytes", kManifestBytesMax));
    }
  }
  w.Raw(ComputeXxh128(AsBytes(w.out_)).Raw());
  return std::move(w.out_);
}

Result<Manifest> DecodeManifest(std::string_view bytes) {
  if (bytes.size() > kManifestBytesMax) return Damaged("it is over the size limit");
  if (bytes.size() < Xxh128::kSize) return Damaged("it is too short");
  const std::string_view covered = bytes.substr(0, bytes.size() - Xxh128::kSize);
  if (ComputeXxh128(AsBytes(covered)).Raw() != bytes.substr(covered.size())) {
    return Damaged("its digest does not match");
  }
  Reader reader(covered);
  TK_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(&reader));
  if (const Status s = CheckManifest(manifest); !s.ok()) {
    return Error(Code::kDataLoss, s.error().message());
  }
  return manifest;
}

std::string VolumeDataName(const Manifest& manifest, const Blake3& manifest_digest) {
  TK_CHECK(!manifest.entries.empty());
  const Blake3& digest = manifest.logical.IsZero() ? manifest_digest : manifest.logical;
  return (manifest.entries[0].type == EntryType::kDirectory ? "D" : "") + digest.Hex();
}

Xxh128 CombinePieceDigests(const std::vector<Xxh128>& pieces) {
  if (pieces.size() == 1) return pieces[0];
  Xxh128Hasher hasher;
  for (const Xxh128& piece : pieces) hasher.Update(std::as_bytes(std::span(piece.bytes)));
  return hasher.Finish();
}

}  // namespace tierkeep
