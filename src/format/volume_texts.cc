#include "format/volume_texts.h"

#include <fmt/format.h>

#include "base/check.h"
#include "format/decimal.h"
#include "format/volume_names.h"

namespace tierkeep {
namespace {

constexpr size_t kJaxInitBytesMax = 4096;

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// The next line of `text` that isn't blank, trimmed; empty at the end.
std::string_view TakeLine(std::string_view& text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = Trim(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (!line.empty()) return line;
  }
  return {};
}

// Printable ASCII without blanks, "<something>:<port>".
bool IsHostPort(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c > '~') return false;
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const auto port = ParseDecimal(text.substr(colon + 1), 65535);
  return port.has_value() && *port > 0;
}

}  // namespace

std::string PrerestoreText(const Prerestore& prerestore) {
  if (!prerestore.step) {
    TK_CHECK(!prerestore.backup);
    return "{}\n";
  }
  std::string text = fmt::format("restore-step: {}\n", *prerestore.step);
  if (prerestore.backup) {
    // The dated form needs no quotes in YAML: it is no number and no timestamp.
    TK_CHECK(IsBackupDirName(*prerestore.backup));
    text += fmt::format("restore-backup: {}\n", *prerestore.backup);
  }
  return text;
}

bool IsBackupDirName(std::string_view name) {
  constexpr std::string_view kForm = "dddd-dd-dd_dd-dd";
  if (name.size() != kForm.size()) return false;
  for (size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    if (kForm[i] == 'd' ? !digit : name[i] != kForm[i]) return false;
  }
  return true;
}

std::string JaxInitInfoText(const JaxInitInfo& info) {
  TK_CHECK(IsHostPort(info.coordinator));
  return fmt::format("{}\n{}\n", info.process_id, info.coordinator);
}

Result<JaxInitInfo> ParseJaxInitInfo(std::string_view text) {
  const auto bad = [](std::string_view rule) {
    return Error(Code::kInvalidArgument, fmt::format("{}: {}", kJaxInitName, rule));
  };
  if (text.size() > kJaxInitBytesMax) return bad("it is too long");
  const auto process_id = ParseDecimal(TakeLine(text), kNodesMax - 1);
  if (!process_id) return bad("its first line must be a process id");
  const std::string_view coordinator = TakeLine(text);
  if (!IsHostPort(coordinator)) return bad("its second line must be host:port");
  if (!TakeLine(text).empty()) return bad("it must have two lines");
  return JaxInitInfo{static_cast<Rank>(*process_id), std::string(coordinator)};
}

std::string MetaText(std::string_view h) {
  TK_CHECK(IsDataHash(h));
  return std::string(h);
}

std::optional<std::string> ParseMetaText(std::string_view text) {
  if (!IsDataHash(text)) return std::nullopt;
  return std::string(text);
}

}  // namespace tierkeep
