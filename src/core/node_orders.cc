// What this node remembers for the next restore decision: operators' orders, and how often what it
// was restored from has been restored.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/node_impl.h"
#include "format/restore_orders.h"

namespace tierkeep {

void NodeMachine::Impl::Handle(const NodeEvent::OrderGiven& e) {
  control::RestoreOrder order = e.order;
  // This host's clock may be behind the one that numbered the runs; and between two attempts no
  // yaml says which job's these were: to name a later one does no harm.
  order.set_after(std::max<uint64_t>(order.after(), state_.highest_run().sequence()));
  RaiseAbove(state_.last_restored().orders(), &order);
  RestoreOrders orders;
  *orders.Add() = std::move(order);
  AddOrders(state_.mutable_orders(), orders);
  Persist();
  Log(Severity::kWarning, fmt::format("Asked: {}, at the next restore decision of job {}",
                                      ToString(e.order), e.order.job()));
  if (link_ == Link::kNone && (!config_ || phase_ == Phase::kEnded)) StartHolding();
  if (link_ != Link::kUp || job() != e.order.job()) return;
  if (!entered_) {
    SendJoin();  // again: it carries all orders
    return;
  }
  control::Envelope message = NewMessage();
  *message.mutable_restore_orders()->mutable_orders() = std::move(orders);
  Send(std::move(message));
}

void NodeMachine::Impl::OnRestoreOrders(const control::RestoreOrders& m) {
  AddOrders(state_.mutable_orders(), m.orders());
  Persist();
}

// The job is released from `choice`; the caller persists.
void NodeMachine::Impl::NoteRelease(const control::RestoreChoice& choice) {
  RemoveOrders(state_.mutable_orders(), choice.orders());
  if (state_.stop().job() == config_->job) state_.clear_stop();
  if (choice.none()) return;
  const std::string save = choice.generation().save().SerializeAsString();
  auto* counts = state_.mutable_restores();
  auto count = std::find_if(counts->begin(), counts->end(), [&](const auto& other) {
    return other.job() == config_->job && other.save().SerializeAsString() == save;
  });
  if (count == counts->end()) {
    control::RestoreCount* added = state_.add_restores();
    added->set_job(config_->job);
    *added->mutable_save() = choice.generation().save();
    count = std::prev(counts->end());
  }
  // A coordinator of an older version doesn't count.
  count->set_restores(std::max({count->restores(), choice.restores(), 1U}));
}

// A holder isn't told of decisions, but of what was committed after one. What was ordered since
// then is for the next one.
void NodeMachine::Impl::ForgetDecision(const std::string& job) {
  RestoreOrders done;
  for (const auto& order : state_.orders()) {
    if (order.job() == job && order.after() < holder_run_.sequence) *done.Add() = order;
  }
  const bool forgot = RemoveOrders(state_.mutable_orders(), done);
  const bool stopped = state_.has_stop() && state_.stop().job() == job;
  if (stopped) state_.clear_stop();
  if (forgot || stopped) Persist();
}

// A later save was committed: what came before it has served.
void NodeMachine::Impl::ForgetRestores(const std::string& job) {
  auto* counts = state_.mutable_restores();
  const auto of_job = [&](const auto& count) { return count.job() == job; };
  const auto end = std::remove_if(counts->begin(), counts->end(), of_job);
  if (end == counts->end()) return;
  counts->erase(end, counts->end());
  Persist();
}

}  // namespace tierkeep
