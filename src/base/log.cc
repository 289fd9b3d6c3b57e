#include "base/log.h"

#include <algorithm>

namespace tierkeep {
namespace {

constexpr std::string_view kEllipsis = "…";

// The length of the well-formed UTF-8 sequence that `s` begins with, or 0 (table 3-7 of the
// Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t Utf8Length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return i < s.size() && byte(i) >= low && byte(i) <= high;
  };
  const uint8_t b = byte(0);
  if (b < 0x80) return 1;
  if (b >= 0xc2 && b <= 0xdf) return follows(1) ? 2 : 0;
  if (b >= 0xe0 && b <= 0xef) {
    const uint8_t low = b == 0xe0 ? 0xa0 : 0x80;
    const uint8_t high = b == 0xed ? 0x9f : 0xbf;
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (b >= 0xf0 && b <= 0xf4) {
    const uint8_t low = b == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = b == 0xf4 ? 0x8f : 0xbf;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Whether a well-formed character could forge a line or hide what it says.
bool IsUnsafe(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;  // C1
  if (character.size() != 3 || byte(0) != 0xe2) return false;
  if (byte(1) == 0x80) return byte(2) >= 0xa8 && byte(2) <= 0xae;  // U+2028 to U+202E
  return byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;    // U+2066 to U+2069
}

std::string_view ModuleOfFile(std::string_view path) {
  if (const size_t slash = path.rfind('/'); slash != path.npos) path.remove_prefix(slash + 1);
  return path.substr(0, path.rfind('.'));
}

// The index of the '(' that opens the parameter list, or npos. Those inside template arguments and
// of "(anonymous namespace)" are others.
size_t ParameterList(std::string_view signature) {
  int depth = 0;
  for (size_t i = 0; i < signature.size(); ++i) {
    if (signature[i] == '<') ++depth;
    if (signature[i] == '>') --depth;
    if (signature[i] != '(' || depth != 0) continue;
    if (signature.substr(i).starts_with("(anonymous namespace)")) continue;
    if (signature.substr(0, i).ends_with("operator"))
      ++i;  // the ')' of "operator()"
    else
      return i;
  }
  return signature.npos;
}

}  // namespace

std::string_view SeverityTag(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
      return "DBG";
    case Severity::kInfo:
      return "INF";
    case Severity::kWarning:
      return "WRN";
    case Severity::kError:
      return "ERR";
    case Severity::kCritical:
      return "CRT";
  }
  return "???";
}

std::string EscapeForLog(std::string_view text, size_t max_bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (text.size() <= max_bytes && std::all_of(text.begin(), text.end(), is_plain)) {
    return std::string(text);  // as nearly always
  }
  std::string out;
  size_t cut = 0;  // the longest prefix that still leaves room for the ellipsis
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length != 0 && !IsUnsafe(character)) {
      out.append(character);
    } else {
      for (const char c : character) {
        const auto byte = static_cast<uint8_t>(c);
        out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
      }
    }
    if (out.size() > max_bytes) return out.substr(0, cut).append(kEllipsis);
    if (out.size() + kEllipsis.size() <= max_bytes) cut = out.size();
    text.remove_prefix(character.size());
  }
  return out;
}

std::string_view FunctionOfSignature(std::string_view signature) {
  std::string_view name = signature.substr(0, ParameterList(signature));
  int depth = 0;
  for (size_t i = name.size(); i-- > 0;) {
    if (name[i] == '>') ++depth;
    if (name[i] == '<') --depth;
    const bool boundary = name[i] == ':' || name[i] == ' ' || name[i] == '*' || name[i] == '&';
    if (depth == 0 && boundary) {
      name.remove_prefix(i + 1);
      break;
    }
  }
  return name.substr(0, name.find('<'));
}

void Logger::WriteText(Severity severity, std::string_view text,
                       std::source_location location) const {
  if (!sink_) return;
  sink_->Write({.severity = severity,
                .module = ModuleOfFile(location.file_name()),
                .function = FunctionOfSignature(location.function_name()),
                .line = location.line(),
                .text = text});
}

}  // namespace tierkeep
