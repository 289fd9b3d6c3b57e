#include "base/log_sinks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

namespace tierkeep {
namespace {

// Longer lines help nobody, and a runaway text must not fill the disk.
constexpr size_t kLineBytesMax = 16384;

std::string TextIdentity(const LogContext::Identity& identity) {
  switch (identity.role) {
    case LogContext::Role::kNone:
      return "";
    case LogContext::Role::kNode:
      return fmt::format("job={} node={}/{} ", EscapeForLog(identity.job), identity.rank,
                         identity.nodes);
    case LogContext::Role::kCoordinator:
      return fmt::format("job={} coord ", EscapeForLog(identity.job));
  }
  return "";
}

}  // namespace

void LogContext::SetNode(std::string_view job, uint32_t rank, uint32_t nodes) {
  std::lock_guard lock(mutex_);
  identity_ = {.role = Role::kNode, .job = std::string(job), .rank = rank, .nodes = nodes};
}

void LogContext::SetCoordinator(std::string_view job) {
  std::lock_guard lock(mutex_);
  identity_ = {.role = Role::kCoordinator, .job = std::string(job)};
}

void LogContext::Clear() {
  std::lock_guard lock(mutex_);
  identity_ = {};
}

LogContext::Identity LogContext::Get() const {
  std::lock_guard lock(mutex_);
  return identity_;
}

LineWriter::~LineWriter() {
  if (owned_) ::close(fd_);
}

Result<std::shared_ptr<LineWriter>> LineWriter::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) return ErrnoError(errno, "can't open the log file " + EscapeForLog(path));
  auto writer = std::make_shared<LineWriter>(fd);
  writer->owned_ = true;
  return writer;
}

void LineWriter::WriteLines(const std::vector<std::string>& lines) {
  std::lock_guard lock(mutex_);
  for (const std::string& line : lines) {
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t n = ::write(fd_, rest.data(), rest.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      rest.remove_prefix(static_cast<size_t>(n));
    }
    if (!rest.empty()) lines_lost_.fetch_add(1, std::memory_order_relaxed);
  }
}

WallTime TextLogSink::SystemWallTime() {
  return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
}

TextLogSink::TextLogSink(std::shared_ptr<LineWriter> out, std::shared_ptr<const LogContext> context,
                         Options options)
    : out_(std::move(out)), context_(std::move(context)), options_(std::move(options)) {}

void TextLogSink::Write(const LogRecord& record) {
  if (record.severity < options_.lowest) return;
  const std::string prefix =
      fmt::format("{} p{:x} t{:x} {}{} {}.{}({}): ", FormatWallTime(options_.wall_now()),
                  ::getpid(), ::gettid(), TextIdentity(context_->Get()),
                  SeverityTag(record.severity), record.module, record.function, record.line);
  std::vector<std::string> lines;
  std::string_view rest = record.text;
  do {
    const size_t end = std::min(rest.find('\n'), rest.size());
    lines.push_back(prefix + EscapeForLog(rest.substr(0, end), kLineBytesMax) + "\n");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  } while (!rest.empty());
  out_->WriteLines(lines);
}

JsonLogSink::JsonLogSink(std::shared_ptr<LineWriter> out, std::shared_ptr<const LogContext> context,
                         Options options)
    : out_(std::move(out)), context_(std::move(context)), options_(std::move(options)) {}

void JsonLogSink::Write(const LogRecord& record) {
  if (record.severity < options_.lowest) return;
  nlohmann::ordered_json line;
  line["time"] = FormatWallTime(options_.wall_now());
  line["level"] = SeverityTag(record.severity);
  const LogContext::Identity identity = context_->Get();
  if (identity.role != LogContext::Role::kNone) line["job"] = identity.job;
  if (identity.role == LogContext::Role::kNode) {
    line["rank"] = identity.rank;
    line["nodes"] = identity.nodes;
  }
  if (identity.role == LogContext::Role::kCoordinator) line["coordinator"] = true;
  line["module"] = record.module;
  line["function"] = record.function;
  line["line"] = record.line;
  line["pid"] = ::getpid();
  line["tid"] = ::gettid();
  line["text"] = record.text;
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  out_->WriteLines({line.dump(-1, ' ', false, kReplace) + "\n"});
}

void MemoryLogSink::Write(const LogRecord& record) {
  std::lock_guard lock(mutex_);
  records_.push_back({.severity = record.severity,
                      .module = std::string(record.module),
                      .function = std::string(record.function),
                      .line = record.line,
                      .text = std::string(record.text)});
}

std::vector<MemoryLogSink::Record> MemoryLogSink::records() const {
  std::lock_guard lock(mutex_);
  return records_;
}

bool MemoryLogSink::Contains(std::string_view part) const {
  std::lock_guard lock(mutex_);
  return std::any_of(records_.begin(), records_.end(), [&](const Record& record) {
    return record.text.find(part) != std::string::npos;
  });
}

size_t MemoryLogSink::CountAtLeast(Severity severity) const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(
      std::count_if(records_.begin(), records_.end(),
                    [&](const Record& record) { return record.severity >= severity; }));
}

void MemoryLogSink::Clear() {
  std::lock_guard lock(mutex_);
  records_.clear();
}

void TeeLogSink::Write(const LogRecord& record) {
  for (const auto& sink : sinks_) sink->Write(record);
}

}  // namespace tierkeep
