#include "format/ocdbt_codec.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/digest.h"
#include "base/escape_name.h"

namespace tierkeep::ocdbt {
namespace {

constexpr size_t kEnvelopeBytesMin = 16;
constexpr uint64_t kOffsetMax = std::numeric_limits<int64_t>::max();

template <typename... Args>
Error Corrupt(fmt::format_string<Args...> format, Args&&... args) {
  return Error(Code::kDataLoss, fmt::format(format, std::forward<Args>(args)...));
}

enum class Width { k16, k64 };

// Steps over a column of n varints; where it began, as a cursor over it and all that follows.
Cursor SkipVarints(Cursor& in, uint64_t n, Width width) {
  const Cursor column = in;
  for (uint64_t i = 0; i < n && !in.failed(); ++i) {
    if (width == Width::k16) {
      in.V16();
    } else {
      in.V64();
    }
  }
  return column;
}

Cursor SkipBytes(Cursor& in, uint64_t n) {
  const Cursor column = in;
  in.Bytes(n);
  return column;
}

Result<std::string> Decompress(std::string_view frame, uint64_t bytes_max) {
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  TK_CHECK(context != nullptr);
  ZSTD_inBuffer in{frame.data(), frame.size(), 0};
  std::string out;
  size_t filled = 0;
  while (true) {
    if (filled == out.size()) {
      if (filled >= bytes_max) {
        return Error(Code::kResourceExhausted,
                     fmt::format("a compressed body holds more than {} bytes", bytes_max));
      }
      const uint64_t grown = std::max<uint64_t>({64 << 10, 4 * frame.size(), 2 * filled});
      out.resize(std::min<uint64_t>(grown, bytes_max));
    }
    ZSTD_outBuffer to{out.data(), out.size(), filled};
    const size_t in_before = in.pos;
    const size_t hint = ZSTD_decompressStream(context.get(), &to, &in);
    if (ZSTD_isError(hint)) return Corrupt("zstd: {}", ZSTD_getErrorName(hint));
    const bool moved = to.pos != filled || in.pos != in_before;
    filled = to.pos;
    if (hint == 0) break;
    // With room left in `out` the decoder stops only for lack of input.
    if (filled < out.size() && (in.pos == in.size || !moved)) {
      return Corrupt("a compressed body ends inside its zstd frame");
    }
  }
  if (in.pos != in.size) return Corrupt("{} bytes after the zstd frame", in.size - in.pos);
  out.resize(filled);
  return out;
}

Status CheckReference(const Reference& ref, size_t files) {
  if (ref.file >= files) {
    return Corrupt("data file index {} in a table of {} files", ref.file, files);
  }
  if (ref.offset > kOffsetMax || ref.length > kOffsetMax - ref.offset) {
    return Corrupt("a reference to {} bytes at offset {}", ref.length, ref.offset);
  }
  return OkStatus();
}

Result<Config> DecodeConfig(Cursor& in, Manifest::Kind& kind) {
  Config config;
  config.uuid = std::string(in.Bytes(16));
  const uint8_t kind_byte = in.U8();
  config.inline_value_bytes_max = in.V32();
  config.decoded_node_bytes_max = in.V32();
  config.version_tree_arity_log2 = in.U8();
  config.compression_method = in.V32();
  if (config.compression_method == 1) config.zstd_level = static_cast<int32_t>(in.U32le());
  if (in.failed()) return Corrupt("the manifest ends inside its configuration");
  if (kind_byte > 1) return Corrupt("manifest kind {}", kind_byte);
  kind = static_cast<Manifest::Kind>(kind_byte);
  if (config.version_tree_arity_log2 < 1 || config.version_tree_arity_log2 > 16) {
    return Corrupt("version tree arity 2^{}", config.version_tree_arity_log2);
  }
  if (config.compression_method > 1) {
    return Corrupt("compression method {}", config.compression_method);
  }
  if (config.zstd_level < ZSTD_minCLevel() || config.zstd_level > ZSTD_maxCLevel()) {
    return Corrupt("zstd level {}", config.zstd_level);
  }
  return config;
}

// The columns that inline versions and references to version nodes begin with.
struct VersionColumns {
  uint64_t count = 0;
  Cursor generation, root_height, file, offset, length;
};

Status CheckMissingRoot(const LatestVersion& version, size_t files) {
  if (version.root.file >= files) {
    return Corrupt("data file index {} in a table of {} files", version.root.file, files);
  }
  if (version.root_height != 0 || version.statistics != Statistics{}) {
    return Corrupt("generation {} has no root but a height or statistics", version.generation);
  }
  return OkStatus();
}

// Inline versions; the last is the newest. `first` becomes the oldest generation among them.
Result<LatestVersion> DecodeInlineVersions(Cursor& in, uint8_t arity_log2, size_t files,
                                           uint64_t& first) {
  const uint64_t arity = uint64_t{1} << arity_log2;
  const uint64_t n = in.V64();
  if (in.failed() || n < 1 || n > arity || n > in.remaining()) {
    return Corrupt("a count of {} inline versions, arity {}", n, arity);
  }
  Cursor generation = SkipVarints(in, n, Width::k64);
  Cursor root_height = SkipBytes(in, n);
  Cursor file = SkipVarints(in, n, Width::k64);
  Cursor offset = SkipVarints(in, n, Width::k64);
  Cursor length = SkipVarints(in, n, Width::k64);
  Cursor keys = SkipVarints(in, n, Width::k64);
  Cursor tree_bytes = SkipVarints(in, n, Width::k64);
  Cursor indirect_bytes = SkipVarints(in, n, Width::k64);
  SkipBytes(in, 8 * n);  // commit times
  if (in.failed()) return Corrupt("the manifest ends inside its versions");
  LatestVersion version;
  first = 0;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t previous = version.generation;
    version.generation = generation.V64();
    if (version.generation <= previous) {
      return Corrupt("generation {} follows {}", version.generation, previous);
    }
    if (i == 0) first = version.generation;
    version.root_height = root_height.U8();
    version.root = {file.V64(), offset.V64(), length.V64()};
    version.statistics = {keys.V64(), tree_bytes.V64(), indirect_bytes.V64()};
    if (version.root.IsMissing()) {
      TK_RETURN_IF_ERROR(CheckMissingRoot(version, files));
    } else {
      TK_RETURN_IF_ERROR(CheckReference(version.root, files));
    }
  }
  const uint64_t last = version.generation;
  if (first < last - (last - 1) % arity) {
    return Corrupt("inline generations {} to {} are not of one block of {}", first, last, arity);
  }
  return version;
}

Status CheckVersionNodes(Cursor& in, uint8_t arity_log2, size_t files, uint64_t first_inline) {
  const uint64_t n = in.V64();
  if (in.failed() || n > 63u / arity_log2 - 1 || n > in.remaining()) {
    return Corrupt("a count of {} version nodes, arity 2^{}", n, arity_log2);
  }
  Cursor generation = SkipVarints(in, n, Width::k64);
  Cursor file = SkipVarints(in, n, Width::k64);
  Cursor offset = SkipVarints(in, n, Width::k64);
  Cursor length = SkipVarints(in, n, Width::k64);
  SkipVarints(in, n, Width::k64);  // numbers of generations
  SkipBytes(in, 8 * n);            // commit times
  Cursor height = SkipBytes(in, n);
  if (in.failed()) return Corrupt("the manifest ends inside its version nodes");
  uint64_t previous_generation = 0;
  int previous_height = 256;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t g = generation.V64();
    const int h = height.U8();
    if (g <= previous_generation || g >= first_inline) {
      return Corrupt("version node generation {} out of order", g);
    }
    if (h < 1 || h >= previous_height) return Corrupt("version node height {} out of order", h);
    const Reference reference{file.V64(), offset.V64(), length.V64()};
    TK_RETURN_IF_ERROR(CheckReference(reference, files));
    previous_generation = g;
    previous_height = h;
  }
  return OkStatus();
}

}  // namespace

