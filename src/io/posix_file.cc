#include "io/posix_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tierkeep {
namespace {

size_t PageBytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

// A bad address is the map of a file that got shorter: its bytes are gone, the program is fine.
Error FileError(int errno_value, std::string what) {
  if (errno_value == EFAULT) {
    return Error(Code::kDataLoss, std::move(what) + ": the memory's file was truncated", EFAULT);
  }
  return ErrnoError(errno_value, std::move(what));
}

class PosixMapping : public Mapping {
 public:
  using Mapping::Mapping;
  ~PosixMapping() override {
    if (size() == 0) return;
    // The map began at the page that holds its first byte.
    const size_t lead = reinterpret_cast<uintptr_t>(data()) % PageBytes();
    TK_CHECK(::munmap(data() - lead, size() + lead) == 0);
  }
};

class PosixFile : public File {
 public:
  PosixFile(UniqueFd fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}

  Result<FileStat> Stat() override {
    struct stat st;
    if (::fstat(fd_.get(), &st) != 0) return FileError(errno, "stat " + name_);
    return posix::ToFileStat(st);
  }

  Status ReadExactly(uint64_t offset, MutableByteSpan out) override {
    while (!out.empty()) {
      const ssize_t n = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "read " + name_);
      if (n == 0) {
        return Error(Code::kDataLoss, "read " + name_ + ": the file is shorter than expected");
      }
      offset += static_cast<uint64_t>(n);
      out = out.subspan(static_cast<size_t>(n));
    }
    return OkStatus();
  }

  Status WriteAll(uint64_t offset, ByteSpan data) override {
    while (!data.empty()) {
      const ssize_t n = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "write " + name_);
      if (n == 0) return FileError(EIO, "write " + name_);  // POSIX leaves this open; no progress
      offset += static_cast<uint64_t>(n);
      data = data.subspan(static_cast<size_t>(n));
    }
    return OkStatus();
  }

  Status Resize(uint64_t bytes) override {
    int rc;
    do {
      rc = ::ftruncate(fd_.get(), static_cast<off_t>(bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) return FileError(errno, "resize " + name_);
    return OkStatus();
  }

  Status Allocate(uint64_t offset, uint64_t bytes) override {
    if (bytes == 0) return OkStatus();
    int rc;
    do {
      rc = ::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
    } while (rc != 0 && errno == EINTR);
    if (rc != 0) return FileError(errno, "allocate space for " + name_);
    return OkStatus();
  }

  Result<std::unique_ptr<Mapping>> Map(uint64_t offset, size_t bytes, MapAccess access) override {
    if (bytes == 0) return std::make_unique<PosixMapping>(nullptr, 0);
    const size_t lead = offset % PageBytes();
    const int protection = access == MapAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
    void* at = ::mmap(nullptr, bytes + lead, protection, MAP_SHARED, fd_.get(),
                      static_cast<off_t>(offset - lead));
    if (at == MAP_FAILED) return FileError(errno, "map " + name_);
    return std::make_unique<PosixMapping>(static_cast<std::byte*>(at) + lead, bytes);
  }

  Status Sync() override {
    if (::fsync(fd_.get()) != 0) return FileError(errno, "sync " + name_);
    return OkStatus();
  }

  int descriptor() const override { return fd_.get(); }

 private:
  const UniqueFd fd_;
  const std::string name_;
};

}  // namespace

namespace posix {

FileType ToFileType(uint32_t st_mode) {
  if (S_ISREG(st_mode)) return FileType::kFile;
  if (S_ISDIR(st_mode)) return FileType::kDirectory;
  if (S_ISLNK(st_mode)) return FileType::kSymlink;
  return FileType::kOther;
}

FileStat ToFileStat(const struct stat& st) {
  FileStat out;
  out.type = ToFileType(st.st_mode);
  out.bytes = static_cast<uint64_t>(st.st_size);
  out.inode = st.st_ino;
  out.device = st.st_dev;
  out.links = st.st_nlink;
  out.blocks_bytes = static_cast<uint64_t>(st.st_blocks) * 512;
  out.change_time_ns = int64_t{st.st_ctim.tv_sec} * 1000000000 + st.st_ctim.tv_nsec;
  out.mode = st.st_mode & 07777;
  out.uid = st.st_uid;
  out.gid = st.st_gid;
  return out;
}

std::unique_ptr<File> MakeFile(UniqueFd fd, std::string name) {
  return std::make_unique<PosixFile>(std::move(fd), std::move(name));
}

int OpenBeneath(int dir, const char* path, uint64_t flags, uint32_t mode) {
  struct open_how how {};
  how.flags = flags | O_CLOEXEC | O_NOFOLLOW;
  if ((flags & O_PATH) == 0) how.flags |= O_NONBLOCK | O_NOCTTY;
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: a rename elsewhere raced with the resolution, or somebody holds a lease on the file
  // (ProbeWriters does, for an instant). Both pass; a lease that stays is the caller's to report.
  for (int tries = 0;; ++tries) {
    const long fd = ::syscall(SYS_openat2, dir, path, &how, sizeof(how));
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == EINTR) continue;
    if (errno != EAGAIN || tries == 100) return -1;
    ::sched_yield();
  }
}

int ChangeInodeFlags(int fd, int add, int remove, bool* changed) {
  int flags = 0;
  if (::ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return errno;
  int wanted = (flags | add) & ~remove;
  if (changed != nullptr) *changed = wanted != flags;
  if (wanted == flags) return 0;
  return ::ioctl(fd, FS_IOC_SETFLAGS, &wanted) == 0 ? 0 : errno;
}

int ChangeModeOf(int path_fd, uint32_t mode) {
  // fchmod refuses O_PATH descriptors and fchmodat2 needs Linux 6.6; the descriptor's magic link
  // leads to the very inode, without a second resolution (glibc does the same).
  const std::string self = "/proc/self/fd/" + std::to_string(path_fd);
  return ::chmod(self.c_str(), mode) == 0 ? 0 : errno;
}

int ReadEntries(int dir, std::vector<DirEntry>* out) {
  UniqueFd fd(::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // a position of its own
  if (!fd.valid()) return errno;
  DIR* stream = ::fdopendir(fd.get());
  if (stream == nullptr) return errno;
  [[maybe_unused]] const int owned_by_stream = fd.Release();
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, ::closedir);
  for (;;) {
    errno = 0;
    const struct dirent* entry = ::readdir(stream);
    if (entry == nullptr) return errno;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    FileType type = FileType::kOther;
    if (entry->d_type == DT_UNKNOWN) {
      struct stat st;
      if (::fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;  // gone since
        return errno;
      }
      type = ToFileType(st.st_mode);
    } else {
      type = ToFileType(DTTOIF(entry->d_type));
    }
    out->push_back({std::string(name), type});
  }
}

}  // namespace posix
}  // namespace tierkeep
