#include "base/log_sinks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

namespace tierkeep {
namespace {

using ::testing::MatchesRegex;

// A pipe whose write end is a sink's descriptor.
class Pipe {
 public:
  explicit Pipe(int flags = 0) { EXPECT_EQ(::pipe2(ends_, O_CLOEXEC | flags), 0); }
  ~Pipe() {
    for (const int fd : ends_) {
      if (fd >= 0) ::close(fd);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int write_end() const { return ends_[1]; }
  void CloseReader() { ::close(std::exchange(ends_[0], -1)); }
  // Closes the write end and returns what came through, a line each.
  std::vector<std::string> Lines() {
    ::close(std::exchange(ends_[1], -1));
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends_[0], buffer, sizeof buffer)) > 0;) {
      all.append(buffer, static_cast<size_t>(n));
    }
    std::vector<std::string> lines;
    std::istringstream in(all);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  int ends_[2] = {-1, -1};
};

WallTime FixedNow() {
  using namespace std::chrono;
  return sys_days(2026y / November / 29) + 17h + 56min + 30s + 123ms;
}

LogRecord RecordOf(std::string_view text, Severity severity = Severity::kInfo) {
  return {.severity = severity, .module = "save", .function = "Stage", .line = 12, .text = text};
}

class TextSinkTest : public ::testing::Test {
 protected:
  Pipe pipe_;
  std::shared_ptr<LogContext> context_ = std::make_shared<LogContext>();
  TextLogSink sink_{std::make_shared<LineWriter>(pipe_.write_end()),
                    context_,
                    {.lowest = Severity::kInfo, .wall_now = FixedNow}};
};

TEST_F(TextSinkTest, PrefixFollowsTheContext) {
  sink_.Write(RecordOf("one"));
  context_->SetNode("train", 2, 8);
  sink_.Write(RecordOf("two", Severity::kWarning));
  context_->SetCoordinator("train");
  sink_.Write(RecordOf("three", Severity::kError));
  context_->Clear();
  sink_.Write(RecordOf("four", Severity::kCritical));
  const std::string ids = fmt::format("2026-11-29 17:56:30.123 p{:x} t{:x} ", getpid(), gettid());
  EXPECT_THAT(pipe_.Lines(),
              ::testing::ElementsAre(ids + "INF save.Stage(12): one",
                                     ids + "job=train node=2/8 WRN save.Stage(12): two",
                                     ids + "job=train coord ERR save.Stage(12): three",
                                     ids + "CRT save.Stage(12): four"));
}

TEST_F(TextSinkTest, EveryLineOfATextGetsThePrefix) {
  sink_.Write(RecordOf("first\nsecond\n\nfourth\n"));
  sink_.Write(RecordOf(""));
  const auto lines = pipe_.Lines();
  ASSERT_EQ(lines.size(), 5u);
  for (const auto& line : lines) {
    EXPECT_THAT(line, MatchesRegex("2026-.* INF save\\.Stage\\(12\\): .*"));
  }
  EXPECT_TRUE(lines[1].ends_with(": second"));
  EXPECT_TRUE(lines[2].ends_with("): "));
  EXPECT_TRUE(lines[3].ends_with(": fourth"));
}

TEST_F(TextSinkTest, TextsAndJobNamesCannotForgeOrFlood) {
  context_->SetNode("evil\n2026", 0, 1);
  sink_.Write(RecordOf("x\ry"));
  sink_.Write(RecordOf(std::string(1 << 20, 'a')));
  const auto lines = pipe_.Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], MatchesRegex(".*job=evil\\\\x0a2026 node=0/1 .*x\\\\x0dy"));
  EXPECT_LT(lines[1].size(), 17000u);
}

TEST_F(TextSinkTest, BelowTheLowestSeverityNothingIsWritten) {
  sink_.Write(RecordOf("quiet", Severity::kDebug));
  EXPECT_TRUE(pipe_.Lines().empty());
}

