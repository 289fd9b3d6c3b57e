#include "io/temp_dir_testutil.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/check.h"

namespace tierkeep {

TempDir::TempDir(const std::string& root) : parent_(root.empty() ? testing::TempDir() : root) {
  while (parent_.size() > 1 && parent_.back() == '/') parent_.pop_back();
  path_ = parent_ + "/tierkeep_test_XXXXXX";
  TK_CHECK_MSG(::mkdtemp(path_.data()) != nullptr, "mkdtemp " + path_);
  name_ = path_.substr(parent_.size() + 1);
  Result<std::unique_ptr<Dir>> dir = OpenPosixDir(path_);
  TK_CHECK_MSG(dir.ok(), dir.error().ToString());
  dir_ = std::move(*dir);
}

TempDir::~TempDir() {
  const Result<std::unique_ptr<Dir>> parent = OpenPosixDir(parent_);
  if (!parent.ok()) return;
  const Status removed = (*parent)->RemoveTree(name_);
  EXPECT_TRUE(removed.ok()) << removed.error().ToString();
}

}  // namespace tierkeep