uint64_t Cursor::Fixed(size_t n, bool big_endian) {
  if (data_.size() < n) {
    Fail();
    return 0;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t byte = static_cast<uint8_t>(data_[big_endian ? n - 1 - i : i]);
    value |= byte << (8 * i);
  }
  data_.remove_prefix(n);
  return value;
}

uint64_t Cursor::Varint(size_t bytes_max, uint8_t last_max) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes_max && i < data_.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(data_[i]);
    if (i + 1 == bytes_max && byte > last_max) break;
    value |= uint64_t{byte & 0x7Fu} << (7 * i);
    if (byte < 0x80) {
      data_.remove_prefix(i + 1);
      return value;
    }
  }
  Fail();
  return 0;
}

uint16_t Cursor::V16() {
  const uint32_t value = V32();
  if (value > 0xFFFF) {
    Fail();
    return 0;
  }
  return static_cast<uint16_t>(value);
}

std::string_view Cursor::Bytes(uint64_t n) {
  if (n > data_.size()) {
    Fail();
    return {};
  }
  const std::string_view bytes = data_.substr(0, n);
  data_.remove_prefix(n);
  return bytes;
}

Result<Body> OpenEnvelope(std::string object, uint32_t magic, uint64_t body_bytes_max) {
  if (object.size() < kEnvelopeBytesMin) return Corrupt("only {} bytes", object.size());
  Cursor in(object);
  if (const uint32_t found = in.U32be(); found != magic) {
    return Corrupt("magic {:08x} instead of {:08x}", found, magic);
  }
  if (const uint64_t length = in.U64le(); length != object.size()) {
    return Corrupt("its length field says {} bytes, there are {}", length, object.size());
  }
  const size_t crc_at = object.size() - 4;
  const uint32_t stored = Cursor(std::string_view(object).substr(crc_at)).U32le();
  const uint32_t computed = ComputeCrc32c(AsBytes(std::string_view(object).substr(0, crc_at)));
  if (stored != computed) {
    return Corrupt("CRC-32C is {:08x}, should be {:08x}", computed, stored);
  }
  Cursor header(std::string_view(object).substr(12, crc_at - 12));
  const uint32_t version = header.V32();
  const uint32_t compression = header.V32();
  if (header.failed()) return Corrupt("it ends inside its header");
  if (version != 0) return Corrupt("format version {}", version);
  if (compression > 1) return Corrupt("compression {}", compression);
  if (compression == 1) {
    TK_ASSIGN_OR_RETURN(std::string bytes, Decompress(header.rest(), body_bytes_max));
    const size_t size = bytes.size();
    return Body(std::move(bytes), 0, size);
  }
  const size_t size = header.remaining();
  if (size > body_bytes_max) {
    return Error(Code::kResourceExhausted, fmt::format("a body of {} bytes", size));
  }
  return Body(std::move(object), crc_at - size, size);
}

