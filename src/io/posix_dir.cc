// The real file system behind io/file_system.h.
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "base/escape_name.h"
#include "io/clock.h"
#include "io/file_system.h"
#include "io/posix_file.h"

namespace tierkeep {
namespace {

using posix::OpenBeneath;

// A name's parent directory, opened, and the name in it.
struct Place {
  UniqueFd opened;
  int dir = -1;
  std::string name;
};

class PosixDir : public Dir {
 public:
  enum class OpenedBy : uint8_t { kItsPath, kOther };
  PosixDir(UniqueFd fd, std::string name, OpenedBy by)
      : fd_(std::move(fd)), name_(std::move(name)), opened_by_(by) {}

  Result<std::unique_ptr<Dir>> OpenDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY, 0, "open directory"));
    std::string name = path.empty() ? name_ : name_ + "/" + std::string(path);
    return std::unique_ptr<Dir>(
        std::make_unique<PosixDir>(std::move(fd), std::move(name), OpenedBy::kOther));
  }

  Result<std::unique_ptr<File>> OpenFile(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, O_RDONLY));
    return posix::MakeFile(std::move(fd), Shown(path));
  }

  Result<std::unique_ptr<File>> OpenFileReadWrite(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegular(path, O_RDWR));
    return posix::MakeFile(std::move(fd), Shown(path));
  }

  Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) override {
    TK_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, O_RDWR | O_CREAT | O_EXCL, mode, "create"));
    return posix::MakeFile(std::move(fd), Shown(path));
  }

  Status MakeDir(std::string_view path, uint32_t mode) override {
    TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
    return Checked(::mkdirat(at.dir, at.name.c_str(), mode), "make directory", path);
  }

  Status MakeDirs(std::string_view path, uint32_t mode) override {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    UniqueFd opened;
    int dir = fd_.get();
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('/', begin), path.size());
      const std::string name(path.substr(begin, end - begin));
      if (::mkdirat(dir, name.c_str(), mode) != 0 && errno != EEXIST) {
        return Failed(errno, "make directory", path.substr(0, end));
      }
      UniqueFd next(OpenBeneath(dir, name.c_str(), O_PATH | O_DIRECTORY));
      if (!next.valid()) return NotOpened(errno, "make directory", path.substr(0, end));
      opened = std::move(next);
      dir = opened.get();
      begin = end + 1;
    }
    return OkStatus();
  }

  Status MakeSymlink(std::string_view target, std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
    return Checked(::symlinkat(std::string(target).c_str(), at.dir, at.name.c_str()), "make link",
                   path);
  }

  Result<std::string> ReadLink(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
    std::string target(PATH_MAX, '\0');
    const ssize_t n = ::readlinkat(at.dir, at.name.c_str(), target.data(), target.size());
    if (n < 0 && errno == EINVAL) {
      return Error(Code::kFailedPrecondition, "read link " + Shown(path) + ": not a link", EINVAL);
    }
    if (n < 0) return Failed(errno, "read link", path);
    target.resize(static_cast<size_t>(n));
    return target;
  }

  Result<FileStat> Stat(std::string_view path) override {
    // Not fstatat, which would look through a mount on the last component.
    TK_ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_PATH, 0, "stat"));
    return StatOf(fd, path);
  }

  Result<std::vector<DirEntry>> List(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY, 0, "list"));
    std::vector<DirEntry> entries;
    if (const int error = posix::ReadEntries(fd.get(), &entries); error != 0) {
      return Failed(error, "list", path);
    }
    std::sort(entries.begin(), entries.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return entries;
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return RenameWith(from, to, 0);
  }
  Status RenameNew(std::string_view from, std::string_view to) override {
    return RenameWith(from, to, RENAME_NOREPLACE);
  }

  Status HardLink(std::string_view from, std::string_view to) override {
    TK_ASSIGN_OR_RETURN(const Place source, Parent(from));
    TK_ASSIGN_OR_RETURN(const Place target, Parent(to));
    return Checked(::linkat(source.dir, source.name.c_str(), target.dir, target.name.c_str(), 0),
                   "hard-link " + Shown(from) + " to", to);
  }

  Status Unlink(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
    return Checked(::unlinkat(at.dir, at.name.c_str(), 0), "unlink", path);
  }

  Status RemoveDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
    return Checked(::unlinkat(at.dir, at.name.c_str(), AT_REMOVEDIR), "remove directory", path);
  }

  Status RemoveTree(std::string_view path) override {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    Result<Place> at = Parent(path);
    if (!at.ok() && at.error().code() == Code::kNotFound) return OkStatus();
    if (!at.ok()) return at.error();
    return posix::RemoveTreeAt(at->dir, at->name, Shown(path));
  }

  Result<std::string> ReadSmallFile(std::string_view path, uint64_t bytes_max) override {
    TK_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegular(path, O_RDONLY));
    TK_ASSIGN_OR_RETURN(const FileStat stat, StatOf(fd, path));
    const Error too_large(Code::kResourceExhausted, "read " + Shown(path) + ": larger than " +
                                                        std::to_string(bytes_max) + " bytes");
    if (stat.bytes > bytes_max) return too_large;
    std::string content;
    // To the end, not to the size seen before: the file may grow, and some file systems say 0.
    for (size_t filled = 0;;) {
      content.resize(filled + std::max<size_t>(stat.bytes - std::min(stat.bytes, filled), 4096));
      const ssize_t n = ::read(fd.get(), content.data() + filled, content.size() - filled);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed(errno, "read", path);
      filled += static_cast<size_t>(n);
      if (filled > bytes_max) return too_large;
      if (n == 0) {
        content.resize(filled);
        return content;
      }
    }
  }

  Status WriteFileAtomically(std::string_view path, std::string_view content,
                             uint32_t mode) override;

  Status SyncDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_RDONLY | O_DIRECTORY, 0, "sync"));
    return SyncDirectory(fd.get(), path);
  }

  Status SetOwnerAndMode(std::string_view path, uint32_t uid, uint32_t gid,
                         uint32_t mode) override {
    TK_ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_PATH, 0, "change owner of"));
    TK_ASSIGN_OR_RETURN(const FileStat stat, StatOf(fd, path));
    if (stat.type == FileType::kOther) return WrongType("change owner of", path);
    // The owner first, since changing it clears set-user-id bits.
    if ((stat.uid != uid || stat.gid != gid) &&
        ::fchownat(fd.get(), "", uid, gid, AT_EMPTY_PATH) != 0) {
      return Failed(errno, "change owner of", path);
    }
    if (stat.type == FileType::kSymlink) return OkStatus();  // links have no mode
    if (const int error = posix::ChangeModeOf(fd.get(), mode); error != 0) {
      return Failed(error, "change mode of", path);
    }
    return OkStatus();
  }

  Status SetImmutable(std::string_view path, bool immutable) override;
  Result<LeaseResult> ProbeWriters(std::string_view path) override;

  Result<SpaceInfo> Space() override {
    struct statvfs fs;
    if (::fstatvfs(fd_.get(), &fs) != 0) return Failed(errno, "read free space of", "");
    SpaceInfo info;
    info.total_bytes = uint64_t{fs.f_blocks} * fs.f_frsize;
    info.free_bytes = uint64_t{fs.f_bavail} * fs.f_frsize;
    info.free_inodes = fs.f_favail;
    return info;
  }

  Status CheckPath() override;

 private:
  // Names come from outside: escaped, so that an error in a log can't forge a line.
  std::string Shown(std::string_view path) const {
    return EscapeName(path.empty() ? name_ : name_ + "/" + std::string(path));
  }
  Error Failed(int error, std::string_view doing, std::string_view path) const {
    return ErrnoError(error, std::string(doing) + " " + Shown(path));
  }
  Error WrongType(std::string_view doing, std::string_view path) const {
    return Error(Code::kFailedPrecondition,
                 std::string(doing) + " " + Shown(path) + ": not the demanded type of file");
  }
  // Why OpenBeneath failed.
  Error NotOpened(int error, std::string_view doing, std::string_view path) const {
    if (error == EXDEV) {
      return Error(Code::kFailedPrecondition,
                   std::string(doing) + " " + Shown(path) + ": another mount is in the way", EXDEV);
    }
    // A socket, a pipe without readers, or a device without a driver.
    if (error == ENXIO || error == ENODEV) return WrongType(doing, path);
    return Failed(error, doing, path);
  }
  Status Checked(int rc, std::string_view doing, std::string_view path) const {
    if (rc != 0) return Failed(errno, doing, path);
    return OkStatus();
  }
  Status CheckPlain(std::string_view path) const {
    if (IsPlainPath(path)) return OkStatus();
    return Error(Code::kInvalidArgument, "not a plain relative path: " + EscapeName(path));
  }

  Result<UniqueFd> Open(std::string_view path, uint64_t flags, uint32_t mode,
                        std::string_view doing) const {
    if (!path.empty()) TK_RETURN_IF_ERROR(CheckPlain(path));
    const std::string text(path.empty() ? "." : path);
    UniqueFd fd(OpenBeneath(fd_.get(), text.c_str(), flags, mode));
    if (fd.valid()) return fd;
    return NotOpened(errno, doing, path);
  }

  Result<UniqueFd> OpenRegular(std::string_view path, uint64_t flags) const {
    TK_ASSIGN_OR_RETURN(UniqueFd fd, Open(path, flags, 0, "open"));
    TK_ASSIGN_OR_RETURN(const FileStat stat, StatOf(fd, path));
    if (stat.type != FileType::kFile) return WrongType("open", path);
    return fd;
  }

  Result<FileStat> StatOf(const UniqueFd& fd, std::string_view path) const {
    struct stat st;
    if (::fstat(fd.get(), &st) != 0) return Failed(errno, "stat", path);
    return posix::ToFileStat(st);
  }

  Result<Place> Parent(std::string_view path) const {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    Place place;
    const size_t slash = path.rfind('/');
    if (slash == std::string_view::npos) {
      place.dir = fd_.get();
      place.name = path;
      return place;
    }
    TK_ASSIGN_OR_RETURN(place.opened,
                        Open(path.substr(0, slash), O_PATH | O_DIRECTORY, 0, "open directory"));
    place.dir = place.opened.get();
    place.name = path.substr(slash + 1);
    return place;
  }

  Status RenameWith(std::string_view from, std::string_view to, unsigned flags) {
    TK_ASSIGN_OR_RETURN(const Place source, Parent(from));
    TK_ASSIGN_OR_RETURN(const Place target, Parent(to));
    return Checked(
        ::renameat2(source.dir, source.name.c_str(), target.dir, target.name.c_str(), flags),
        "rename " + Shown(from) + " to", to);
  }

  Status SyncDirectory(int dir, std::string_view path) const {
    // Some network file systems have nothing to sync in a directory and say EINVAL.
    if (::fsync(dir) != 0 && errno != EINVAL) return Failed(errno, "sync directory", path);
    return OkStatus();
  }

  Status WriteNewFile(const Place& at, const std::string& temporary, std::string_view content,
                      uint32_t mode, std::string_view path) const;

  const UniqueFd fd_;
  const std::string name_;  // its path, where it was opened by that
  const OpenedBy opened_by_;
};

