// For tests: OCDBT files in memory, the golden stores of tests/golden/ocdbt, and an encoder for
// hand-made databases, right and wrong ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "format/ocdbt.h"
#include "format/ocdbt_codec.h"
#include "format/ocdbt_logical.h"

namespace tierkeep::ocdbt {

// A tree of files held in memory. Remembers which ranges were read.
class MemoryFiles : public OcdbtFiles {
 public:
  struct Range {
    std::string path;
    uint64_t offset = 0;
    uint64_t length = 0;
  };

  Result<std::string> ReadRange(const std::string& path, uint64_t offset, uint64_t length) override;
  Result<std::string> ReadAll(const std::string& path, uint64_t bytes_max) override;
  Result<std::vector<std::string>> List(const std::string& path) override;

  std::map<std::string, std::string> files;
  std::vector<Range> reads;
};

// Every file below `directory`, which must exist.
MemoryFiles LoadTree(const std::string& directory);
std::vector<StepEntry> StepEntries(const MemoryFiles& files);

std::string FromHex(std::string_view hex);
std::string V(uint64_t value);                     // a varint
std::string Le64(uint64_t value);                  // fixed width
std::string Column(std::vector<uint64_t> values);  // varints

enum class Compress { kNo, kZstd };
// An envelope around a body, all fields right.
std::string Seal(uint32_t magic, std::string_view body, Compress compress = Compress::kNo);
// Sets length and checksum of an envelope to what they should be.
void Reseal(std::string& object);

// The data file table of one file without base path.
std::string OneFileTable(std::string_view path);

struct TestVersion {
  uint64_t generation = 1;
  uint8_t height = 0;
  uint64_t file = 0, offset = 0, length = 0;
  uint64_t keys = 0, tree_bytes = 0, indirect_bytes = 0;
};
struct TestVersionNode {
  uint64_t generation = 1, file = 0, offset = 0, length = 0, generations = 1;
  uint8_t height = 1;
};
struct TestManifest {
  uint8_t kind = 0;
  uint64_t decoded_node_bytes_max = 1 << 20;
  uint8_t arity_log2 = 4;
  uint64_t compression = 0;
  std::string table = OneFileTable("d/n");
  std::vector<TestVersion> versions = {TestVersion{}};
  std::vector<TestVersionNode> nodes = {};
  std::string tail = {};  // after the body
  std::string Encode() const;
};

struct TestLeafEntry {
  std::string key = {};
  std::string inline_value = {};
  bool indirect = false;
  uint64_t file = 0, offset = 0, length = 0;
};
struct TestChild {
  std::string key = {};
  uint64_t common = 0;
  uint64_t file = 0, offset = 0, length = 0;
  uint64_t keys = 0, tree_bytes = 0, indirect_bytes = 0;
};
// Bodies without common key prefixes.
std::string LeafBody(std::string_view table, const std::vector<TestLeafEntry>& entries);
std::string InteriorBody(uint8_t height, std::string_view table,
                         const std::vector<TestChild>& children);
inline std::string Node(std::string_view body, Compress compress = Compress::kNo) {
  return Seal(kBtreeNodeMagic, body, compress);
}

// A database of one node, d/n, with no statistics.
MemoryFiles OneNode(std::string node, uint8_t height = 0);
// The hand-made database of docs/formats.md: a = "1", ab = "xyz".
MemoryFiles SmallDatabase();

}  // namespace tierkeep::ocdbt