Result<std::vector<DataFile>> DecodeDataFileTable(Cursor& in, std::string_view transitive_path,
                                                  const DecodeLimits& limits) {
  const uint64_t n = in.V64();
  if (in.failed() || n > in.remaining()) return Corrupt("a table of {} data files", n);
  Cursor prefix_column = SkipVarints(in, n == 0 ? 0 : n - 1, Width::k16);
  Cursor suffix_column = SkipVarints(in, n, Width::k16);
  Cursor base_column = SkipVarints(in, n, Width::k16);
  std::vector<DataFile> files;
  uint64_t held = 0;
  std::string_view previous;  // without the transitive path
  size_t previous_base = 0;
  for (uint64_t i = 0; i < n && !in.failed(); ++i) {
    const size_t prefix = i == 0 ? 0 : prefix_column.V16();
    const std::string_view suffix = in.Bytes(suffix_column.V16());
    const size_t base = base_column.V16();
    if (in.failed()) break;
    if (prefix > previous.size() ||
        (prefix > std::min(base, previous_base) && base != previous_base)) {
      return Corrupt("data file {} shares {} bytes with the one before it", i, prefix);
    }
    if (base > prefix + suffix.size()) return Corrupt("data file {} has {} bytes of base", i, base);
    DataFile file;
    file.path.reserve(transitive_path.size() + prefix + suffix.size());
    file.path.append(transitive_path).append(previous.substr(0, prefix)).append(suffix);
    if (file.path.size() > kKeyBytesMax) return Corrupt("a data file path is too long");
    file.base_bytes = transitive_path.size() + base;
    held += sizeof(DataFile) + file.path.size();
    if (held > limits.table_bytes_max) {
      return Error(Code::kResourceExhausted, "a data file table is too large");
    }
    files.push_back(std::move(file));
    previous = std::string_view(files.back().path).substr(transitive_path.size());
    previous_base = base;
  }
  if (in.failed()) return Corrupt("the data file table is cut short");
  return files;
}

