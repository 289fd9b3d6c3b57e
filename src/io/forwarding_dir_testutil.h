// Hands every call on: a test overrides only what it breaks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/file_system.h"

namespace tierkeep {

class ForwardingDir : public Dir {
 public:
  explicit ForwardingDir(std::unique_ptr<Dir> inner) : inner_(std::move(inner)) {}

  Result<std::unique_ptr<Dir>> OpenDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(std::unique_ptr<Dir> dir, inner_->OpenDir(path));
    return Wrap(std::move(dir));
  }
  Result<std::unique_ptr<File>> OpenFile(std::string_view path) override {
    return inner_->OpenFile(path);
  }
  Result<std::unique_ptr<File>> OpenFileReadWrite(std::string_view path) override {
    return inner_->OpenFileReadWrite(path);
  }
  Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) override {
    return inner_->CreateFile(path, mode);
  }
  Status MakeDir(std::string_view path, uint32_t mode) override {
    return inner_->MakeDir(path, mode);
  }
  Status MakeDirs(std::string_view path, uint32_t mode) override {
    return inner_->MakeDirs(path, mode);
  }
  Status MakeSymlink(std::string_view target, std::string_view path) override {
    return inner_->MakeSymlink(target, path);
  }
  Result<std::string> ReadLink(std::string_view path) override { return inner_->ReadLink(path); }
  Result<FileStat> Stat(std::string_view path) override { return inner_->Stat(path); }
  Result<std::vector<DirEntry>> List(std::string_view path) override { return inner_->List(path); }
  Status Rename(std::string_view from, std::string_view to) override {
    return inner_->Rename(from, to);
  }
  Status RenameNew(std::string_view from, std::string_view to) override {
    return inner_->RenameNew(from, to);
  }
  Status HardLink(std::string_view from, std::string_view to) override {
    return inner_->HardLink(from, to);
  }
  Status Unlink(std::string_view path) override { return inner_->Unlink(path); }
  Status RemoveDir(std::string_view path) override { return inner_->RemoveDir(path); }
  Status RemoveTree(std::string_view path) override { return inner_->RemoveTree(path); }
  Result<std::string> ReadSmallFile(std::string_view path, uint64_t bytes_max) override {
    return inner_->ReadSmallFile(path, bytes_max);
  }
  Status WriteFileAtomically(std::string_view path, std::string_view content,
                             uint32_t mode) override {
    return inner_->WriteFileAtomically(path, content, mode);
  }
  Status SyncDir(std::string_view path) override { return inner_->SyncDir(path); }
  Status SetOwnerAndMode(std::string_view path, uint32_t uid, uint32_t gid,
                         uint32_t mode) override {
    return inner_->SetOwnerAndMode(path, uid, gid, mode);
  }
  Status SetImmutable(std::string_view path, bool immutable) override {
    return inner_->SetImmutable(path, immutable);
  }
  Result<LeaseResult> ProbeWriters(std::string_view path) override {
    return inner_->ProbeWriters(path);
  }
  Result<SpaceInfo> Space() override { return inner_->Space(); }
  Status CheckPath() override { return inner_->CheckPath(); }

 protected:
  // What OpenDir returns for a directory below: a test that breaks calls there wraps it too.
  virtual std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) { return dir; }
  Dir& inner() { return *inner_; }

 private:
  const std::unique_ptr<Dir> inner_;
};

}  // namespace tierkeep
