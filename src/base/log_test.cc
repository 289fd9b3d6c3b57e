#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

#include "base/log_sinks.h"
#include "base/prng.h"

namespace tierkeep {
namespace {

TEST(EscapeForLog, KeepsPlainTextAndUtf8) {
  EXPECT_EQ(EscapeForLog("step 100, état α 漢 😀"), "step 100, état α 漢 😀");
  EXPECT_EQ(EscapeForLog(""), "");
}

TEST(EscapeForLog, D12_EscapesWhatCouldForgeALine) {
  EXPECT_EQ(EscapeForLog("a\nb\r\tc\x1b[31m\x7f"), "a\\x0ab\\x0d\\x09c\\x1b[31m\\x7f");
  EXPECT_EQ(EscapeForLog(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(EscapeForLog("\u0085\u2028\u202e\u2066"),
            "\\xc2\\x85\\xe2\\x80\\xa8\\xe2\\x80\\xae\\xe2\\x81\\xa6");
}

TEST(EscapeForLog, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(EscapeForLog("a\xff z"), "a\\xff z");
  EXPECT_EQ(EscapeForLog("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(EscapeForLog("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(EscapeForLog("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  EXPECT_EQ(EscapeForLog("\xe2\x82"), "\\xe2\\x82");                    // cut short
}

TEST(EscapeForLog, CutsBetweenCharactersWithinTheLimit) {
  EXPECT_EQ(EscapeForLog("abcdef", 6), "abcdef");
  EXPECT_EQ(EscapeForLog("abcdefg", 6), "abc…");
  EXPECT_EQ(EscapeForLog("éééé", 6), "é…");
  EXPECT_EQ(EscapeForLog("\n\n\n", 8), "\\x0a…");
}

TEST(EscapeForLog, AnyBytesBecomeOneBoundedPrintableLine) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Prng prng(seed);
    const std::string line = EscapeForLog(prng.Bytes(prng.Below(300)), 100);
    ASSERT_LE(line.size(), 100u) << "seed " << seed;
    for (const char c : line) ASSERT_FALSE(static_cast<uint8_t>(c) < 0x20) << "seed " << seed;
    ASSERT_EQ(EscapeForLog(line), line) << "seed " << seed;
  }
}

TEST(FunctionOfSignature, FindsTheNameInEveryForm) {
  EXPECT_EQ(FunctionOfSignature("int main()"), "main");
  EXPECT_EQ(FunctionOfSignature("void tierkeep::Node::OnEvent(const Event&)"), "OnEvent");
  EXPECT_EQ(FunctionOfSignature("std::map<int, void (*)(int)> a::B<C<D>>::Find(int) const"),
            "Find");
  EXPECT_EQ(
      FunctionOfSignature("tierkeep::Result<int> tierkeep::{anonymous}::Foo(T) [with T = F()]"),
      "Foo");
  EXPECT_EQ(FunctionOfSignature("void (anonymous namespace)::Foo()"), "Foo");
  EXPECT_EQ(FunctionOfSignature("a::B::Run(int)::<lambda(auto:1)> [with auto:1 = int]"), "Run");
  EXPECT_EQ(FunctionOfSignature("bool a::B::operator()(int) const"), "operator()");
  EXPECT_EQ(FunctionOfSignature("T a::Get<int>(T)"), "Get");
  EXPECT_EQ(FunctionOfSignature("char* Text()"), "Text");
  EXPECT_EQ(FunctionOfSignature("a::B::~B()"), "~B");
  EXPECT_EQ(FunctionOfSignature(""), "");
}

class Speaker {
 public:
  void Say(const Logger& log) { log.Info("step {} of {}", 7, std::string("job")); }
  template <typename T>
  void SayAs(const Logger& log, T value) {
    [&] { log.Error("value {:.1f}", value); }();
  }
};

TEST(Logger, RecordsCarryPlaceAndText) {
  auto sink = std::make_shared<MemoryLogSink>();
  const Logger log(sink);
  const uint32_t here = __LINE__;
  log.Warning("plain");
  log.WriteText(Severity::kDebug, "{not a format}");
  Speaker().Say(log);
  Speaker().SayAs(log, 2.5);
  const auto records = sink->records();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].severity, Severity::kWarning);
  EXPECT_EQ(records[0].module, "log_test");
  EXPECT_EQ(records[0].function, "TestBody");
  EXPECT_EQ(records[0].line, here + 1);
  EXPECT_EQ(records[0].text, "plain");
  EXPECT_EQ(records[1].line, here + 2);
  EXPECT_EQ(records[1].text, "{not a format}");
  EXPECT_EQ(records[2].function, "Say");
  EXPECT_EQ(records[2].text, "step 7 of job");
  EXPECT_EQ(records[3].function, "SayAs");
  EXPECT_EQ(records[3].text, "value 2.5");
}

TEST(Logger, WithoutASinkItDiscards) {
  Logger().Error("nobody hears {}", "this");
  Logger().WriteText(Severity::kError, "nor this");
}

}  // namespace
}  // namespace tierkeep
