#include "tiers/peer/puller.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tiers/peer/pull_job.h"

namespace tierkeep {

struct Puller::Impl {
  PullContext context;
};

Puller::Puller(Store* store, Clock* clock, PullerOptions options, Logger logger)
    : impl_(std::make_unique<Impl>()) {
  TK_CHECK(options.streams > 0);
  impl_->context.store = store;
  impl_->context.clock = clock;
  impl_->context.options = std::move(options);
  impl_->context.logger = std::move(logger);
}

Puller::~Puller() = default;

uint64_t Puller::bytes_pulled() const { return impl_->context.bytes_pulled.load(); }

PullResult Puller::Pull(const PullRequest& request, const std::atomic<bool>* cancelled) {
  const auto held = impl_->context.store->Find(request.digest);
  if (held && !held->suspect) return {};
  return PullJob(&impl_->context, request, cancelled).Run();
}

Result<std::vector<LogicalLine>> Puller::Listing(const PullRequest& request,
                                                 const Blake3& logical) {
  const DataPortOptions& port = impl_->context.options.port;
  StreamOptions options;
  options.tls = port.tls;
  options.stall_limit = std::max(port.stall_limit, kListingDeadline);
  Error last(Code::kUnavailable, "no node that holds it can be reached");
  for (const PullSource& source : request.sources) {
    const auto fetch = [&]() -> Result<std::vector<LogicalLine>> {
      TK_ASSIGN_OR_RETURN(auto connection,
                          DataConnection::Open(source.address, source.token, options));
      TK_ASSIGN_OR_RETURN(const std::string bytes, connection->FetchListing(request.digest));
      return DecodeLogicalListing(bytes, logical);
    };
    auto lines = fetch();
    if (lines.ok()) return lines;
    last = lines.error().With("node " + source.node);
  }
  return last;
}

}  // namespace tierkeep
