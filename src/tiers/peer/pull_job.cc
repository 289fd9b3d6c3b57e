#include "tiers/peer/pull_job.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "tiers/peer/pull_rules.h"

namespace tierkeep {
namespace {

// Received and hashed in pieces of this size, so that the hash finds the bytes in the core's own
// cache.
constexpr size_t kPieceBytes = 512u << 10;
// A file from this size on is received into its map; smaller ones are received together and
// written.
constexpr uint64_t kMapFileBytesMin = 256u << 10;
constexpr size_t kBufferBytes = 1u << 20;
// How soon a request to cancel is noticed.
constexpr Duration kCancelCheck = 20ms;
constexpr Duration kConnectDeadline = 3s;

bool IsSmall(const ChunkPlace& place) { return place.file_bytes < kMapFileBytesMin; }

}  // namespace

PullJob::PullJob(PullContext* context, const PullRequest& request,
                 const std::atomic<bool>* cancelled)
    : context_(context),
      request_(request),
      cancelled_(cancelled),
      plan_({1}, request.sources.size(), PolicyFor(context->options, request.priority)),
      last_errors_(request.sources.size()) {}

PullResult PullJob::Run() {
  const Instant started = context_->clock->Now();
  const uint32_t streams = PolicyFor(context_->options, request_.priority).streams;
  for (uint32_t i = 0; i < streams; ++i) workers_.push_back(std::make_unique<Worker>());
  working_ = streams;
  context_->gate.Enter(request_.priority);
  std::vector<std::thread> threads;
  for (const auto& worker : workers_) threads.emplace_back([this, &worker] { Work(*worker); });
  {
    std::unique_lock lock(mutex_);
    while (working_ > 0) {
      if (cancelled_ == nullptr) {
        changed_.wait(lock);
        continue;
      }
      if (cancelled_->load() && !aborted_) AbortLocked(Error(Code::kCancelled, "cancelled"));
      changed_.wait_for(lock, kCancelCheck);
    }
  }
  for (std::thread& thread : threads) thread.join();
  if (reserver_.joinable()) reserver_.join();
  context_->gate.Leave(request_.priority);
  PullResult result = Finish();
  result.took = context_->clock->Now() - started;
  return result;
}

void PullJob::Work(Worker& worker) {
  while (WorkOnce(worker)) {
  }
  Disconnect(worker);
  const std::lock_guard lock(mutex_);
  --working_;
  changed_.notify_all();
}

bool PullJob::WorkOnce(Worker& worker) {
  const bool turn = context_->gate.WaitForTurn(request_.priority, kCancelCheck);
  std::unique_lock lock(mutex_);
  if (aborted_) return false;
  if (!turn) return true;
  const Instant now = context_->clock->Now();
  const TransferPlan::Step step = plan_.Next(now, worker.source);
  switch (step.action) {
    case TransferPlan::Action::kComplete:
    case TransferPlan::Action::kExhausted:
      changed_.notify_all();
      return false;
    case TransferPlan::Action::kWait:
      if (step.until == Instant::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, step.until - now);
      }
      return true;
    case TransferPlan::Action::kCancel:
      for (const auto& other : workers_) {
        if (other->request != step.request.id) continue;
        other->broken_off = true;
        if (other->connection) other->connection->Shutdown();
      }
      return true;
    case TransferPlan::Action::kRequest:
      return Fetch(worker, step.request, lock);
  }
  return false;
}

bool PullJob::Fetch(Worker& worker, const Request& request, std::unique_lock<std::mutex>& lock) {
  const bool for_manifest = !manifest_known_;
  worker.request = request.id;
  worker.broken_off = false;
  lock.unlock();
  const Status status = for_manifest ? [&]() -> Status {
    TK_RETURN_IF_ERROR(Connect(worker, request.source));
    return FetchManifest(worker);
  }()
      : Serve(worker, request);
  lock.lock();
  worker.request = 0;
  const Instant now = context_->clock->Now();
  if (status.ok()) {
    if (for_manifest) plan_.ChunkDone(request.id, now);
    plan_.Ended(request.id, TransferPlan::Outcome::kServed, now);
    if (for_manifest) StartChunks();
  } else {
    plan_.Ended(request.id, Judge(worker, request, status.error()), now);
  }
  changed_.notify_all();
  if (!status.ok() && worker.connection) {
    lock.unlock();
    Disconnect(worker);
  }
  return true;
}

