#include "base/check.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace tierkeep {

void CheckFailed(const char* file, int line, const char* expression, std::string_view detail) {
  std::string text =
      std::string(file) + ":" + std::to_string(line) + ": CHECK failed: " + expression;
  if (!detail.empty()) text.append(": ").append(detail);
  text += '\n';
  // Straight to the descriptor: nothing may be lost in a buffer when the next step is abort().
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace tierkeep
