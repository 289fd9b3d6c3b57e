#include "tiers/peer/data_session.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "format/store_names.h"
#include "tiers/ram/save_hash.h"

namespace tierkeep {
namespace {

// A file from this size on is mapped; below, the calls for a map cost more than a copy.
constexpr uint64_t kMapFileBytesMin = 256u << 10;
constexpr size_t kBufferBytes = 512u << 10;
// Handed to one send; the time limit of the peer counts for each.
constexpr uint64_t kSendBytes = 4u << 20;
constexpr int kSendStalls = 3;  // stall limits in which kSendBytes must have moved

std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool DataService::WaitUntil(Instant then) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopping_) return false;
    const Instant now = clock->Now();
    if (now >= then) return true;
    stopped_.wait_for(lock, then - now);
  }
}

bool DataService::MaySpeakOfStrangers() {
  constexpr Duration kPause = 1s;
  const std::lock_guard lock(mutex_);
  const Instant now = clock->Now();
  if (spoke_of_strangers_ != Instant::min() && now - spoke_of_strangers_ < kPause) return false;
  spoke_of_strangers_ = now;
  return true;
}

void DataService::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  stopped_.notify_all();
}

DataSession::DataSession(DataService* service, std::unique_ptr<Stream> stream)
    : service_(service), stream_(std::move(stream)), begun_(service->clock->Now()) {}

bool DataSession::Expired(Instant now) const {
  return now >= deadline_.load(std::memory_order_relaxed);
}

void DataSession::Expire() {
  expired_ = true;
  stream_->Shutdown();
}

Status DataSession::Read(MutableByteSpan out) {
  deadline_ = service_->clock->Now() + service_->stall_limit;
  Status status = stream_->ReadExactly(out);
  deadline_ = Instant::max();
  return status;
}

Status DataSession::Send(ByteSpan bytes) {
  while (!bytes.empty()) {
    const uint64_t piece =
        service_->limiter.PieceBytes(std::min<uint64_t>(bytes.size(), kSendBytes));
    if (!service_->limiter.unlimited()) {
      const Instant now = service_->clock->Now();
      if (!service_->WaitUntil(service_->limiter.Book(piece, now))) {
        return Error(Code::kCancelled, "the data server stops");
      }
    }
    deadline_ = service_->clock->Now() + kSendStalls * service_->stall_limit;
    Status status = stream_->WriteAll(bytes.first(piece));
    deadline_ = Instant::max();
    TK_RETURN_IF_ERROR(std::move(status));
    service_->bytes_sent.fetch_add(piece, std::memory_order_relaxed);
    bytes = bytes.subspan(piece);
  }
  return OkStatus();
}

void DataSession::Run() {
  DataRequest request;
  Status status = Admit(&request);
  while (status.ok()) {
    status = Answer(request);
    if (!status.ok()) break;
    std::array<std::byte, kDataRequestBytes> bytes;
    // Nothing more to ask is the usual end; it isn't told from a lost connection.
    if (!Read(bytes).ok()) return;
    auto decoded = DecodeDataRequest(AsText(bytes));
    if (!decoded.ok()) {
      ++service_->rejected;
      (void)AnswerError(decoded.error().code(), decoded.error().message());
      status = decoded.error();
    } else {
      request = *decoded;
    }
  }
  if (status.ok() || (!admitted_ && !service_->MaySpeakOfStrangers())) return;
  if (expired_) {
    service_->logger.Warning("data connection closed: the peer is too slow");
  } else if (status.error().code() != Code::kCancelled) {
    service_->logger.Warning("data connection closed: {}", status.error().ToString());
  }
}

// The first request is read together with the preamble, so that a refusal finds nothing unread on
// the connection: closing one with unread bytes resets it, and the answer could be lost.
Status DataSession::Admit(DataRequest* first) {
  std::array<std::byte, kDataPreambleBytes + kDataRequestBytes> bytes;
  Status read = Read(bytes);
  if (!read.ok()) {
    ++service_->rejected;
    return read;
  }
  const std::string_view text = AsText(bytes);
  const std::string_view preamble = text.substr(0, kDataPreambleBytes);
  if (!HasDataMagic(preamble)) {
    ++service_->rejected;
    return Error(Code::kInvalidArgument, "the peer doesn't speak the data protocol");
  }
  if (!HasDataToken(preamble, service_->token)) {
    ++service_->rejected;
    (void)AnswerError(Code::kUnauthenticated, "wrong data token");
    return Error(Code::kUnauthenticated, "a peer showed a wrong data token");
  }
  auto decoded = DecodeDataRequest(text.substr(kDataPreambleBytes));
  if (!decoded.ok()) {
    ++service_->rejected;
    (void)AnswerError(decoded.error().code(), decoded.error().message());
    return decoded.error();
  }
  *first = *decoded;
  admitted_ = true;
  return OkStatus();
}

Status DataSession::AnswerError(Code code, std::string_view text) {
  text = text.substr(0, kDataErrorTextBytesMax);
  std::string out = EncodeDataResponse(
      {.code = code, .text_bytes = static_cast<uint32_t>(text.size()), .body_bytes = 0});
  out += text;
  return Send(AsBytes(out));
}

