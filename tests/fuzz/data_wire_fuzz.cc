// Headers of the data port: a preamble, requests, responses. Each has one encoding.

#include "base/check.h"
#include "format/data_wire.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

const std::string kToken(kDataTokenBytes, 't');

}  // namespace

void RunOne(std::string_view input) {
  if (HasDataMagic(input) && HasDataToken(input, kToken)) {
    TK_CHECK(input.starts_with(EncodeDataPreamble(kToken)));
  }
  if (const auto request = DecodeDataRequest(input); request.ok()) {
    TK_CHECK(EncodeDataRequest(*request) == input);
    TK_CHECK((request->op == DataOp::kChunks) == (request->count > 0));
    TK_CHECK(request->first + request->count >= request->first);
  }
  if (const auto response = DecodeDataResponse(input); response.ok()) {
    TK_CHECK(EncodeDataResponse(*response) == input);
    TK_CHECK(response->text_bytes <= kDataErrorTextBytesMax);
    TK_CHECK((response->code == Code::kOk) == (response->text_bytes == 0) ||
             response->body_bytes == 0);
  }
}

std::vector<std::string> Seeds() {
  const Blake3 digest = ComputeBlake3("a shard");
  return {EncodeDataPreamble(kToken),
          EncodeDataRequest({DataOp::kManifest, digest, 0, 0}),
          EncodeDataRequest({DataOp::kChunks, digest, 3, 1000}),
          EncodeDataRequest({DataOp::kListing, digest, 0, 0}),
          EncodeDataResponse({Code::kOk, 0, 123456}),
          EncodeDataResponse({Code::kNotFound, 17, 0})};
}

}  // namespace tierkeep::fuzz
