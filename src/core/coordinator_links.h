// Which of its connections is an agent's newest one.
//
// An agent that dials anew may be heard over the new connection first: what it had sent over the
// old one waits in another socket, and may be read later. Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/events.h"

namespace tierkeep {

class AgentLinks {
 public:
  struct Noted {
    bool newest = true;                 // else the agent has joined over a newer one
    std::optional<ConnectionId> older;  // that this one takes the place of
  };
  // A join that came over `from`. One that doesn't say which connection it is counts as newest.
  Noted Note(ConnectionId from, const control::Join& join);

 private:
  struct Newest {
    uint64_t life = 0;
    uint64_t number = 0;
    std::string boot;
    ConnectionId connection = 0;
  };
  std::map<std::string, Newest> newest_;  // by agent
};

}  // namespace tierkeep
