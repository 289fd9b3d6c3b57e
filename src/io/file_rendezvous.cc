#include "io/file_rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/digest.h"
#include "base/escape_name.h"

namespace tierkeep {
namespace {

constexpr uint64_t kRecordBytesMax = 1 << 20;
constexpr std::string_view kSuffix = ".record";
constexpr std::string_view kTemporaryPrefix = ".new-";
// A record is removed when this many newer ones exist and it is kSweptAge older than a file made
// now, by the file system's own clock; a writer's leftover by its age alone.
constexpr uint64_t kKept = 16;
constexpr Duration kSweptAge = 10min;
constexpr int kReadTriesMax = 100;

// Twenty digits, so that names sort as numbers.
std::string NameOf(uint64_t counter) { return fmt::format("{:020}{}", counter, kSuffix); }

std::optional<uint64_t> CounterOf(std::string_view name) {
  if (name.size() != 20 + kSuffix.size() || !name.ends_with(kSuffix)) return std::nullopt;
  uint64_t counter = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + 20, counter);
  if (error != std::errc() || end != name.data() + 20) return std::nullopt;
  return counter;
}

// The digest is over the counter too, so that equal bytes written twice differ in version.
std::string Header(uint64_t counter, std::string_view bytes) {
  const std::string digested = fmt::format("{}\n{}", counter, bytes);
  return fmt::format("tierkeep rendezvous 1 {} {} {}\n", counter, bytes.size(),
                     ComputeXxh128(AsBytes(digested)).Hex());
}

std::string VersionOf(uint64_t counter, std::string_view bytes) {
  return fmt::format("{}-{}", counter, ComputeXxh128(AsBytes(bytes)).Hex());
}

// What is after the header, if the file is one whole record with this counter.
std::optional<std::string> Decode(uint64_t counter, std::string_view content) {
  const size_t line_end = content.find('\n');
  if (line_end == std::string_view::npos) return std::nullopt;
  const std::string_view bytes = content.substr(line_end + 1);
  if (content.substr(0, line_end + 1) != Header(counter, bytes)) return std::nullopt;
  return std::string(bytes);
}

struct Current {
  uint64_t counter = 0;  // 0: none
  VersionedRecord record;
};

class FileRendezvous : public Rendezvous {
 public:
  FileRendezvous(std::unique_ptr<Dir> dir, std::shared_ptr<RandomSource> random)
      : dir_(std::move(dir)), random_(std::move(random)) {}

  Result<std::optional<VersionedRecord>> Read(std::string_view job) override {
    TK_RETURN_IF_ERROR(CheckJob(job));
    Result<std::unique_ptr<Dir>> records = dir_->OpenDir(job);
    if (!records.ok() && records.error().code() == Code::kNotFound) return {std::nullopt};
    if (!records.ok()) return std::move(records.error());
    TK_ASSIGN_OR_RETURN(Current current, ReadCurrent(**records));
    if (current.counter == 0) return {std::nullopt};
    return {std::move(current.record)};
  }

  Result<std::string> CompareAndSwap(std::string_view job, std::string_view expected,
                                     std::string_view bytes) override;

 private:
  static Status CheckJob(std::string_view job) {
    if (!job.empty() && job[0] != '.' &&
        job.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos) {
      return OkStatus();
    }
    return Error(Code::kInvalidArgument, "not a job name: '" + EscapeName(job) + "'");
  }

  static Result<uint64_t> HighestCounter(Dir& records) {
    TK_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, records.List(""));
    uint64_t highest = 0;
    for (const DirEntry& entry : entries) {
      highest = std::max(highest, CounterOf(entry.name).value_or(0));
    }
    return highest;
  }

