// TCP sockets: addresses, listening, connecting within a deadline. Internal to io.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "io/frame_network.h"
#include "io/unique_fd.h"

namespace tierkeep {

struct SocketAddress {
  struct sockaddr_storage storage {};
  socklen_t bytes = 0;
  const struct sockaddr* get() const { return reinterpret_cast<const struct sockaddr*>(&storage); }
  HostPort ToHostPort() const;
};

enum class NameLookup : uint8_t { kNumericOnly, kAllowed };

// Never empty. kNotFound: no such name, or not a numeric address where only these are wanted;
// kUnavailable: the name service doesn't answer. Blocks as long as the name service does.
Result<std::vector<SocketAddress>> ResolveAddress(const HostPort& where, NameLookup lookup);

// The same within a deadline, in a thread that is left behind where the name service hangs: then
// kDeadlineExceeded. Of those kHangingLookupsMax may be left; more names are kUnavailable at once.
inline constexpr int kHangingLookupsMax = 32;
using AddressLookup =
    std::function<Result<std::vector<SocketAddress>>(const HostPort&, NameLookup)>;
Result<std::vector<SocketAddress>> ResolveWithin(const HostPort& where, Duration deadline,
                                                 AddressLookup lookup = ResolveAddress);

// Listening, non-blocking; "" means all addresses. `buffer_bytes` 0 leaves the kernel's tuning on.
Result<UniqueFd> ListenTcp(const std::string& host, uint16_t port, int buffer_bytes);
uint16_t LocalPort(int fd);

// A new non-blocking socket for the address, its options set.
Result<UniqueFd> NewTcpSocket(const SocketAddress& address, int buffer_bytes);
// Waits until the connection stands or the deadline passes. The socket stays non-blocking.
Status ConnectWithin(int fd, const SocketAddress& address, Duration deadline);

// Small messages go at once; a peer that vanished shows within about half a minute even when
// nothing is sent, and within `stall_limit` when something is.
void SetTcpOptions(int fd, Duration stall_limit);
// O_NONBLOCK off, every call returns EAGAIN when no byte moved for `stall_limit`.
void MakeBlocking(int fd, Duration stall_limit);

// Takes and drops one connection when descriptors have run out, so that the listener is not
// readable for ever: one is held in reserve for this moment. Threads: one.
class DescriptorReserve {
 public:
  DescriptorReserve();
  // False when there was no reserve left to do it with; then wait before the next try.
  bool ShedOne(int listener);

 private:
  UniqueFd reserve_;
};

bool IsOutOfDescriptors(int errno_value);

}  // namespace tierkeep
