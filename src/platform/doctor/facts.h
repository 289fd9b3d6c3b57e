// What the doctor looks at, as plain data: gathered by collect.h, judged by checks.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/settings.h"
#include "base/result.h"
#include "base/time.h"
#include "io/file_system.h"
#include "io/frame_network.h"
#include "io/tls_inspect.h"

namespace tierkeep::doctor {

// What the running agent's status says; `running` false: none answers at the admin socket.
struct AgentFacts {
  struct Member {
    std::string node;
    HostPort data;
    std::optional<double> clock_skew_seconds;
  };
  bool running = false;
  Status answer = OkStatus();  // why not, when something is there that doesn't answer as an agent
  std::string node;
  std::string job;  // empty: none
  uint16_t control_port = 0;
  uint16_t data_port = 0;
  // From the first commit of a run on: what the volume should hold.
  struct Sizing {
    uint64_t advised_bytes = 0;
    uint64_t volume_bytes = 0;
    std::optional<uint64_t> limit_bytes;  // of the agent's control group
    std::optional<uint64_t> advised_limit_bytes;
  };
  std::vector<Member> members;
  std::optional<Sizing> sizing;
  std::optional<int> pid;  // where the system tells
};

struct MountFacts {
  std::string path;
  Status opened = OkStatus();
  std::string file_system;        // "tmpfs"
  std::string options;            // of the mount and its file system, as the kernel shows them
  Status layout = OkStatus();     // rename and hard link between client/ and store/
  Status immutable = OkStatus();  // FS_IMMUTABLE_FL on a file of the mount
  bool leases = true;             // open writers can be found
  bool made_by_agent = true;      // client/ and store/ were there
  SpaceInfo space;
};

struct MemoryFacts {
  struct Limit {
    std::string where;  // "/sys/fs/cgroup/job/memory.max"
    uint64_t limit = 0;
    uint64_t used = 0;
  };
  uint64_t total = 0;
  uint64_t available = 0;
  std::vector<Limit> limits;  // of control groups above the process; only finite ones
  bool of_agent = false;      // whose process: the running agent's, else the doctor's
};

struct HugePageFacts {
  std::string shmem_enabled;  // "advise", "deny", …; empty: the kernel has no huge pages for tmpfs
  int kernel_major = 0;
  int kernel_minor = 0;
};

struct LimitFacts {
  bool of_agent = false;
  uint64_t open_files = 0;  // soft
  uint64_t open_files_hard = 0;
  uint64_t map_count = 0;  // vm.max_map_count; 0: not known, here and below
  uint64_t inotify_instances = 0;
  uint64_t inotify_watches = 0;
  std::optional<Status> watch;  // on the volume; unset: there is none yet
};

struct PortFacts {
  enum class State : uint8_t { kAnyFree, kFree, kOurs, kTaken, kError };
  std::string name;  // "control-port"
  HostPort at;
  State state = State::kFree;
  Status error = OkStatus();
};

struct PeerFacts {
  HostPort at;
  std::string who;  // "node n1 (data)", "given", …
  Status reached = OkStatus();
};

struct RendezvousFacts {
  struct Record {
    std::string job;
    Status read = OkStatus();
    uint64_t epoch = 0;
    std::string node;  // the coordinator's
    HostPort coordinator;
    std::optional<Duration> age;
    std::optional<Status> reached;  // the coordinator's address; not tried: unset
  };
  RendezvousAddress address;
  bool ours = false;           // static: and this agent is the one there
  Status usable = OkStatus();  // opened, listed, a file written, linked and removed
  std::vector<Record> records;
  std::optional<Duration> clock_ahead;  // the file system's clock against ours
};

struct StateDirFacts {
  std::string path;
  Status writable = OkStatus();
  bool exists = true;
  bool in_memory = false;  // tmpfs or ramfs
};

struct TlsFacts {
  std::string dir;  // empty: none is used
  TlsFileFacts files;
  bool loopback_only = false;
  bool insecure = false;
  bool data_encryption = true;
};

}  // namespace tierkeep::doctor
