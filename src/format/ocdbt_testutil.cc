#include "format/ocdbt_testutil.h"

#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "base/digest.h"

namespace tierkeep::ocdbt {
namespace {

void PutFixed(std::string& out, size_t at, uint64_t value, size_t n) {
  for (size_t i = 0; i < n; ++i) out[at + i] = static_cast<char>(value >> (8 * i));
}

template <typename T, typename F>
std::string Each(const std::vector<T>& rows, F field) {
  std::string out;
  for (const T& row : rows) out += field(row);
  return out;
}

}  // namespace

Result<std::string> MemoryFiles::ReadRange(const std::string& path, uint64_t offset,
                                           uint64_t length) {
  TK_CHECK(CheckDataPath(path).ok());  // what the interface promises to implementations
  reads.push_back({path, offset, length});
  const auto it = files.find(path);
  if (it == files.end()) return Error(Code::kNotFound, path);
  if (offset > it->second.size()) return std::string();
  return it->second.substr(offset, length);
}

Result<std::string> MemoryFiles::ReadAll(const std::string& path, uint64_t bytes_max) {
  const auto it = files.find(path);
  if (it == files.end()) return Error(Code::kNotFound, path);
  if (it->second.size() > bytes_max) return Error(Code::kResourceExhausted, path);
  reads.push_back({path, 0, it->second.size()});
  return it->second;
}

Result<std::vector<std::string>> MemoryFiles::List(const std::string& path) {
  const std::string prefix = path.empty() ? "" : path + "/";
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files) {
    if (!name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    const std::string first = rest.substr(0, rest.find('/'));
    if (names.empty() || names.back() != first) names.push_back(first);
  }
  return names;
}

MemoryFiles LoadTree(const std::string& directory) {
  MemoryFiles tree;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    tree.files[std::filesystem::relative(entry.path(), directory).string()] =
        std::string(std::istreambuf_iterator<char>(in), {});
  }
  TK_CHECK_MSG(!tree.files.empty(), directory);
  return tree;
}

std::vector<StepEntry> StepEntries(const MemoryFiles& files) {
  std::vector<StepEntry> entries;
  for (const auto& [path, bytes] : files.files) {
    entries.push_back({.path = path, .is_link = false, .bytes = bytes.size(), .link_target = {}});
  }
  return entries;
}

std::string FromHex(std::string_view hex) {
  TK_CHECK(hex.size() % 2 == 0);
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    out += static_cast<char>(digit(hex[i]) << 4 | digit(hex[i + 1]));
  }
  return out;
}

std::string V(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

std::string Le64(uint64_t value) {
  std::string out(8, '\0');
  PutFixed(out, 0, value, 8);
  return out;
}

std::string Column(std::vector<uint64_t> values) {
  return Each(values, [](uint64_t v) { return V(v); });
}

std::string Seal(uint32_t magic, std::string_view body, Compress compress) {
  std::string out(12, '\0');
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(magic >> (24 - 8 * i));
  out += V(0);
  out += V(compress == Compress::kZstd ? 1 : 0);
  if (compress == Compress::kZstd) {
    std::string frame(ZSTD_compressBound(body.size()), '\0');
    const size_t n = ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), 3);
    TK_CHECK(!ZSTD_isError(n));
    out.append(frame, 0, n);
  } else {
    out += body;
  }
  out.append(4, '\0');
  Reseal(out);
  return out;
}

void Reseal(std::string& object) {
  TK_CHECK(object.size() >= 16);
  PutFixed(object, 4, object.size(), 8);
  const size_t crc_at = object.size() - 4;
  PutFixed(object, crc_at, ComputeCrc32c(AsBytes(std::string_view(object).substr(0, crc_at))), 4);
}

std::string OneFileTable(std::string_view path) {
  return V(1) + V(path.size()) + V(0) + std::string(path);
}