TransferPlan::Outcome PullJob::Judge(const Worker& worker, const Request& request,
                                     const Error& error) {
  const bool broken_off = worker.broken_off && error.code() != Code::kDataLoss;
  if (aborted_ || broken_off) return TransferPlan::Outcome::kCancelled;
  return JudgeSource(request_, request.source, error, context_->logger, &plan_, &last_errors_);
}

void PullJob::StartChunks() {
  plan_ = PlanForChunks(incoming_->manifest(), plan_, request_.sources.size(),
                        PolicyFor(context_->options, request_.priority));
  manifest_known_ = true;
  reserver_ = std::thread([this] { ReserveFiles(); });
}

void PullJob::ReserveFiles() {
  const auto& entries = incoming_->manifest().entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].bytes < kMapFileBytesMin) continue;
    auto target = incoming_->Target(i);
    if (!target.ok()) return Abort(target.error());
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
  }
}

void PullJob::Disconnect(Worker& worker) {
  const std::unique_ptr<DataConnection> closing = [&] {
    const std::lock_guard lock(mutex_);
    worker.source.reset();
    return std::move(worker.connection);
  }();
}

Status PullJob::Connect(Worker& worker, size_t source) {
  if (worker.connection && worker.source == source) return OkStatus();
  Disconnect(worker);
  const PullSource& to = request_.sources[source];
  StreamOptions options;
  options.tls = context_->options.port.tls;
  options.connect_deadline = kConnectDeadline;
  options.stall_limit = context_->options.port.stall_limit;
  options.socket_buffer_bytes = kDataSocketBufferBytes;
  TK_ASSIGN_OR_RETURN(auto connection, DataConnection::Open(to.address, to.token, options));
  const std::lock_guard lock(mutex_);
  worker.connection = std::move(connection);
  worker.source = source;
  // Whoever wanted to break this off found no connection to shut down.
  if (aborted_ || worker.broken_off) return Error(Code::kCancelled, "broken off");
  return OkStatus();
}

Status PullJob::FetchManifest(Worker& worker) {
  TK_ASSIGN_OR_RETURN(const std::string encoded, worker.connection->FetchManifest(request_.digest));
  bytes_pulled_ += encoded.size();
  context_->bytes_pulled += encoded.size();
  if (ManifestDigest(encoded) != request_.digest) {
    return Error(Code::kDataLoss, "the manifest differs from its digest");
  }
  auto incoming = context_->store->StartIncoming(encoded);
  if (!incoming.ok()) {
    Abort(incoming.error());
    return incoming.error();
  }
  incoming_ = std::move(*incoming);
  index_.emplace(incoming_->manifest());
  return OkStatus();
}

Status PullJob::Serve(Worker& worker, const Request& request) {
  TK_RETURN_IF_ERROR(Connect(worker, request.source));
  TK_RETURN_IF_ERROR(worker.connection->RequestChunks(request_.digest, request.first, request.count,
                                                      request.bytes));
  return ReceiveChunks(worker, request);
}

Status PullJob::ReceiveChunks(Worker& worker, const Request& request) {
  ChunkIndex::Cursor cursor(*index_, request.first);
  for (uint64_t left = request.count; left > 0;) {
    if (IsSmall(cursor.place())) {
      TK_ASSIGN_OR_RETURN(const uint64_t received, ReceiveSmall(worker, cursor, left));
      left -= received;
      continue;
    }
    TK_RETURN_IF_ERROR(ReceiveLarge(worker, cursor.place()));
    ChunkArrived(request.id);
    cursor.Advance();
    --left;
  }
  return OkStatus();
}

