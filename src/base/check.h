// CHECK: an invariant of our own code. Broken ones end the process in every build: going on with
// a wrong belief about a checkpoint costs more than a restart, which is always safe here.
#pragma once

#include <string_view>

namespace tierkeep {
// Writes one line to standard error and aborts. Threads: any.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              std::string_view detail);
}  // namespace tierkeep

#define TK_CHECK(condition)               \
  (static_cast<bool>(condition) ? void(0) \
                                : ::tierkeep::CheckFailed(__FILE__, __LINE__, #condition, {}))
// `detail` is built only when the check fails.
#define TK_CHECK_MSG(condition, detail)   \
  (static_cast<bool>(condition) ? void(0) \
                                : ::tierkeep::CheckFailed(__FILE__, __LINE__, #condition, detail))