Status PosixDir::WriteNewFile(const Place& at, const std::string& temporary,
                              std::string_view content, uint32_t mode,
                              std::string_view path) const {
  UniqueFd fd(OpenBeneath(at.dir, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600));
  if (!fd.valid()) return Failed(errno, "create a temporary file for", path);
  const int raw = fd.get();
  const std::unique_ptr<File> file = posix::MakeFile(std::move(fd), Shown(path));
  Status done = file->WriteAll(0, AsBytes(content));
  // Readers never see a mode that the umask has changed, or a half-open one.
  if (done.ok()) done = Checked(::fchmod(raw, mode), "change mode of", path);
  if (done.ok()) done = file->Sync();
  if (done.ok()) {
    done = Checked(::renameat(at.dir, temporary.c_str(), at.dir, at.name.c_str()),
                   "rename a temporary file to", path);
  }
  if (!done.ok()) ::unlinkat(at.dir, temporary.c_str(), 0);
  return done;
}

Status PosixDir::WriteFileAtomically(std::string_view path, std::string_view content,
                                     uint32_t mode) {
  TK_ASSIGN_OR_RETURN(const Place at, Parent(path));
  uint8_t nonce[8];
  SystemRandom().Fill(nonce, sizeof(nonce));
  // A long name is shortened, so that the temporary one isn't too long where the name is not.
  const std::string temporary =
      "." + at.name.substr(0, 200) + "." + ToHex(std::as_bytes(std::span(nonce))) + ".tmp";
  TK_RETURN_IF_ERROR(WriteNewFile(at, temporary, content, mode, path));
  UniqueFd dir(OpenBeneath(at.dir, ".", O_RDONLY | O_DIRECTORY));
  if (!dir.valid()) return Failed(errno, "sync the directory of", path);
  return SyncDirectory(dir.get(), path);
}

