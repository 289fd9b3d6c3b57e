#include "sim/sim_pulls.h"

#include <algorithm>
#include <utility>

#include "core/transfer.h"
#include "format/store_names.h"
#include "tiers/peer/chunk_index.h"
#include "tiers/peer/pull_rules.h"
#include "tiers/ram/save_hash.h"

namespace tierkeep::sim {
namespace {

// Files from this size on are received into their map, smaller ones are written.
constexpr uint64_t kMapFileBytesMin = 2048;
constexpr Duration kConnectDeadline = 3s;
constexpr Duration kStallLimit = 10s;
constexpr Duration kCancelCheck = 500ms;
constexpr Duration kTurnCheck = 100ms;
constexpr Duration kPerChunkMax = 2ms;

// Small enough that a shard of a few KiB takes several requests.
const PullerOptions& Options() {
  static const PullerOptions options = [] {
    PullerOptions small;
    small.streams = 3;
    small.request_bytes = 8192;
    return small;
  }();
  return options;
}

}  // namespace

class SimPull : public std::enable_shared_from_this<SimPull> {
 public:
  SimPull(SimPulls* owner, PullRequest request, std::shared_ptr<const std::atomic<bool>> cancelled,
          std::function<void(PullResult)> done)
      : owner_(owner),
        parts_(owner->parts_),
        request_(std::move(request)),
        cancelled_(std::move(cancelled)),
        done_(std::move(done)),
        plan_({1}, request_.sources.size(), PolicyFor(Options(), request_.priority)),
        errors_(request_.sources.size()) {}

  void Begin() {
    started_ = parts_.clock->Now();
    const auto held = parts_.store->Find(request_.digest);
    if (held && !held->suspect) return Finish(PullResult{});
    ++owner_->active_[static_cast<size_t>(request_.priority)];
    began_ = true;
    workers_.resize(PolicyFor(Options(), request_.priority).streams);
    working_ = workers_.size();
    CheckCancelled();
    for (size_t i = 0; i < workers_.size(); ++i) Later(i, 10us, [this, i] { Next(i); });
  }

 private:
  using Request = TransferPlan::Request;
  struct Worker {
    std::optional<size_t> source;
    Request request;
    uint64_t next = 0;  // chunk
    bool busy = false, waiting = false, broken_off = false, ended = false;
  };

  void Later(size_t, Duration delay, std::function<void()> work) {
    parts_.world->After(delay * parts_.speed->slow,
                        [self = weak_from_this(), work = std::move(work)] {
                          const auto here = self.lock();
                          if (here && !here->finished_ && here->parts_.process->alive()) work();
                        });
  }

  void CheckCancelled() {
    if (cancelled_->load() && !aborted_) Abort(Error(Code::kCancelled, "cancelled"));
    parts_.world->After(kCancelCheck, [self = weak_from_this()] {
      const auto here = self.lock();
      if (here && !here->finished_ && here->parts_.process->alive()) here->CheckCancelled();
    });
  }

  void Next(size_t i) {
    Worker& worker = workers_[i];
    if (worker.ended || worker.busy) return;
    worker.waiting = false;
    if (aborted_) return EndWorker(worker);
    if (!owner_->HasTurn(request_.priority)) {
      return Later(i, kTurnCheck, [this, i] { Next(i); });
    }
    const Instant now = parts_.clock->Now();
    const TransferPlan::Step step = plan_.Next(now, worker.source);
    switch (step.action) {
      case TransferPlan::Action::kComplete:
      case TransferPlan::Action::kExhausted:
        EndWorker(worker);
        return WakeAll();
      case TransferPlan::Action::kWait:
        worker.waiting = true;
        if (step.until == Instant::max()) return;
        return Later(i, std::max<Duration>(step.until - now, 1us), [this, i] {
          if (workers_[i].waiting) Next(i);
        });
      case TransferPlan::Action::kCancel:
        for (Worker& other : workers_) {
          if (other.busy && other.request.id == step.request.id) other.broken_off = true;
        }
        return Later(i, 10us, [this, i] { Next(i); });
      case TransferPlan::Action::kRequest:
        worker.busy = true;
        worker.broken_off = false;
        worker.request = step.request;
        worker.next = step.request.first;
        return Connect(i);
    }
  }

  void Connect(size_t i) {
    Worker& worker = workers_[i];
    const size_t source = worker.request.source;
    const PullSource& to = request_.sources[source];
    const size_t host = HostOf(to.address.host);
    if (worker.source == source) return Ask(i);
    worker.source.reset();
    if (!parts_.network->Reaches(parts_.host, host)) {
      return Later(i, kConnectDeadline,
                   [this, i] { End(i, Error(Code::kDeadlineExceeded, "no connection")); });
    }
    Later(i, parts_.network->Latency(parts_.host, host) * 2, [this, i, source] {
      const PullSource& at = request_.sources[source];
      const DataServerView server = parts_.server_at(at.address);
      if (server.store == nullptr) return End(i, Error(Code::kUnavailable, "refused"));
      if (server.token != at.token) return End(i, Error(Code::kUnauthenticated, "wrong token"));
      workers_[i].source = source;
      Ask(i);
    });
  }

