#include "tiers/peer/peer_testutil.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/check.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

namespace fs = std::filesystem;

void CutAtRandom(Prng& prng, const std::string& content, ManifestEntry* entry) {
  entry->bytes = content.size();
  const uint64_t chunk_max = 1 + prng.Below(content.size() < 100'000 ? 30'000 : 900'000);
  for (uint64_t at = 0; at < content.size();) {
    const uint64_t bytes = std::min<uint64_t>(content.size() - at, 1 + prng.Below(chunk_max));
    entry->chunks.push_back(
        {.bytes = bytes, .digest = ComputeXxh128(AsBytes(content).subspan(at, bytes))});
    at += bytes;
  }
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool SendAll(int fd, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

PeerNode::PeerNode(std::string name, const DataPortOptions& options, const Logger& logger)
    : name_(std::move(name)), token_(Prng(std::hash<std::string>()(name_)).Bytes(32)) {
  auto mount = OpenPosixDir(dir_.path());
  TK_CHECK(mount.ok());
  auto store = Store::Open(std::shared_ptr<Dir>(std::move(*mount)), {}, &random_, Logger());
  TK_CHECK_MSG(store.ok(), store.error().ToString());
  store_ = std::move(*store);
  DataPortOptions port = options;
  port.listen_host = "127.0.0.1";
  auto server = DataServer::Start(port, token_, store_.get(), &clock_, logger);
  TK_CHECK_MSG(server.ok(), server.error().ToString());
  server_ = std::move(*server);
}

PeerNode::~PeerNode() = default;

PullSource PeerNode::SourceAt(uint16_t port) const {
  return {.node = name_, .address = {"127.0.0.1", port}, .token = token_};
}

PullSource PeerNode::Source() const { return SourceAt(server_->port()); }

std::string PeerNode::DataPath(const Blake3& digest) const {
  return dir_.Path("store/" + ShardDataPath(digest));
}

Blake3 PeerNode::AddShard(Manifest manifest, const std::vector<std::string>& contents) {
  manifest.identity = {.job = "job",
                       .save = {.run = {.sequence = 1, .nonce = {}}, .step = 7, .occurrence = 1},
                       .rank = 0,
                       .worker = 0,
                       .ordinal = 1,
                       .world = {.framework = Framework::kOrbax, .nodes = 2}};
  if (!manifest.logical.IsZero()) manifest.identity.world.data_parallelism = 2;
  const auto encoded = EncodeManifest(manifest);
  TK_CHECK_MSG(encoded.ok(), encoded.error().ToString());
  auto incoming = store_->StartIncoming(*encoded);
  TK_CHECK_MSG(incoming.ok(), incoming.error().ToString());
  for (size_t i = 0; i < contents.size(); ++i) {
    if (contents[i].empty()) continue;
    TK_CHECK((*incoming)->Write(i, 0, AsBytes(contents[i])).ok());
  }
  const Status finished = (*incoming)->Finish();
  TK_CHECK_MSG(finished.ok(), finished.error().ToString());
  return ManifestDigest(*encoded);
}

Blake3 PeerNode::AddRandomShard(Prng& prng, uint64_t bytes) {
  struct Item {
    ManifestEntry entry;
    std::string content;
  };
  std::map<std::string, Item> items;
  const auto add = [&](std::string path, EntryType type) -> Item& {
    Item& item = items[path];
    item.entry.path = path;
    item.entry.type = type;
    item.entry.mode = type == EntryType::kDirectory ? 0755 : prng.Chance(1, 2) ? 0644 : 0600;
    if (type == EntryType::kSymlink) item.entry.mode = 0777;
    item.entry.uid = ::getuid();
    item.entry.gid = ::getgid();
    return item;
  };
  add("", EntryType::kDirectory);
  std::vector<std::string> dirs = {""};
  const uint64_t typical = std::max<uint64_t>(1, bytes / (1 + prng.Below(20)));
  for (int i = 0; bytes > 0; ++i) {
    const std::string& dir = dirs[prng.Below(dirs.size())];
    const std::string path = (dir.empty() ? "" : dir + "/") + "n" + std::to_string(i);
    switch (prng.Below(8)) {
      case 0:
        add(path, EntryType::kDirectory);
        dirs.push_back(path);
        break;
      case 1:
        add(path, EntryType::kSymlink).entry.link_target = "../somewhere";
        break;
      case 2:
        add(path, EntryType::kFile);
        break;
      default: {
        const uint64_t size =
            std::min(bytes, 1 + prng.Below(prng.Chance(1, 2) ? 5000 : 2 * typical));
        Item& item = add(path, EntryType::kFile);
        item.content = prng.Bytes(size);
        CutAtRandom(prng, item.content, &item.entry);
        bytes -= size;
      }
    }
  }
  Manifest manifest;
  std::vector<std::string> contents;
  for (auto& [path, item] : items) {
    manifest.entries.push_back(std::move(item.entry));
    contents.push_back(std::move(item.content));
  }
  return AddShard(std::move(manifest), contents);
}

std::string DescribeTree(const std::string& path) {
  std::map<std::string, std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    struct stat st;
    TK_CHECK(::lstat(entry.path().c_str(), &st) == 0);
    std::ostringstream line;
    line << std::oct << st.st_mode << " " << std::dec << st.st_uid << " " << st.st_gid << " ";
    if (entry.is_symlink()) {
      line << fs::read_symlink(entry.path()).string();
    } else if (entry.is_regular_file()) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string content{std::istreambuf_iterator<char>(in), {}};
      line << content.size() << " " << ComputeBlake3(content).Hex();
    }
    lines[fs::relative(entry.path(), path).string()] = line.str();
  }
  std::string all;
  for (const auto& [name, line] : lines) all += name + " " + line + "\n";
  return all;
}

FaultyProxy::FaultyProxy(uint16_t to, OnAnswer on_answer)
    : to_(to), on_answer_(std::move(on_answer)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof(address);
  TK_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), length) == 0);
  TK_CHECK(::listen(listener_, 64) == 0);
  TK_CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { AcceptLoop(); });
}

