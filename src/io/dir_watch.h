// Changes in one directory (inotify; not recursive). After an overflow the receiver must scan.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace tierkeep {

struct DirChange {
  enum class Kind : uint8_t { kAppeared, kWritten, kGone, kOverflow } kind;
  // kAppeared: created or moved in; kWritten: closed after writing; kGone: deleted or moved away.
  std::string name;
};

// Threads: the callback runs on the watch's own thread, one call at a time, until destruction has
// returned. Events that happen after Start has returned are reported; earlier ones are not.
class DirWatch {
 public:
  using Callback = std::function<void(const DirChange&)>;
  virtual ~DirWatch() = default;
  static Result<std::unique_ptr<DirWatch>> Start(const std::string& path, Callback callback);
};

}  // namespace tierkeep