Status DataSession::Select(const Blake3& digest) {
  if (open_ && open_->held.digest == digest) return OkStatus();
  open_.reset();
  auto held = service_->store->Find(digest);
  if (!held) return Error(Code::kNotFound, "no shard " + digest.Hex());
  auto open = std::make_unique<OpenShard>();
  open->held = *std::move(held);
  open->index = std::make_unique<ChunkIndex>(*open->held.manifest);
  open_ = std::move(open);
  return OkStatus();
}

Status DataSession::Answer(const DataRequest& request) {
  const Status selected = Select(request.digest);
  if (!selected.ok()) {
    ++service_->rejected;
    return AnswerError(selected.error().code(), selected.error().message());
  }
  switch (request.op) {
    case DataOp::kManifest:
      return AnswerBody(*open_->held.encoded);
    case DataOp::kListing:
      return AnswerListing(open_->held);
    case DataOp::kChunks:
      break;
  }
  return AnswerChunks(request);
}

Status DataSession::AnswerBody(std::string_view body) {
  TK_RETURN_IF_ERROR(Send(AsBytes(EncodeDataResponse({.body_bytes = body.size()}))));
  return Send(AsBytes(body));
}

// Nothing is sent while it is made: the asker waits longer than for bytes.
Status DataSession::AnswerListing(const HeldShard& held) {
  const auto listing = ListLogically(service_->store->root(), ShardDataPath(held.digest),
                                     *held.manifest, &expired_, service_->logger);
  if (!listing.ok()) return AnswerError(listing.error().code(), listing.error().message());
  return AnswerBody(*listing);
}

Status DataSession::AnswerChunks(const DataRequest& request) {
  const uint64_t chunks = open_->index->count();
  if (request.first >= chunks || request.count > chunks - request.first) {
    ++service_->rejected;
    return AnswerError(Code::kOutOfRange, "the shard has fewer chunks");
  }
  // Opened before the header goes out, so that the common failure (the shard was just deleted) can
  // still be told.
  const Status opened = SelectEntry(ChunkIndex::Cursor(*open_->index, request.first).place().entry);
  if (!opened.ok()) {
    const Error error = opened.error();
    open_.reset();
    service_->logger.Warning("cannot serve a shard: {}", error.ToString());
    return AnswerError(error.code(), error.message());
  }
  ChunkIndex::Cursor cursor(*open_->index, request.first);
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < request.count; ++i, cursor.Advance())
    bytes += cursor.place().chunk->bytes;
  const std::string header = EncodeDataResponse({.body_bytes = bytes});
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  std::copy_n(AsBytes(header).begin(), header.size(), buffer_.get());
  buffered_ = header.size();
  return SendChunks(request.first, request.count);
}

// Chunks that follow each other in a file go out as one range.
Status DataSession::SendChunks(uint64_t first, uint64_t count) {
  ChunkIndex::Cursor cursor(*open_->index, first);
  ChunkPlace run = cursor.place();
  uint64_t run_bytes = 0;
  for (uint64_t i = 0; i < count; ++i, cursor.Advance()) {
    const ChunkPlace& place = cursor.place();
    if (place.entry != run.entry) {
      TK_RETURN_IF_ERROR(SendFileRange(run.entry, run.file_bytes, run.offset, run_bytes));
      run = place;
      run_bytes = 0;
    }
    run_bytes += place.chunk->bytes;
  }
  TK_RETURN_IF_ERROR(SendFileRange(run.entry, run.file_bytes, run.offset, run_bytes));
  return FlushBuffer();
}

Status DataSession::SelectEntry(size_t entry) {
  if (open_->file && open_->entry == entry) return OkStatus();
  open_->map.reset();
  open_->file.reset();
  TK_ASSIGN_OR_RETURN(open_->file, service_->store->OpenEntry(open_->held.digest, entry));
  open_->entry = entry;
  const uint64_t bytes = open_->held.manifest->entries[entry].bytes;
  if (!service_->encrypted && bytes >= kMapFileBytesMin) {
    TK_ASSIGN_OR_RETURN(open_->map, open_->file->Map(0, bytes, MapAccess::kRead));
  }
  return OkStatus();
}

Status DataSession::SendFileRange(size_t entry, uint64_t file_bytes, uint64_t offset,
                                  uint64_t bytes) {
  TK_RETURN_IF_ERROR(SelectEntry(entry));
  TK_CHECK(offset <= file_bytes && bytes <= file_bytes - offset);
  return open_->map ? SendMapped(offset, bytes) : SendBuffered(offset, bytes);
}

// The kernel copies from the map: where the file was cut short, send fails with EFAULT.
Status DataSession::SendMapped(uint64_t offset, uint64_t bytes) {
  TK_RETURN_IF_ERROR(FlushBuffer());
  return Send(ByteSpan(open_->map->data(), open_->map->size()).subspan(offset, bytes));
}

Status DataSession::SendBuffered(uint64_t offset, uint64_t bytes) {
  while (bytes > 0) {
    if (buffered_ == kBufferBytes) TK_RETURN_IF_ERROR(FlushBuffer());
    const uint64_t n = std::min<uint64_t>(bytes, kBufferBytes - buffered_);
    TK_RETURN_IF_ERROR(open_->file->ReadExactly(offset, MutableByteSpan(&buffer_[buffered_], n)));
    buffered_ += n;
    offset += n;
    bytes -= n;
  }
  return OkStatus();
}

Status DataSession::FlushBuffer() {
  const size_t n = std::exchange(buffered_, 0);
  return Send(ByteSpan(buffer_.get(), n));
}

}  // namespace tierkeep