Status PosixDir::SetImmutable(std::string_view path, bool immutable) {
  TK_ASSIGN_OR_RETURN(const UniqueFd fd, Open(path, O_RDONLY, 0, "open"));
  TK_ASSIGN_OR_RETURN(const FileStat stat, StatOf(fd, path));
  if (stat.type != FileType::kFile && stat.type != FileType::kDirectory) {
    return WrongType("set flags of", path);
  }
  const int error = posix::ChangeInodeFlags(fd.get(), immutable ? FS_IMMUTABLE_FL : 0,
                                            immutable ? 0 : FS_IMMUTABLE_FL | FS_APPEND_FL);
  switch (error) {
    case 0:
      return OkStatus();
    case EPERM:
    case EACCES:
    case EINVAL:
    case ENOTTY:
    case ENOSYS:
    case EOPNOTSUPP:
      return Error(Code::kUnimplemented, "immutable flag of " + Shown(path) + " can't be changed",
                   error);
    default:
      return Failed(error, "set flags of", path);
  }
}

// As long as the directory is open nothing else has its device and inode. The mount's id would say
// less: a bind mount of the same tree at the path is as good.
Status PosixDir::CheckPath() {
  if (opened_by_ != OpenedBy::kItsPath) {
    return Error(Code::kUnimplemented, "check the path of " + Shown("") + ": it was opened below");
  }
  struct stat own;
  if (::fstat(fd_.get(), &own) != 0) return Failed(errno, "stat", "");
  struct stat there;
  if (::stat(name_.c_str(), &there) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return Failed(errno, "stat", "");
    return Error(Code::kAborted, "nothing is at " + Shown("") + " any more", errno);
  }
  if (there.st_dev == own.st_dev && there.st_ino == own.st_ino) return OkStatus();
  const bool same_device = there.st_dev == own.st_dev;
  return Error(Code::kAborted, "another " + std::string(same_device ? "directory" : "file system") +
                                   " is at " + Shown("") + " now");
}