  static Result<Current> ReadCurrent(Dir& records) {
    // A record that was just listed is gone only if many newer ones were written meanwhile.
    for (int tries = 0; tries < kReadTriesMax; ++tries) {
      TK_ASSIGN_OR_RETURN(const uint64_t counter, HighestCounter(records));
      if (counter == 0) return Current();
      Result<std::string> content = records.ReadSmallFile(NameOf(counter), kRecordBytesMax + 200);
      if (!content.ok() && content.error().code() == Code::kNotFound) continue;
      if (!content.ok()) return std::move(content.error());
      std::optional<std::string> bytes = Decode(counter, *content);
      if (!bytes)
        return Error(Code::kDataLoss, "rendezvous record " + NameOf(counter) +
                                          " is damaged; remove it to use the one before");
      Current current;
      current.counter = counter;
      current.record.version = VersionOf(counter, *bytes);
      current.record.bytes = std::move(*bytes);
      return current;
    }
    return Error(Code::kUnavailable, "rendezvous records change faster than they can be read");
  }

  std::string TemporaryName() {
    uint8_t nonce[16];
    random_->Fill(nonce, sizeof(nonce));
    return std::string(kTemporaryPrefix) + ToHex(std::as_bytes(std::span(nonce)));
  }

  // True when the record of `counter` is this temporary file.
  static Result<bool> Publish(Dir& records, const std::string& temporary, uint64_t counter) {
    const Status linked = records.HardLink(temporary, NameOf(counter));
    if (linked.ok()) return true;
    // Over NFS the answer to a link that was made can get lost, and the repeated request then
    // says "exists" or fails: the number of links tells the truth (man open, O_EXCL).
    const Result<FileStat> stat = records.Stat(temporary);
    if (stat.ok() && stat->links == 2) return true;
    if (linked.error().code() == Code::kAlreadyExists) return false;
    return linked.error();
  }

  static void Sweep(Dir& records, uint64_t counter, int64_t now_ns) {
    const Result<std::vector<DirEntry>> entries = records.List("");
    if (!entries.ok()) return;
    for (const DirEntry& entry : *entries) {
      const std::optional<uint64_t> old = CounterOf(entry.name);
      const bool surplus = old && *old + kKept <= counter;
      if (!surplus && !entry.name.starts_with(kTemporaryPrefix)) continue;
      const Result<FileStat> stat = records.Stat(entry.name);
      if (!stat.ok() || stat->change_time_ns > now_ns - kSweptAge.count()) continue;
      // Somebody else may sweep at the same time; what stays is swept by a later write.
      (void)records.Unlink(entry.name).ok();
    }
  }

  Result<std::unique_ptr<Dir>> OpenRecords(std::string_view job) {
    Result<std::unique_ptr<Dir>> records = dir_->OpenDir(job);
    if (records.ok() || records.error().code() != Code::kNotFound) return records;
    const Status made = dir_->MakeDir(job, 0755);
    if (!made.ok() && made.error().code() != Code::kAlreadyExists) return made.error();
    TK_RETURN_IF_ERROR(dir_->SyncDir(""));
    return dir_->OpenDir(job);
  }

  Result<uint64_t> WriteNext(Dir& records, File& file, const std::string& temporary,
                             std::string_view expected, std::string_view bytes);

  const std::unique_ptr<Dir> dir_;
  const std::shared_ptr<RandomSource> random_;
};

Result<std::string> FileRendezvous::CompareAndSwap(std::string_view job, std::string_view expected,
                                                   std::string_view bytes) {
  TK_RETURN_IF_ERROR(CheckJob(job));
  if (bytes.size() > kRecordBytesMax) {
    return Error(Code::kInvalidArgument, "rendezvous record larger than 1 MiB");
  }
  TK_ASSIGN_OR_RETURN(const std::unique_ptr<Dir> records, OpenRecords(job));
  const std::string temporary = TemporaryName();
  // Before the look at the record: WriteNext goes by this file's age.
  TK_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, records->CreateFile(temporary, 0644));
  Result<uint64_t> written = WriteNext(*records, *file, temporary, expected, bytes);
  (void)records->Unlink(temporary).ok();  // else swept later
  if (!written.ok()) return std::move(written.error());
  return VersionOf(*written, bytes);
}

