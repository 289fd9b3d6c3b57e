// Readiness and leaving, as systemd's service manager understands them (man sd_notify): a datagram
// to the socket that NOTIFY_SOCKET names; nothing where it isn't set. Never fails its caller.
#pragma once

namespace tierkeep {

void NotifyReady();
void NotifyStopping();

}  // namespace tierkeep
