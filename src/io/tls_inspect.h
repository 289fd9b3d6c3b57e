// What the three files of a TLS directory are worth, told apart file by file: for the doctor.
// TlsContext (io/tls.h) is what uses them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

struct TlsFileFacts {
  // kNotFound, kPermissionDenied: can't be read; kInvalidArgument: no PEM of its kind.
  Status certificate;
  Status key;
  Status authority;
  // The rest is set as far as the files above can be read.
  std::optional<bool> key_matches;     // the key is the certificate's
  Status chain = OkStatus();           // as a peer would judge it at `now`
  std::string subject;                 // "CN=node0"
  std::vector<std::string> names;      // subject alternative names, "DNS:node0", "IP:10.0.0.7"
  std::optional<WallTime> not_before;  // of the certificate
  std::optional<WallTime> not_after;
  std::optional<WallTime> authority_not_after;  // of the first certificate in ca.crt
  uint32_t key_mode = 0;                        // permission bits of tls.key
};

// Reads tls.crt, tls.key and ca.crt below `dir`. Threads: any.
TlsFileFacts InspectTlsFiles(const std::string& dir, WallTime now);

}  // namespace tierkeep
