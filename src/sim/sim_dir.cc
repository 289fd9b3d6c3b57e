// Dir, File and Mapping over FsTree: asks, finds, does.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/digest.h"
#include "base/log.h"
#include "sim/sim_fs_tree.h"

namespace tierkeep::sim {
namespace {

// What handles share: whose they are, and whether they are still good.
struct Origin {
  FsTree* tree;
  std::shared_ptr<SimProcess> process;
  uint64_t epoch;
  std::string base;  // path from the root, as it was opened

  Status Ask(FsCall call, std::string_view path = "", std::string_view to = "") const {
    TK_RETURN_IF_ERROR(process->Ask(call, base, path, to));
    if (epoch != tree->epoch) return Failed(ESTALE, call, path);
    return OkStatus();
  }
  // As PosixDir words and sorts errors: links, mounts and wrong types are kFailedPrecondition.
  Error Failed(Errno error, FsCall call, std::string_view path) const {
    std::string what(FsCallName(call));
    what.append(" ").append(EscapeForLog(base.empty() ? path : base + "/" + std::string(path)));
    if (error == EXDEV) {
      return Error(Code::kFailedPrecondition, what + ": another mount is in the way", EXDEV);
    }
    return ErrnoError(error, std::move(what));
  }
  Status Checked(Errno error, FsCall call, std::string_view path) const {
    if (error != 0) return Failed(error, call, path);
    return OkStatus();
  }
  bool stale() const { return epoch != tree->epoch; }
};

class SimMapping : public Mapping, public FsHandle {
 public:
  SimMapping(Origin origin, NodePtr node, uint64_t offset, size_t bytes, bool writable)
      : Mapping(bytes == 0 ? nullptr : node->data->data() + offset, bytes),
        origin_(std::move(origin)),
        node_(std::move(node)),
        buffer_(node_->data),
        writable_(writable) {
    if (!writable_) return;
    ++node_->writers;
    origin_.process->Add(this);
  }
  ~SimMapping() override {
    if (!writable_) return;
    origin_.process->Remove(this);
    Close();
  }
  void OnKill() override {
    // Whoever still runs in that process writes into a copy that nobody sees.
    if (node_->data == buffer_) {
      auto copy = std::make_shared<FsBuffer>();
      copy->reserve(buffer_->capacity());
      *copy = *buffer_;
      node_->data = std::move(copy);
    }
    Close();
    writable_ = false;
  }

 private:
  void Close() {
    if (origin_.stale()) return;
    --node_->writers;
    node_->ctime = origin_.tree->Tick();
  }

  const Origin origin_;
  const NodePtr node_;
  const std::shared_ptr<FsBuffer> buffer_;
  bool writable_;
};

class SimFile : public File, public FsHandle {
 public:
  SimFile(Origin origin, NodePtr node, bool writable)
      : origin_(std::move(origin)), node_(std::move(node)), writable_(writable) {
    if (!writable_) return;
    ++node_->writers;
    origin_.process->Add(this);
  }
  ~SimFile() override {
    if (!writable_) return;
    origin_.process->Remove(this);
    Close();
  }
  void OnKill() override {
    Close();
    writable_ = false;
  }

