// A shard's manifest, which comes from a peer. Has one encoding: what is read must be written the
// same way. The input is a manifest without its trailer (see docs/formats.md), so that a change
// isn't stopped by the digest; with a last byte that says whether the trailer is to be right.

#include "base/check.h"
#include "base/digest.h"
#include "format/format_testutil.h"
#include "format/manifest.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {

void RunOne(std::string_view input) {
  std::string bytes(input.substr(0, input.empty() ? 0 : input.size() - 1));
  if (!input.empty() && (input.back() & 1) == 0) bytes += ComputeXxh128(AsBytes(bytes)).Raw();
  const auto manifest = DecodeManifest(bytes);
  if (!manifest.ok()) {
    TK_CHECK(manifest.error().code() == Code::kDataLoss);
    return;
  }
  const auto encoded = EncodeManifest(*manifest);
  TK_CHECK(encoded.ok() && *encoded == bytes);
  uint64_t bytes_total = 0;
  for (const ManifestEntry& e : manifest->entries) bytes_total += e.bytes;
  TK_CHECK(bytes_total == manifest->TotalBytes());
  VolumeDataName(*manifest, ManifestDigest(bytes));
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (uint64_t i = 1; i <= 12; ++i) {
    Prng prng(i);
    std::string bytes = *EncodeManifest(RandomManifest(&prng));
    bytes.resize(bytes.size() - Xxh128::kSize);
    seeds.push_back(bytes + '\0');
  }
  return seeds;
}

}  // namespace tierkeep::fuzz
