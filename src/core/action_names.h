// The actions' names, as core/events.h spells them. They are made from the types, so a new action
// has one: logs, BatchFailed and the tests that end an agent before each of its steps use them.
#pragma once

#include <string_view>
#include <vector>

#include "core/events.h"

namespace tierkeep {

namespace action_names_internal {
template <typename Action>
consteval std::string_view NameOf() {
  // "… NameOf() [with Action = tierkeep::NodeAction::PlaceLink; …]": GCC ends it with ';', Clang
  // with ']'.
  std::string_view text = __PRETTY_FUNCTION__;
  text.remove_prefix(text.find("Action = ") + 9);
  text = text.substr(0, text.find_first_of(";]"));
  return text.substr(text.rfind(':') + 1);
}
}  // namespace action_names_internal

// "PlaceLink" for NodeAction::PlaceLink.
template <typename Action>
inline constexpr std::string_view kActionName = action_names_internal::NameOf<Action>();
static_assert(kActionName<NodeAction::PlaceLink> == "PlaceLink");
static_assert(kActionName<CoordinatorAction::StandDown> == "StandDown");

std::string_view ActionName(const NodeAction::Any& action);
std::string_view ActionName(const CoordinatorAction::Any& action);

// All of them, in the order of core/events.h.
std::vector<std::string_view> NodeActionNames();
std::vector<std::string_view> CoordinatorActionNames();

}  // namespace tierkeep