  Result<FileStat> Stat() override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kStat));
    return origin_.tree->StatOf(*node_);
  }

  Status ReadExactly(uint64_t offset, MutableByteSpan out) override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kRead));
    const FsBuffer& data = *node_->data;
    if (offset > data.size() || out.size() > data.size() - offset) {
      return Error(Code::kDataLoss,
                   "read " + EscapeForLog(origin_.base) + ": the file is shorter than expected");
    }
    if (!out.empty()) std::memcpy(out.data(), data.data() + offset, out.size());
    return OkStatus();
  }

  Status WriteAll(uint64_t offset, ByteSpan data) override {
    TK_RETURN_IF_ERROR(AskToWrite(FsCall::kWrite));
    return origin_.Checked(origin_.tree->Write(node_.get(), offset, data), FsCall::kWrite, "");
  }

  Status Resize(uint64_t bytes) override {
    TK_RETURN_IF_ERROR(AskToWrite(FsCall::kResize));
    origin_.tree->Resize(node_.get(), bytes);
    return OkStatus();
  }

  Status Allocate(uint64_t offset, uint64_t bytes) override {
    TK_RETURN_IF_ERROR(AskToWrite(FsCall::kAllocate));
    if (bytes == 0) return OkStatus();
    return origin_.Checked(origin_.tree->Allocate(node_.get(), offset, bytes), FsCall::kAllocate,
                           "");
  }

  Result<std::unique_ptr<Mapping>> Map(uint64_t offset, size_t bytes, MapAccess access) override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kMap));
    const bool writable = access == MapAccess::kReadWrite;
    if (writable && !writable_) return origin_.Failed(EACCES, FsCall::kMap, "");
    // Beyond the end of the file a real map is SIGBUS; here there are zeros that nobody else sees.
    if (const size_t size = node_->data->size(); bytes > 0 && offset + bytes > size) {
      origin_.tree->GrowBuffer(node_.get(), offset + bytes);
      node_->data->resize(offset + bytes);
      node_->data->resize(size);
    }
    return std::make_unique<SimMapping>(origin_, node_, offset, bytes, writable && bytes > 0);
  }

  Status Sync() override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kSync));
    origin_.tree->SyncFile(node_.get());
    return OkStatus();
  }

  int descriptor() const override { return -1; }

 private:
  Status AskToWrite(FsCall call) {
    TK_RETURN_IF_ERROR(origin_.Ask(call));
    return origin_.Checked(writable_ ? 0 : EBADF, call, "");
  }
  void Close() {
    if (origin_.stale()) return;
    --node_->writers;
    if (node_->parent == nullptr) return;
    origin_.tree->Notify(node_->parent, DirChange::Kind::kWritten, node_->name);
  }

  const Origin origin_;
  const NodePtr node_;
  bool writable_;
};

class SimDir : public Dir {
 public:
  enum class OpenedBy : uint8_t { kItsPath, kOther };
  SimDir(Origin origin, NodePtr node, OpenedBy by)
      : origin_(std::move(origin)), node_(std::move(node)), opened_by_(by) {}