  void Ask(size_t i) {
    const HostPort& at = request_.sources[workers_[i].request.source].address;
    const size_t host = HostOf(at.host);
    const Duration took =
        parts_.network->Latency(parts_.host, host) + parts_.world->Between(1us, kPerChunkMax);
    Later(i, took, [this, i, host] {
      if (!parts_.network->Reaches(parts_.host, host)) {
        return Later(i, kStallLimit, [this, i] {
          if (workers_[i].busy) End(i, Error(Code::kUnavailable, "no byte moved"));
        });
      }
      if (!manifest_known_) return End(i, ReceiveManifest(i));
      const Status received = ReceiveChunk(i);
      if (!received.ok()) return End(i, received);
      Worker& worker = workers_[i];
      if (worker.next == worker.request.first + worker.request.count) return End(i, OkStatus());
      Ask(i);
    });
  }

  // What arrives of what was sent: maybe flipped, maybe nothing more.
  Status Cross(std::string* bytes) {
    if (parts_.world->Chance(parts_.rates->cut_off)) {
      parts_.world->Fault("data connection cut off");
      return Error(Code::kUnavailable, "the connection broke off");
    }
    if (!bytes->empty() && parts_.world->Chance(parts_.rates->flipped)) {
      parts_.world->Fault("byte flipped in flight");
      (*bytes)[parts_.world->prng().Below(bytes->size())] ^= 0x10;
    }
    bytes_pulled_ += bytes->size();
    return OkStatus();
  }

  Result<DataServerView> Server(size_t i) {
    DataServerView server = parts_.server_at(request_.sources[workers_[i].request.source].address);
    if (server.store == nullptr) return Error(Code::kUnavailable, "the source is gone");
    return server;
  }

  Status ReceiveManifest(size_t i) {
    if (manifest_known_) return Error(Code::kCancelled, "another connection was faster");
    TK_ASSIGN_OR_RETURN(const DataServerView server, Server(i));
    const auto held = server.store->Find(request_.digest);
    if (!held) return Error(Code::kNotFound, "the shard is not held");
    std::string encoded = *held->encoded;
    TK_RETURN_IF_ERROR(Cross(&encoded));
    if (ManifestDigest(encoded) != request_.digest) {
      return Error(Code::kDataLoss, "the manifest differs from its digest");
    }
    auto incoming = parts_.store->StartIncoming(encoded);
    if (!incoming.ok()) {
      Abort(incoming.error());
      return incoming.error();
    }
    incoming_ = std::move(*incoming);
    index_.emplace(incoming_->manifest());
    return OkStatus();
  }

  Status ReceiveChunk(size_t i) {
    Worker& worker = workers_[i];
    TK_ASSIGN_OR_RETURN(const DataServerView server, Server(i));
    const ChunkIndex::Cursor cursor(*index_, worker.next);
    const ChunkPlace& place = cursor.place();
    std::string bytes(place.chunk->bytes, '\0');
    {
      auto file = server.store->OpenEntry(request_.digest, place.entry);
      if (!file.ok() && file.error().code() == Code::kNotFound) return file.error();
      const Status read =
          file.ok() ? (*file)->ReadExactly(place.offset, std::as_writable_bytes(std::span(bytes)))
                    : file.error();
      // It can't say so any more: it closes the connection.
      if (!read.ok()) return Error(Code::kUnavailable, "closed by the peer");
    }
    TK_RETURN_IF_ERROR(Cross(&bytes));
    TK_RETURN_IF_ERROR(CheckChunk(incoming_->manifest(), place, ComputeXxh128(AsBytes(bytes))));
    const Status written = Put(place, AsBytes(bytes));
    if (!written.ok()) {
      Abort(written.error());
      return written;
    }
    // The host may have died, or the pull been ended, within that very call.
    if (!worker.busy) return Error(Code::kCancelled, "the pull has ended");
    ++worker.next;
    plan_.ChunkDone(worker.request.id, parts_.clock->Now());
    return OkStatus();
  }

  Status Put(const ChunkPlace& place, ByteSpan bytes) {
    if (place.file_bytes < kMapFileBytesMin) {
      return incoming_->Write(place.entry, place.offset, bytes);
    }
    TK_ASSIGN_OR_RETURN(const MutableByteSpan target, incoming_->Target(place.entry));
    std::copy(bytes.begin(), bytes.end(), target.begin() + static_cast<ptrdiff_t>(place.offset));
    return OkStatus();
  }

  void End(size_t i, const Status& status) {
    Worker& worker = workers_[i];
    if (!worker.busy || worker.ended) return;
    const bool for_manifest = !manifest_known_ && incoming_ != nullptr && status.ok();
    worker.busy = false;
    const Instant now = parts_.clock->Now();
    if (status.ok()) {
      if (for_manifest) plan_.ChunkDone(worker.request.id, now);
      plan_.Ended(worker.request.id, TransferPlan::Outcome::kServed, now);
      if (for_manifest) StartChunks();
    } else {
      plan_.Ended(worker.request.id, Judge(worker, status.error()), now);
      worker.source.reset();
    }
    Later(i, 10us, [this, i] { Next(i); });
    WakeAll();
  }