Status CheckDataPath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return Corrupt("a data file path holds a NUL");
  for (size_t at = 0; at <= path.size();) {
    const size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    if (part.empty() || part == "." || part == "..") {
      return Corrupt("data file path \"{}\" is not a plain relative path", EscapeName(path));
    }
    at = slash + 1;
  }
  return OkStatus();
}

Result<Manifest> DecodeManifest(std::string file, const DecodeLimits& limits) {
  TK_ASSIGN_OR_RETURN(const Body body,
                      OpenEnvelope(std::move(file), kManifestMagic, limits.body_bytes_max));
  Cursor in(body.view());
  Manifest manifest;
  TK_ASSIGN_OR_RETURN(manifest.config, DecodeConfig(in, manifest.kind));
  if (manifest.kind == Manifest::Kind::kSingle) {
    TK_ASSIGN_OR_RETURN(manifest.files, DecodeDataFileTable(in, {}, limits));
    const uint8_t arity_log2 = manifest.config.version_tree_arity_log2;
    uint64_t first = 0;
    TK_ASSIGN_OR_RETURN(manifest.latest,
                        DecodeInlineVersions(in, arity_log2, manifest.files.size(), first));
    TK_RETURN_IF_ERROR(CheckVersionNodes(in, arity_log2, manifest.files.size(), first));
  }
  if (in.remaining() != 0) return Corrupt("{} bytes after the manifest's body", in.remaining());
  return manifest;
}

Result<BtreeNode> BtreeNode::Decode(std::string object, std::string_view base, uint8_t height,
                                    const DecodeLimits& limits) {
  const uint64_t encoded_bytes = object.size();
  TK_ASSIGN_OR_RETURN(Body body,
                      OpenEnvelope(std::move(object), kBtreeNodeMagic, limits.body_bytes_max));
  BtreeNode node(std::move(body));
  node.encoded_bytes_ = encoded_bytes;
  TK_RETURN_IF_ERROR(node.Parse(base, height, limits));
  return node;
}

Status BtreeNode::Parse(std::string_view base, uint8_t height, const DecodeLimits& limits) {
  Cursor in(body_.view());
  height_ = in.U8();
  if (in.failed() || height_ != height) {
    return Corrupt("a B+tree node of height {} where {} is expected", height_, height);
  }
  TK_ASSIGN_OR_RETURN(files_, DecodeDataFileTable(in, base, limits));
  entries_ = in.V32();
  if (in.failed() || entries_ < 1 || entries_ > kNodeEntriesMax || entries_ > in.remaining()) {
    return Corrupt("a B+tree node of {} entries", entries_);
  }
  const auto position = [&](const Cursor& column) {
    return Column{body_.view().size() - column.remaining()};
  };
  prefix_bytes_ = position(SkipVarints(in, entries_ - 1, Width::k16));
  Cursor suffix_bytes = SkipVarints(in, entries_, Width::k16);
  suffix_bytes_ = position(suffix_bytes);
  if (height_ > 0) common_bytes_ = position(SkipVarints(in, entries_, Width::k16));
  uint64_t total = 0;
  for (uint32_t i = 0; i < entries_ && !in.failed(); ++i) total += suffix_bytes.V16();
  suffixes_ = position(SkipBytes(in, total));
  if (in.failed()) return Corrupt("a B+tree node ends inside its keys");
  TK_RETURN_IF_ERROR(height_ > 0 ? ParseInteriorColumns(in) : ParseLeafColumns(in));
  if (in.remaining() != 0) return Corrupt("{} bytes after a B+tree node's body", in.remaining());
  return OkStatus();
}

