// Files below one directory. Every path is relative to a Dir, '/'-separated, and resolved without
// following any symbolic link, without leaving the directory and without crossing a mount
// (openat2 RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV; man openat2): whatever a
// workload plants, no call leaves the tree. Files are opened O_NONBLOCK so that a planted pipe
// can't hang, and anything but the demanded type, a link or mount on the way included, is
// kFailedPrecondition. "", ".", ".." and a leading '/' are kInvalidArgument in any component.
//
// Threads: any, also on the same object. Errors: ErrnoError of the failing call, naming the path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

enum class FileType : uint8_t { kFile, kDirectory, kSymlink, kOther };

struct FileStat {
  FileType type = FileType::kOther;
  uint64_t bytes = 0;
  uint64_t inode = 0;
  uint64_t device = 0;
  uint64_t links = 0;
  uint64_t blocks_bytes = 0;   // really allocated
  int64_t change_time_ns = 0;  // ctime
  uint32_t mode = 0;           // 07777
  uint32_t uid = 0;
  uint32_t gid = 0;
};

struct DirEntry {
  std::string name;  // raw bytes, may be anything
  FileType type = FileType::kOther;
};

struct SpaceInfo {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t free_inodes = 0;
};

// No empty, "." or ".." component and no zero byte: then a path means one thing only, and leads
// nowhere but down.
bool IsPlainPath(std::string_view path);

// A mapped range; unmapped on destruction. Reading one that a stranger can truncate is SIGBUS, so
// only our own incoming files are mapped for use by our code (docs/ARCHITECTURE.md, "Staging").
class Mapping {
 public:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  virtual ~Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_;
  size_t size_;
};

enum class MapAccess : uint8_t { kRead, kReadWrite };

class File {
 public:
  virtual ~File() = default;
  virtual Result<FileStat> Stat() = 0;
  // Exactly `out.size()` bytes at `offset`, or kDataLoss "file is shorter".
  virtual Status ReadExactly(uint64_t offset, MutableByteSpan out) = 0;
  virtual Status WriteAll(uint64_t offset, ByteSpan data) = 0;
  virtual Status Resize(uint64_t bytes) = 0;
  // Takes the space for a range now, growing the file where needed: later writes into it, through a
  // map too (where a full file system is SIGBUS), find it. kResourceExhausted where there is none.
  virtual Status Allocate(uint64_t offset, uint64_t bytes) = 0;
  virtual Result<std::unique_ptr<Mapping>> Map(uint64_t offset, size_t bytes, MapAccess access) = 0;
  // Durable on the device (a no-op in effect on tmpfs).
  virtual Status Sync() = 0;
  // The descriptor for sendfile or send from a map; -1 where there is none (simulation).
  virtual int descriptor() const = 0;
};

enum class LeaseResult : uint8_t { kNoWriters, kHasWriters, kUnsupported };

class Dir {
 public:
  virtual ~Dir() = default;

  // "" is the directory itself.
  virtual Result<std::unique_ptr<Dir>> OpenDir(std::string_view path) = 0;
  virtual Result<std::unique_ptr<File>> OpenFile(std::string_view path) = 0;  // to read
  virtual Result<std::unique_ptr<File>> OpenFileReadWrite(std::string_view path) = 0;
  // A new file (O_EXCL) to read and write, or kAlreadyExists. Here and for directories the umask
  // takes bits from `mode`; SetOwnerAndMode and WriteFileAtomically set it exactly.
  virtual Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) = 0;
  virtual Status MakeDir(std::string_view path, uint32_t mode) = 0;   // kAlreadyExists
  virtual Status MakeDirs(std::string_view path, uint32_t mode) = 0;  // existing ones are fine
  virtual Status MakeSymlink(std::string_view target, std::string_view path) = 0;
  virtual Result<std::string> ReadLink(std::string_view path) = 0;
  virtual Result<FileStat> Stat(std::string_view path) = 0;  // of a link: the link itself
  // Sorted by name, without "." and "..".
  virtual Result<std::vector<DirEntry>> List(std::string_view path) = 0;
  // Visible at once; replaces a file, or an empty directory by a directory.
  virtual Status Rename(std::string_view from, std::string_view to) = 0;
  // RENAME_NOREPLACE: kAlreadyExists when `to` is there.
  virtual Status RenameNew(std::string_view from, std::string_view to) = 0;
  virtual Status HardLink(std::string_view from, std::string_view to) = 0;
  virtual Status Unlink(std::string_view path) = 0;     // files, links, pipes; absent: kNotFound
  virtual Status RemoveDir(std::string_view path) = 0;  // an empty one
  // The whole tree, whatever is in it and however deep; absent is fine. Clears immutable flags on
  // the way; a file with another name elsewhere gets its flag back. kAborted when a directory is
  // moved away meanwhile. After an error some of it may be gone.
  virtual Status RemoveTree(std::string_view path) = 0;
  // A small regular file, whole; larger than `bytes_max` is kResourceExhausted.
  virtual Result<std::string> ReadSmallFile(std::string_view path, uint64_t bytes_max) = 0;
  // Temporary file with a random name, write, sync, rename, sync directory: durable and atomic.
  virtual Status WriteFileAtomically(std::string_view path, std::string_view content,
                                     uint32_t mode) = 0;
  virtual Status SyncDir(std::string_view path) = 0;
  virtual Status SetOwnerAndMode(std::string_view path, uint32_t uid, uint32_t gid,
                                 uint32_t mode) = 0;
  // FS_IMMUTABLE_FL of a file or directory; kUnimplemented where the file system or our rights
  // don't allow it.
  virtual Status SetImmutable(std::string_view path, bool immutable) = 0;
  // Whether somebody, this process included, has the regular file open for writing or mapped
  // writable and shared (a read lease is refused then; man fcntl, F_SETLEASE).
  virtual Result<LeaseResult> ProbeWriters(std::string_view path) = 0;
  virtual Result<SpaceInfo> Space() = 0;
  // Whether the path that this directory was opened by (OpenPosixDir) still leads to it. After a
  // lazy unmount, or with something mounted over it, an open directory works on as before, as a
  // tree that nobody else sees, and no watch tells. kAborted: the path leads elsewhere or nowhere,
  // which the message says; another error: it can't be told. kUnimplemented for what OpenDir gave.
  virtual Status CheckPath() = 0;
};

// The real one. Fails when `path` is not a directory; the path itself may lead over links, since
// an administrator names it.
Result<std::unique_ptr<Dir>> OpenPosixDir(const std::string& path);

}  // namespace tierkeep
