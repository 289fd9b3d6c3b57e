#include "core/save_parts.h"

#include <algorithm>
#include <utility>

namespace tierkeep {

SaveParts::Found SaveParts::Add(Step step, Worker worker, std::string name,
                                uint32_t workers_per_node) {
  Found found;
  Parts& parts = saves_[step];
  parts[worker] = {std::move(name), ++arrivals_};
  if (parts.size() < workers_per_node) return found;
  const Parts whole = std::move(parts);
  saves_.erase(step);
  for (const auto& [of, part] : whole) found.whole[of] = part.name;
  for (auto it = saves_.begin(); it != saves_.end();) {
    if (!IsOvertaken(it->second, whole)) {
      ++it;
      continue;
    }
    for (const auto& [of, part] : it->second) found.overtaken.push_back(part.name);
    it = saves_.erase(it);
  }
  return found;
}

bool SaveParts::IsOvertaken(const Parts& parts, const Parts& by) {
  return std::any_of(parts.begin(), parts.end(), [&](const auto& entry) {
    return entry.second.arrival < by.at(entry.first).arrival;
  });
}

}  // namespace tierkeep