  Result<std::unique_ptr<Dir>> OpenDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(NodePtr node, Directory(FsCall::kOpenDir, path));
    return std::unique_ptr<Dir>(
        std::make_unique<SimDir>(Below(path), std::move(node), OpenedBy::kOther));
  }

  Result<std::unique_ptr<File>> OpenFile(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(NodePtr node, Regular(FsCall::kOpenFile, path));
    return Opened(path, std::move(node), false);
  }

  Result<std::unique_ptr<File>> OpenFileReadWrite(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(NodePtr node, Regular(FsCall::kOpenFile, path));
    if (node->immutable) return origin_.Failed(EPERM, FsCall::kOpenFile, path);
    return Opened(path, std::move(node), true);
  }

  Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) override {
    TK_ASSIGN_OR_RETURN(NodePtr node, Make(FsCall::kCreateFile, FileType::kFile, path, mode));
    return Opened(path, std::move(node), true);
  }

  Status MakeDir(std::string_view path, uint32_t mode) override {
    return Make(FsCall::kMakeDir, FileType::kDirectory, path, mode).map([](const NodePtr&) {});
  }

  Status MakeDirs(std::string_view path, uint32_t mode) override {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    for (size_t end = 0; end < path.size();) {
      end = std::min(path.find('/', end + 1), path.size());
      const std::string_view part = path.substr(0, end);
      const Status made = MakeDir(part, mode);
      if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made;
      NodePtr node;
      Errno error = tree().Find(node_, part, false, &node);
      if (error == 0 && node->type != FileType::kDirectory) error = ENOTDIR;
      TK_RETURN_IF_ERROR(origin_.Checked(error, FsCall::kMakeDir, part));
    }
    return OkStatus();
  }

  Status MakeSymlink(std::string_view target, std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node,
                        Make(FsCall::kMakeSymlink, FileType::kSymlink, path, 0777));
    node->target = target;
    return OkStatus();
  }

  Result<std::string> ReadLink(std::string_view path) override {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    TK_ASSIGN_OR_RETURN(const NodePtr node, Any(FsCall::kReadLink, path));
    if (node->type == FileType::kSymlink) return node->target;
    return Error(Code::kFailedPrecondition, "read link " + EscapeForLog(path) + ": not a link",
                 EINVAL);
  }

  Result<FileStat> Stat(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node, Any(FsCall::kStat, path));
    return tree().StatOf(*node);
  }

  Result<std::vector<DirEntry>> List(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node, Directory(FsCall::kList, path));
    std::vector<DirEntry> entries;
    entries.reserve(node->children.size());
    for (const auto& [name, child] : node->children) entries.push_back({name, child->type});
    return entries;
  }

  Status Rename(std::string_view from, std::string_view to) override {
    return RenameWith(from, to, true);
  }
  Status RenameNew(std::string_view from, std::string_view to) override {
    return RenameWith(from, to, false);
  }

  Status HardLink(std::string_view from, std::string_view to) override {
    TK_ASSIGN_OR_RETURN(const auto places, Places(FsCall::kHardLink, from, to));
    return origin_.Checked(tree().HardLink(places.first, places.second), FsCall::kHardLink, from);
  }

  Status Unlink(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const FsPlace at, Place(FsCall::kUnlink, path));
    return origin_.Checked(tree().Unlink(at), FsCall::kUnlink, path);
  }

  Status RemoveDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const FsPlace at, Place(FsCall::kRemoveDir, path));
    return origin_.Checked(tree().RemoveDir(at), FsCall::kRemoveDir, path);
  }

  Status RemoveTree(std::string_view path) override;
  Result<std::string> ReadSmallFile(std::string_view path, uint64_t bytes_max) override;
  Status WriteFileAtomically(std::string_view path, std::string_view content,
                             uint32_t mode) override;

  Status SyncDir(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node, Directory(FsCall::kSyncDir, path));
    tree().SyncDir(node.get());
    return OkStatus();
  }

  Status SetOwnerAndMode(std::string_view path, uint32_t uid, uint32_t gid,
                         uint32_t mode) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node, Any(FsCall::kSetOwnerAndMode, path));
    if (node->immutable) return origin_.Failed(EPERM, FsCall::kSetOwnerAndMode, path);
    node->uid = uid;
    node->gid = gid;
    node->mode = mode & 07777;
    node->ctime = tree().Tick();
    return OkStatus();
  }

  Status SetImmutable(std::string_view path, bool immutable) override {
    TK_RETURN_IF_ERROR(CheckPlainOrSelf(path));
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kSetImmutable, path));
    NodePtr node;
    const Errno error = tree().Find(node_, path, false, &node);
    TK_RETURN_IF_ERROR(origin_.Checked(error, FsCall::kSetImmutable, path));
    if (!tree().options.immutable_flags) {
      return origin_.Failed(EOPNOTSUPP, FsCall::kSetImmutable, path);
    }
    node->immutable = immutable;
    node->ctime = tree().Tick();
    return OkStatus();
  }

  Result<LeaseResult> ProbeWriters(std::string_view path) override {
    TK_ASSIGN_OR_RETURN(const NodePtr node, Regular(FsCall::kProbeWriters, path));
    if (!tree().options.leases) return LeaseResult::kUnsupported;
    return node->writers > 0 ? LeaseResult::kHasWriters : LeaseResult::kNoWriters;
  }

  Result<SpaceInfo> Space() override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kSpace));
    const SimFsOptions& options = tree().options;
    SpaceInfo info;
    info.total_bytes = options.bytes_max;
    info.free_bytes = options.bytes_max - std::min(options.bytes_max, node_->use->bytes);
    info.free_inodes = options.inodes_max - std::min(options.inodes_max, node_->use->inodes);
    return info;
  }

  Status CheckPath() override {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kCheckPath));
    if (opened_by_ != OpenedBy::kItsPath) {
      return Error(Code::kUnimplemented, "check a path: opened below another directory");
    }
    NodePtr there;
    const Errno error = tree().Find(tree().root, origin_.base, true, &there);
    if (error == 0 && there == node_) return OkStatus();
    return Error(Code::kAborted, error == 0 ? "another file system is at the mount's path now"
                                            : "nothing is at the mount's path any more");
  }

 private:
  FsTree& tree() const { return *origin_.tree; }
  Origin Below(std::string_view path) const {
    Origin below = origin_;
    if (!below.base.empty() && !path.empty()) below.base += '/';
    below.base.append(path);
    return below;
  }
  Result<std::unique_ptr<File>> Opened(std::string_view path, NodePtr node, bool writable) const {
    return std::unique_ptr<File>(std::make_unique<SimFile>(Below(path), std::move(node), writable));
  }

  static Status CheckPlain(std::string_view path) {
    if (IsPlainPath(path)) return OkStatus();
    return Error(Code::kInvalidArgument, "not a plain relative path: " + EscapeForLog(path));
  }
  static Status CheckPlainOrSelf(std::string_view path) {
    if (path.empty()) return OkStatus();
    return CheckPlain(path);
  }

  Result<NodePtr> Any(FsCall call, std::string_view path) {
    TK_RETURN_IF_ERROR(CheckPlainOrSelf(path));
    TK_RETURN_IF_ERROR(origin_.Ask(call, path));
    NodePtr node;
    TK_RETURN_IF_ERROR(origin_.Checked(tree().Find(node_, path, true, &node), call, path));
    return node;
  }
  Result<NodePtr> Typed(FsCall call, std::string_view path, FileType type) {
    TK_ASSIGN_OR_RETURN(NodePtr node, Any(call, path));
    if (node->type == type) return node;
    return Error(Code::kFailedPrecondition, std::string(FsCallName(call)) + " " +
                                                EscapeForLog(path) +
                                                ": not the demanded type of file");
  }
  Result<NodePtr> Directory(FsCall call, std::string_view path) {
    return Typed(call, path, FileType::kDirectory);
  }
  Result<NodePtr> Regular(FsCall call, std::string_view path) {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    return Typed(call, path, FileType::kFile);
  }

  Result<FsPlace> Place(FsCall call, std::string_view path) {
    TK_RETURN_IF_ERROR(CheckPlain(path));
    TK_RETURN_IF_ERROR(origin_.Ask(call, path));
    FsPlace at;
    TK_RETURN_IF_ERROR(origin_.Checked(tree().FindPlace(node_, path, &at), call, path));
    return at;
  }
  Result<std::pair<FsPlace, FsPlace>> Places(FsCall call, std::string_view from,
                                             std::string_view to) {
    TK_RETURN_IF_ERROR(CheckPlain(from));
    TK_RETURN_IF_ERROR(CheckPlain(to));
    TK_RETURN_IF_ERROR(origin_.Ask(call, from, to));
    std::pair<FsPlace, FsPlace> places;
    TK_RETURN_IF_ERROR(origin_.Checked(tree().FindPlace(node_, from, &places.first), call, from));
    TK_RETURN_IF_ERROR(origin_.Checked(tree().FindPlace(node_, to, &places.second), call, to));
    return places;
  }

  Status RenameWith(std::string_view from, std::string_view to, bool replace) {
    TK_ASSIGN_OR_RETURN(const auto places, Places(FsCall::kRename, from, to));
    return origin_.Checked(tree().Rename(places.first, places.second, replace), FsCall::kRename,
                           from);
  }

  Result<NodePtr> Make(FsCall call, FileType type, std::string_view path, uint32_t mode) {
    TK_ASSIGN_OR_RETURN(const FsPlace at, Place(call, path));
    NodePtr node;
    TK_RETURN_IF_ERROR(
        origin_.Checked(tree().Make(at, type, *origin_.process, mode, &node), call, path));
    return node;
  }

  Status RemoveEntry(const NodePtr& dir, const std::string& path, const std::string& name);
  Status UnlinkEntry(const FsPlace& at, FsNode* node, const std::string& path);
  Status WriteNewFile(std::string_view temporary, std::string_view content, uint32_t mode,
                      std::string_view path);

  const Origin origin_;
  const NodePtr node_;
  const OpenedBy opened_by_;
};

