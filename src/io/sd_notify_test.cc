#include "io/sd_notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "io/temp_dir_testutil.h"
#include "io/unique_fd.h"

namespace tierkeep {
namespace {

TEST(SdNotify, TellsTheManagerAndIsSilentWithoutOne) {
  const TempDir temp;
  const std::string path = temp.Path("notify");
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  NotifyReady();
  NotifyStopping();
  ::unsetenv("NOTIFY_SOCKET");
  NotifyReady();  // goes nowhere
  char text[64];
  ssize_t n = ::recv(fd.get(), text, sizeof(text), MSG_DONTWAIT);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)), "READY=1");
  n = ::recv(fd.get(), text, sizeof(text), MSG_DONTWAIT);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)), "STOPPING=1");
  EXPECT_LT(::recv(fd.get(), text, sizeof(text), MSG_DONTWAIT), 0);
}

}  // namespace
}  // namespace tierkeep
