#include "tiers/ram/ram_testutil.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/check.h"
#include "base/digest.h"
#include "format/ids.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

// A file opened through a FaultyDir.
class FaultyFile : public File {
 public:
  FaultyFile(std::unique_ptr<File> inner, std::shared_ptr<Faults> faults, std::string path)
      : inner_(std::move(inner)), faults_(std::move(faults)), path_(std::move(path)) {}

  Result<FileStat> Stat() override {
    if (auto error = faults_->Check("File::Stat", path_)) return *error;
    return inner_->Stat();
  }
  Status ReadExactly(uint64_t offset, MutableByteSpan out) override {
    if (auto error = faults_->Check("ReadExactly", path_)) return *error;
    return inner_->ReadExactly(offset, out);
  }
  Status WriteAll(uint64_t offset, ByteSpan data) override {
    if (auto error = faults_->Check("WriteAll", path_)) return *error;
    return inner_->WriteAll(offset, data);
  }
  Status Resize(uint64_t bytes) override {
    if (auto error = faults_->Check("Resize", path_)) return *error;
    return inner_->Resize(bytes);
  }
  Status Allocate(uint64_t offset, uint64_t bytes) override {
    if (auto error = faults_->Check("Allocate", path_)) return *error;
    return inner_->Allocate(offset, bytes);
  }
  Result<std::unique_ptr<Mapping>> Map(uint64_t offset, size_t bytes, MapAccess access) override {
    if (auto error = faults_->Check("Map", path_)) return *error;
    return inner_->Map(offset, bytes, access);
  }
  Status Sync() override { return inner_->Sync(); }
  int descriptor() const override { return inner_->descriptor(); }

 private:
  const std::unique_ptr<File> inner_;
  const std::shared_ptr<Faults> faults_;
  const std::string path_;
};

class FaultyDir : public ForwardingDir {
 public:
  FaultyDir(std::unique_ptr<Dir> dir, std::shared_ptr<Faults> faults)
      : ForwardingDir(std::move(dir)), faults_(std::move(faults)) {}

  Status CheckPath() override {
    if (auto error = faults_->Check("CheckPath", "")) return *error;
    return ForwardingDir::CheckPath();
  }
  Result<std::unique_ptr<Dir>> OpenDir(std::string_view path) override {
    if (auto error = faults_->Check("OpenDir", path)) return *error;
    return ForwardingDir::OpenDir(path);
  }
  Result<std::unique_ptr<File>> OpenFile(std::string_view path) override {
    if (auto error = faults_->Check("OpenFile", path)) return *error;
    return WrapFile(inner().OpenFile(path), path);
  }
  Result<std::unique_ptr<File>> OpenFileReadWrite(std::string_view path) override {
    if (auto error = faults_->Check("OpenFileReadWrite", path)) return *error;
    return WrapFile(inner().OpenFileReadWrite(path), path);
  }
  Result<std::unique_ptr<File>> CreateFile(std::string_view path, uint32_t mode) override {
    if (auto error = faults_->Check("CreateFile", path)) return *error;
    return WrapFile(inner().CreateFile(path, mode), path);
  }
  Status MakeDir(std::string_view path, uint32_t mode) override {
    if (auto error = faults_->Check("MakeDir", path)) return *error;
    return inner().MakeDir(path, mode);
  }
  Status MakeDirs(std::string_view path, uint32_t mode) override {
    if (auto error = faults_->Check("MakeDirs", path)) return *error;
    return inner().MakeDirs(path, mode);
  }
  Status MakeSymlink(std::string_view target, std::string_view path) override {
    if (auto error = faults_->Check("MakeSymlink", path)) return *error;
    return inner().MakeSymlink(target, path);
  }
  Result<std::string> ReadLink(std::string_view path) override {
    if (auto error = faults_->Check("ReadLink", path)) return *error;
    return inner().ReadLink(path);
  }
  Result<FileStat> Stat(std::string_view path) override {
    if (auto error = faults_->Check("Stat", path)) return *error;
    return inner().Stat(path);
  }
  Result<std::vector<DirEntry>> List(std::string_view path) override {
    if (auto error = faults_->Check("List", path)) return *error;
    return inner().List(path);
  }
  Status Rename(std::string_view from, std::string_view to) override {
    if (auto error = faults_->Check("Rename", to)) return *error;
    return inner().Rename(from, to);
  }
  Status RenameNew(std::string_view from, std::string_view to) override {
    if (auto error = faults_->Check("RenameNew", to)) return *error;
    return inner().RenameNew(from, to);
  }
  Status HardLink(std::string_view from, std::string_view to) override {
    if (auto error = faults_->Check("HardLink", to)) return *error;
    return inner().HardLink(from, to);
  }
  Status Unlink(std::string_view path) override {
    if (auto error = faults_->Check("Unlink", path)) return *error;
    return inner().Unlink(path);
  }
  Status RemoveDir(std::string_view path) override {
    if (auto error = faults_->Check("RemoveDir", path)) return *error;
    return inner().RemoveDir(path);
  }
  Status RemoveTree(std::string_view path) override {
    if (auto error = faults_->Check("RemoveTree", path)) return *error;
    return inner().RemoveTree(path);
  }
  Result<std::string> ReadSmallFile(std::string_view path, uint64_t bytes_max) override {
    if (auto error = faults_->Check("ReadSmallFile", path)) return *error;
    return inner().ReadSmallFile(path, bytes_max);
  }
  Status WriteFileAtomically(std::string_view path, std::string_view content,
                             uint32_t mode) override {
    if (auto error = faults_->Check("WriteFileAtomically", path)) return *error;
    return inner().WriteFileAtomically(path, content, mode);
  }
  Status SetOwnerAndMode(std::string_view path, uint32_t uid, uint32_t gid,
                         uint32_t mode) override {
    if (auto error = faults_->Check("SetOwnerAndMode", path)) return *error;
    return inner().SetOwnerAndMode(path, uid, gid, mode);
  }
  Status SetImmutable(std::string_view path, bool immutable) override {
    if (auto error = faults_->Check("SetImmutable", path)) return *error;
    return inner().SetImmutable(path, immutable);
  }
  Result<LeaseResult> ProbeWriters(std::string_view path) override {
    if (auto error = faults_->Check("ProbeWriters", path)) return *error;
    return inner().ProbeWriters(path);
  }
  Result<SpaceInfo> Space() override {
    if (auto error = faults_->Check("Space", "")) return *error;
    return inner().Space();
  }

