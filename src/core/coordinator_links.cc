#include "core/coordinator_links.h"

#include <fmt/format.h>

#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {

AgentLinks::Noted AgentLinks::Note(ConnectionId from, const control::Join& join) {
  if (join.link().agent().empty()) return {};
  const control::AgentLink& link = join.link();
  // Whoever makes up agents can't fill our memory.
  if (newest_.size() > kNodesMax) newest_.clear();
  const auto [it, first] = newest_.try_emplace(link.agent());
  Newest& newest = it->second;
  Noted noted;
  if (!first) {
    // A start that could not write down its number gives it to the next one, too: nothing tells
    // which of the two is the later, so that the one that comes last counts.
    const bool unknown = link.life() == newest.life && join.agent_boot() != newest.boot;
    noted.newest =
        unknown || std::pair(link.life(), link.number()) >= std::pair(newest.life, newest.number);
    if (!noted.newest) return noted;
    if (newest.connection != from) noted.older = newest.connection;
  }
  newest = {link.life(), link.number(), join.agent_boot(), from};
  return noted;
}

// False: the agent has dialed anew since, and what it said then is of the past. A newer connection
// ends the older one, of which all else is dropped, too: whoever has no connection isn't heard.
bool CoordinatorMachine::Impl::TakesLink(ConnectionId from, const control::Join& join) {
  const AgentLinks::Noted noted = links_.Note(from, join);
  if (!noted.newest && !TK_MUTATION(kAcceptOlderConnection)) {
    TK_PROBE(kOlderLinkDropped);
    ++dropped_messages_;
    Log(Severity::kWarning,
        fmt::format("Node {} has connected anew: what its older connection says is ignored",
                    join.node()));
    actions_.emplace_back(CoordinatorAction::CloseConnection{from});
    return false;
  }
  if (noted.older) {
    actions_.emplace_back(CoordinatorAction::CloseConnection{*noted.older});
    LostConnection(*noted.older);
  }
  return true;
}

}  // namespace tierkeep
