// The encodings of OCDBT (https://google.github.io/tensorstore/kvstore/ocdbt/index.html), decoding
// only. Pure functions of bytes: no I/O, no clock, any thread. Input is not trusted: whatever does
// not follow the format is kDataLoss, whatever follows it but would need more memory than the
// caller allows is kResourceExhausted. Where TensorStore's prose and its code differ, the code is
// followed (value kinds and manifest kinds are single bytes, not varints).
//
// ocdbt.h is what the rest of the project uses; this header is its lower half and for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tierkeep::ocdbt {

inline constexpr uint32_t kManifestMagic = 0x0CDB3A2A;
inline constexpr uint32_t kBtreeNodeMagic = 0x0CDB20DE;
inline constexpr size_t kKeyBytesMax = 65535;  // full keys, and data file paths
inline constexpr uint32_t kNodeEntriesMax = 1'048'576;
inline constexpr uint64_t kInlineValueBytesMax = 1 << 20;

// Reads primitives off the front of a byte string. A read past the end or a malformed varint
// returns zero and makes the cursor fail for good, so a run of reads is checked once, by failed().
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(std::string_view data) : data_(data) {}

  uint8_t U8() { return static_cast<uint8_t>(Fixed(1, /*big_endian=*/false)); }
  uint32_t U32le() { return static_cast<uint32_t>(Fixed(4, false)); }
  uint32_t U32be() { return static_cast<uint32_t>(Fixed(4, true)); }
  uint64_t U64le() { return Fixed(8, false); }
  // Unsigned LEB128, low group first; longer forms than needed are accepted. 64 bits: at most 10
  // bytes; 32 bits: at most 5; 16 bits: a 32-bit varint whose value fits 16 bits.
  uint64_t V64() { return Varint(10, 0x01); }
  uint32_t V32() { return static_cast<uint32_t>(Varint(5, 0x0F)); }
  uint16_t V16();
  std::string_view Bytes(uint64_t n);

  size_t remaining() const { return data_.size(); }
  std::string_view rest() const { return data_; }
  bool failed() const { return failed_; }
  void Fail() { failed_ = true, data_ = {}; }

 private:
  uint64_t Fixed(size_t n, bool big_endian);
  uint64_t Varint(size_t bytes_max, uint8_t last_max);

  std::string_view data_;
  bool failed_ = false;
};

// What one decoding may take. Everything else is bounded by the size of the input.
struct DecodeLimits {
  uint64_t body_bytes_max = 256ull << 20;  // decompressed body of one object
  uint64_t table_bytes_max = 64ull << 20;  // paths of one data file table, after prefix expansion
};

// A checked object without its envelope. Holds the bytes; movable, views stay valid by asking
// again.
class Body {
 public:
  Body(std::string bytes, size_t offset, size_t size)
      : bytes_(std::move(bytes)), offset_(offset), size_(size) {}
  std::string_view view() const { return std::string_view(bytes_).substr(offset_, size_); }
  size_t bytes_held() const { return bytes_.capacity(); }

 private:
  std::string bytes_;
  size_t offset_;
  size_t size_;
};

// Checks magic, length (the whole of `object`), CRC-32C (before anything is decompressed) and
// version, and decompresses. A zstd body is exactly one frame; it is streamed, since a frame need
// not say its content size and what it says is not believed.
Result<Body> OpenEnvelope(std::string object, uint32_t magic, uint64_t body_bytes_max);

// One row of a data file table. `path` is complete, relative to the database root; its first
// `base_bytes` bytes are the effective base path, which the tables of nodes inside that file
// inherit. Rows that nothing reads may be odd (empty, say): CheckDataPath() is for those read.
struct DataFile {
  std::string path;
  size_t base_bytes = 0;
  std::string_view base() const { return std::string_view(path).substr(0, base_bytes); }
};

Result<std::vector<DataFile>> DecodeDataFileTable(Cursor& in, std::string_view transitive_path,
                                                  const DecodeLimits& limits);

