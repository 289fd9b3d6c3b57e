// What a message will need in memory, judged before it is parsed.
#pragma once

#include <string_view>

#include "base/result.h"

namespace google::protobuf {
class Descriptor;
}

namespace tierkeep {

// A two-byte sub-message takes a hundred times its size once parsed, so a frame of 64 MiB could ask
// for gigabytes. Walks the encoding without storing anything and fails (kInvalidArgument) when the
// objects it describes would need more than 12 bytes of memory a byte plus 1 MiB, well above what
// any real message needs, or when it is no protobuf encoding or nests deeper than 16 messages.
// The parser judges the encoding itself; a message of at most `kAlwaysFitsBytes` of a type that
// doesn't contain itself is within every limit, whatever it says, and needn't be walked.
constexpr size_t kAlwaysFitsBytes = 8192;
Status CheckMessageBudget(const google::protobuf::Descriptor& type, std::string_view bytes);

}  // namespace tierkeep
