#include "tiers/peer/pull_rules.h"

#include <utility>

#include "base/escape_name.h"

namespace tierkeep {

TransferPolicy PolicyFor(const PullerOptions& options, PullPriority priority) {
  TransferPolicy policy;
  policy.request_bytes = options.request_bytes;
  policy.backoff_first = options.backoff_first;
  policy.late_after = options.late_after;
  policy.streams = priority == PullPriority::kRebuild ? 1 : options.streams;
  return policy;
}

TransferPlan PlanForChunks(const Manifest& manifest, const TransferPlan& before, size_t sources,
                           const TransferPolicy& policy) {
  std::vector<uint64_t> chunk_bytes;
  for (const ManifestEntry& entry : manifest.entries) {
    for (const Chunk& chunk : entry.chunks) chunk_bytes.push_back(chunk.bytes);
  }
  TransferPlan plan(std::move(chunk_bytes), sources, policy);
  for (size_t i = 0; i < sources; ++i) {
    if (before.verdict(i) != SourceVerdict::kUsable) plan.GiveUp(i, before.verdict(i));
  }
  return plan;
}

TransferPlan::Outcome JudgeSource(const PullRequest& request, size_t source, const Error& error,
                                  const Logger& logger, TransferPlan* plan,
                                  std::vector<std::string>* last_errors) {
  using Outcome = TransferPlan::Outcome;
  (*last_errors)[source] = error.ToString();
  logger.Warning("pull of {} from {}: {}", request.digest.Hex().substr(0, 12),
                 EscapeName(request.sources[source].node), error.ToString());
  switch (error.code()) {
    case Code::kNotFound:
      return Outcome::kMissing;
    case Code::kDataLoss:
    case Code::kOutOfRange:
      return Outcome::kCorrupt;
    case Code::kUnauthenticated:  // asking again changes nothing
      plan->GiveUp(source, SourceVerdict::kFailing);
      return Outcome::kFailed;
    default:
      return Outcome::kFailed;
  }
}

PullResult ConcludePull(const PullRequest& request, const TransferPlan& plan,
                        const std::vector<std::string>& last_errors,
                        const std::optional<Error>& aborted, IncomingShard* incoming) {
  PullResult result;
  std::string errors;
  for (size_t i = 0; i < request.sources.size(); ++i) {
    const PullSource& source = request.sources[i];
    if (plan.verdict(i) != SourceVerdict::kUsable) result.bad_sources.push_back(source.node);
    if (!last_errors[i].empty()) errors += "; " + source.node + ": " + last_errors[i];
  }
  if (aborted) {
    result.status = *aborted;
  } else if (incoming == nullptr || !plan.complete()) {
    result.status =
        Error(Code::kUnavailable, "no source could serve shard " + request.digest.Hex() + errors);
  } else {
    result.status = incoming->Finish();
  }
  return result;
}

}  // namespace tierkeep
