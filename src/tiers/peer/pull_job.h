// One pull: a manifest, then its chunks over several connections into an incoming shard.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "core/transfer.h"
#include "tiers/peer/chunk_index.h"
#include "tiers/peer/data_connection.h"
#include "tiers/peer/pull_gate.h"
#include "tiers/peer/puller.h"

namespace tierkeep {

// What the pulls of a node share.
struct PullContext {
  Store* store = nullptr;
  Clock* clock = nullptr;
  PullerOptions options;
  Logger logger;
  PullGate gate;
  std::atomic<uint64_t> bytes_pulled{0};
};

// Threads: made and run by one caller, once.
//
// The manifest is fetched under a plan of its own with a single chunk: it gets the same retries,
// back-off and take-over as the rest.
class PullJob {
 public:
  PullJob(PullContext* context, const PullRequest& request, const std::atomic<bool>* cancelled);
  PullResult Run();

 private:
  using Request = TransferPlan::Request;

  // Its connection is shut down by others under the job's lock, so it is replaced under it too.
  struct Worker {
    std::optional<size_t> source;
    std::unique_ptr<DataConnection> connection;
    TransferPlan::RequestId request = 0;  // 0: none
    bool broken_off = false;              // the plan wants the request back
    std::vector<std::byte> buffer;        // where chunks of small files arrive together
    Xxh128Hasher hasher;
  };

  void Work(Worker& worker);
  // One step of the plan; false when there is nothing more to do.
  bool WorkOnce(Worker& worker);
  bool Fetch(Worker& worker, const Request& request, std::unique_lock<std::mutex>& lock);
  Status Serve(Worker& worker, const Request& request);
  Status Connect(Worker& worker, size_t source);
  void Disconnect(Worker& worker);
  Status FetchManifest(Worker& worker);
  Status ReceiveChunks(Worker& worker, const Request& request);
  Status ReceiveLarge(Worker& worker, const ChunkPlace& place);
  // As many of the chunks that are left as fit into the buffer; how many those were.
  Result<uint64_t> ReceiveSmall(Worker& worker, ChunkIndex::Cursor& cursor, uint64_t chunks_left);
  Status Read(Worker& worker, MutableByteSpan out);
  void ChunkArrived(TransferPlan::RequestId id);
  TransferPlan::Outcome Judge(const Worker& worker, const Request& request, const Error& error);
  void StartChunks();
  // Takes the memory of all large files ahead of the workers: want of space shows before much was
  // pulled, and what two pulls at once can't both have neither finds out at the end.
  void ReserveFiles();
  // Our own side can't go on.
  void Abort(Error why);
  void AbortLocked(Error why);
  PullResult Finish();

  PullContext* const context_;
  const PullRequest& request_;
  const std::atomic<bool>* const cancelled_;

  // Written by the worker that fetches the manifest, before StartChunks; read by all after it.
  std::unique_ptr<IncomingShard> incoming_;
  std::optional<ChunkIndex> index_;
  std::atomic<uint64_t> bytes_pulled_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Worker>> workers_;
  size_t working_ = 0;
  std::thread reserver_;
  TransferPlan plan_;
  bool manifest_known_ = false;           // the plan is for the chunks
  std::vector<std::string> last_errors_;  // by source
  std::optional<Error> aborted_;
};

}  // namespace tierkeep