Status SimDir::RemoveTree(std::string_view path) {
  TK_RETURN_IF_ERROR(CheckPlain(path));
  FsPlace at;
  const Errno error = tree().FindPlace(node_, path, &at);
  if (error == ENOENT) return OkStatus();
  TK_RETURN_IF_ERROR(origin_.Checked(error, FsCall::kUnlink, path));
  return RemoveEntry(at.dir, std::string(path), at.name);
}

// A file or link; the flag of an immutable one is cleared for it, and stays for its other names.
Status SimDir::UnlinkEntry(const FsPlace& at, FsNode* node, const std::string& path) {
  if (node->immutable) {
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kSetImmutable, path));
    node->immutable = false;
    TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kUnlink, path));
    const Errno error = tree().Unlink(at);
    if (node->links > 0) node->immutable = true;
    return origin_.Checked(error == ENOENT ? 0 : error, FsCall::kUnlink, path);
  }
  TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kUnlink, path));
  const Errno error = tree().Unlink(at);
  return origin_.Checked(error == ENOENT ? 0 : error, FsCall::kUnlink, path);
}

Status SimDir::RemoveEntry(const NodePtr& dir, const std::string& path, const std::string& name) {
  const auto it = dir->children.find(name);
  if (it == dir->children.end()) return OkStatus();
  const NodePtr node = it->second;
  const FsPlace at{dir, name};
  if (node->type != FileType::kDirectory) return UnlinkEntry(at, node.get(), path);
  if (node->mounted) return origin_.Failed(EXDEV, FsCall::kRemoveDir, path);
  TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kList, path));
  node->immutable = false;
  std::vector<std::string> names;
  for (const bool directories : {false, true}) {
    for (const auto& [child_name, child] : node->children) {
      if ((child->type == FileType::kDirectory) == directories) names.push_back(child_name);
    }
  }
  for (const std::string& child : names) {
    TK_RETURN_IF_ERROR(RemoveEntry(node, path + "/" + child, child));
  }
  TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kRemoveDir, path));
  const Errno error = tree().RemoveDir(at);
  return origin_.Checked(error == ENOENT ? 0 : error, FsCall::kRemoveDir, path);
}

