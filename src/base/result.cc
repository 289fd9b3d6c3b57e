#include "base/result.h"

#include <cerrno>
#include <cstring>

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

Code CodeOfErrno(int errno_value) {
  switch (errno_value) {
    case 0:
      return Code::kInternal;  // an error was reported, but errno was lost
    case ENOENT:
    case ENXIO:
    case ENODEV:
    case ESRCH:
      return Code::kNotFound;
    case EEXIST:
    case EADDRINUSE:
      return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG:
    case EMLINK:
    case ENOBUFS:
      return Code::kResourceExhausted;
    case EIO:
    case EBADMSG:
    case EUCLEAN:
      return Code::kDataLoss;
    case ETIMEDOUT:
      return Code::kDeadlineExceeded;
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ENOTCONN:
    case EPIPE:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case EAGAIN:
    case EINTR:
    case ESTALE:
      return Code::kUnavailable;
    case ECANCELED:
      return Code::kCancelled;
    case EINVAL:
    case ENAMETOOLONG:
    case EBADF:
    case EILSEQ:
    case E2BIG:
      return Code::kInvalidArgument;
    case EXDEV:
    case ENOSYS:
    case EOPNOTSUPP:
    case ENOTTY:  // an ioctl that this file system doesn't know
    case EAFNOSUPPORT:
    case EPROTONOSUPPORT:
      return Code::kUnimplemented;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EBUSY:
    case ETXTBSY:
    case ELOOP:
      return Code::kFailedPrecondition;
    case ERANGE:
    case EOVERFLOW:
    case EDOM:
      return Code::kOutOfRange;
    default:
      return Code::kUnknown;
  }
}

}  // namespace

Error ErrnoError(int errno_value, std::string what) {
  return Error(CodeOfErrno(errno_value), std::move(what), errno_value);
}

}  // namespace tierkeep
