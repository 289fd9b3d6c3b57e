#include "format/data_wire.h"

#include "base/check.h"

namespace tierkeep {
namespace {

void Append64(std::string& out, uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

void Append32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

uint64_t ReadBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

bool AllZero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

}  // namespace

std::string EncodeDataPreamble(std::string_view token) {
  TK_CHECK(token.size() == kDataTokenBytes);
  return std::string(kDataMagic).append(token);
}

bool HasDataMagic(std::string_view preamble) {
  return preamble.size() == kDataPreambleBytes && preamble.starts_with(kDataMagic);
}

bool HasDataToken(std::string_view preamble, std::string_view token) {
  if (preamble.size() != kDataPreambleBytes || token.size() != kDataTokenBytes) return false;
  const std::string_view shown = preamble.substr(kDataMagic.size());
  uint8_t difference = 0;
  for (size_t i = 0; i < token.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (shown[i] ^ token[i]));
  }
  return difference == 0;
}

std::string EncodeDataRequest(const DataRequest& request) {
  std::string out;
  out.reserve(kDataRequestBytes);
  out += static_cast<char>(request.op);
  out.append(7, '\0');
  out += request.digest.Raw();
  Append64(out, request.first);
  Append64(out, request.count);
  TK_CHECK(out.size() == kDataRequestBytes);
  return out;
}

Result<DataRequest> DecodeDataRequest(std::string_view bytes) {
  const auto bad = [](std::string_view why) {
    return Error(Code::kInvalidArgument, "data request: " + std::string(why));
  };
  if (bytes.size() != kDataRequestBytes) return bad("wrong length");
  if (!AllZero(bytes.substr(1, 7))) return bad("a reserved byte is set");
  DataRequest request;
  request.digest = *Blake3::FromBytes(bytes.substr(8, 32));
  request.first = ReadBigEndian(bytes.substr(40, 8));
  request.count = ReadBigEndian(bytes.substr(48, 8));
  switch (static_cast<uint8_t>(bytes[0])) {
    case static_cast<uint8_t>(DataOp::kManifest):
    case static_cast<uint8_t>(DataOp::kListing):
      request.op = static_cast<DataOp>(bytes[0]);
      if (request.first != 0 || request.count != 0) return bad("only chunks have a range");
      return request;
    case static_cast<uint8_t>(DataOp::kChunks):
      request.op = DataOp::kChunks;
      if (request.count == 0) return bad("no chunk is asked for");
      if (request.first + request.count < request.first) return bad("the range overflows");
      return request;
    default:
      return bad("unknown operation");
  }
}

std::string EncodeDataResponse(const DataResponse& response) {
  TK_CHECK(response.code == Code::kOk ? response.text_bytes == 0 : response.body_bytes == 0);
  TK_CHECK(response.text_bytes <= kDataErrorTextBytesMax);
  std::string out;
  out.reserve(kDataResponseBytes);
  out += static_cast<char>(response.code);
  out.append(3, '\0');
  Append32(out, response.text_bytes);
  Append64(out, response.body_bytes);
  return out;
}

Result<DataResponse> DecodeDataResponse(std::string_view bytes) {
  const auto bad = [](std::string_view why) {
    return Error(Code::kDataLoss, "data response: " + std::string(why));
  };
  if (bytes.size() != kDataResponseBytes) return bad("wrong length");
  if (!AllZero(bytes.substr(1, 3))) return bad("a reserved byte is set");
  const auto code = static_cast<uint8_t>(bytes[0]);
  if (code > static_cast<uint8_t>(Code::kUnauthenticated)) return bad("unknown code");
  DataResponse response{.code = static_cast<Code>(code),
                        .text_bytes = static_cast<uint32_t>(ReadBigEndian(bytes.substr(4, 4))),
                        .body_bytes = ReadBigEndian(bytes.substr(8, 8))};
  if (response.text_bytes > kDataErrorTextBytesMax) return bad("the error text is too long");
  if (response.code == Code::kOk ? response.text_bytes != 0 : response.body_bytes != 0) {
    return bad("a body and an error exclude each other");
  }
  return response;
}

}  // namespace tierkeep
