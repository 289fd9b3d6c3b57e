// Settings both ends of the data port share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/time.h"
#include "io/tls.h"

namespace tierkeep {

// Of each connection, either way. Four of them cover 100 Gbit/s over 1 ms; with 16 MiB each the
// bytes under way no longer fit the processor's cache, which cost a tenth of the speed on loopback.
inline constexpr int kDataSocketBufferBytes = 4 << 20;

struct DataPortOptions {
  std::string listen_host = "0.0.0.0";
  uint16_t port = 0;                  // 0: any free
  std::shared_ptr<TlsContext> tls;    // null: not encrypted; a token is needed either way
  uint32_t connections_max = 64;      // served at once; further ones wait for their turn
  uint64_t bytes_per_second_max = 0;  // 0: no limit; over all connections, sending
  Duration stall_limit = 10s;
};

}  // namespace tierkeep
