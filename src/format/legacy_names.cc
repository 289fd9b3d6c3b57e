#include "format/legacy_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace tierkeep {
namespace {

constexpr uint64_t kPieceBytes = 8u << 20;

}  // namespace

std::string LegacyFileName(const Blake3& contents) { return contents.Hex(); }

std::string LegacyDirectoryName(std::vector<std::string> children) {
  std::sort(children.begin(), children.end());
  Blake3Hasher hasher;
  for (size_t i = 0; i < children.size(); ++i) {
    if (i > 0) hasher.Update(std::string_view("\n"));
    hasher.Update(children[i]);
  }
  return "D" + hasher.Finish().Hex();
}

LegacyTreeName::Node& LegacyTreeName::At(std::string_view path) {
  Node* node = &root_;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, slash);
    TK_CHECK_MSG(!part.empty(), path);
    auto it = node->children.find(part);
    if (it == node->children.end()) it = node->children.emplace(part, Node{}).first;
    TK_CHECK_MSG(it->second.file_name.empty(), path);
    node = &it->second;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return *node;
}

void LegacyTreeName::AddDirectory(std::string_view path) { At(path); }

void LegacyTreeName::AddFile(std::string_view path, const Blake3& contents) {
  Node& node = At(path);
  TK_CHECK_MSG(&node != &root_ && node.children.empty(), path);
  node.file_name = LegacyFileName(contents);
}

// As deep as the tree is; TreeLimits bounds that for everything that is taken in.
std::string LegacyTreeName::NameOf(const Node& node) {
  if (!node.file_name.empty()) return node.file_name;
  std::vector<std::string> children;
  children.reserve(node.children.size());
  for (const auto& [name, child] : node.children) children.push_back(NameOf(child));
  return LegacyDirectoryName(std::move(children));
}

std::string LegacyTreeName::Finish() const { return NameOf(root_); }

void LegacyTensorStoreName::Add(std::string_view key, const Blake3& value) {
  TK_CHECK_MSG(!any_ || last_key_ < key, key);
  any_ = true;
  last_key_ = key;
  hasher_.Update(fmt::format("{}\t{}\n", PythonBytesRepr(key), value.Hex()));
}

std::string LegacyTensorStoreName::Finish() const { return "D" + hasher_.Finish().Hex(); }

Result<std::string> ComputeLegacyTensorStoreName(OcdbtFiles& files, const std::string& database_dir,
                                                 const OcdbtLimits& limits) {
  LegacyTensorStoreName name;
  const auto add = [&](OcdbtEntry&& entry) -> Status {
    Blake3Hasher hasher;
    TK_RETURN_IF_ERROR(ReadOcdbtValue(files, entry, kPieceBytes,
                                      [&](std::string_view piece) { hasher.Update(piece); }));
    name.Add(entry.key, hasher.Finish());
    return OkStatus();
  };
  TK_RETURN_IF_ERROR(WalkOcdbt(files, database_dir, limits, add));
  return name.Finish();
}

std::string PythonBytesRepr(std::string_view bytes) {
  const bool single = bytes.find('\'') != std::string_view::npos;
  const bool twice = bytes.find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  std::string out = {'b', quote};
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte >= 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += quote;
  return out;
}

}  // namespace tierkeep