// Our rule, stricter than TensorStore's: relative, no empty, "." or ".." component, no NUL, no
// trailing slash. (Links that leave the root are for whoever opens the file to refuse.)
Status CheckDataPath(std::string_view path);

// A range of a data file. Missing (only for roots): the database is empty.
struct Reference {
  static constexpr uint64_t kMissing = UINT64_MAX;
  uint64_t file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool IsMissing() const { return offset == kMissing && length == kMissing; }
};

struct Statistics {
  uint64_t keys = 0;
  uint64_t tree_bytes = 0;
  uint64_t indirect_value_bytes = 0;
  bool operator==(const Statistics&) const = default;
};

struct Config {
  std::string uuid;
  uint32_t inline_value_bytes_max = 0;
  uint32_t decoded_node_bytes_max = 0;
  uint8_t version_tree_arity_log2 = 0;
  uint32_t compression_method = 0;
  int32_t zstd_level = 0;
  bool operator==(const Config&) const = default;
};

// The newest state of a database. Version nodes hold only older states and are never read, but
// their references are checked.
struct LatestVersion {
  uint64_t generation = 0;
  uint8_t root_height = 0;
  Reference root;
  Statistics statistics;
};

struct Manifest {
  enum class Kind : uint8_t { kSingle = 0, kNumbered = 1 };
  Kind kind = Kind::kSingle;
  Config config;
  std::vector<DataFile> files;  // kSingle only, as is `latest`
  LatestVersion latest;
};

Result<Manifest> DecodeManifest(std::string file, const DecodeLimits& limits);

// A B+tree node, decoded lazily: the constructor function checks that every column is there and
// that the body is used up exactly; Next() yields entries in order and checks the rest. Movable.
class BtreeNode {
 public:
  // Views are valid until the next call of Next() or a move.
  struct Entry {
    std::string_view relative_key;
    // Interior nodes.
    uint16_t common_prefix_bytes = 0;
    Statistics statistics;
    // Interior nodes, and leaf entries with indirect value.
    Reference reference;
    // Leaf nodes.
    bool is_inline = false;
    std::string_view inline_value;
  };

  // `object` is the encoded node, `base` the effective base path of the file that held it.
  static Result<BtreeNode> Decode(std::string object, std::string_view base, uint8_t height,
                                  const DecodeLimits& limits);

  uint8_t height() const { return height_; }
  uint32_t entries() const { return entries_; }
  const std::vector<DataFile>& files() const { return files_; }
  uint64_t encoded_bytes() const { return encoded_bytes_; }
  // Memory that this object keeps, roughly.
  uint64_t bytes_held() const;
  // False: no more entries.
  Result<bool> Next(Entry& entry);

 private:
  // Positions within the body, not views, so that moving is safe.
  struct Column {
    size_t at = 0;
  };
  explicit BtreeNode(Body body) : body_(std::move(body)) {}
  Status Parse(std::string_view base, uint8_t height, const DecodeLimits& limits);
  Status ParseLeafColumns(Cursor& in);
  Status ParseInteriorColumns(Cursor& in);
  uint64_t Take(Column& column);
  uint8_t TakeByte(Column& column);
  std::string_view TakeBytes(Column& column, size_t n);
  Status TakeLeafValue(Entry& entry);
  Status TakeChild(Entry& entry);

  Body body_;
  uint64_t encoded_bytes_ = 0;
  uint8_t height_ = 0;
  std::vector<DataFile> files_;
  uint32_t entries_ = 0;
  uint32_t next_ = 0;
  std::string key_;
  Column prefix_bytes_, suffix_bytes_, common_bytes_, suffixes_;
  Column file_, offset_, length_, kind_, inline_values_;
  Column num_keys_, num_tree_bytes_, num_indirect_bytes_;
};

}  // namespace tierkeep::ocdbt