Result<std::string> SimDir::ReadSmallFile(std::string_view path, uint64_t bytes_max) {
  TK_ASSIGN_OR_RETURN(const NodePtr node, Regular(FsCall::kOpenFile, path));
  TK_RETURN_IF_ERROR(origin_.Ask(FsCall::kRead, path));
  const FsBuffer& data = *node->data;
  if (data.size() > bytes_max) {
    return Error(Code::kResourceExhausted, "read " + EscapeForLog(path) + ": larger than " +
                                               std::to_string(bytes_max) + " bytes");
  }
  return std::string(reinterpret_cast<const char*>(data.data()), data.size());
}

Status SimDir::WriteNewFile(std::string_view temporary, std::string_view content, uint32_t mode,
                            std::string_view path) {
  // Closed after the rename, as in PosixDir: a watch sees the same changes in the same order.
  TK_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, CreateFile(temporary, 0600));
  Status done = file->WriteAll(0, AsBytes(content));
  if (done.ok())
    done = SetOwnerAndMode(temporary, origin_.process->uid(), origin_.process->gid(), mode);
  if (done.ok()) done = file->Sync();
  if (done.ok()) done = Rename(temporary, path);
  if (!done.ok()) [[maybe_unused]]
    const Status removed = Unlink(temporary);
  return done;
}

Status SimDir::WriteFileAtomically(std::string_view path, std::string_view content, uint32_t mode) {
  TK_RETURN_IF_ERROR(CheckPlain(path));
  const size_t slash = path.rfind('/');
  const bool below = slash != std::string_view::npos;
  const std::string_view dir = below ? path.substr(0, slash) : std::string_view();
  const std::string_view name = below ? path.substr(slash + 1) : path;
  std::string temporary(below ? path.substr(0, slash + 1) : std::string_view());
  temporary.append(".").append(name.substr(0, 200)).append(".");
  temporary.append(std::to_string(++tree().last_nonce)).append(".tmp");
  TK_RETURN_IF_ERROR(WriteNewFile(temporary, content, mode, path));
  return SyncDir(dir);
}

}  // namespace

std::unique_ptr<Dir> MakeSimDir(FsTree* tree, std::shared_ptr<SimProcess> process, NodePtr node,
                                std::string base) {
  return std::make_unique<SimDir>(Origin{tree, std::move(process), tree->epoch, std::move(base)},
                                  std::move(node), SimDir::OpenedBy::kItsPath);
}

}  // namespace tierkeep::sim
