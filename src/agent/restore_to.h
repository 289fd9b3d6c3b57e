// `tierkeep restore --to DIR`: verified copies of a generation's shards in a directory that a
// person names. Touches neither store nor volume.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/restore_api.h"
#include "format/restore_orders.h"

namespace tierkeep {

struct RestoreToRequest {
  std::string job;
  std::string dir;           // absolute
  std::optional<Step> step;  // the newest generation of it; else the newest of all
  std::optional<control::NumberedSave> generation;
  // Whose shards. None and not `all`: this node's rank's, or, where it has none in that generation,
  // all that are held here.
  std::vector<Rank> ranks;
  bool all = false;
};

// The directory appears whole, by one rename, with its files synced, or not at all:
// DIR/rank<R>-worker<W> a shard, and DIR/tierkeep.json, which says what they are; the same is
// returned. kAlreadyExists: DIR is there and isn't empty. kInvalidArgument: it is no path to write
// to, or lies on the volume's file system.
Result<nlohmann::json> RestoreTo(const RestoreApiParts& parts, const StatusInputs& in,
                                 const RestoreToRequest& request);

}  // namespace tierkeep
