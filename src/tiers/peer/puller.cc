#include "tiers/peer/puller.h"

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

}  // namespace tierkeep
