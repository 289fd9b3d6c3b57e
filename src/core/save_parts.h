// Framework pytorch saves one file a worker: collects the files of one node into whole saves.
//
// Every worker saves the same steps in the same order. So a save that one worker has left behind,
// by finishing a later one that is whole, will never be whole itself: some worker skipped it.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "format/ids.h"

namespace tierkeep {

class SaveParts {
 public:
  struct Found {
    std::map<Worker, std::string> whole;  // file names; empty: some are still missing
    std::vector<std::string> overtaken;   // files of saves that can't become whole any more
  };

  // The worker's file of this step is finished. The same file again takes its former place.
  Found Add(Step step, Worker worker, std::string name, uint32_t workers_per_node);
  void Clear() { saves_.clear(); }

 private:
  struct Part {
    std::string name;
    uint64_t arrival = 0;
  };
  using Parts = std::map<Worker, Part>;
  static bool IsOvertaken(const Parts& parts, const Parts& by);

  std::map<Step, Parts> saves_;
  uint64_t arrivals_ = 0;
};

}  // namespace tierkeep
