// Pieces that the parts of the real file system share.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "io/file_system.h"
#include "io/unique_fd.h"

namespace tierkeep::posix {

FileStat ToFileStat(const struct stat& st);
FileType ToFileType(uint32_t st_mode);

// `name` is what error messages call the file.
std::unique_ptr<File> MakeFile(UniqueFd fd, std::string name);

// openat2 with the rules of file_system.h; -1 and errno on failure. O_CLOEXEC, O_NOFOLLOW and
// O_NONBLOCK are added where they are allowed. `path` isn't checked here.
int OpenBeneath(int dir, const char* path, uint64_t flags, uint32_t mode = 0);

// Adds and removes inode flags (FS_IOC_SETFLAGS); 0 or the errno. `changed`, where given, says
// whether the flags were different before.
int ChangeInodeFlags(int fd, int add, int remove, bool* changed = nullptr);

// chmod of whatever an O_PATH descriptor names; 0 or the errno.
int ChangeModeOf(int path_fd, uint32_t mode);

// All entries except "." and "..", unsorted; 0 or the errno. `dir` is read from its start.
int ReadEntries(int dir, std::vector<DirEntry>* out);

// Removes `name` in `dir` and all below it; `shown` is its name for messages. Absent is fine.
Status RemoveTreeAt(int dir, const std::string& name, const std::string& shown);

}  // namespace tierkeep::posix
