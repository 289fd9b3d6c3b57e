// The logical listing that a replica sends, here with its own digest, so that only its form
// decides. Has one encoding: what is read must be written the same way.

#include "base/check.h"
#include "format/ocdbt_logical.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {

void RunOne(std::string_view input) {
  const auto lines = DecodeLogicalListing(input, ComputeBlake3(input));
  if (!lines.ok()) {
    TK_CHECK(lines.error().code() == Code::kDataLoss);
    return;
  }
  const auto encoded = EncodeLogicalListing(*lines);
  TK_CHECK(encoded.ok() && *encoded == input);
  TK_CHECK(CompareReplicas({"a", *lines}, {"b", *lines}).total == 0);
  TK_CHECK(CompareReplicas({"a", *lines}, {"b", {}}).total == lines->size());
}

std::vector<std::string> Seeds() {
  LogicalDigestBuilder builder;
  std::vector<std::string> seeds = {*EncodeLogicalListing(builder.lines())};
  builder.AddItem("state");
  builder.AddValue("state", "params.w/c/0/0", 4096, ComputeXxh128({}));
  builder.AddValue("state", Raw("\0\xff"), 0, ComputeXxh128({}));
  builder.AddFile("metrics/metrics", 3, ComputeXxh128({}));
  builder.AddLink("latest", "somewhere");
  seeds.push_back(*EncodeLogicalListing(builder.lines()));
  return seeds;
}

}  // namespace tierkeep::fuzz
