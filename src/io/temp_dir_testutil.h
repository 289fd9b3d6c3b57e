// A directory of its own for one test, removed with all that is in it.
#pragma once

#include <memory>
#include <string>

#include "io/file_system.h"

namespace tierkeep {

class TempDir {
 public:
  // Below `root`, or below the place for temporary files (TEST_TMPDIR, /tmp) when that is empty.
  explicit TempDir(const std::string& root = "");
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }
  Dir& dir() { return *dir_; }

 private:
  std::string parent_;
  std::string name_;
  std::string path_;
  std::unique_ptr<Dir> dir_;
};

}  // namespace tierkeep
