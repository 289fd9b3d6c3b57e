#include "sim/operator.h"

#include <algorithm>
#include <utility>

#include "format/messages.h"
#include "format/restore_orders.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLookMin = 5s;
constexpr Duration kLookMax = 20s;
constexpr Duration kPatienceMax = 120s;
constexpr Duration kBetweenOrders = 60s;

}  // namespace

void SimOperator::Watch() {
  world_->After(world_->Between(kLookMin, kLookMax), [this] {
    Look();
    Watch();
  });
}

void SimOperator::Look() {
  if (rests_) return;
  for (auto& host : hosts_) {
    const auto stop = host->StopOf(job_->shape().name);
    if (!stop) continue;
    if (!stopped_since_) stopped_since_ = world_->now();
    // Somebody is paged, reads what the decision waits for, and thinks.
    if (world_->now() < next_order_ ||
        world_->now() < *stopped_since_ + world_->Between({}, kPatienceMax)) {
      return;
    }
    return GiveUp(host.get(), *stop);
  }
  stopped_since_.reset();
}

void SimOperator::GiveUp(SimHost* host, const control::RestoreStop& stop) {
  control::RestoreOrder order;
  order.set_job(job_->shape().name);
  if (stop.nodes().empty() || world_->prng().Chance(1, 3)) {
    order.set_without_absent(true);
    host->GiveOrder(order);
  }
  for (const std::string& node : stop.nodes()) {
    order.set_without(node);
    host->GiveOrder(order);
  }
  world_->Fault("restore order");
  world_->Count("decisions that an operator helped");
  ledger_->OnGivenUp();
  next_order_ = world_->now() + kBetweenOrders;
  stopped_since_.reset();
}

void SimOperator::SkipSomething() {
  const auto& placement = job_->placement();
  SimHost& host = *hosts_[placement[world_->prng().Below(job_->shape().nodes)]];
  if (host.node() == nullptr) return;
  const NodeStatus status = host.node()->status();
  if (!status.config || status.config->job != job_->shape().name) return;
  const bool committed = status.committed && world_->prng().Chance(2, 3);
  if (!committed && (!status.restored || status.restored->none())) return;
  const control::GenerationRecord& record =
      committed ? *status.committed : status.restored->generation();
  if (world_->prng().Chance(1, 3)) {
    control::RestoreOrder order;
    order.set_job(job_->shape().name);
    order.mutable_skip()->set_run(FromProto(record.save().run()).ToString());
    order.mutable_skip()->set_save_number(record.save_number());
    if (!Give(&host, order, record.save().step())) return;
  } else if (!SkipStep(&host, record.save().step())) {
    return;
  }
  if (world_->prng().Chance(1, 3)) return;
  world_->Fault("job restart");
  job_->StartLater(world_->Between(1s, 20s));
}

bool SimOperator::SkipStep(SimHost* host, Step step) {
  control::RestoreOrder order;
  order.set_job(job_->shape().name);
  order.set_skip_step(step);
  skips_.push_back(order);
  return Give(host, order, step);
}

bool SimOperator::Give(SimHost* host, const control::RestoreOrder& order, Step step) {
  if (!host->GiveOrder(order)) return false;
  world_->Fault("restore order");
  ledger_->OnSkipped(step);
  return true;
}

void SimOperator::OnStarted() {
  skipped_.clear();
  for (const auto& order : skips_) {
    if (order.job() != job_->shape().name) continue;
    const bool known = std::all_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
      return host->node() != nullptr && HasOrder(host->node()->status().orders, order);
    });
    if (known) skipped_.push_back(order.skip_step());
  }
}

void SimOperator::OnReleased(const std::optional<SaveId>& restored) {
  if (skipped_.empty()) return;
  world_->Count("skip orders that everybody knew of");
  if (!restored || std::count(skipped_.begin(), skipped_.end(), restored->step) == 0) return;
  world_->Fail(Checker::kOrderIgnored,
               fmt::format("attempt {} goes on from {}, a step that every agent was asked to skip",
                           job_->attempt(), restored->ToString()));
}

}  // namespace tierkeep::sim
