#include "format/record.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/digest.h"

namespace tierkeep {
namespace {

constexpr std::string_view kMagic = "TKR1";
constexpr size_t kHeaderBytes = 4 + 1 + 4;
constexpr size_t kDigestBytes = Xxh128::kSize;

Error Damaged(std::string_view what) {
  return Error(Code::kDataLoss, fmt::format("record: {}", what));
}

}  // namespace

std::string EncodeRecord(RecordKind kind, std::string_view payload) {
  TK_CHECK(payload.size() <= UINT32_MAX);
  std::string out;
  out.reserve(kHeaderBytes + payload.size() + kDigestBytes);
  out += kMagic;
  out += static_cast<char>(kind);
  for (int shift = 24; shift >= 0; shift -= 8) {
    out += static_cast<char>(payload.size() >> shift & 0xff);
  }
  out += payload;
  out += ComputeXxh128(AsBytes(out)).Raw();
  return out;
}

Result<std::string> DecodeRecord(RecordKind kind, std::string_view bytes) {
  if (bytes.size() < kHeaderBytes + kDigestBytes) {
    return Damaged(fmt::format("{} bytes are too few for one", bytes.size()));
  }
  if (!bytes.starts_with(kMagic)) return Damaged("it does not begin with TKR1");
  uint32_t length = 0;
  for (size_t i = 5; i < kHeaderBytes; ++i) length = length << 8 | static_cast<uint8_t>(bytes[i]);
  if (bytes.size() != kHeaderBytes + length + kDigestBytes) {
    return Damaged(fmt::format("{} bytes where a payload of {} needs {}", bytes.size(), length,
                               kHeaderBytes + length + kDigestBytes));
  }
  const std::string_view covered = bytes.substr(0, kHeaderBytes + length);
  if (ComputeXxh128(AsBytes(covered)).Raw() != bytes.substr(covered.size())) {
    return Damaged("its digest does not match");
  }
  const auto found = static_cast<uint8_t>(bytes[4]);
  if (found != static_cast<uint8_t>(kind)) {
    return Damaged(fmt::format("kind {} where {} was expected", found, static_cast<int>(kind)));
  }
  return std::string(covered.substr(kHeaderBytes));
}

}  // namespace tierkeep
