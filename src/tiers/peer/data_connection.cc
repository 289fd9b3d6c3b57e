#include "tiers/peer/data_connection.h"

#include <array>
#include <utility>

#include "base/log.h"
#include "format/manifest.h"
#include "format/ocdbt_logical.h"

namespace tierkeep {

Result<std::unique_ptr<DataConnection>> DataConnection::Open(const HostPort& to,
                                                             std::string_view token,
                                                             const StreamOptions& options) {
  if (token.size() != kDataTokenBytes) {
    return Error(Code::kUnauthenticated, "no data token is known for " + to.ToString());
  }
  TK_ASSIGN_OR_RETURN(auto stream, ConnectStream(to, options));
  return std::unique_ptr<DataConnection>(
      new DataConnection(std::move(stream), EncodeDataPreamble(token)));
}

Result<uint64_t> DataConnection::Ask(const DataRequest& request) {
  const std::string out = std::exchange(preamble_, {}) + EncodeDataRequest(request);
  TK_RETURN_IF_ERROR(stream_->WriteAll(AsBytes(out)));
  std::string header(kDataResponseBytes, '\0');
  TK_RETURN_IF_ERROR(stream_->ReadExactly(std::as_writable_bytes(std::span(header))));
  TK_ASSIGN_OR_RETURN(const DataResponse response, DecodeDataResponse(header));
  if (response.code == Code::kOk) return response.body_bytes;
  std::string text(response.text_bytes, '\0');
  TK_RETURN_IF_ERROR(stream_->ReadExactly(std::as_writable_bytes(std::span(text))));
  return Error(response.code, "the peer answers: " + EscapeForLog(text));
}

Result<std::string> DataConnection::FetchBody(DataOp op, const Blake3& digest, uint64_t bytes_max) {
  TK_ASSIGN_OR_RETURN(const uint64_t bytes, Ask({.op = op, .digest = digest}));
  if (bytes > bytes_max) {
    return Error(Code::kDataLoss, "a peer's manifest or listing is longer than any can be");
  }
  std::string body(bytes, '\0');
  TK_RETURN_IF_ERROR(stream_->ReadExactly(std::as_writable_bytes(std::span(body))));
  return body;
}

Result<std::string> DataConnection::FetchManifest(const Blake3& digest) {
  return FetchBody(DataOp::kManifest, digest, kManifestBytesMax);
}

Result<std::string> DataConnection::FetchListing(const Blake3& digest) {
  return FetchBody(DataOp::kListing, digest, kLogicalListingBytesMax);
}

Status DataConnection::RequestChunks(const Blake3& digest, uint64_t first, uint64_t count,
                                     uint64_t bytes) {
  TK_ASSIGN_OR_RETURN(
      const uint64_t promised,
      Ask({.op = DataOp::kChunks, .digest = digest, .first = first, .count = count}));
  if (promised != bytes) {
    return Error(Code::kDataLoss, "a peer answers with a length that its manifest denies");
  }
  return OkStatus();
}

}  // namespace tierkeep
