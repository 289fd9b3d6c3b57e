// Changes in one directory (inotify; not recursive). After an overflow the receiver must scan.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace tierkeep {

struct DirChange {
  enum class Kind : uint8_t { kCreated, kMovedIn, kWritten, kGone, kOverflow } kind;
  // kCreated: made in place, so a file may still be half-written (links and hard links appear this
  // way too, whole); kMovedIn: renamed in, from this directory or another; kWritten: closed after
  // writing; kGone: deleted or moved away. Empty for kOverflow, and for kGone when the watched
  // directory itself is deleted, moved or unmounted: then no further change is reported.
  std::string name;
};

// Threads: the callback runs on the watch's own thread, one call at a time, until destruction has
// returned; it must not destroy the watch. Events that happen after Start has returned are
// reported; earlier ones are not. An idle watch uses no processor time. Errors of Start: those of
// opening a directory; kResourceExhausted at the user's limit of inotify instances or watches.
class DirWatch {
 public:
  using Callback = std::function<void(const DirChange&)>;
  virtual ~DirWatch() = default;
  static Result<std::unique_ptr<DirWatch>> Start(const std::string& path, Callback callback);
};

}  // namespace tierkeep
