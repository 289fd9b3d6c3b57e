// Removal of a whole tree with one open descriptor and no recursion, however deep it is.
#include <fcntl.h>
#include <linux/fs.h>

#include <cerrno>

#include "base/escape_name.h"
#include "io/posix_file.h"

namespace tierkeep::posix {
namespace {

// How often a directory is read again because somebody keeps adding to it.
constexpr int kRoundsMax = 16;

struct Level {
  std::string name;  // in its parent
  dev_t device = 0;
  ino_t inode = 0;
  int rounds = 0;
  std::vector<std::string> subdirectories;  // still to be removed
};

// 0 or the errno. Opens a directory that the removal may empty: one without permissions for its
// owner gets them first (that matters when we aren't root).
int OpenToEmpty(int parent, const std::string& name, UniqueFd* out) {
  UniqueFd fd(OpenBeneath(parent, name.c_str(), O_RDONLY | O_DIRECTORY));
  if (!fd.valid() && errno == EACCES) {
    UniqueFd path(OpenBeneath(parent, name.c_str(), O_PATH | O_DIRECTORY));
    if (!path.valid()) return errno;
    if (ChangeModeOf(path.get(), 0700) != 0) return EACCES;
    fd.Reset(OpenBeneath(parent, name.c_str(), O_RDONLY | O_DIRECTORY));
  }
  if (!fd.valid()) return errno;
  *out = std::move(fd);
  return 0;
}

// Lets entries of `dir` be removed: permissions for the owner, no immutable or append-only flag.
// Failures show at the removal itself.
void Unlock(int dir) {
  ChangeInodeFlags(dir, 0, FS_IMMUTABLE_FL | FS_APPEND_FL);
  struct stat st;
  if (::fstat(dir, &st) == 0 && (st.st_mode & 0700) != 0700) {
    ::fchmod(dir, (st.st_mode & 07777) | 0700);
  }
}

// 0 or the errno; absent is fine.
int UnlinkWith(int dir, const char* name, int flags) {
  return ::unlinkat(dir, name, flags) == 0 || errno == ENOENT ? 0 : errno;
}

// Removes a file or link. The flag of an immutable file is cleared for it, and set again where the
// file has another name: that name's protection isn't ours to drop.
int UnlinkEntry(int dir, const std::string& name) {
  int error = UnlinkWith(dir, name.c_str(), 0);
  if (error != EPERM && error != EACCES) return error;
  Unlock(dir);
  error = UnlinkWith(dir, name.c_str(), 0);
  if (error != EPERM) return error;
  const UniqueFd file(OpenBeneath(dir, name.c_str(), O_RDONLY));
  if (!file.valid()) return error;
  bool was_immutable = false;
  if (ChangeInodeFlags(file.get(), 0, FS_IMMUTABLE_FL, &was_immutable) != 0) return error;
  ChangeInodeFlags(file.get(), 0, FS_APPEND_FL);
  error = UnlinkWith(dir, name.c_str(), 0);
  struct stat st;
  if (was_immutable && ::fstat(file.get(), &st) == 0 && st.st_nlink > 0) {
    ChangeInodeFlags(file.get(), FS_IMMUTABLE_FL, 0);
  }
  return error;
}

int RemoveEmpty(int dir, const std::string& name) {
  int error = UnlinkWith(dir, name.c_str(), AT_REMOVEDIR);
  if (error != EPERM && error != EACCES) return error;
  Unlock(dir);
  UniqueFd self;
  if (OpenToEmpty(dir, name, &self) == 0) Unlock(self.get());
  return UnlinkWith(dir, name.c_str(), AT_REMOVEDIR);
}

class Remover {
 public:
  Remover(int dir, std::string shown) : top_(dir), shown_(std::move(shown)) {}

  Status Run(const std::string& name) {
    TK_RETURN_IF_ERROR(Enter(top_, name));
    while (!levels_.empty()) {
      Level& level = levels_.back();
      if (!level.subdirectories.empty()) {
        const std::string next = std::move(level.subdirectories.back());
        level.subdirectories.pop_back();
        TK_RETURN_IF_ERROR(Enter(current_.get(), next));
      } else {
        TK_RETURN_IF_ERROR(Leave());
      }
    }
    return OkStatus();
  }

 private:
  Error Failed(int error, const std::string& name) const {
    if (error == EXDEV) {
      return Error(Code::kFailedPrecondition,
                   "remove " + shown_ + ": something is mounted at " + EscapeName(name), EXDEV);
    }
    return ErrnoError(error, "remove " + shown_ + ": at " + EscapeName(name));
  }

  // Goes down into `name` of `parent` and removes its files; what is no directory is just removed.
  Status Enter(int parent, const std::string& name) {
    UniqueFd fd;
    const int error = OpenToEmpty(parent, name, &fd);
    if (error == ENOENT) return OkStatus();
    if (error == ENOTDIR || error == ELOOP) {
      const int unlink_error = UnlinkEntry(parent, name);
      if (unlink_error != 0) return Failed(unlink_error, name);
      return OkStatus();
    }
    if (error != 0) return Failed(error, name);
    struct stat st;
    if (::fstat(fd.get(), &st) != 0) return Failed(errno, name);
    levels_.push_back({name, st.st_dev, st.st_ino, 0, {}});
    current_ = std::move(fd);
    return Sweep();
  }

  // Removes all but the directories of the current one, and notes these.
  Status Sweep() {
    Level& level = levels_.back();
    std::vector<DirEntry> entries;
    if (const int error = ReadEntries(current_.get(), &entries); error != 0) {
      return Failed(error, level.name);
    }
    for (DirEntry& entry : entries) {
      if (entry.type == FileType::kDirectory) {
        level.subdirectories.push_back(std::move(entry.name));
        continue;
      }
      int error = UnlinkEntry(current_.get(), entry.name);
      if (error == EISDIR) {  // replaced by a directory since
        level.subdirectories.push_back(std::move(entry.name));
        error = 0;
      }
      if (error != 0) return Failed(error, entry.name);
    }
    return OkStatus();
  }

  // Goes up and removes the directory just left.
  Status Leave() {
    UniqueFd parent;
    if (levels_.size() > 1) {
      parent.Reset(::openat(current_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (!parent.valid()) return Failed(errno, levels_.back().name);
      // Somebody with a descriptor in the tree may move this directory while we are in it; going
      // up would then lead out of the tree, into what isn't ours to remove.
      const Level& above = levels_[levels_.size() - 2];
      struct stat st;
      if (::fstat(parent.get(), &st) != 0) return Failed(errno, above.name);
      if (st.st_dev != above.device || st.st_ino != above.inode) {
        return Error(Code::kAborted, "remove " + shown_ + ": " + EscapeName(levels_.back().name) +
                                         " was moved away meanwhile");
      }
    }
    Level& level = levels_.back();
    const int dir = parent.valid() ? parent.get() : top_;
    const int error = RemoveEmpty(dir, level.name);
    if ((error == ENOTEMPTY || error == EEXIST) && ++level.rounds < kRoundsMax) return Sweep();
    if (error != 0) return Failed(error, level.name);
    levels_.pop_back();
    current_ = std::move(parent);
    return OkStatus();
  }

  const int top_;
  const std::string shown_;
  std::vector<Level> levels_;
  UniqueFd current_;  // the directory of levels_.back()
};

}  // namespace

Status RemoveTreeAt(int dir, const std::string& name, const std::string& shown) {
  return Remover(dir, shown).Run(name);
}

}  // namespace tierkeep::posix
