// Reads all regular files below the given directories by pread into a small buffer and feeds them
// to XXH3-128, on all cores at once: the least that a program which looks at every byte once must
// spend. Prints {"seconds": wall time, "bytes": bytes read}; starting and listing are not counted.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "io/clock.h"

namespace tierkeep {
namespace {

// What costs least, by stage_bench: smaller ones cost system calls, larger ones leave the cache.
constexpr size_t kBufferBytes = 1 << 20;
// The kernel copies into memory that isn't aligned to a cache line a third slower.
constexpr size_t kPageBytes = 4096;
// Files are dealt to threads in pieces of this size, so that one large file keeps all cores busy.
constexpr uint64_t kPieceBytes = 8 << 20;

struct Piece {
  std::string path;
  uint64_t offset = 0;
  uint64_t length = 0;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "hash_pass: %s\n", what.c_str());
  std::exit(1);
}

std::vector<Piece> List(int count, char** directories) {
  std::vector<Piece> pieces;
  for (int i = 0; i < count; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::canonical(directories[i]))) {
      if (entry.is_symlink() || !entry.is_regular_file()) continue;
      const uint64_t size = entry.file_size();
      for (uint64_t at = 0; at < size; at += kPieceBytes) {
        pieces.push_back({entry.path(), at, std::min(kPieceBytes, size - at)});
      }
    }
  }
  return pieces;
}

void HashPiece(const Piece& piece, MutableByteSpan buffer, Xxh128Hasher& hasher) {
  const int fd = ::open(piece.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) Die("cannot open " + piece.path);
  hasher.Reset();
  for (uint64_t done = 0; done < piece.length;) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(buffer.size(), piece.length - done));
    const ssize_t got = ::pread(fd, buffer.data(), want, static_cast<off_t>(piece.offset + done));
    if (got <= 0) Die("cannot read " + piece.path);
    hasher.Update(buffer.first(static_cast<size_t>(got)));
    done += static_cast<uint64_t>(got);
  }
  ::close(fd);
  if (hasher.Finish().IsZero()) Die("impossible digest");
}

int Run(int count, char** directories) {
  const std::vector<Piece> pieces = List(count, directories);
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.length;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
        static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kBufferBytes)), &std::free);
    const MutableByteSpan span(buffer.get(), kBufferBytes);
    Xxh128Hasher hasher;
    for (size_t i; (i = next++) < pieces.size();) HashPiece(pieces[i], span, hasher);
  };
  SystemClock clock;
  const Instant begin = clock.Now();
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::printf("{\"seconds\": %.6f, \"bytes\": %llu}\n", ToSeconds(clock.Now() - begin),
              static_cast<unsigned long long>(bytes));
  return 0;
}

}  // namespace
}  // namespace tierkeep

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: hash_pass DIRECTORY...\n");
    return 2;
  }
  return tierkeep::Run(argc - 1, argv + 1);
}
