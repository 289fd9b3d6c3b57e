// One connection of the data server: admits it, then answers its requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "base/result.h"
#include "format/data_wire.h"
#include "io/clock.h"
#include "io/file_system.h"
#include "io/stream.h"
#include "tiers/peer/chunk_index.h"
#include "tiers/peer/rate_limiter.h"
#include "tiers/ram/store.h"

namespace tierkeep {

// What all sessions of a server share. Threads: any.
struct DataService {
  DataService(Store* store_in, Clock* clock_in, std::string token_in, Logger logger_in,
              uint64_t bytes_per_second_max)
      : store(store_in),
        clock(clock_in),
        token(std::move(token_in)),
        logger(std::move(logger_in)),
        limiter(bytes_per_second_max) {}

  Store* const store;
  Clock* const clock;
  const std::string token;
  const Logger logger;
  RateLimiter limiter;
  bool encrypted = false;
  Duration stall_limit{};
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> rejected{0};

  // Waits for `then`; false when the server stops.
  bool WaitUntil(Instant then);
  // Whether it is time for another line about strangers: they must not fill the log.
  bool MaySpeakOfStrangers();
  void Stop();

 private:
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  Instant spoke_of_strangers_ = Instant::min();
};

// Threads: Run in one; Expired, Expire and Abort from any.
class DataSession {
 public:
  DataSession(DataService* service, std::unique_ptr<Stream> stream);

  // Until the peer closes, misbehaves or is too slow, or Abort.
  void Run();
  // The peer has been given enough time for what it is doing now. A stall limit alone would let one
  // byte every few seconds hold a thread for ever.
  bool Expired(Instant now) const;
  void Expire();
  void Abort() { stream_->Shutdown(); }
  // Until the peer has shown the token it is a stranger, who may have to give way to others.
  bool IsStrangerSince(Instant then) const { return !admitted_ && begun_ <= then; }

 private:
  // The shard and the file that the last request was about, for the next one is likely to go on.
  struct OpenShard {
    HeldShard held;
    std::unique_ptr<ChunkIndex> index;
    size_t entry = 0;
    std::unique_ptr<File> file;
    std::unique_ptr<Mapping> map;  // of the whole file; not with TLS
  };

  Status Admit(DataRequest* first);
  Status Answer(const DataRequest& request);
  Status AnswerError(Code code, std::string_view text);
  Status AnswerBody(std::string_view body);
  Status AnswerListing(const HeldShard& held);
  Status AnswerChunks(const DataRequest& request);
  Status SendChunks(uint64_t first, uint64_t count);
  Status SendFileRange(size_t entry, uint64_t file_bytes, uint64_t offset, uint64_t bytes);
  Status SendMapped(uint64_t offset, uint64_t bytes);
  Status SendBuffered(uint64_t offset, uint64_t bytes);
  Status Select(const Blake3& digest);
  Status SelectEntry(size_t entry);
  Status FlushBuffer();
  Status Read(MutableByteSpan out);
  Status Send(ByteSpan bytes);

  DataService* const service_;
  const std::unique_ptr<Stream> stream_;
  const Instant begun_;
  std::atomic<bool> admitted_{false};
  std::atomic<Instant> deadline_{Instant::max()};
  std::atomic<bool> expired_{false};
  std::unique_ptr<OpenShard> open_;
  // Bytes of small files, or of any with TLS, before they are sent. Not cleared: only what is used
  // of it takes memory.
  std::unique_ptr<std::byte[]> buffer_;
  size_t buffered_ = 0;
};

}  // namespace tierkeep
