#include "core/action_names.h"

#include <utility>

namespace tierkeep {
namespace {

template <typename Variant>
std::vector<std::string_view> NamesOf() {
  return []<size_t... I>(std::index_sequence<I...>) {
    return std::vector{kActionName<std::variant_alternative_t<I, Variant>>...};
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}

template <typename Action>
std::string_view NameIn(const Action&) {
  return kActionName<Action>;
}

}  // namespace

std::string_view ActionName(const NodeAction::Any& action) {
  return std::visit([](const auto& a) { return NameIn(a); }, action);
}

std::string_view ActionName(const CoordinatorAction::Any& action) {
  return std::visit([](const auto& a) { return NameIn(a); }, action);
}

std::vector<std::string_view> NodeActionNames() { return NamesOf<NodeAction::Any>(); }

std::vector<std::string_view> CoordinatorActionNames() { return NamesOf<CoordinatorAction::Any>(); }

}  // namespace tierkeep
