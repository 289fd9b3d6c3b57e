// Small durable records (node state, generations, rendezvous): a frame that tells a whole record
// from a torn or foreign one. Layout: docs/formats.md, "Record".
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tierkeep {

enum class RecordKind : uint8_t {
  kNodeState = 1,
  kGeneration = 2,
  kRendezvous = 3,
  kStoreId = 4,
  kShardState = 5,  // beside a manifest: suspect or not
};

// magic "TKR1", kind, length, payload, XXH3-128 of all before it.
std::string EncodeRecord(RecordKind kind, std::string_view payload);
// kDataLoss for anything that isn't exactly one whole record of this kind.
Result<std::string> DecodeRecord(RecordKind kind, std::string_view bytes);

}  // namespace tierkeep