// Returns the counter written.
Result<uint64_t> FileRendezvous::WriteNext(Dir& records, File& file, const std::string& temporary,
                                           std::string_view expected, std::string_view bytes) {
  const Error lost(Code::kAborted, "the rendezvous record was written by somebody else");
  TK_ASSIGN_OR_RETURN(const FileStat created, file.Stat());
  TK_ASSIGN_OR_RETURN(const Current current, ReadCurrent(records));
  if (current.record.version != expected) return lost;
  const uint64_t next = current.counter + 1;
  TK_RETURN_IF_ERROR(file.WriteAll(0, AsBytes(Header(next, bytes) + std::string(bytes))));
  TK_RETURN_IF_ERROR(file.Sync());
  TK_ASSIGN_OR_RETURN(const bool published, Publish(records, temporary, next));
  if (!published) return lost;
  TK_RETURN_IF_ERROR(records.SyncDir(""));
  // The link proves that nobody had written `next` since we looked, unless such a record was
  // already swept again. That takes kSweptAge, which then lies between this file's creation and
  // its link, and kKept newer records.
  TK_ASSIGN_OR_RETURN(const FileStat linked, records.Stat(temporary));
  TK_ASSIGN_OR_RETURN(const uint64_t highest, HighestCounter(records));
  const int64_t taken_ns = linked.change_time_ns - created.change_time_ns;
  if (taken_ns >= kSweptAge.count() / 2 && highest >= next + kKept) {
    (void)records.Unlink(NameOf(next)).ok();
    return Error(Code::kUnavailable, "too slow: many rendezvous records were written meanwhile");
  }
  Sweep(records, highest, linked.change_time_ns);
  return next;
}

// What agents elsewhere see of a coordinator at a fixed address.
class FixedRendezvous : public Rendezvous {
 public:
  explicit FixedRendezvous(std::string address) : address_(std::move(address)) {}
  Result<std::optional<VersionedRecord>> Read(std::string_view) override {
    return {VersionedRecord{address_, "static"}};
  }
  Result<std::string> CompareAndSwap(std::string_view, std::string_view,
                                     std::string_view) override {
    return Error(Code::kFailedPrecondition,
                 "only the agent at " + address_ + " keeps the rendezvous record");
  }

 private:
  const std::string address_;
};

}  // namespace

std::unique_ptr<Rendezvous> MakeFileRendezvous(std::unique_ptr<Dir> dir,
                                               std::shared_ptr<RandomSource> random) {
  return std::make_unique<FileRendezvous>(std::move(dir), std::move(random));
}

Result<std::unique_ptr<Rendezvous>> OpenFileRendezvous(const std::string& path) {
  Result<std::unique_ptr<Dir>> dir = OpenPosixDir(path);
  if (!dir.ok()) return dir.error().With("rendezvous");
  return std::unique_ptr<Rendezvous>(
      std::make_unique<FileRendezvous>(std::move(*dir), std::make_shared<SystemRandom>()));
}

Result<std::unique_ptr<Rendezvous>> OpenStaticRendezvous(const StaticRendezvousOptions& options) {
  if (!options.local) {
    const bool ipv6 = options.host.find(':') != std::string::npos;
    return std::unique_ptr<Rendezvous>(std::make_unique<FixedRendezvous>(
        fmt::format("{}{}{}:{}", ipv6 ? "[" : "", options.host, ipv6 ? "]" : "", options.port)));
  }
  TK_ASSIGN_OR_RETURN(const std::unique_ptr<Dir> state, OpenPosixDir(options.state_dir));
  TK_RETURN_IF_ERROR(state->MakeDirs("rendezvous", 0700));
  TK_RETURN_IF_ERROR(state->SyncDir(""));
  TK_ASSIGN_OR_RETURN(std::unique_ptr<Dir> dir, state->OpenDir("rendezvous"));
  return std::unique_ptr<Rendezvous>(
      std::make_unique<FileRendezvous>(std::move(dir), std::make_shared<SystemRandom>()));
}

}  // namespace tierkeep
