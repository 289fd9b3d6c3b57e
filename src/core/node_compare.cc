// Where this node's replica of a save differs from another's: on the coordinator's word.
#include <utility>

#include "core/holdings.h"
#include "core/node_impl.h"

namespace tierkeep {

void NodeMachine::Impl::OnCompare(const control::Compare& m) {
  if (!Released()) return;  // it has a deadline for us
  const TaskId task = NewTask();
  compares_[task] = {m.order(), state_.epoch()};
  if (shards_.count(DigestOf(m.own())) == 0) {
    Handle(NodeEvent::Compared{task, Error(Code::kNotFound, "its own shard is no longer here")});
    return;
  }
  Meet(m.other());
  Do(NodeAction::Compare{task, m.own(), m.other()});
}

void NodeMachine::Impl::Handle(const NodeEvent::Compared& e) {
  const auto found = compares_.find(e.task);
  if (found == compares_.end()) return;
  const CompareWork work = found->second;
  compares_.erase(found);
  if (!entered_ || work.epoch != state_.epoch()) return;  // another coordinator counts its own
  control::Envelope message = NewMessage();
  control::Compared& compared = *message.mutable_compared();
  compared.set_order(work.order);
  compared.set_ok(e.difference.ok());
  if (e.difference.ok()) {
    compared.set_total(e.difference->total);
    for (const std::string& text : e.difference->first) compared.add_differences(text);
  } else {
    compared.set_error(e.difference.error().ToString());
  }
  Send(std::move(message));
}

}  // namespace tierkeep
