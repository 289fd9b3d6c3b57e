#include "sim/workers.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tierkeep::sim {
namespace {

// Of processor time: a schedule needs less than one, with a sanitizer less than ten.
constexpr time_t kComputingSecondsMax = 120;

void WriteLine(int fd, const std::string& line) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ::_exit(3);
    done += static_cast<size_t>(n);
  }
}

std::string HowItEnded(int status) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGVTALRM) {
    return fmt::format("it computed for {} s and wasn't done", kComputingSecondsMax);
  }
  if (WIFSIGNALED(status)) return fmt::format("signal {}", ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return fmt::format("exit status {}", WEXITSTATUS(status));
  return "";
}

}  // namespace

void Workers::Start(Job job) {
  int ends[2];
  TK_CHECK(::pipe(ends) == 0);
  std::fflush(stdout);
  const pid_t pid = ::fork();
  TK_CHECK(pid >= 0);
  if (pid == 0) {
    ::close(ends[0]);
    job.work([fd = ends[1]](const std::string& line) { WriteLine(fd, line); });
    ::_exit(0);
  }
  ::close(ends[1]);
  running_.push_back({std::move(job), pid, ends[0], ""});
}

bool Workers::Read(Child* child) {
  char bytes[65536];
  const ssize_t n = ::read(child->fd, bytes, sizeof(bytes));
  if (n < 0 && errno == EINTR) return true;
  if (n > 0) {
    child->buffer.append(bytes, static_cast<size_t>(n));
    for (size_t end; !stopped_ && (end = child->buffer.find('\n')) != std::string::npos;) {
      const std::string line = child->buffer.substr(0, end);
      child->buffer.erase(0, end + 1);
      child->job.heard(line);
    }
    return true;
  }
  int status = 0;
  ::waitpid(child->pid, &status, 0);
  child->pid = -1;
  child->job.ended(HowItEnded(status));
  return false;
}

void Workers::EndAll() {
  for (const Child& child : running_) {
    if (child.pid > 0) {
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
    }
    ::close(child.fd);
  }
  running_.clear();
  waiting_.clear();
}

void Workers::Run(size_t processes) {
  while (!stopped_ && (!waiting_.empty() || !running_.empty())) {
    while (!waiting_.empty() && running_.size() < processes) {
      Job job = std::move(waiting_.front());
      waiting_.pop_front();
      Start(std::move(job));
    }
    std::vector<pollfd> fds;
    for (const Child& child : running_) fds.push_back({child.fd, POLLIN, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) continue;
    for (size_t i = fds.size(); i-- > 0 && !stopped_;) {
      if (fds[i].revents == 0 || Read(&running_[i])) continue;
      ::close(running_[i].fd);
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  EndAll();
  stopped_ = false;
}

void LimitComputing() {
  const itimerval limit = {{}, {kComputingSecondsMax, 0}};
  TK_CHECK(::setitimer(ITIMER_VIRTUAL, &limit, nullptr) == 0);
}

}  // namespace tierkeep::sim
