// Where log lines go: text or JSON lines on a descriptor, memory for tests, several at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

// Who speaks: nothing before there is a job, then a node of it or its coordinator. Shared by the
// sinks of one role and changed while they write. Threads: any.
class LogContext {
 public:
  enum class Role : uint8_t { kNone, kNode, kCoordinator };
  struct Identity {
    Role role = Role::kNone;
    std::string job;
    uint32_t rank = 0;   // kNode only
    uint32_t nodes = 0;  // kNode only
  };

  void SetNode(std::string_view job, uint32_t rank, uint32_t nodes);
  void SetCoordinator(std::string_view job);
  void Clear();
  Identity Get() const;

 private:
  mutable std::mutex mutex_;
  Identity identity_;
};

// Appends whole lines to a descriptor, one write(2) a line. Lines of one record stay together
// among the threads of this process; lines of several processes stay whole on a file opened with
// O_APPEND, and on a pipe up to PIPE_BUF bytes. A line that can't be written (disk full, a
// non-blocking pipe that nobody reads) is dropped and counted: logging never fails its caller.
// Threads: any.
class LineWriter {
 public:
  // `fd` stays the caller's and must outlive this.
  explicit LineWriter(int fd) : fd_(fd) {}
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Opens `path` for appending, creating it with mode 0640; closed with this.
  static Result<std::shared_ptr<LineWriter>> Open(const std::string& path);

  // Each line ends in a line feed of its own. Visible to readers on return, not synced.
  void WriteLines(const std::vector<std::string>& lines);
  uint64_t lines_lost() const { return lines_lost_.load(std::memory_order_relaxed); }

 private:
  const int fd_;
  bool owned_ = false;
  std::mutex mutex_;
  std::atomic<uint64_t> lines_lost_{0};
};

// The reference stack's plain lines (log.h). Each line of a text of several gets the prefix and
// goes through EscapeForLog, so whatever a caller lets slip can't pass for a line of ours.
class TextLogSink : public LogSink {
 public:
  struct Options {
    Severity lowest = Severity::kInfo;
    // Read for each record.
    std::function<WallTime()> wall_now = SystemWallTime;
  };
  TextLogSink(std::shared_ptr<LineWriter> out, std::shared_ptr<const LogContext> context,
              Options options);
  void Write(const LogRecord& record) override;

  // The system's wall clock.
  static WallTime SystemWallTime();

 private:
  const std::shared_ptr<LineWriter> out_;
  const std::shared_ptr<const LogContext> context_;
  const Options options_;
};

// One JSON object a record: time, level, module, function, line, pid, tid, text, and job, rank and
// nodes, or job and coordinator, once known. Bytes that aren't UTF-8 become U+FFFD.
class JsonLogSink : public LogSink {
 public:
  using Options = TextLogSink::Options;
  JsonLogSink(std::shared_ptr<LineWriter> out, std::shared_ptr<const LogContext> context,
              Options options);
  void Write(const LogRecord& record) override;

 private:
  const std::shared_ptr<LineWriter> out_;
  const std::shared_ptr<const LogContext> context_;
  const Options options_;
};

// Keeps every record, for tests and the simulator.
class MemoryLogSink : public LogSink {
 public:
  struct Record {
    Severity severity;
    std::string module;
    std::string function;
    uint32_t line;
    std::string text;
  };
  void Write(const LogRecord& record) override;

  std::vector<Record> records() const;
  // Whether some record's text contains `part`.
  bool Contains(std::string_view part) const;
  size_t CountAtLeast(Severity severity) const;
  void Clear();

 private:
  mutable std::mutex mutex_;
  std::vector<Record> records_;
};

// Hands each record to every sink, in order.
class TeeLogSink : public LogSink {
 public:
  explicit TeeLogSink(std::vector<std::shared_ptr<LogSink>> sinks) : sinks_(std::move(sinks)) {}
  void Write(const LogRecord& record) override;

 private:
  const std::vector<std::shared_ptr<LogSink>> sinks_;
};

}  // namespace tierkeep
