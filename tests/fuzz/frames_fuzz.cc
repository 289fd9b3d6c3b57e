// The cutting of a control connection's stream into frames. The first bytes say in what pieces the
// rest arrives: however that is, the frames are the same.

#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "fuzz_target.h"
#include "io/frame_connection.h"

namespace tierkeep::fuzz {
namespace {

constexpr uint32_t kFrameBytesMax = 4096;

// What docs/protocol.md, "Control", says, in a few lines.
std::vector<std::string> Expected(std::string_view stream, bool* too_long) {
  std::vector<std::string> frames;
  while (stream.size() >= 4) {
    uint32_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>(stream[i]);
    if (length > kFrameBytesMax) {
      *too_long = true;
      break;
    }
    if (stream.size() < 4 + length) break;
    frames.emplace_back(stream.substr(4, length));
    stream.remove_prefix(4 + length);
  }
  return frames;
}

}  // namespace

void RunOne(std::string_view input) {
  Input in(input.substr(0, 1 << 15));
  const std::string_view cuts = in.Bytes(in.Byte() % 8);
  const std::string_view stream = in.rest();
  bool too_long = false;
  const std::vector<std::string> expected = Expected(stream, &too_long);

  int fds[2];
  TK_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  const UniqueFd sender(fds[0]);
  FrameConnection connection(1, FrameConnection::Origin::kAccepted, kFrameBytesMax);
  connection.Attach(UniqueFd(fds[1]), nullptr, FrameConnection::Phase::kOpen);
  std::vector<std::string> got;
  std::string scratch(1 << 16, '\0');
  Status status = OkStatus();
  for (size_t at = 0, piece = 0; at < stream.size() && status.ok(); ++piece) {
    const size_t wanted =
        cuts.empty() ? stream.size() : 1 + static_cast<uint8_t>(cuts[piece % cuts.size()]);
    const size_t n = std::min(wanted, stream.size() - at);
    TK_CHECK(::send(sender.get(), stream.data() + at, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n));
    at += n;
    do {
      status = connection.Advance(&scratch, [&](std::string frame) { got.push_back(frame); });
    } while (status.ok() && connection.wants_more());
  }
  TK_CHECK(got == expected);
  TK_CHECK(connection.frame_too_long() == too_long && status.ok() == !too_long);
}

std::vector<std::string> Seeds() {
  const auto frame = [](const std::string& bytes) { return std::string(2, '\0') + Text(bytes); };
  return {Raw("\0") + frame("hello") + frame("") + frame(std::string(300, 'x')),
          Raw("\2\1\7") + frame("hello") + frame(std::string(kFrameBytesMax, 'y')),
          Raw("\1\0") + frame("a") + Raw("\0\0\x10\1too long"), Raw("\0\xff\xff\xff\xff")};
}

}  // namespace tierkeep::fuzz
