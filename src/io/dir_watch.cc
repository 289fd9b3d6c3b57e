#include "io/dir_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "io/unique_fd.h"

namespace tierkeep {
namespace {

constexpr uint32_t kWatchedEvents = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE |
                                    IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR |
                                    IN_DONT_FOLLOW;

class InotifyWatch : public DirWatch {
 public:
  InotifyWatch(UniqueFd inotify, UniqueFd stop, Callback callback)
      : inotify_(std::move(inotify)),
        stop_(std::move(stop)),
        callback_(std::move(callback)),
        thread_([this] { Run(); }) {}

  ~InotifyWatch() override {
    TK_CHECK_MSG(std::this_thread::get_id() != thread_.get_id(),
                 "a directory watch can't be destroyed by its own callback");
    const uint64_t one = 1;
    TK_CHECK(::write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }

 private:
  void Run() {
    for (bool more = true; more;) {
      struct pollfd fds[2] = {{inotify_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      const int n = ::poll(fds, 2, -1);
      if (n < 0 && errno == EINTR) continue;
      TK_CHECK(n > 0);
      if (fds[1].revents != 0) return;
      more = ReadEvents();
    }
  }

  // False when the watch has ended.
  bool ReadEvents() {
    alignas(struct inotify_event) char buffer[16 << 10];
    const ssize_t n = ::read(inotify_.get(), buffer, sizeof(buffer));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    TK_CHECK_MSG(n > 0, "reading inotify events failed");
    for (ssize_t at = 0; at < n;) {
      const auto* event = reinterpret_cast<const struct inotify_event*>(buffer + at);
      if (!Report(*event)) return false;
      at += static_cast<ssize_t>(sizeof(struct inotify_event) + event->len);
    }
    return true;
  }

  bool Report(const struct inotify_event& event) {
    using Kind = DirChange::Kind;
    // The kernel pads names with zero bytes.
    const std::string name(event.name, ::strnlen(event.name, event.len));
    if ((event.mask & IN_Q_OVERFLOW) != 0) {
      callback_({Kind::kOverflow, ""});
    } else if ((event.mask & (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)) != 0) {
      callback_({Kind::kGone, ""});
      return false;
    } else if ((event.mask & IN_CREATE) != 0) {
      callback_({Kind::kCreated, name});
    } else if ((event.mask & IN_MOVED_TO) != 0) {
      callback_({Kind::kMovedIn, name});
    } else if ((event.mask & IN_CLOSE_WRITE) != 0) {
      callback_({Kind::kWritten, name});
    } else if ((event.mask & (IN_DELETE | IN_MOVED_FROM)) != 0) {
      callback_({Kind::kGone, name});
    }
    return true;
  }

  const UniqueFd inotify_;
  const UniqueFd stop_;
  const Callback callback_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace

Result<std::unique_ptr<DirWatch>> DirWatch::Start(const std::string& path, Callback callback) {
  UniqueFd inotify(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!inotify.valid()) return ErrnoError(errno, "start a directory watch");
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoError(errno, "start a directory watch");
  if (::inotify_add_watch(inotify.get(), path.c_str(), kWatchedEvents) < 0) {
    return ErrnoError(errno, "watch directory " + EscapeForLog(path));
  }
  return std::unique_ptr<DirWatch>(
      std::make_unique<InotifyWatch>(std::move(inotify), std::move(stop), std::move(callback)));
}

}  // namespace tierkeep
