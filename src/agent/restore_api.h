// What `tierkeep restore` asks of the agent, over the admin socket:
//
//   POST /v1/restore/orders   {"job", "without": [NODE], "without_absent", "skip":
//   ["STEP"|"RUN/SAVE"]} POST /v1/restore/to       {"job", "to": DIR, "step"?, "generation"?,
//   "ranks"?: [N], "all"?}
//
// "job" may be left out where the agent serves one. Answers and errors: docs/protocol.md, "Restore
// orders".
//
// Threads: any, several at once.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "agent/status_json.h"
#include "io/clock.h"
#include "io/http.h"
#include "tiers/peer/transfer_options.h"
#include "tiers/ram/store.h"

namespace tierkeep {

struct RestoreApiParts {
  std::function<StatusInputs()> snapshot;
  // Hands the order to the node machine; returns once it is on disk, or why it isn't.
  std::function<Status(const control::RestoreOrder&)> give_order;
  Store* store = nullptr;
  Clock* clock = nullptr;
  RandomSource* random = nullptr;
  DataPortOptions port;
  std::string mount;
  const std::atomic<bool>* stopping = nullptr;  // ends copies that are under way
};

HttpHandler MakeRestoreHandler(RestoreApiParts parts);

}  // namespace tierkeep
