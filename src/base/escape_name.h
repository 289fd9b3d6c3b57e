// Names in texts for people: see EscapeForLog in base/log.h.
#pragma once

#include <string>
#include <string_view>

namespace tierkeep {

// As EscapeForLog, and a space becomes \x20 as well, since names' makers choose them freely: so a
// name is one word, and none can hold a text that tools search a log for.
std::string EscapeName(std::string_view name, size_t max_bytes = 512);

}  // namespace tierkeep