TEST(TextLogSink, ThreadsNeverMixTheirLines) {
  const std::string path = ::testing::TempDir() + fmt::format("/log_sinks_{}.log", getpid());
  {
    auto writer = LineWriter::Open(path);
    ASSERT_TRUE(writer.ok()) << writer.error().ToString();
    auto context = std::make_shared<LogContext>();
    TextLogSink sink(*writer, context, {});
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 250; ++i) {
          context->SetNode("job", t, 4);
          sink.Write(RecordOf("begin\nend"));
        }
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ((*writer)->lines_lost(), 0u);
  }
  std::ifstream in(path);
  std::string line;
  int count = 0;
  for (; std::getline(in, line); ++count) {
    ASSERT_TRUE(line.ends_with(count % 2 == 0 ? "): begin" : "): end")) << line;
  }
  EXPECT_EQ(count, 2000);
  ::unlink(path.c_str());
}

TEST(LineWriter, WhatCannotBeWrittenIsDroppedAndCounted) {
  Pipe pipe(O_NONBLOCK);
  LineWriter writer(pipe.write_end());
  const std::string line(1000, 'x');
  for (int i = 0; i < 1000; ++i) writer.WriteLines({line});  // more than a pipe holds
  EXPECT_GT(writer.lines_lost(), 0u);
  EXPECT_LT(writer.lines_lost(), 1000u);
}

TEST(LineWriter, OpenReportsThePath) {
  const auto writer = LineWriter::Open("/nonexistent/dir/log");
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.error().code(), Code::kNotFound);
  EXPECT_NE(writer.error().message().find("/nonexistent/dir/log"), std::string::npos);
}

TEST(JsonLogSink, EachLineIsAnObjectWithTypedFields) {
  Pipe pipe;
  auto context = std::make_shared<LogContext>();
  JsonLogSink sink(std::make_shared<LineWriter>(pipe.write_end()), context,
                   {.lowest = Severity::kInfo, .wall_now = FixedNow});
  sink.Write(RecordOf("a \"quoted\"\nline \xff"));
  context->SetNode("train", 2, 8);
  sink.Write(RecordOf("b", Severity::kError));
  context->SetCoordinator("train");
  sink.Write(RecordOf("c"));
  sink.Write(RecordOf("quiet", Severity::kDebug));
  const auto lines = pipe.Lines();
  ASSERT_EQ(lines.size(), 3u);
  const std::string when = R"({"time":"2026-11-29 17:56:30.123",)";
  const std::string place = fmt::format(
      R"("module":"save","function":"Stage","line":12,"pid":{},"tid":{},)", getpid(), gettid());
  EXPECT_EQ(lines[0], when + R"("level":"INF",)" + place +
                          R"("text":"a \"quoted\"\nline )"
                          "\ufffd\"}");
  EXPECT_EQ(lines[1],
            when + R"("level":"ERR","job":"train","rank":2,"nodes":8,)" + place + R"("text":"b"})");
  EXPECT_EQ(lines[2],
            when + R"("level":"INF","job":"train","coordinator":true,)" + place + R"("text":"c"})");
}

TEST(MemoryLogSink, FindsCountsAndClears) {
  MemoryLogSink sink;
  sink.Write(RecordOf("saved step 3"));
  sink.Write(RecordOf("lost peer 4", Severity::kError));
  EXPECT_TRUE(sink.Contains("step 3"));
  EXPECT_FALSE(sink.Contains("step 4"));
  EXPECT_EQ(sink.CountAtLeast(Severity::kInfo), 2u);
  EXPECT_EQ(sink.CountAtLeast(Severity::kWarning), 1u);
  sink.Clear();
  EXPECT_TRUE(sink.records().empty());
}

TEST(TeeLogSink, EverySinkGetsEveryRecord) {
  auto a = std::make_shared<MemoryLogSink>();
  auto b = std::make_shared<MemoryLogSink>();
  TeeLogSink({a, b}).Write(RecordOf("both"));
  EXPECT_TRUE(a->Contains("both"));
  EXPECT_TRUE(b->Contains("both"));
}

}  // namespace
}  // namespace tierkeep
