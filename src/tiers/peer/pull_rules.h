// How a pull is planned, judged and ended, whatever moves its bytes: sockets and threads
// (pull_job.h), or the simulator's events. Holds no lock: callers guard what they pass.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "core/transfer.h"
#include "format/manifest.h"
#include "tiers/peer/puller.h"
#include "tiers/ram/store.h"

namespace tierkeep {

TransferPolicy PolicyFor(const PullerOptions& options, PullPriority priority);

// The plan for the chunks, once the manifest is known; a source that was given up while it was
// fetched (`before`) stays given up.
TransferPlan PlanForChunks(const Manifest& manifest, const TransferPlan& before, size_t sources,
                           const TransferPolicy& policy);

// What a source's error means for the request it ends. Logs it, keeps it in `last_errors` (by
// source) for the result, and gives up a source that would answer the same again.
TransferPlan::Outcome JudgeSource(const PullRequest& request, size_t source, const Error& error,
                                  const Logger& logger, TransferPlan* plan,
                                  std::vector<std::string>* last_errors);

// The result but for bytes and time. Finishes `incoming`, null before the manifest is known, when
// all chunks are there and nothing has `aborted` the pull.
PullResult ConcludePull(const PullRequest& request, const TransferPlan& plan,
                        const std::vector<std::string>& last_errors,
                        const std::optional<Error>& aborted, IncomingShard* incoming);

}  // namespace tierkeep