FaultyProxy::~FaultyProxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
    ::shutdown(listener_, SHUT_RDWR);
    for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
  }
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  for (const int fd : sockets_) ::close(fd);
  ::close(listener_);
}

void FaultyProxy::AcceptLoop() {
  for (;;) {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    ++connections_;
    const std::lock_guard lock(mutex_);
    sockets_.push_back(client);
    if (stopping_) return;
    threads_.emplace_back([this, client] { Forward(client); });
  }
}

void FaultyProxy::Stall() {
  std::unique_lock lock(mutex_);
  stopped_.wait(lock, [&] { return stopping_; });
}

void FaultyProxy::Forward(int client) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  {
    const std::lock_guard lock(mutex_);
    sockets_.push_back(server);
    if (stopping_) return;
  }
  const sockaddr_in address = Loopback(to_);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::shutdown(client, SHUT_RDWR);
    return;
  }
  std::thread asking([client, server] {
    std::array<std::byte, 4096> bytes;
    for (;;) {
      const ssize_t n = ::recv(client, bytes.data(), bytes.size(), 0);
      if (n <= 0 || !SendAll(server, ByteSpan(bytes).first(static_cast<size_t>(n)))) break;
    }
    ::shutdown(server, SHUT_WR);
  });
  std::vector<std::byte> bytes(64 << 10);
  for (uint64_t offset = 0;;) {
    const ssize_t n = ::recv(server, bytes.data(), bytes.size(), 0);
    if (n <= 0) break;
    const MutableByteSpan piece = MutableByteSpan(bytes).first(static_cast<size_t>(n));
    const Verdict verdict = on_answer_(offset, piece);
    if (verdict == Verdict::kStall) Stall();
    if (verdict != Verdict::kPass || !SendAll(client, piece)) break;
    offset += piece.size();
  }
  ::shutdown(client, SHUT_RDWR);
  ::shutdown(server, SHUT_RDWR);
  asking.join();
}

}  // namespace tierkeep
