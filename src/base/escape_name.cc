#include "base/escape_name.h"

#include "base/log.h"

namespace tierkeep {

std::string EscapeName(std::string_view name, size_t max_bytes) {
  std::string word;
  word.reserve(name.size());
  for (const char c : name) {
    if (c == ' ') {
      word += "\\x20";
    } else {
      word += c;
    }
  }
  return EscapeForLog(word, max_bytes);
}

}  // namespace tierkeep
