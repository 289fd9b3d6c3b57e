#include "sim/sim_fs_tree.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tierkeep::sim {
namespace {

constexpr size_t kNameBytesMax = 255;
constexpr uint32_t kUmask = 022;

bool IsDir(const FsNode& node) { return node.type == FileType::kDirectory; }

// Whether `node` is `dir` or above it.
bool Holds(const FsNode* node, const FsNode* dir) {
  for (; dir != nullptr; dir = dir->parent) {
    if (dir == node) return true;
  }
  return false;
}

NodePtr ChildOf(const FsPlace& at) {
  const auto it = at.dir->children.find(at.name);
  return it == at.dir->children.end() ? nullptr : it->second;
}

// Why no name can be made here, or 0.
Errno MayAdd(const FsPlace& at) {
  if (at.name.size() > kNameBytesMax) return ENAMETOOLONG;
  if (at.dir->links == 0) return ENOENT;  // removed while somebody has it open
  return at.dir->immutable ? EPERM : 0;
}

Errno MayTake(const FsPlace& at, const FsNode& node) {
  if (node.mounted) return EBUSY;
  return at.dir->immutable || node.immutable ? EPERM : 0;
}

}  // namespace

FsTree::FsTree(SimFsOptions given) : options(std::move(given)) { MakeRoot(); }

void FsTree::MakeRoot() {
  use = std::make_shared<SimFsUse>();
  root = std::make_shared<FsNode>(use);
  root->type = FileType::kDirectory;
  root->mode = 0755;
  root->links = 1;
  root->inode = ++last_inode;
  root->ctime = Tick();
}

int64_t FsTree::Tick() {
  const int64_t now = options.now_ns ? options.now_ns() : 0;
  last_tick = std::max(now, last_tick + 1);
  return last_tick;
}

void FsTree::Post(std::function<void()> work) {
  if (options.post) {
    options.post(std::move(work));
  } else {
    waiting.push_back(std::move(work));
  }
}