 protected:
  std::unique_ptr<Dir> Wrap(std::unique_ptr<Dir> dir) override {
    return MakeFaultyDir(std::move(dir), faults_);
  }

 private:
  Result<std::unique_ptr<File>> WrapFile(Result<std::unique_ptr<File>> file,
                                         std::string_view path) {
    if (!file.ok()) return file;
    return std::unique_ptr<File>(
        std::make_unique<FaultyFile>(std::move(*file), faults_, std::string(path)));
  }

  const std::shared_ptr<Faults> faults_;
};

}  // namespace

// ---- faults ------------------------------------------------------------------------------------

void Faults::Set(Rule rule) {
  const std::lock_guard lock(mutex_);
  rule_ = std::move(rule);
  hit_ = false;
}

void Faults::FailAt(uint64_t n, Error error, After after) {
  const auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  Set([this, n, error, after, calls](std::string_view, std::string_view) -> std::optional<Error> {
    const uint64_t call = ++*calls;
    if (call < n || (call > n && after == After::kWorks)) return std::nullopt;
    hit_ = true;
    return error;
  });
}

void Faults::FailFrom(uint64_t n, Error error, std::function<bool(std::string_view call)> fails) {
  const auto calls = std::make_shared<std::atomic<uint64_t>>(0);
  Set([this, n, error, fails = std::move(fails), calls](std::string_view call,
                                                        std::string_view) -> std::optional<Error> {
    if (++*calls < n || !fails(call)) return std::nullopt;
    hit_ = true;
    return error;
  });
}

std::optional<Error> Faults::Check(std::string_view call, std::string_view path) {
  Rule rule;
  {
    const std::lock_guard lock(mutex_);
    rule = rule_;
  }
  return rule ? rule(call, path) : std::nullopt;
}

std::unique_ptr<Dir> MakeFaultyDir(std::unique_ptr<Dir> dir, std::shared_ptr<Faults> faults) {
  return std::make_unique<FaultyDir>(std::move(dir), std::move(faults));
}

// ---- one node ----------------------------------------------------------------------------------

RamNode::RamNode() : temp_("/dev/shm") {
  stage_options_.writers_limit = 0s;
  const Status opened = Reopen();
  TK_CHECK_MSG(opened.ok(), opened.error().ToString());
}

