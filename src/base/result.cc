#include "base/result.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <initializer_list>

namespace tierkeep {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kUnknown:
      return "UNKNOWN";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "ALREADY_EXISTS";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kAborted:
      return "ABORTED";
    case Code::kOutOfRange:
      return "OUT_OF_RANGE";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "INVALID_CODE";  // a byte from outside that was cast without a check
}

std::string Error::ToString() const {
  std::string text(CodeName(code_));
  text.append(": ").append(message_);
  if (errno_ == 0) return text;
  const char* description = ::strerrordesc_np(errno_);
  const char* name = ::strerrorname_np(errno_);
  text.append(" (").append(description ? description : "unknown error").append(", ");
  return text.append(name ? name : std::to_string(errno_)).append(")");
}

Error Error::With(std::string_view context) const {
  return Error(code_, std::string(context).append(": ").append(message_), errno_);
}

namespace {

struct ErrnoGroup {
  Code code;
  std::initializer_list<int> errnos;
};

Code CodeOfErrno(int errno_value) {
  static constexpr ErrnoGroup kGroups[] = {
      // An error was reported, but its errno was lost.
      {Code::kInternal, {0}},
      {Code::kNotFound, {ENOENT, ENXIO, ENODEV, ESRCH}},
      {Code::kAlreadyExists, {EEXIST, EADDRINUSE}},
      {Code::kPermissionDenied, {EACCES, EPERM, EROFS}},
      {Code::kResourceExhausted, {ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE, EFBIG, EMLINK, ENOBUFS}},
      {Code::kDataLoss, {EIO, EBADMSG, EUCLEAN}},
      {Code::kDeadlineExceeded, {ETIMEDOUT}},
      {Code::kUnavailable,
       {ECONNREFUSED, ECONNRESET, ECONNABORTED, ENOTCONN, EPIPE, EHOSTUNREACH, EHOSTDOWN,
        ENETUNREACH, ENETDOWN, ENETRESET, EAGAIN, EINTR, ESTALE}},
      {Code::kCancelled, {ECANCELED}},
      {Code::kInvalidArgument, {EINVAL, ENAMETOOLONG, EBADF, EILSEQ, E2BIG}},
      // ENOTTY: an ioctl that this file system doesn't know.
      {Code::kUnimplemented, {EXDEV, ENOSYS, EOPNOTSUPP, ENOTTY, EAFNOSUPPORT, EPROTONOSUPPORT}},
      // ENOTDIR isn't kNotFound: a path through a file says nothing about what is missing.
      {Code::kFailedPrecondition, {ENOTDIR, EISDIR, ENOTEMPTY, EBUSY, ETXTBSY, ELOOP}},
      {Code::kOutOfRange, {ERANGE, EOVERFLOW, EDOM}},
  };
  for (const ErrnoGroup& group : kGroups) {
    if (std::count(group.errnos.begin(), group.errnos.end(), errno_value) > 0) return group.code;
  }
  return Code::kUnknown;
}

}  // namespace

Error ErrnoError(int errno_value, std::string what) {
  return Error(CodeOfErrno(errno_value), std::move(what), errno_value);
}

}  // namespace tierkeep
