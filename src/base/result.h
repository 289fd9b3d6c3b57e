// Errors as values. `Result<T>` holds a T or an Error; `Status` is Result<void>. No exceptions
// cross a function of this project; third-party calls that throw are wrapped where they are made.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace tierkeep {

// gRPC's numbering (https://grpc.github.io/grpc/core/md_doc_statuscodes.html), so that CSI answers
// map by cast. A new code only where some caller reacts differently to it.
enum class Code : uint8_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,  // no space, no memory, over a limit
  kFailedPrecondition = 9,
  kAborted = 10,  // lost a race: read again and retry
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,  // a peer or service can't be reached now: retry
  kDataLoss = 15,     // bytes differ from their digest
  kUnauthenticated = 16,
};

std::string_view CodeName(Code code);

class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message, int errno_value = 0)
      : code_(code), errno_(errno_value), message_(std::move(message)) {}

  Code code() const { return code_; }
  // The system call's errno, or 0.
  int errno_value() const { return errno_; }
  // One plain sentence for people; never parsed.
  const std::string& message() const { return message_; }
  // "DATA_LOSS: message" with the errno's text where there is one.
  std::string ToString() const;
  // The same error, its message led by `context` and ": ".
  Error With(std::string_view context) const;

 private:
  Code code_;
  int errno_;
  std::string message_;
};

// The error for errno `errno_value` met while doing `what` (ENOSPC is kResourceExhausted, ENOENT
// kNotFound, EEXIST kAlreadyExists, EACCES and EPERM kPermissionDenied, EIO kDataLoss, ...).
Error ErrnoError(int errno_value, std::string what);

template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using Base = tl::expected<T, Error>;
  using Base::Base;
  Result(Base base) : Base(std::move(base)) {}                   // NOLINT: what map() returns
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return this->has_value(); }
};

template <>
class [[nodiscard]] Result<void> : public tl::expected<void, Error> {
 public:
  using Base = tl::expected<void, Error>;
  using Base::Base;
  Result(Base base) : Base(std::move(base)) {}                   // NOLINT: what map() returns
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT: implicit on purpose
  bool ok() const { return this->has_value(); }
};

using Status = Result<void>;
inline Status OkStatus() { return Status(); }

#define TK_CONCAT_INNER(a, b) a##b
#define TK_CONCAT(a, b) TK_CONCAT_INNER(a, b)
// Returns the error of a Status expression from the calling function.
#define TK_RETURN_IF_ERROR(expr)                                       \
  do {                                                                 \
    auto tk_status_ = (expr);                                          \
    if (!tk_status_.has_value()) return std::move(tk_status_.error()); \
  } while (0)
// TK_ASSIGN_OR_RETURN(auto x, F()): x is the value, or the error is returned.
#define TK_ASSIGN_OR_RETURN(decl, expr) \
  TK_ASSIGN_OR_RETURN_(TK_CONCAT(tk_result_, __LINE__), decl, expr)
#define TK_ASSIGN_OR_RETURN_(tmp, decl, expr)          \
  auto tmp = (expr);                                   \
  if (!tmp.has_value()) return std::move(tmp.error()); \
  decl = std::move(*tmp)

}  // namespace tierkeep
