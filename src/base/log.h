// The log sink. Injected, never global: a node's core, its agent and the simulator each hold one.
//
// Lines have the form that operators of the reference stack search (docs/protocol.md, "Log"):
//   2026-11-29 17:56:30.123 p1a2b t7f3c job=J node=R/N INF module.function(line): text
// Texts from outside (names, file contents) go through EscapeForLog, so that no line can be forged.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tierkeep {

enum class Severity : uint8_t { kDebug, kInfo, kWarning, kError, kCritical };
// "DBG", "INF", "WRN", "ERR", "CRT".
std::string_view SeverityTag(Severity severity);

// Valid during LogSink::Write only; a sink that keeps records copies the texts.
struct LogRecord {
  Severity severity;
  std::string_view module;    // file name without folder and ending
  std::string_view function;  // its name alone; of a lambda, the function that it stands in
  uint32_t line;
  std::string_view text;  // may have several lines; the sink prefixes each
};

// Threads: any. Write must not block for long and must not fail the caller.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(const LogRecord& record) = 0;
};

// Makes text from outside safe to print: control characters (C0, DEL, C1), line and paragraph
// separators, bidirectional overrides and bytes that aren't UTF-8 become \xNN, byte by byte; other
// text stays. A result longer than `max_bytes` is cut between characters and ends in "…".
std::string EscapeForLog(std::string_view text, size_t max_bytes = 512);

// "Bar" of "tierkeep::Result<int> tierkeep::Foo::Bar(int)::<lambda(auto:1)> [with auto:1 = int]".
std::string_view FunctionOfSignature(std::string_view signature);

// A cheap handle: `log.Info("step {} committed", step)`. The format text is checked when compiled.
// Threads: any, as its sink. A default-made one discards.
class Logger {
 public:
  Logger() = default;
  explicit Logger(std::shared_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  // Carries the caller's place beside the format text.
  template <typename... Args>
  struct Format {
    template <typename S>
    requires std::is_convertible_v<const S&, std::string_view>
    consteval Format(const S& s,  // NOLINT: implicit on purpose
                     std::source_location l = std::source_location::current())
        : text(s), location(l) {}
    fmt::format_string<const Args&...> text;
    std::source_location location;
  };
  template <typename... Args>
  using FormatOf = Format<std::type_identity_t<Args>...>;

  template <typename... Args>
  void Log(Severity severity, FormatOf<Args...> format, const Args&... args) const {
    if (!sink_) return;
    WriteText(severity, fmt::format(format.text, args...), format.location);
  }
  template <typename... Args>
  void Debug(FormatOf<Args...> f, const Args&... args) const {
    Log<Args...>(Severity::kDebug, f, args...);
  }
  template <typename... Args>
  void Info(FormatOf<Args...> f, const Args&... args) const {
    Log<Args...>(Severity::kInfo, f, args...);
  }
  template <typename... Args>
  void Warning(FormatOf<Args...> f, const Args&... args) const {
    Log<Args...>(Severity::kWarning, f, args...);
  }
  template <typename... Args>
  void Error(FormatOf<Args...> f, const Args&... args) const {
    Log<Args...>(Severity::kError, f, args...);
  }
  // For texts that aren't a format.
  void WriteText(Severity severity, std::string_view text,
                 std::source_location location = std::source_location::current()) const;

 private:
  std::shared_ptr<LogSink> sink_;
};

}  // namespace tierkeep
