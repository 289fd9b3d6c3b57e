// What there is of memory, from where the core can't look: the volume's mount, and the control
// groups that pay for what is pulled.
#pragma once

#include <functional>
#include <optional>

#include "core/memory_budget.h"
#include "io/cgroup_memory.h"
#include "tiers/ram/store.h"

namespace tierkeep {

// nullopt: nobody limits it. Any thread.
using MemoryLimit = std::function<Result<std::optional<CgroupMemory>>()>;

// Any thread. What can't be read is said in the answer. A null function: there is no limit.
MemoryRoom SeeMemory(Store& store, const MemoryLimit& memory_limit);

}  // namespace tierkeep
