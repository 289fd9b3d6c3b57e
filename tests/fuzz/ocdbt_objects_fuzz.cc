// Single OCDBT objects, from the training job's files: manifests and B+tree nodes. The first byte
// says which and how: a body that gets its envelope here, since a wrong checksum would end most
// tries, or a whole object.

#include "base/check.h"
#include "format/ocdbt_codec.h"
#include "format/ocdbt_testutil.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

using namespace ocdbt;

constexpr DecodeLimits kLimits{.body_bytes_max = 4 << 20, .table_bytes_max = 1 << 20};

enum : unsigned { kManifestBody, kNodeBody, kCompressedNodeBody, kWholeManifest, kWholeNode };

void CheckCode(const Error& error) {
  TK_CHECK(error.code() == Code::kDataLoss || error.code() == Code::kResourceExhausted);
}

void ReadNode(const std::string& object, std::string_view base, uint8_t height) {
  auto node = BtreeNode::Decode(object, base, height, kLimits);
  if (!node.ok()) return CheckCode(node.error());
  TK_CHECK(node->entries() > 0 && node->entries() <= kNodeEntriesMax);
  // The bytes themselves, the table of paths, and little beside them.
  TK_CHECK(node->bytes_held() <=
           2 * kLimits.body_bytes_max + 64 * kLimits.table_bytes_max + object.size() + (1 << 16));
  BtreeNode::Entry entry;
  std::string last;
  uint32_t count = 0;
  for (;;) {
    const auto more = node->Next(entry);
    if (!more.ok()) return CheckCode(more.error());
    if (!*more) break;
    TK_CHECK(count == 0 || last < entry.relative_key);
    last = entry.relative_key;
    TK_CHECK(last.size() <= kKeyBytesMax);
    TK_CHECK(entry.inline_value.size() <= kInlineValueBytesMax);
    if (!entry.is_inline) TK_CHECK(entry.reference.file < node->files().size());
    ++count;
  }
  TK_CHECK(count == node->entries());
}

}  // namespace

void RunOne(std::string_view input) {
  Input in(input);
  const unsigned kind = in.Byte() % 5;
  if (kind == kManifestBody || kind == kWholeManifest) {
    const auto manifest = DecodeManifest(
        kind == kManifestBody ? Seal(kManifestMagic, in.rest()) : std::string(in.rest()), kLimits);
    if (!manifest.ok()) return CheckCode(manifest.error());
    if (manifest->kind == Manifest::Kind::kSingle && !manifest->latest.root.IsMissing()) {
      TK_CHECK(manifest->latest.root.file < manifest->files.size());
    }
    return;
  }
  const auto height = static_cast<uint8_t>(in.Byte());
  const std::string_view base = in.Bytes(in.Byte() % 16);
  switch (kind) {
    case kNodeBody:
      return ReadNode(Node(in.rest()), base, height);
    case kCompressedNodeBody:
      return ReadNode(Node(in.rest(), Compress::kZstd), base, height);
    default:
      return ReadNode(std::string(in.rest()), base, height);
  }
}

std::vector<std::string> Seeds() {
  const auto kind = [](unsigned k) { return std::string(1, static_cast<char>(k)); };
  const std::string node_head(2, '\0');
  TestManifest tall;
  tall.nodes = {TestVersionNode{}};
  tall.versions.push_back({2, 3, 0, 10, 20, 5, 30, 40});
  TestManifest numbered;
  numbered.kind = 1;
  const std::string leaf =
      LeafBody(OneFileTable("d/v"), {{"a", "1"}, {.key = "ab", .indirect = true, .length = 3}});
  const std::string interior = InteriorBody(
      1, OneFileTable("d/n"), {{"a", 0, 0, 0, 50, 2, 50, 0}, {"b", 1, 0, 50, 60, 3, 60, 9}});
  std::vector<std::string> seeds;
  for (const TestManifest& m : {TestManifest{}, tall, numbered}) {
    const auto body = OpenEnvelope(m.Encode(), kManifestMagic, 1 << 20);
    seeds.push_back(kind(kManifestBody) + std::string(body->view()));
    seeds.push_back(kind(kWholeManifest) + m.Encode());
  }
  seeds.push_back(kind(kNodeBody) + node_head + leaf);
  seeds.push_back(kind(kCompressedNodeBody) + node_head + leaf);
  seeds.push_back(kind(kNodeBody) + "\1" + node_head.substr(1) + interior);
  seeds.push_back(kind(kWholeNode) + node_head + Node(leaf, Compress::kZstd));
  return seeds;
}

}  // namespace tierkeep::fuzz
