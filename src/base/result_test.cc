#include "base/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

namespace tierkeep {
namespace {

TEST(Code, NumbersAreThoseOfGrpc) {
  EXPECT_EQ(static_cast<int>(Code::kNotFound), 5);
  EXPECT_EQ(static_cast<int>(Code::kUnavailable), 14);
  EXPECT_EQ(static_cast<int>(Code::kUnauthenticated), 16);
}

TEST(Code, EveryCodeHasAName) {
  std::set<std::string_view> names;
  for (int i = 0; i <= 16; ++i) names.insert(CodeName(static_cast<Code>(i)));
  EXPECT_EQ(names.size(), 17u);
  EXPECT_EQ(names.count("INVALID_CODE"), 0u);
  EXPECT_EQ(CodeName(Code::kDataLoss), "DATA_LOSS");
  EXPECT_EQ(CodeName(static_cast<Code>(200)), "INVALID_CODE");
}

TEST(Error, TextHasCodeMessageAndErrno) {
  EXPECT_EQ(Error(Code::kDataLoss, "chunk 3 differs").ToString(), "DATA_LOSS: chunk 3 differs");
  EXPECT_EQ(ErrnoError(ENOSPC, "write x").ToString(),
            "RESOURCE_EXHAUSTED: write x (No space left on device, ENOSPC)");
  EXPECT_EQ(ErrnoError(4000, "ioctl").ToString(), "UNKNOWN: ioctl (unknown error, 4000)");
}

TEST(Error, ContextLeadsAndKeepsCodeAndErrno) {
  const Error error = ErrnoError(ENOENT, "open manifest").With("shard ab12");
  EXPECT_EQ(error.message(), "shard ab12: open manifest");
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_EQ(error.errno_value(), ENOENT);
}

TEST(Error, ErrnosMapToTheCodesThatCallersReactTo) {
  const std::pair<int, Code> cases[] = {
      {ENOENT, Code::kNotFound},
      {EEXIST, Code::kAlreadyExists},
      {EACCES, Code::kPermissionDenied},
      {EPERM, Code::kPermissionDenied},
      {ENOSPC, Code::kResourceExhausted},
      {ENOMEM, Code::kResourceExhausted},
      {EMFILE, Code::kResourceExhausted},
      {EIO, Code::kDataLoss},
      {ECONNREFUSED, Code::kUnavailable},
      {EAGAIN, Code::kUnavailable},
      {ETIMEDOUT, Code::kDeadlineExceeded},
      {EXDEV, Code::kUnimplemented},
      // Not kNotFound: a path through a file says nothing about what is missing.
      {ENOTDIR, Code::kFailedPrecondition},
      {ENOTEMPTY, Code::kFailedPrecondition},
      {0, Code::kInternal}};
  for (const auto& [errno_value, code] : cases) {
    EXPECT_EQ(CodeName(ErrnoError(errno_value, "x").code()), CodeName(code)) << errno_value;
  }
}

Result<std::string> Text(bool good) {
  if (!good) return Error(Code::kNotFound, "no text");
  return std::string("four");
}

Status Check(bool good) {
  if (!good) return Error(Code::kAborted, "lost");
  return OkStatus();
}

Result<size_t> Length(bool text_good, bool check_good) {
  TK_ASSIGN_OR_RETURN(const std::string text, Text(text_good));
  TK_RETURN_IF_ERROR(Check(check_good));
  return text.size();
}

TEST(Result, MacrosReturnTheFirstError) {
  EXPECT_EQ(Length(true, true).value(), 4u);
  EXPECT_EQ(Length(false, true).error().code(), Code::kNotFound);
  EXPECT_EQ(Length(true, false).error().code(), Code::kAborted);
}

TEST(Result, MoveOnlyValuesPass) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(7); };
  const auto outer = [&]() -> Result<std::unique_ptr<int>> {
    TK_ASSIGN_OR_RETURN(auto value, make());
    return value;
  };
  EXPECT_EQ(**outer(), 7);
}

TEST(Result, MapGivesAResultAgain) {
  const auto length = [](bool good) -> Result<size_t> {
    return Text(good).map([](const std::string& text) { return text.size(); });
  };
  EXPECT_EQ(length(true).value(), 4u);
  EXPECT_EQ(length(false).error().message(), "no text");
}

}  // namespace
}  // namespace tierkeep
