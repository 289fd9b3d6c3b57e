// What the data port speaks: fixed-size headers, big-endian. The rules: docs/protocol.md, "Data".
//
// The client sends a preamble once, then requests; the server answers them in order. A response is
// a header, then `text_bytes` of text (errors) or `body_bytes` of body: the encoded manifest, the
// chunks' bytes without anything between them, or the logical listing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/digest.h"
#include "base/result.h"

namespace tierkeep {

inline constexpr std::string_view kDataMagic = "TKD1";
inline constexpr size_t kDataTokenBytes = 32;
inline constexpr size_t kDataPreambleBytes = 4 + kDataTokenBytes;
inline constexpr size_t kDataRequestBytes = 56;
inline constexpr size_t kDataResponseBytes = 16;
inline constexpr size_t kDataErrorTextBytesMax = 512;

// kListing: the logical listing (format/ocdbt_logical.h) of a shard with a logical digest.
enum class DataOp : uint8_t { kManifest = 1, kChunks = 2, kListing = 3 };

struct DataRequest {
  DataOp op = DataOp::kManifest;
  Blake3 digest;       // of the manifest: the shard's name
  uint64_t first = 0;  // kChunks only: [first, first + count), count > 0; else both are 0
  uint64_t count = 0;
  bool operator==(const DataRequest&) const = default;
};

struct DataResponse {
  Code code = Code::kOk;
  uint32_t text_bytes = 0;  // errors only
  uint64_t body_bytes = 0;  // kOk only
  bool operator==(const DataResponse&) const = default;
};

// `token` has kDataTokenBytes.
std::string EncodeDataPreamble(std::string_view token);
// Whether `preamble` (kDataPreambleBytes) starts with the magic.
bool HasDataMagic(std::string_view preamble);
// Whether its token is `token`, in a time that doesn't depend on where they differ.
bool HasDataToken(std::string_view preamble, std::string_view token);

std::string EncodeDataRequest(const DataRequest& request);
std::string EncodeDataResponse(const DataResponse& response);
// kInvalidArgument for an unknown op, a set reserved byte, a count of 0, a range that overflows.
Result<DataRequest> DecodeDataRequest(std::string_view bytes);
// kDataLoss for anything that a correct server never sends.
Result<DataResponse> DecodeDataResponse(std::string_view bytes);

}  // namespace tierkeep