Status RamNode::Reopen() {
  volume_ = nullptr;
  stager_ = nullptr;
  store_ = nullptr;
  auto real = OpenPosixDir(temp_.path());
  TK_CHECK_MSG(real.ok(), real.error().ToString());
  std::shared_ptr<Dir> mount = MakeFaultyDir(std::move(*real), faults_);
  TK_ASSIGN_OR_RETURN(store_, Store::Open(std::move(mount), {&pool_}, &random_, logger()));
  stager_ = std::make_unique<Stager>(store_.get(), &pool_, &clock_, stage_options_, logger());
  volume_ = std::make_unique<Volume>(store_.get(), logger());
  return OkStatus();
}

Result<StagedShard> RamNode::Stage(const std::string& name, const ShardIdentity& identity) {
  const std::string staged = fmt::format("{}-{}", name, identity.ordinal);
  TK_RETURN_IF_ERROR(stager_->Take(name, staged));
  return stager_->HashAndAdopt(staged, identity, nullptr);
}

bool RamNode::HasImmutable() {
  PutFile(path() + "/probe", "x");
  const bool has = temp_.dir().SetImmutable("probe", true).ok();
  const Status removed = temp_.dir().RemoveTree("probe");
  TK_CHECK_MSG(removed.ok(), removed.error().ToString());
  return has;
}

ShardIdentity TestIdentity(Step step, uint32_t data_parallelism) {
  ShardIdentity id;
  id.job = "train";
  id.save.run.sequence = 7;
  id.save.run.nonce.bytes[0] = 0x42;
  id.save.step = step;
  id.ordinal = step + 1;
  id.world.nodes = 4;
  id.world.data_parallelism = data_parallelism;
  return id;
}

// ---- files -------------------------------------------------------------------------------------

void PutFile(const std::string& path, std::string_view content, uint32_t mode) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  TK_CHECK_MSG(out.good(), "write " + path);
  TK_CHECK(::chmod(path.c_str(), mode) == 0);
}

std::string GetFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool Exists(const std::string& path) {
  return fs::symlink_status(path).type() != fs::file_type::not_found;
}

void MakeRandomTree(Prng& prng, const std::string& path, const RandomTreeOptions& options) {
  fs::create_directory(path);
  std::vector<std::string> dirs{path};
  const size_t entries = 1 + prng.Below(options.entries_max);
  for (size_t i = 0; i < entries; ++i) {
    const std::string& dir = dirs[prng.Below(dirs.size())];
    // Names with odd bytes now and then: they are allowed.
    const std::string name =
        dir + "/" + fmt::format("e{}", i) + (prng.Chance(1, 8) ? "\n \xff'\"\\" : "");
    switch (prng.Below(8)) {
      case 0:
      case 1:
        fs::create_directory(name);
        TK_CHECK(::chmod(name.c_str(), prng.Chance(1, 2) ? 0755 : 0700) == 0);
        dirs.push_back(name);
        break;
      case 2:
        fs::create_symlink(prng.Chance(1, 2) ? "../../../../etc/passwd" : "e0", name);
        break;
      case 3:
        PutFile(name, "", 0600);
        break;
      default:
        PutFile(name, prng.Bytes(prng.Below(options.file_bytes_max)),
                prng.Chance(1, 2) ? 0644 : 0400);
    }
  }
  if (options.large_file) PutFile(path + "/large", prng.Bytes(20u << 20));
}

std::string TreeText(const std::string& path) {
  std::map<std::string, std::string> lines;
  const auto describe = [&](const fs::path& at) {
    struct stat st;
    TK_CHECK(::lstat(at.c_str(), &st) == 0);
    std::string what = fmt::format("{:o} {}:{}", st.st_mode, st.st_uid, st.st_gid);
    if (S_ISREG(st.st_mode)) {
      const std::string content = GetFile(at);
      what += fmt::format(" {} {}", content.size(), ComputeXxh128(AsBytes(content)).Hex());
    } else if (S_ISLNK(st.st_mode)) {
      what += " -> " + fs::read_symlink(at).string();
    }
    lines[at.string().substr(path.size())] = what;
  };
  describe(path);
  if (fs::is_directory(fs::symlink_status(path))) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) describe(entry.path());
  }
  std::string text;
  for (const auto& [name, what] : lines) text += name + ": " + what + "\n";
  return text;
}

}  // namespace tierkeep