Status BtreeNode::ParseLeafColumns(Cursor& in) {
  const auto position = [&](const Cursor& column) {
    return Column{body_.view().size() - column.remaining()};
  };
  Cursor length = SkipVarints(in, entries_, Width::k64);
  length_ = position(length);
  Cursor kind = SkipBytes(in, entries_);
  kind_ = position(kind);
  if (in.failed()) return Corrupt("a leaf ends inside its value lengths");
  uint64_t indirect = 0;
  uint64_t inline_bytes = 0;
  for (uint32_t i = 0; i < entries_; ++i) {
    const uint64_t bytes = length.V64();
    const uint8_t k = kind.U8();
    if (k > 1) return Corrupt("value kind {}", k);
    indirect += k;
    if (k == 1) continue;
    if (bytes > kInlineValueBytesMax) return Corrupt("an inline value of {} bytes", bytes);
    inline_bytes += bytes;
  }
  file_ = position(SkipVarints(in, indirect, Width::k64));
  offset_ = position(SkipVarints(in, indirect, Width::k64));
  inline_values_ = position(SkipBytes(in, inline_bytes));
  if (in.failed()) return Corrupt("a leaf ends inside its values");
  return OkStatus();
}

Status BtreeNode::ParseInteriorColumns(Cursor& in) {
  for (Column* column :
       {&file_, &offset_, &length_, &num_keys_, &num_tree_bytes_, &num_indirect_bytes_}) {
    column->at = body_.view().size() - SkipVarints(in, entries_, Width::k64).remaining();
  }
  if (in.failed()) return Corrupt("an interior node ends inside its references");
  return OkStatus();
}

uint64_t BtreeNode::bytes_held() const {
  uint64_t bytes = body_.bytes_held() + key_.capacity() + sizeof(*this);
  for (const DataFile& file : files_) bytes += sizeof(DataFile) + file.path.capacity();
  return bytes;
}

// The columns were stepped over once by Parse(), so reading them again can't fail.
uint64_t BtreeNode::Take(Column& column) {
  Cursor in(body_.view().substr(column.at));
  const uint64_t value = in.V64();
  TK_CHECK(!in.failed());
  column.at = body_.view().size() - in.remaining();
  return value;
}

uint8_t BtreeNode::TakeByte(Column& column) {
  return static_cast<uint8_t>(TakeBytes(column, 1).front());
}

std::string_view BtreeNode::TakeBytes(Column& column, size_t n) {
  const std::string_view bytes = body_.view().substr(column.at, n);
  TK_CHECK(bytes.size() == n);
  column.at += n;
  return bytes;
}

Result<bool> BtreeNode::Next(Entry& entry) {
  if (next_ == entries_) return false;
  const size_t prefix = next_ == 0 ? 0 : Take(prefix_bytes_);
  const std::string_view suffix = TakeBytes(suffixes_, Take(suffix_bytes_));
  if (prefix > key_.size()) {
    return Corrupt("a key shares {} bytes with one of {} bytes", prefix, key_.size());
  }
  // With the same prefix the keys compare as what follows it (char_traits compares unsigned).
  if (next_ > 0 && suffix <= std::string_view(key_).substr(prefix)) {
    return Corrupt("keys of a B+tree node are not strictly increasing");
  }
  if (prefix + suffix.size() > kKeyBytesMax) return Corrupt("a key is too long");
  key_.resize(prefix);
  key_.append(suffix);
  entry = Entry{};
  entry.relative_key = key_;
  TK_RETURN_IF_ERROR(height_ > 0 ? TakeChild(entry) : TakeLeafValue(entry));
  ++next_;
  return true;
}

Status BtreeNode::TakeLeafValue(Entry& entry) {
  const uint64_t length = Take(length_);
  entry.is_inline = TakeByte(kind_) == 0;
  if (entry.is_inline) {
    entry.inline_value = TakeBytes(inline_values_, length);
    return OkStatus();
  }
  entry.reference = {Take(file_), Take(offset_), length};
  return CheckReference(entry.reference, files_.size());
}

Status BtreeNode::TakeChild(Entry& entry) {
  const uint64_t common = Take(common_bytes_);
  if (common > entry.relative_key.size()) {
    return Corrupt("a child inherits {} bytes of a key of {}", common, entry.relative_key.size());
  }
  entry.common_prefix_bytes = static_cast<uint16_t>(common);
  entry.reference = {Take(file_), Take(offset_), Take(length_)};
  entry.statistics = {Take(num_keys_), Take(num_tree_bytes_), Take(num_indirect_bytes_)};
  return CheckReference(entry.reference, files_.size());
}

}  // namespace tierkeep::ocdbt
