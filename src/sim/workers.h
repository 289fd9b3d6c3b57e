// Processes that work beside each other and tell of it line by line: a schedule that brings the
// simulator down, or never ends, costs its process and nothing else.
//
// Threads: one; it must be the only one, for processes are forked.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace tierkeep::sim {

class Workers {
 public:
  using Say = std::function<void(const std::string& line)>;
  struct Job {
    std::function<void(const Say& say)> work;             // in a process of its own
    std::function<void(const std::string& line)> heard;   // here, in the order of its lines
    std::function<void(const std::string& death)> ended;  // here; how it died, "" if it didn't
  };

  // Also from `heard` and `ended`: a process that died may be followed by another.
  void Add(Job job) { waiting_.push_back(std::move(job)); }
  // Runs all, at most `processes` at a time.
  void Run(size_t processes);
  // Ends what runs and forgets what waits: nobody is told. From `heard` and `ended`, too.
  void Stop() { stopped_ = true; }

 private:
  struct Child {
    Job job;
    pid_t pid = -1;
    int fd = -1;
    std::string buffer;
  };
  void Start(Job job);
  bool Read(Child* child);  // false: it has ended
  void EndAll();

  std::deque<Job> waiting_;
  std::deque<Child> running_;
  bool stopped_ = false;
};

// From now on this process dies if it computes on for longer than any schedule does. Called before
// each; a hung schedule can then be told by its number.
void LimitComputing();

}  // namespace tierkeep::sim
