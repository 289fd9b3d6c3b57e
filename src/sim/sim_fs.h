// A file system in memory behind io/file_system.h, with the rules of tmpfs or of a host's disk, for
// the simulator: every call can be counted, failed, or be the last one of its process, and bytes
// can rot. What it does with a path, a link, a flag or a lease is what io/posix_dir.cc does on
// Linux: both pass io/dir_conformance_testutil.h.
//
// Threads: one. Lifetime: a SimFs outlives the handles, maps and watches that it gave out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/prng.h"
#include "base/result.h"
#include "io/dir_watch.h"
#include "io/file_system.h"

namespace tierkeep::sim {

enum class FsCall : uint8_t {
  kOpenDir,
  kOpenFile,
  kCreateFile,
  kMakeDir,
  kMakeSymlink,
  kReadLink,
  kStat,
  kList,
  kRename,
  kHardLink,
  kUnlink,
  kRemoveDir,
  kRead,
  kWrite,
  kResize,
  kAllocate,
  kMap,
  kSync,
  kSyncDir,
  kSetOwnerAndMode,
  kSetImmutable,
  kProbeWriters,
  kSpace,
  kCheckPath,
};
// Whether a call of this kind may change what is stored.
bool Changes(FsCall call);
std::string_view FsCallName(FsCall call);

// One system call that is about to happen. Calls of Dir that are several system calls (an atomic
// write, the removal of a tree, a chain of directories) are asked about piece by piece, so that a
// crash or an error can come between any two.
struct FsOp {
  FsCall call;
  uint64_t number;        // of its process, from 0; a look at a path isn't counted
  std::string_view base;  // path of the handle, as it was opened from the root of the file system
  std::string_view path;  // below it; of a rename or hard link: the source
  std::string_view to;    // of a rename or hard link: the target

  std::string Path() const;  // base and path
  std::string ToString() const;
};

// Internal: what a process has open.
class FsHandle {
 public:
  virtual ~FsHandle() = default;
  virtual void OnKill() = 0;
};

// One life of a process: whatever it opens belongs to it. A restarted process is a new object.
class SimProcess {
 public:
  // Asked before each call. 0: it happens; else it fails with this errno and changes nothing. It
  // may do anything in between, with handles of other processes too (a job that writes while its
  // save is staged), and may kill the process: then this call no longer happens.
  using Before = std::function<int(const FsOp&)>;

  struct Options {
    uint32_t uid = 0;
    uint32_t gid = 0;
    Before before;
  };

  SimProcess() : SimProcess(Options{}) {}
  explicit SimProcess(Options options) : options_(std::move(options)) {}
  ~SimProcess();
  SimProcess(const SimProcess&) = delete;
  SimProcess& operator=(const SimProcess&) = delete;

  // From now on every call through its handles is kCancelled and changes nothing, its writable maps
  // are cut off from their files, its watches are silent. What it had open is closed.
  void Kill();
  bool alive() const { return alive_; }
  uint64_t calls() const { return calls_; }  // asked so far
  void set_before(Before before) { options_.before = std::move(before); }
  uint32_t uid() const { return options_.uid; }
  uint32_t gid() const { return options_.gid; }

  // For the handles. OK, or why the call doesn't happen.
  Status Ask(FsCall call, std::string_view base, std::string_view path, std::string_view to);
  void Add(FsHandle* handle) { handles_.insert(handle); }
  void Remove(FsHandle* handle) { handles_.erase(handle); }

 private:
  Options options_;
  bool alive_ = true;
  uint64_t calls_ = 0;
  std::set<FsHandle*> handles_;
};

struct SimFsOptions {
  uint64_t bytes_max = uint64_t{1} << 40;  // pages of 4 KiB, like tmpfs
  uint64_t inodes_max = uint64_t{1} << 40;
  // What isn't synced, file and directory, may be lost by Reboot; a tmpfs loses all.
  bool disk = false;
  bool leases = true;           // else ProbeWriters answers kUnsupported
  bool immutable_flags = true;  // else SetImmutable is kUnimplemented
  uint64_t device = 1;
  // The time for ctime, in ns; without it each change is 1 ns after the one before. No two changes
  // have the same time.
  std::function<int64_t()> now_ns;
  // Runs `work` later, in the order of the calls: how changes reach a watch. Without it they wait
  // for DeliverChanges.
  std::function<void(std::function<void()> work)> post;
  // Called where something finds no room.
  std::function<void()> on_full;
  // Changes that wait for one watch; more are one kOverflow. 0: each is lost so.
  size_t watch_queue_max = 16384;
};

struct FsTree;  // internal, sim_fs_tree.h

struct SimFsUse {
  uint64_t bytes = 0;
  uint64_t inodes = 0;
};

class SimFs {
 public:
  explicit SimFs(SimFsOptions options = {});
  ~SimFs();
  SimFs(const SimFs&) = delete;
  SimFs& operator=(const SimFs&) = delete;

  // A directory ("" is the root) as `process` sees it. Not counted as a call.
  Result<std::unique_ptr<Dir>> Open(std::shared_ptr<SimProcess> process,
                                    std::string_view path = "");
  // As DirWatch::Start on that directory, for changes from now on.
  Result<std::unique_ptr<DirWatch>> Watch(std::shared_ptr<SimProcess> process,
                                          std::string_view path, DirWatch::Callback callback);
  // Where SimFsOptions::post isn't given: hands out what waits, also what that causes.
  void DeliverChanges();

  // ---- what happens to a machine. Handles from before answer ESTALE, watches end with kGone "".
  // The mount is gone and an empty one is in its place.
  void Vanish();
  // The same under processes that live on, as after a lazy unmount and a new mount at the same
  // path: what they have open works on, in a tree that no path leads to, and no watch tells them.
  void Remount();
  // Lets go of what Remount left; nobody may use its handles any more but to close them.
  void ForgetUnmounted();
  // The host goes down: a tmpfs vanishes; on a disk each file is as it was synced last, as it is
  // now, or torn between the two, and each directory has had some first part of its changes since
  // it was synced.
  void Reboot(Prng* prng);

  // ---- damage at rest: no event, no new ctime, immutable or not. kNotFound, kFailedPrecondition
  // (no file) or kOutOfRange when it can't be done.
  Status FlipByte(std::string_view path, uint64_t offset, uint8_t mask);
  Status Cut(std::string_view path, uint64_t bytes);                    // to its first bytes
  Status Zero(std::string_view path, uint64_t offset, uint64_t bytes);  // a lost page or chunk
  Status RemoveSilently(std::string_view path);                         // whole trees too

  // ---- other conditions
  // Something is mounted over (or no longer over) this directory: no path leads through it.
  Status SetMounted(std::string_view path, bool mounted);
  void set_bytes_max(uint64_t bytes);
  void set_watch_queue_max(size_t max);
  SimFsUse use() const;
  // Of what has a name; what somebody has open without one takes room, too.
  uint64_t named_bytes() const;
  // All regular files below `path`, as paths from the root, sorted; empty if there is none.
  std::vector<std::string> Files(std::string_view path = "") const;
  // Something has that name, be it only a link.
  bool Exists(std::string_view path) const;
  // A file's bytes, seen from outside (no call is counted).
  Result<std::string> Content(std::string_view path) const;

 private:
  const std::unique_ptr<FsTree> tree_;
};

}  // namespace tierkeep::sim
