// Whole decimal numbers as they stand in names and texts.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tierkeep {

// Digits only, no sign, no leading zero, at most `max`: one number has one text.
inline std::optional<uint64_t> ParseDecimal(std::string_view text, uint64_t max = UINT64_MAX) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > max) return std::nullopt;
  return value;
}

}  // namespace tierkeep
