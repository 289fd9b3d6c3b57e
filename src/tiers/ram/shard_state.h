// What a store remembers about a shard beside its manifest: the file "state" in the shard's
// directory. No file: nothing to remember.
#pragma once

#include <string>
#include <string_view>

namespace tierkeep {

struct ShardState {
  // The bytes may have been changed since they were verified.
  bool suspect = false;
  // Names of its files may stand in the volume.
  bool linked = false;
  // All its files are immutable, so nobody can change them by those names.
  bool guarded = false;
  bool operator==(const ShardState&) const = default;
  bool IsPlain() const { return *this == ShardState{}; }
};

// A record of kind kShardState; payload: one byte, bit 0 suspect, bit 1 linked, bit 2 guarded.
std::string EncodeShardState(const ShardState& state);
// What doesn't decode is the most careful state: suspect, linked, not guarded. So is an empty file,
// which can be made when no memory is left for a page.
ShardState DecodeShardState(std::string_view bytes);

}  // namespace tierkeep
