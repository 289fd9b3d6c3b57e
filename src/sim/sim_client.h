// The training process of one node, as the clients of the volume protocol behave (docs/protocol.md,
// "Volume" and "Waits"): waits, yaml by rename or in place, links, saves in every way they are
// made. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/content.h"
#include "sim/sim_host.h"
#include "sim/world.h"

namespace tierkeep::sim {

struct ClientOptions {
  std::string job;
  Framework framework = Framework::kOrbax;
  uint32_t nodes = 0;
  Rank rank = 0;
  uint32_t workers = 1;
  uint32_t attempt = 0;
  std::string config;  // replicator.yaml
  ContentOptions content;
};

class SimClient {
 public:
  struct Events {
    // The links stood and what they lead to was read. nullopt: start without checkpoint.
    std::function<void(Rank rank, std::optional<SaveId> restored)> ready;
    std::function<void(Rank rank, const std::string& why)> failed;  // the process exits
    std::function<void(uint32_t nth)> saved;  // one file or directory of it, written or not
    // One of them stands in the volume, finished; what stands there is about to be removed.
    std::function<void(size_t host, const std::string& name, const SaveId& id)> stands;
    std::function<void(size_t host, const std::string& name)> removes;
    // What it has waited for since then never came.
    std::function<void(size_t host, const std::string& what, Instant since)> overdue;
    // Whether a copy on this host was damaged since: one that was verified before can't be blamed.
    std::function<bool(size_t host, Instant since)> damaged;
  };

  SimClient(World* world, SimHost* host, ClientOptions options, Events events);
  ~SimClient();

  void Start();
  void Kill();  // at once; what it was writing stays as it is
  bool alive() const { return process_->alive(); }
  bool training() const { return state_ == State::kTraining && alive(); }
  // Begins to write a save; `saved` says when it is done.
  void Save(uint32_t nth, Step step);
  // Changes what it was restored from, in place, as a job may with its own files; where they are
  // locked it takes the tree apart instead. False: there is nothing.
  bool ChangeRestored();
  size_t host() const { return host_->index(); }
  // When the agent was asked for a checkpoint.
  Instant asked_at() const { return asked_at_; }

 private:
  enum class State : uint8_t {
    kOldConfig,
    kOwnConfig,
    kPrerestore,
    kLinks,
    kTraining,
  };
  struct Writing;

  void Poll();
  void PollOnce();
  bool Exists(std::string_view name);
  void Remove(const std::string& name);
  void Enter(State state, Duration limit);
  void GiveUpWaiting();
  void WriteConfig();
  bool LookForErrors();  // false: the process ends
  void LookForLinks();
  Result<std::optional<SaveId>> Take(const std::vector<std::string>& names);
  void Fail(const std::string& why);

  void BeginWrite(const std::shared_ptr<Writing>& writing);
  void WriteNext(const std::shared_ptr<Writing>& writing);
  Status WriteEntry(Writing& writing, const ContentEntry& entry);
  void EndWrite(const std::shared_ptr<Writing>& writing, const Status& status);
  void After(Duration delay, std::function<void()> work);

  World* const world_;
  SimHost* const host_;
  const ClientOptions options_;
  const Events events_;
  const std::shared_ptr<SimProcess> process_ = std::make_shared<SimProcess>();
  std::unique_ptr<Dir> volume_;
  State state_ = State::kOldConfig;
  Instant since_{};  // of its state
  Instant deadline_{};
  Instant asked_at_{};
  std::vector<std::weak_ptr<Writing>> late_;  // that still have a file open
  std::vector<std::string> restored_;         // where its links led
};

}  // namespace tierkeep::sim