  TransferPlan::Outcome Judge(const Worker& worker, const Error& error) {
    using Outcome = TransferPlan::Outcome;
    if (aborted_) return Outcome::kCancelled;
    if (worker.broken_off && error.code() != Code::kDataLoss) return Outcome::kCancelled;
    if (error.code() == Code::kCancelled) return Outcome::kCancelled;
    return JudgeSource(request_, worker.request.source, error, parts_.logger, &plan_, &errors_);
  }

  void StartChunks() {
    plan_ = PlanForChunks(incoming_->manifest(), plan_, request_.sources.size(),
                          PolicyFor(Options(), request_.priority));
    manifest_known_ = true;
  }

  void Abort(Error why) {
    if (aborted_) return;
    aborted_ = std::move(why);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].busy) {
        Later(i, 10us, [this, i] { End(i, Error(Code::kCancelled, "broken off")); });
      }
    }
    WakeAll();
  }

  void WakeAll() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (std::exchange(workers_[i].waiting, false)) Later(i, 10us, [this, i] { Next(i); });
    }
  }

  void EndWorker(Worker& worker) {
    worker.ended = true;
    if (--working_ > 0) return;
    PullResult result = ConcludePull(request_, plan_, errors_, aborted_,
                                     manifest_known_ ? incoming_.get() : nullptr);
    result.bytes_pulled = bytes_pulled_;
    incoming_.reset();
    Finish(std::move(result));
  }

  void Finish(PullResult result) {
    if (began_) --owner_->active_[static_cast<size_t>(request_.priority)];
    finished_ = true;
    result.took = parts_.clock->Now() - started_;
    parts_.world->Trace("n{} pulled {}: {}", parts_.host, request_.digest.Hex().substr(0, 12),
                        result.status.ok() ? "ok" : result.status.error().message());
    if (result.bytes_pulled > 0) parts_.world->Count("shards pulled");
    const auto done = std::move(done_);
    const auto keep = shared_from_this();
    owner_->running_.erase(keep);
    done(std::move(result));
  }

  SimPulls* const owner_;
  const SimPulls::Parts& parts_;
  const PullRequest request_;
  const std::shared_ptr<const std::atomic<bool>> cancelled_;
  std::function<void(PullResult)> done_;
  TransferPlan plan_;
  std::vector<std::string> errors_;
  std::vector<Worker> workers_;
  size_t working_ = 0;
  bool began_ = false, manifest_known_ = false, finished_ = false;
  std::unique_ptr<IncomingShard> incoming_;
  std::optional<ChunkIndex> index_;
  std::optional<Error> aborted_;
  uint64_t bytes_pulled_ = 0;
  Instant started_{};
};

SimPulls::~SimPulls() = default;

bool SimPulls::HasTurn(PullPriority priority) const {
  for (size_t i = 0; i < static_cast<size_t>(priority); ++i) {
    if (active_[i] > 0) return false;
  }
  return true;
}

void SimPulls::Start(WorkQueue& tasks, PullRequest request,
                     std::shared_ptr<const std::atomic<bool>> cancelled,
                     std::function<void(PullResult)> done) {
  auto pull =
      std::make_shared<SimPull>(this, std::move(request), std::move(cancelled), std::move(done));
  running_.insert(pull);
  tasks.Submit([pull] { pull->Begin(); });
}

Result<std::vector<LogicalLine>> SimPulls::Listing(const PullSource& source, const Blake3& digest,
                                                   const Blake3& logical) const {
  if (!parts_.network->Reaches(parts_.host, HostOf(source.address.host))) {
    return Error(Code::kDeadlineExceeded, "no connection");
  }
  const DataServerView server = parts_.server_at(source.address);
  if (server.store == nullptr) return Error(Code::kUnavailable, "refused");
  if (server.token != source.token) return Error(Code::kUnauthenticated, "wrong token");
  const auto held = server.store->Find(digest);
  if (!held) return Error(Code::kNotFound, "no such shard");
  TK_ASSIGN_OR_RETURN(const std::string listing,
                      ListLogically(server.store->root(), ShardDataPath(digest), *held->manifest,
                                    nullptr, parts_.logger));
  return DecodeLogicalListing(listing, logical);
}

void SimPulls::StartListing(WorkQueue& tasks, PullRequest request, const Blake3& logical,
                            std::function<void(Result<std::vector<LogicalLine>>)> done) {
  tasks.Submit([this, request = std::move(request), logical, done = std::move(done)] {
    Result<std::vector<LogicalLine>> last = Error(Code::kUnavailable, "nobody to ask");
    for (const PullSource& source : request.sources) {
      last = Listing(source, request.digest, logical);
      if (last.ok()) break;
    }
    done(std::move(last));
  });
}

}  // namespace tierkeep::sim
