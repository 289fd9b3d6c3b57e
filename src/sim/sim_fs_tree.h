// Inside of sim_fs.h: the nodes, and what every call is made of. Not for users.
#pragma once

#include <cerrno>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_fs.h"

namespace tierkeep::sim {

inline constexpr uint64_t kFsPageBytes = 4096;

class SimWatch;
struct FsNode;
using NodePtr = std::shared_ptr<FsNode>;
using FsBuffer = std::vector<std::byte>;

struct FsNode {
  explicit FsNode(std::shared_ptr<SimFsUse> counted) : use(std::move(counted)) { ++use->inodes; }
  ~FsNode() {
    --use->inodes;
    use->bytes -= pages_used * kFsPageBytes;
  }
  FsNode(const FsNode&) = delete;
  FsNode& operator=(const FsNode&) = delete;

  const std::shared_ptr<SimFsUse> use;
  FileType type = FileType::kFile;
  uint64_t inode = 0;
  uint64_t links = 0;  // names; of a directory 1, or 0 once removed
  int64_t ctime = 0;
  uint32_t mode = 0, uid = 0, gid = 0;
  bool immutable = false;
  // Where it was put last. Null when it has left that place, or is the root.
  FsNode* parent = nullptr;
  std::string name;

  // A file. A map shares the buffer, which is replaced when it has to grow beyond its capacity
  // meanwhile: that map then keeps the old bytes.
  std::shared_ptr<FsBuffer> data = std::make_shared<FsBuffer>();
  std::vector<bool> pages;
  uint64_t pages_used = 0;
  int writers = 0;  // open to write, or mapped writable
  std::optional<FsBuffer> synced;

  // A directory.
  std::map<std::string, NodePtr, std::less<>> children;
  std::map<std::string, NodePtr, std::less<>> synced_children;
  std::vector<std::pair<std::string, NodePtr>> unsynced;  // changes since; null: no such name
  std::vector<SimWatch*> watches;
  bool mounted = false;

  std::string target;  // of a link
};

// A name and the directory that it stands in, or would.
struct FsPlace {
  NodePtr dir;
  std::string name;
};

// The errno of a call, or 0.
using Errno = int;

struct FsTree {
  explicit FsTree(SimFsOptions given);

  void MakeRoot();
  int64_t Tick();  // a new time
  void Post(std::function<void()> work);

  // Walks down; neither a link nor a mount is passed, at the end neither unless `allow_link`.
  Errno Find(const NodePtr& from, std::string_view path, bool allow_link, NodePtr* out) const;
  Errno FindPlace(const NodePtr& from, std::string_view path, FsPlace* out) const;

  // Makes a node with a name; the place must be free.
  Errno Make(const FsPlace& at, FileType type, const SimProcess& by, uint32_t mode, NodePtr* out);
  // Puts `node` at the name, in place of what is there, which loses its name.
  void Put(const FsPlace& at, const NodePtr& node);
  void Take(const FsPlace& at);  // removes the name
  Errno Rename(const FsPlace& from, const FsPlace& to, bool replace);
  Errno HardLink(const FsPlace& from, const FsPlace& to);
  Errno Unlink(const FsPlace& at);
  Errno RemoveDir(const FsPlace& at);

  Errno Write(FsNode* node, uint64_t offset, ByteSpan bytes);
  void Resize(FsNode* node, uint64_t bytes);
  Errno Allocate(FsNode* node, uint64_t offset, uint64_t bytes);
  void GrowBuffer(FsNode* node, uint64_t bytes);  // capacity
  void SyncFile(FsNode* node);
  void SyncDir(FsNode* node);
  FileStat StatOf(const FsNode& node) const;

  void Notify(FsNode* dir, DirChange::Kind kind, const std::string& name);
  void NotifyGone(FsNode* dir);

  // After the host went down.
  void ForgetUnsynced(const NodePtr& dir, Prng* prng, std::set<FsNode*>* seen);
  void EndWatches();

  SimFsOptions options;
  std::shared_ptr<SimFsUse> use;
  NodePtr root;
  std::vector<NodePtr> unmounted;  // roots that no path leads to
  uint64_t epoch = 0;              // handles of another one are stale
  uint64_t last_inode = 0;
  int64_t last_tick = 0;
  uint64_t last_nonce = 0;
  std::set<SimWatch*> watches;
  std::deque<std::function<void()>> waiting;  // where nothing is given to post with

 private:
  Errno Full() const {  // ENOSPC
    if (options.on_full) options.on_full();
    return ENOSPC;
  }
  Errno ChargePages(FsNode* node, uint64_t begin, uint64_t end);
  void FreePages(FsNode* node, uint64_t from_page);
};

// Reports the changes of one directory, in order.
class SimWatch : public DirWatch, public FsHandle {
 public:
  SimWatch(FsTree* tree, std::shared_ptr<SimProcess> process, NodePtr dir, Callback callback);
  ~SimWatch() override;
  void OnKill() override { ended_ = true; }
  void Push(DirChange change);
  void End();  // reports that the directory is gone, and no more

 private:
  void Drain();

  FsTree* const tree_;
  const std::shared_ptr<SimProcess> process_;
  const NodePtr dir_;
  const Callback callback_;
  std::deque<DirChange> queue_;
  bool posted_ = false;
  bool ended_ = false;
  const std::shared_ptr<bool> here_ = std::make_shared<bool>(true);  // false once destroyed
};

std::unique_ptr<Dir> MakeSimDir(FsTree* tree, std::shared_ptr<SimProcess> process, NodePtr node,
                                std::string base);

}  // namespace tierkeep::sim
