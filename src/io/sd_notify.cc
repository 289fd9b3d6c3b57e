#include "io/sd_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "io/unique_fd.h"

namespace tierkeep {
namespace {

void Notify(std::string_view text) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  const size_t length = std::strlen(path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (length < 2 || length >= sizeof(address.sun_path)) return;
  if (path[0] != '/' && path[0] != '@') return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // the abstract name space
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  (void)::sendto(fd.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                 reinterpret_cast<const sockaddr*>(&address), size);
}

}  // namespace

void NotifyReady() { Notify("READY=1"); }
void NotifyStopping() { Notify("STOPPING=1"); }

}  // namespace tierkeep
