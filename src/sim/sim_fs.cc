#include "sim/sim_fs.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/check.h"
#include "base/log.h"
#include "sim/sim_fs_tree.h"

namespace tierkeep::sim {
namespace {

constexpr std::string_view kCallNames[] = {"open directory",
                                           "open",
                                           "create",
                                           "make directory",
                                           "make link",
                                           "read link",
                                           "stat",
                                           "list",
                                           "rename",
                                           "hard-link",
                                           "unlink",
                                           "remove directory",
                                           "read",
                                           "write",
                                           "resize",
                                           "allocate",
                                           "map",
                                           "sync",
                                           "sync directory",
                                           "set mode",
                                           "set immutable",
                                           "probe writers",
                                           "read free space",
                                           "check the path of"};

std::string Join(std::string_view base, std::string_view path) {
  std::string joined(base);
  if (!base.empty() && !path.empty()) joined += '/';
  return joined.append(path);
}

}  // namespace

bool Changes(FsCall call) {
  switch (call) {
    case FsCall::kOpenDir:
    case FsCall::kOpenFile:
    case FsCall::kReadLink:
    case FsCall::kStat:
    case FsCall::kList:
    case FsCall::kRead:
    case FsCall::kMap:
    case FsCall::kProbeWriters:
    case FsCall::kSpace:
    case FsCall::kCheckPath:
      return false;
    default:
      return true;
  }
}

std::string_view FsCallName(FsCall call) { return kCallNames[static_cast<size_t>(call)]; }

std::string FsOp::Path() const { return Join(base, path); }

std::string FsOp::ToString() const {
  std::string text = "#" + std::to_string(number) + " " + std::string(FsCallName(call)) + " " +
                     EscapeForLog(Path());
  if (!to.empty()) text += " -> " + EscapeForLog(Join(base, to));
  return text;
}

// ---- SimProcess

SimProcess::~SimProcess() { TK_CHECK_MSG(handles_.empty(), "its handles keep a process"); }

void SimProcess::Kill() {
  alive_ = false;
  while (!handles_.empty()) {
    FsHandle* const handle = *handles_.begin();
    handles_.erase(handles_.begin());
    handle->OnKill();
  }
}

Status SimProcess::Ask(FsCall call, std::string_view base, std::string_view path,
                       std::string_view to) {
  int error = 0;
  if (alive_) {
    const FsOp op{call, calls_, base, path, to};
    if (call != FsCall::kCheckPath) ++calls_;
    if (options_.before) error = options_.before(op);
    if (alive_ && error != 0) return ErrnoError(error, op.ToString() + ": injected");
  }
  if (!alive_) return Error(Code::kCancelled, "the process was killed", ECANCELED);
  return OkStatus();
}

// ---- SimWatch

SimWatch::SimWatch(FsTree* tree, std::shared_ptr<SimProcess> process, NodePtr dir,
                   Callback callback)
    : tree_(tree),
      process_(std::move(process)),
      dir_(std::move(dir)),
      callback_(std::move(callback)) {
  dir_->watches.push_back(this);
  tree_->watches.insert(this);
  process_->Add(this);
}

SimWatch::~SimWatch() {
  *here_ = false;
  dir_->watches.erase(std::remove(dir_->watches.begin(), dir_->watches.end(), this),
                      dir_->watches.end());
  tree_->watches.erase(this);
  process_->Remove(this);
}

void SimWatch::Push(DirChange change) {
  if (ended_) return;
  if (queue_.size() >= tree_->options.watch_queue_max) {
    if (!queue_.empty() && queue_.back().kind == DirChange::Kind::kOverflow) return;
    change = {DirChange::Kind::kOverflow, ""};
  }
  queue_.push_back(std::move(change));
  if (posted_) return;
  posted_ = true;
  tree_->Post([this, here = here_] {
    if (*here) Drain();
  });
}

void SimWatch::End() {
  Push({DirChange::Kind::kGone, ""});
  dir_->watches.erase(std::remove(dir_->watches.begin(), dir_->watches.end(), this),
                      dir_->watches.end());
  tree_->watches.erase(this);
}

void SimWatch::Drain() {
  const std::shared_ptr<bool> here = here_;
  posted_ = false;
  std::deque<DirChange> changes;
  changes.swap(queue_);
  for (const DirChange& change : changes) {
    if (!*here || ended_ || !process_->alive()) return;
    if (change.kind == DirChange::Kind::kGone && change.name.empty()) ended_ = true;
    callback_(change);
  }
}

// ---- SimFs

SimFs::SimFs(SimFsOptions options) : tree_(std::make_unique<FsTree>(std::move(options))) {}
SimFs::~SimFs() = default;

namespace {

Result<NodePtr> FindIn(const FsTree& tree, std::string_view path, bool allow_link) {
  NodePtr node;
  const Errno error =
      path.empty() || IsPlainPath(path) ? tree.Find(tree.root, path, allow_link, &node) : EINVAL;
  if (error != 0) return ErrnoError(error, "find " + EscapeForLog(path));
  return node;
}

Result<NodePtr> FindDir(const FsTree& tree, std::string_view path) {
  TK_ASSIGN_OR_RETURN(NodePtr node, FindIn(tree, path, false));
  if (node->type == FileType::kDirectory) return node;
  return ErrnoError(ENOTDIR, "find " + EscapeForLog(path));
}

Result<NodePtr> FindFile(const FsTree& tree, std::string_view path) {
  TK_ASSIGN_OR_RETURN(NodePtr node, FindIn(tree, path, true));
  if (node->type == FileType::kFile) return node;
  return Error(Code::kFailedPrecondition, EscapeForLog(path) + " is no regular file");
}

// Each file once, however many names it has.
uint64_t BytesBelow(const FsNode& dir, std::set<const FsNode*>* seen) {
  uint64_t bytes = 0;
  for (const auto& [name, child] : dir.children) {
    if (!seen->insert(child.get()).second) continue;
    bytes += child->pages_used * kFsPageBytes + BytesBelow(*child, seen);
  }
  return bytes;
}

void AddFiles(const FsNode& dir, const std::string& path, std::vector<std::string>* out) {
  for (const auto& [name, child] : dir.children) {
    const std::string below = Join(path, name);
    if (child->type == FileType::kFile) out->push_back(below);
    if (child->type == FileType::kDirectory) AddFiles(*child, below, out);
  }
}

void Detach(FsNode* node) {
  for (const auto& [name, child] : node->children) {
    --child->links;
    child->parent = nullptr;
    Detach(child.get());
  }
  node->children.clear();
}

}  // namespace

Result<std::unique_ptr<Dir>> SimFs::Open(std::shared_ptr<SimProcess> process,
                                         std::string_view path) {
  TK_ASSIGN_OR_RETURN(NodePtr node, FindDir(*tree_, path));
  return MakeSimDir(tree_.get(), std::move(process), std::move(node), std::string(path));
}

Result<std::unique_ptr<DirWatch>> SimFs::Watch(std::shared_ptr<SimProcess> process,
                                               std::string_view path, DirWatch::Callback callback) {
  TK_ASSIGN_OR_RETURN(NodePtr node, FindDir(*tree_, path));
  return std::unique_ptr<DirWatch>(std::make_unique<SimWatch>(
      tree_.get(), std::move(process), std::move(node), std::move(callback)));
}

void SimFs::DeliverChanges() {
  while (!tree_->waiting.empty()) {
    const std::function<void()> work = std::move(tree_->waiting.front());
    tree_->waiting.pop_front();
    work();
  }
}

void SimFs::Vanish() {
  ++tree_->epoch;
  tree_->EndWatches();
  ForgetUnmounted();
  Detach(tree_->root.get());
  tree_->MakeRoot();
}

void SimFs::Remount() {
  tree_->unmounted.push_back(tree_->root);
  tree_->MakeRoot();
}

void SimFs::ForgetUnmounted() {
  for (const NodePtr& root : tree_->unmounted) Detach(root.get());
  tree_->unmounted.clear();
}

void SimFs::Reboot(Prng* prng) {
  if (!tree_->options.disk) return Vanish();
  ++tree_->epoch;
  tree_->EndWatches();
  std::set<FsNode*> seen;
  tree_->ForgetUnsynced(tree_->root, prng, &seen);
}

Status SimFs::FlipByte(std::string_view path, uint64_t offset, uint8_t mask) {
  TK_ASSIGN_OR_RETURN(const NodePtr node, FindFile(*tree_, path));
  if (offset >= node->data->size()) return Error(Code::kOutOfRange, "the file is shorter");
  (*node->data)[offset] ^= std::byte{mask};
  tree_->SyncFile(node.get());
  return OkStatus();
}

Status SimFs::Cut(std::string_view path, uint64_t bytes) {
  TK_ASSIGN_OR_RETURN(const NodePtr node, FindFile(*tree_, path));
  if (bytes > node->data->size()) return Error(Code::kOutOfRange, "the file is shorter");
  const int64_t ctime = node->ctime;
  tree_->Resize(node.get(), bytes);
  node->ctime = ctime;
  tree_->SyncFile(node.get());
  return OkStatus();
}

Status SimFs::Zero(std::string_view path, uint64_t offset, uint64_t bytes) {
  TK_ASSIGN_OR_RETURN(const NodePtr node, FindFile(*tree_, path));
  FsBuffer& data = *node->data;
  if (offset > data.size() || bytes > data.size() - offset) {
    return Error(Code::kOutOfRange, "the file is shorter");
  }
  std::fill_n(data.begin() + static_cast<ptrdiff_t>(offset), bytes, std::byte{0});
  tree_->SyncFile(node.get());
  return OkStatus();
}

Status SimFs::RemoveSilently(std::string_view path) {
  TK_ASSIGN_OR_RETURN(const NodePtr node, FindIn(*tree_, path, true));
  FsPlace at;
  if (path.empty() || tree_->FindPlace(tree_->root, path, &at) != 0) {
    return Error(Code::kInvalidArgument, "the root can't be removed");
  }
  const int64_t ctime = at.dir->ctime;
  Detach(node.get());
  tree_->Take(at);
  at.dir->ctime = ctime;
  tree_->SyncDir(at.dir.get());
  return OkStatus();
}

Status SimFs::SetMounted(std::string_view path, bool mounted) {
  FsPlace at;
  if (!IsPlainPath(path) || tree_->FindPlace(tree_->root, path, &at) != 0) {
    return Error(Code::kInvalidArgument, "nothing can be mounted at " + EscapeForLog(path));
  }
  const auto it = at.dir->children.find(at.name);
  if (it == at.dir->children.end() || it->second->type != FileType::kDirectory) {
    return Error(Code::kNotFound, "no directory " + EscapeForLog(path));
  }
  it->second->mounted = mounted;
  return OkStatus();
}

void SimFs::set_watch_queue_max(size_t max) { tree_->options.watch_queue_max = max; }

void SimFs::set_bytes_max(uint64_t bytes) { tree_->options.bytes_max = bytes; }

SimFsUse SimFs::use() const { return *tree_->use; }

uint64_t SimFs::named_bytes() const {
  std::set<const FsNode*> seen;
  return BytesBelow(*tree_->root, &seen);
}

std::vector<std::string> SimFs::Files(std::string_view path) const {
  std::vector<std::string> files;
  const Result<NodePtr> dir = FindDir(*tree_, path);
  if (dir.ok()) AddFiles(**dir, std::string(path), &files);
  std::sort(files.begin(), files.end());
  return files;
}

bool SimFs::Exists(std::string_view path) const {
  NodePtr node;
  return tree_->Find(tree_->root, path, true, &node) == 0;
}

Result<std::string> SimFs::Content(std::string_view path) const {
  TK_ASSIGN_OR_RETURN(const NodePtr node, FindFile(*tree_, path));
  return std::string(reinterpret_cast<const char*>(node->data->data()), node->data->size());
}

}  // namespace tierkeep::sim