Errno FsTree::Find(const NodePtr& from, std::string_view path, bool allow_link,
                   NodePtr* out) const {
  const NodePtr* at = &from;
  while (!path.empty()) {
    const FsNode& node = **at;
    if (!IsDir(node)) return node.type == FileType::kSymlink ? ELOOP : ENOTDIR;
    const size_t slash = std::min(path.find('/'), path.size());
    const auto it = node.children.find(path.substr(0, slash));
    if (it == node.children.end()) return ENOENT;
    at = &it->second;
    if ((*at)->mounted) return EXDEV;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  if ((*at)->type == FileType::kSymlink && !allow_link) return ELOOP;
  *out = *at;
  return 0;
}

Errno FsTree::FindPlace(const NodePtr& from, std::string_view path, FsPlace* out) const {
  const size_t slash = path.rfind('/');
  out->name = path.substr(slash == std::string_view::npos ? 0 : slash + 1);
  const std::string_view above =
      slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
  if (const Errno error = Find(from, above, false, &out->dir); error != 0) return error;
  return IsDir(*out->dir) ? 0 : ENOTDIR;
}

Errno FsTree::Make(const FsPlace& at, FileType type, const SimProcess& by, uint32_t mode,
                   NodePtr* out) {
  if (ChildOf(at) != nullptr) return EEXIST;
  if (const Errno error = MayAdd(at); error != 0) return error;
  if (use->inodes >= options.inodes_max) return Full();
  auto node = std::make_shared<FsNode>(use);
  node->type = type;
  node->inode = ++last_inode;
  node->mode = mode & ~kUmask & 07777;
  node->uid = by.uid();
  node->gid = by.gid();
  Put(at, node);
  Notify(at.dir.get(), DirChange::Kind::kCreated, at.name);
  *out = std::move(node);
  return 0;
}

void FsTree::Put(const FsPlace& at, const NodePtr& node) {
  if (ChildOf(at) != nullptr) Take(at);
  at.dir->children[at.name] = node;
  if (options.disk) at.dir->unsynced.emplace_back(at.name, node);
  node->parent = at.dir.get();
  node->name = at.name;
  ++node->links;
  node->ctime = at.dir->ctime = Tick();
}

void FsTree::Take(const FsPlace& at) {
  const auto it = at.dir->children.find(at.name);
  const NodePtr node = it->second;
  at.dir->children.erase(it);
  if (options.disk) at.dir->unsynced.emplace_back(at.name, nullptr);
  if (node->parent == at.dir.get() && node->name == at.name) node->parent = nullptr;
  --node->links;
  node->ctime = at.dir->ctime = Tick();
  if (IsDir(*node) && node->links == 0) NotifyGone(node.get());
}

Errno FsTree::Rename(const FsPlace& from, const FsPlace& to, bool replace) {
  const NodePtr node = ChildOf(from);
  if (node == nullptr) return ENOENT;
  const NodePtr old = ChildOf(to);
  if (old != nullptr && !replace) return EEXIST;
  if (const Errno error = MayTake(from, *node); error != 0) return error;
  if (const Errno error = MayAdd(to); error != 0) return error;
  if (old == node) return 0;  // two names of one file: POSIX leaves both
  if (IsDir(*node) && Holds(node.get(), to.dir.get())) return EINVAL;
  if (old != nullptr) {
    if (const Errno error = MayTake(to, *old); error != 0) return error;
    if (IsDir(*node) && !IsDir(*old)) return ENOTDIR;
    if (!IsDir(*node) && IsDir(*old)) return EISDIR;
    if (IsDir(*old) && !old->children.empty()) return ENOTEMPTY;
    Take(to);
  }
  ++node->links;  // a directory isn't gone in between
  Take(from);
  Put(to, node);
  --node->links;
  Notify(from.dir.get(), DirChange::Kind::kGone, from.name);
  Notify(to.dir.get(), DirChange::Kind::kMovedIn, to.name);
  if (IsDir(*node)) NotifyGone(node.get());
  return 0;
}

Errno FsTree::HardLink(const FsPlace& from, const FsPlace& to) {
  const NodePtr node = ChildOf(from);
  if (node == nullptr) return ENOENT;
  if (ChildOf(to) != nullptr) return EEXIST;
  if (IsDir(*node) || node->immutable) return EPERM;
  if (const Errno error = MayAdd(to); error != 0) return error;
  if (use->inodes >= options.inodes_max) return Full();  // tmpfs counts names
  Put(to, node);
  Notify(to.dir.get(), DirChange::Kind::kCreated, to.name);
  return 0;
}

Errno FsTree::Unlink(const FsPlace& at) {
  const NodePtr node = ChildOf(at);
  if (node == nullptr) return ENOENT;
  if (IsDir(*node)) return EISDIR;
  if (const Errno error = MayTake(at, *node); error != 0) return error;
  Take(at);
  Notify(at.dir.get(), DirChange::Kind::kGone, at.name);
  return 0;
}

Errno FsTree::RemoveDir(const FsPlace& at) {
  const NodePtr node = ChildOf(at);
  if (node == nullptr) return ENOENT;
  if (!IsDir(*node)) return ENOTDIR;
  if (const Errno error = MayTake(at, *node); error != 0) return error;
  if (!node->children.empty()) return ENOTEMPTY;
  Take(at);
  Notify(at.dir.get(), DirChange::Kind::kGone, at.name);
  return 0;
}

Errno FsTree::ChargePages(FsNode* node, uint64_t begin, uint64_t end) {
  const uint64_t last = (end + kFsPageBytes - 1) / kFsPageBytes;
  if (node->pages.size() < last) node->pages.resize(last);
  for (uint64_t page = begin / kFsPageBytes; page < last; ++page) {
    if (node->pages[page]) continue;
    if (node->use->bytes + kFsPageBytes > options.bytes_max) return Full();
    node->pages[page] = true;
    ++node->pages_used;
    node->use->bytes += kFsPageBytes;
  }
  return 0;
}

void FsTree::FreePages(FsNode* node, uint64_t from_page) {
  for (uint64_t page = from_page; page < node->pages.size(); ++page) {
    if (!node->pages[page]) continue;
    --node->pages_used;
    node->use->bytes -= kFsPageBytes;
  }
  node->pages.resize(std::min<uint64_t>(node->pages.size(), from_page));
}

void FsTree::GrowBuffer(FsNode* node, uint64_t bytes) {
  if (bytes <= node->data->capacity()) return;
  auto larger = std::make_shared<FsBuffer>();
  larger->reserve(std::max<uint64_t>(bytes, 2 * node->data->size()));
  *larger = *node->data;
  node->data = std::move(larger);
}

Errno FsTree::Write(FsNode* node, uint64_t offset, ByteSpan bytes) {
  // Page by page, as the kernel does it: what fits before the space ends is written.
  while (!bytes.empty()) {
    const size_t part = std::min<size_t>(bytes.size(), kFsPageBytes - offset % kFsPageBytes);
    if (const Errno error = ChargePages(node, offset, offset + part); error != 0) return error;
    if (node->data->size() < offset + part) {
      GrowBuffer(node, offset + bytes.size());
      node->data->resize(offset);  // what is written isn't zeroed first
      node->data->insert(node->data->end(), bytes.begin(),
                         bytes.begin() + static_cast<ptrdiff_t>(part));
    } else {
      std::memcpy(node->data->data() + offset, bytes.data(), part);
    }
    offset += part;
    bytes = bytes.subspan(part);
  }
  node->ctime = Tick();
  return 0;
}

void FsTree::Resize(FsNode* node, uint64_t bytes) {
  FsBuffer& data = *node->data;
  if (bytes < data.size()) {
    // A map sees zeros from here on.
    std::fill(data.begin() + static_cast<ptrdiff_t>(bytes), data.end(), std::byte{0});
    data.resize(bytes);
    FreePages(node, (bytes + kFsPageBytes - 1) / kFsPageBytes);
  } else {
    GrowBuffer(node, bytes);
    node->data->resize(bytes);
  }
  node->ctime = Tick();
}

Errno FsTree::Allocate(FsNode* node, uint64_t offset, uint64_t bytes) {
  if (const Errno error = ChargePages(node, offset, offset + bytes); error != 0) return error;
  if (node->data->size() < offset + bytes) Resize(node, offset + bytes);
  return 0;
}

void FsTree::SyncFile(FsNode* node) {
  if (options.disk) node->synced = *node->data;
}

void FsTree::SyncDir(FsNode* node) {
  if (!options.disk) return;
  node->synced_children = node->children;
  node->unsynced.clear();
}

FileStat FsTree::StatOf(const FsNode& node) const {
  FileStat stat;
  stat.type = node.type;
  stat.bytes = node.type == FileType::kSymlink ? node.target.size() : node.data->size();
  stat.inode = node.inode;
  stat.device = options.device;
  stat.links = IsDir(node) && node.links != 0 ? 2 : node.links;
  stat.blocks_bytes = node.pages_used * kFsPageBytes;
  stat.change_time_ns = node.ctime;
  stat.mode = node.type == FileType::kSymlink ? 0777 : node.mode;
  stat.uid = node.uid;
  stat.gid = node.gid;
  return stat;
}

void FsTree::Notify(FsNode* dir, DirChange::Kind kind, const std::string& name) {
  for (SimWatch* watch : dir->watches) watch->Push({kind, name});
}

void FsTree::NotifyGone(FsNode* dir) {
  const std::vector<SimWatch*> ending = dir->watches;  // End takes them off the list
  for (SimWatch* watch : ending) watch->End();
}

void FsTree::EndWatches() {
  const std::vector<SimWatch*> ending(watches.begin(), watches.end());
  for (SimWatch* watch : ending) watch->End();
}

void FsTree::ForgetUnsynced(const NodePtr& node, Prng* prng, std::set<FsNode*>* seen) {
  if (!seen->insert(node.get()).second) return;
  node->writers = 0;
  if (node->type == FileType::kFile) {
    FsBuffer kept = node->synced.value_or(FsBuffer());
    const uint64_t outcome = prng->Below(3);
    if (outcome == 0) kept = *node->data;
    if (outcome == 1 && !node->data->empty()) {  // torn: some first part was written back
      const auto part = static_cast<ptrdiff_t>(prng->Below(node->data->size()));
      kept.resize(std::max<size_t>(kept.size(), static_cast<size_t>(part)));
      std::copy(node->data->begin(), node->data->begin() + part, kept.begin());
    }
    if (node->synced == *node->data) kept = *node->data;
    node->data = std::make_shared<FsBuffer>(kept);
    node->synced = std::move(kept);
    FreePages(node.get(), 0);
    // What stood on the disk fits on it.
    ChargePages(node.get(), 0, node->data->size());
    return;
  }
  if (!IsDir(*node)) return;
  node->children = node->synced_children;
  const uint64_t done = prng->Below(node->unsynced.size() + 1);
  for (size_t i = 0; i < done; ++i) {
    auto& [name, child] = node->unsynced[i];
    if (child == nullptr) {
      node->children.erase(name);
    } else {
      node->children[name] = child;
    }
  }
  SyncDir(node.get());
  for (auto& [name, child] : node->children) {
    if (seen->count(child.get()) == 0) child->links = 0;
    ++child->links;
    child->parent = node.get();
    child->name = name;
    ForgetUnsynced(child, prng, seen);
  }
}

}  // namespace tierkeep::sim