std::string TestManifest::Encode() const {
  std::string body(16, 'u');
  body += static_cast<char>(kind);
  body += V(100) + V(decoded_node_bytes_max);
  body += static_cast<char>(arity_log2);
  body += V(compression);
  if (compression == 1) body += std::string(4, '\0');
  if (kind == 0) {
    body += table + V(versions.size());
    body += Each(versions, [](const auto& v) { return V(v.generation); });
    body +=
        Each(versions, [](const auto& v) { return std::string(1, static_cast<char>(v.height)); });
    body += Each(versions, [](const auto& v) { return V(v.file); });
    body += Each(versions, [](const auto& v) { return V(v.offset); });
    body += Each(versions, [](const auto& v) { return V(v.length); });
    body += Each(versions, [](const auto& v) { return V(v.keys); });
    body += Each(versions, [](const auto& v) { return V(v.tree_bytes); });
    body += Each(versions, [](const auto& v) { return V(v.indirect_bytes); });
    body += Each(versions, [](const auto&) { return Le64(1); });
    body += V(nodes.size());
    body += Each(nodes, [](const auto& n) { return V(n.generation); });
    body += Each(nodes, [](const auto& n) { return V(n.file); });
    body += Each(nodes, [](const auto& n) { return V(n.offset); });
    body += Each(nodes, [](const auto& n) { return V(n.length); });
    body += Each(nodes, [](const auto& n) { return V(n.generations); });
    body += Each(nodes, [](const auto&) { return Le64(1); });
    body += Each(nodes, [](const auto& n) { return std::string(1, static_cast<char>(n.height)); });
  }
  return Seal(kManifestMagic, body + tail);
}

std::string LeafBody(std::string_view table, const std::vector<TestLeafEntry>& entries) {
  std::string body(1, '\0');
  body += table;
  body += V(entries.size());
  if (!entries.empty()) body += std::string(entries.size() - 1, '\0');
  body += Each(entries, [](const auto& e) { return V(e.key.size()); });
  body += Each(entries, [](const auto& e) { return e.key; });
  body +=
      Each(entries, [](const auto& e) { return V(e.indirect ? e.length : e.inline_value.size()); });
  body += Each(entries, [](const auto& e) { return std::string(1, e.indirect ? 1 : 0); });
  body += Each(entries, [](const auto& e) { return e.indirect ? V(e.file) : ""; });
  body += Each(entries, [](const auto& e) { return e.indirect ? V(e.offset) : ""; });
  body += Each(entries, [](const auto& e) { return e.indirect ? "" : e.inline_value; });
  return body;
}

std::string InteriorBody(uint8_t height, std::string_view table,
                         const std::vector<TestChild>& children) {
  std::string body(1, static_cast<char>(height));
  body += table;
  body += V(children.size());
  body += std::string(children.size() - 1, '\0');
  body += Each(children, [](const auto& c) { return V(c.key.size()); });
  body += Each(children, [](const auto& c) { return V(c.common); });
  body += Each(children, [](const auto& c) { return c.key; });
  body += Each(children, [](const auto& c) { return V(c.file); });
  body += Each(children, [](const auto& c) { return V(c.offset); });
  body += Each(children, [](const auto& c) { return V(c.length); });
  body += Each(children, [](const auto& c) { return V(c.keys); });
  body += Each(children, [](const auto& c) { return V(c.tree_bytes); });
  body += Each(children, [](const auto& c) { return V(c.indirect_bytes); });
  return body;
}

MemoryFiles OneNode(std::string node, uint8_t height) {
  TestManifest manifest;
  manifest.versions[0].height = height;
  manifest.versions[0].length = node.size();
  MemoryFiles files;
  files.files["manifest.ocdbt"] = manifest.Encode();
  files.files["d/n"] = std::move(node);
  return files;
}

MemoryFiles SmallDatabase() {
  MemoryFiles files;
  files.files["manifest.ocdbt"] = FromHex(
      "0cdb3a2a43000000000000000000000102030405060708090a0b0c0d0e0f00800880c2d72f0400010300642f6e01"
      "0100000036023603e8030000000000000069549b04");
  files.files["d/n"] = FromHex(
      "0cdb20de36000000000000000000000113106f636462742e70726f636573735f302f642f76020101016162010300"
      "01"
      "0000313c24127e");
  files.files["ocdbt.process_0/d/v"] = FromHex("78797a");
  return files;
}

}  // namespace tierkeep::ocdbt