Status PullJob::ReceiveLarge(Worker& worker, const ChunkPlace& place) {
  auto target = incoming_->Target(place.entry);
  if (!target.ok()) {
    Abort(target.error());
    return target.error();
  }
  TK_CHECK(target->size() == place.file_bytes);
  MutableByteSpan out = target->subspan(place.offset, place.chunk->bytes);
  worker.hasher.Reset();
  while (!out.empty()) {
    const MutableByteSpan piece = out.first(std::min(out.size(), kPieceBytes));
    TK_RETURN_IF_ERROR(Read(worker, piece));
    worker.hasher.Update(piece);
    out = out.subspan(piece.size());
  }
  return CheckChunk(incoming_->manifest(), place, worker.hasher.Finish());
}

Result<uint64_t> PullJob::ReceiveSmall(Worker& worker, ChunkIndex::Cursor& cursor,
                                       uint64_t chunks_left) {
  worker.buffer.resize(kBufferBytes);
  size_t bytes = 0;
  uint64_t chunks = 0;
  for (ChunkIndex::Cursor ahead = cursor; chunks < chunks_left; ++chunks, ahead.Advance()) {
    const ChunkPlace& place = ahead.place();
    if (!IsSmall(place) || bytes + place.chunk->bytes > worker.buffer.size()) break;
    bytes += place.chunk->bytes;
  }
  TK_CHECK(chunks > 0);
  ByteSpan received = MutableByteSpan(worker.buffer).first(bytes);
  TK_RETURN_IF_ERROR(Read(worker, MutableByteSpan(worker.buffer).first(bytes)));
  for (uint64_t i = 0; i < chunks; ++i, cursor.Advance()) {
    const ChunkPlace& place = cursor.place();
    const ByteSpan data = received.first(place.chunk->bytes);
    received = received.subspan(data.size());
    TK_RETURN_IF_ERROR(CheckChunk(incoming_->manifest(), place, ComputeXxh128(data)));
    const Status written = incoming_->Write(place.entry, place.offset, data);
    if (!written.ok()) {
      Abort(written.error());
      return written.error();
    }
    ChunkArrived(worker.request);
  }
  return chunks;
}

Status PullJob::Read(Worker& worker, MutableByteSpan out) {
  Status status = worker.connection->Read(out);
  if (!status.ok()) {
    // The kernel couldn't give the destination a page: our memory, not the source.
    if (status.error().errno_value() == EFAULT) {
      Abort(Error(Code::kResourceExhausted, "no memory for an incoming shard", EFAULT));
    }
    // A broken TLS record was damaged on the way: the source's bytes may be good.
    if (status.error().code() == Code::kDataLoss) {
      return Error(Code::kUnavailable, status.error().message());
    }
    return status;
  }
  bytes_pulled_.fetch_add(out.size(), std::memory_order_relaxed);
  context_->bytes_pulled.fetch_add(out.size(), std::memory_order_relaxed);
  return status;
}

void PullJob::ChunkArrived(TransferPlan::RequestId id) {
  const std::lock_guard lock(mutex_);
  plan_.ChunkDone(id, context_->clock->Now());
}

void PullJob::Abort(Error why) {
  const std::lock_guard lock(mutex_);
  AbortLocked(std::move(why));
}

void PullJob::AbortLocked(Error why) {
  if (aborted_) return;
  aborted_ = std::move(why);
  for (const auto& worker : workers_) {
    if (worker->connection) worker->connection->Shutdown();
  }
  changed_.notify_all();
}

PullResult PullJob::Finish() {
  PullResult result = ConcludePull(request_, plan_, last_errors_, aborted_,
                                   manifest_known_ ? incoming_.get() : nullptr);
  result.bytes_pulled = bytes_pulled_;
  incoming_.reset();
  return result;
}

}  // namespace tierkeep
