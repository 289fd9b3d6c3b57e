// Nodes with a store, a data server and random shards, and a proxy that misbehaves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "io/temp_dir_testutil.h"
#include "tiers/peer/data_server.h"
#include "tiers/peer/puller.h"

namespace tierkeep {

// One node's RAM tier and data port on loopback.
class PeerNode {
 public:
  explicit PeerNode(std::string name, const DataPortOptions& options = {},
                    const Logger& logger = Logger());
  ~PeerNode();

  // A random tree: directories, links, empty files, files of many sizes with random cuts. In all
  // about `bytes`.
  Blake3 AddRandomShard(Prng& prng, uint64_t bytes);
  Blake3 AddShard(Manifest manifest, const std::vector<std::string>& contents);
  PullSource Source() const;
  PullSource SourceAt(uint16_t port) const;  // through a proxy
  // Path of the shard's data directory.
  std::string DataPath(const Blake3& digest) const;

  Store& store() { return *store_; }
  DataServer& server() { return *server_; }
  void StopServer() { server_.reset(); }
  Clock& clock() { return clock_; }
  const std::string& token() const { return token_; }

 private:
  const std::string name_;
  const std::string token_;
  TempDir dir_;
  SystemClock clock_;
  SystemRandom random_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<DataServer> server_;
};

// Every entry of both trees: path, type, mode, link target, bytes.
std::string DescribeTree(const std::string& path);

// Passes TCP connections on to a port of this machine. `on_answer` sees each piece that the server
// sends: its offset within its connection, and the bytes, which it may change; it says what becomes
// of the connection. Called on the connection's thread.
class FaultyProxy {
 public:
  enum class Verdict : uint8_t { kPass, kCut, kStall };
  using OnAnswer = std::function<Verdict(uint64_t offset, MutableByteSpan bytes)>;

  FaultyProxy(uint16_t to, OnAnswer on_answer);
  ~FaultyProxy();
  uint16_t port() const { return port_; }
  uint64_t connections() const { return connections_; }

 private:
  void AcceptLoop();
  void Forward(int client);
  void Stall();

  const uint16_t to_;
  const OnAnswer on_answer_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<uint64_t> connections_{0};
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace tierkeep