Result<LeaseResult> PosixDir::ProbeWriters(std::string_view path) {
  TK_ASSIGN_OR_RETURN(const UniqueFd fd, OpenRegular(path, O_RDONLY));
  // Somebody may open the file for writing in the instant that the lease is held; the kernel then
  // signals us, with SIGIO by default, which would end the process. SIGURG is ignored by default.
  if (::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) return LeaseResult::kUnsupported;
  if (::fcntl(fd.get(), F_SETLEASE, F_RDLCK) == 0) {
    // Closing would release it too; this way the opener waits a moment less.
    ::fcntl(fd.get(), F_SETLEASE, F_UNLCK);
    return LeaseResult::kNoWriters;
  }
  if (errno == EAGAIN) return LeaseResult::kHasWriters;
  if (errno == EIO) return Failed(errno, "probe for writers of", path);
  return LeaseResult::kUnsupported;
}

}  // namespace

bool IsPlainPath(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view name = path.substr(0, slash);
    if (name.empty() || name == "." || name == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

Result<std::unique_ptr<Dir>> OpenPosixDir(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, "open directory " + EscapeName(path));
  return std::unique_ptr<Dir>(
      std::make_unique<PosixDir>(std::move(fd), path, PosixDir::OpenedBy::kItsPath));
}

}  // namespace tierkeep
