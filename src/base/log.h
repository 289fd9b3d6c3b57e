// The log sink. Injected, never global: a node's core, its agent and the simulator each hold one.
//
// Lines have the form that operators of the reference stack search (docs/protocol.md, "Log"):
//   2026-11-29 17:56:30.123 p1a2b t7f3c job=J node=R/N INF module.function(line): text
// Texts from outside (names, file contents) go through EscapeForLog, so that no line can be forged.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>

#include "base/time.h"

namespace tierkeep {

enum class Severity : uint8_t { kDebug, kInfo, kWarning, kError, kCritical };
// "DBG", "INF", "WRN", "ERR", "CRT".
std::string_view SeverityTag(Severity severity);

struct LogRecord {
  Severity severity;
  std::string_view module;  // file name without folder and ending
  std::string_view function;
  uint32_t line;
  std::string_view text;  // may have several lines; the sink prefixes each
};

// Threads: any. Write must not block for long and must not fail the caller.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(const LogRecord& record) = 0;
};

// Control characters, line feeds and non-UTF-8 bytes become \xNN; longer than `max` is cut with "…".
std::string EscapeForLog(std::string_view text, size_t max = 512);

// A cheap handle. `Log(kInfo, "step {} committed", s)`.
class Logger {
 public:
  Logger() = default;  // discards
  explicit Logger(std::shared_ptr<LogSink> sink) : sink_(std::move(sink)) {}

  struct Format {  // carries the caller's place beside the format text
    template <typename S>
    Format(const S& s, std::source_location l = std::source_location::current())  // NOLINT
        : text(s), location(l) {}
    std::string_view text;
    std::source_location location;
  };
  template <typename... Args>
  void Log(Severity severity, Format format, const Args&... args) const {
    if (!sink_) return;
    WriteText(severity, fmt::format(fmt::runtime(format.text), args...), format.location);
  }
  template <typename... Args>
  void Info(Format f, const Args&... args) const { Log(Severity::kInfo, f, args...); }
  template <typename... Args>
  void Warning(Format f, const Args&... args) const { Log(Severity::kWarning, f, args...); }
  template <typename... Args>
  void Error(Format f, const Args&... args) const { Log(Severity::kError, f, args...); }
  void WriteText(Severity severity, std::string_view text, std::source_location location) const;

 private:
  std::shared_ptr<LogSink> sink_;
};

}  // namespace tierkeep
