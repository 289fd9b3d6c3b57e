#include "core/cluster_testutil.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/core_testutil.h"
#include "core/holdings.h"
#include "core/placement.h"
#include "format/message_checks.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

const char* NameOfAction(const NodeAction::Any& action) {
  static constexpr const char* kNames[] = {"PersistState",
                                           "RemoveConfig",
                                           "ReadConfig",
                                           "CleanVolume",
                                           "StartWatchingSaves",
                                           "LocateCoordinator",
                                           "BecomeCoordinator",
                                           "Connect",
                                           "Disconnect",
                                           "Send",
                                           "WritePrerestore",
                                           "PlaceLink",
                                           "PlaceNoCheckpoint",
                                           "WriteMeta",
                                           "RemoveOtherMetas",
                                           "RecordGeneration",
                                           "ForgetGenerations",
                                           "WriteError",
                                           "WriteFailed",
                                           "SetTimer",
                                           "CancelTimer",
                                           "LogText",
                                           "UseMembers",
                                           "ExitNow",
                                           "Stage",
                                           "Pull",
                                           "Verify",
                                           "DeleteShards",
                                           "CancelTask"};
  static_assert(std::variant_size_v<NodeAction::Any> == std::size(kNames));
  return kNames[action.index()];
}

std::optional<TaskId> TaskOf(const NodeAction::Any& action) {
  if (const auto* a = std::get_if<NodeAction::Stage>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::Pull>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::Verify>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::DeleteShards>(&action)) return a->task;
  return std::nullopt;
}

}  // namespace

TestCluster::TestCluster(TestClusterOptions options) : options_(options), prng_(options.seed) {
  for (size_t i = 0; i < options_.hosts; ++i) {
    hosts_.push_back(std::make_unique<Host>());
    hosts_.back()->name = "n" + std::to_string(i);
    StartAgent(i);
  }
}
TestCluster::~TestCluster() = default;

// ---- what happens ----------------------------------------------------------------------------

void TestCluster::StartClient(size_t host, Rank rank) {
  JobConfig config;
  config.job = "job";
  config.rank = rank;
  config.world = options_.world;
  config.peers_per_node = options_.peers_per_node;
  at(host).rank = rank;
  SendYaml(host, Result<ParsedConfig>(ParsedConfig{config, {}}));
}

void TestCluster::SendYaml(size_t host, std::optional<Result<ParsedConfig>> parsed) {
  Host& h = at(host);
  h.client = {};
  h.yaml = fmt::format("yaml {}", next_yaml_++);
  h.yaml_id = *h.yaml + " id";
  yamls_.insert_or_assign(*h.yaml, parsed);
  NodeLater(host, NodeEvent::ConfigSeen{*h.yaml, h.yaml_id, parsed});
}

void TestCluster::StartJob() {
  for (size_t i = 0; i < options_.world.nodes; ++i) StartClient(i, static_cast<Rank>(i));
}

void TestCluster::Save(size_t host, Step step, uint64_t content) {
  Host& h = at(host);
  if (!h.client.released) return;
  const std::string name = std::to_string(step);
  h.volume[name] = content;
  if (h.node && h.watching) NodeLater(host, NodeEvent::SaveSeen{name, step, 0});
}

void TestCluster::SaveAll(Step step) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    // Replicas have in common what their position in the partition says.
    const uint32_t width = options_.world.nodes / options_.world.replicas();
    if (at(i).rank) Save(i, step, 1000 * (step + 1) + *at(i).rank % width);
  }
}

void TestCluster::KillAgent(size_t host) {
  Host& h = at(host);
  if (!h.node) return;
  CloseAllOf(host);
  ++h.life;
  h.node.reset();
  h.coordinator.reset();
  h.tasks.clear();
  h.node_timers.clear();
  h.coordinator_timers.clear();
  h.verified.clear();
  h.watching = false;
  h.link.reset();
}

void TestCluster::StartAgent(size_t host) {
  Host& h = at(host);
  TK_CHECK(!h.node);
  ++h.life;
  NodeOptions options;
  options.node_name = h.name;
  options.agent = TestId(5000 + next_yaml_ * 100 + host);
  options.boot = TestId(1000 * (host + 1) + h.life);
  options.data_host = h.name;
  options.data_port = 1;
  options.data_token = fmt::format("token of {:>16} {}", h.name, h.life);
  options.timings = options_.timings;
  h.node = std::make_unique<NodeMachine>(options);
  NodeEvent::Started started;
  started.state = h.state;
  if (!h.state.config_text().empty()) {
    const auto& parsed = yamls_.at(h.state.config_text());
    if (parsed && parsed->ok()) started.config = (*parsed)->config;
  }
  for (const auto& [digest, copy] : h.store) *started.inventory.add_shards() = copy.info;
  for (const auto& record : h.generations) *started.inventory.add_generations() = record;
  for (const auto& item : h.unreadable) *started.inventory.add_unreadable() = item;
  for (const auto& [name, content] : h.staged) started.staged.push_back(name);
  NodeLater(host, started);
  if (h.yaml) NodeLater(host, NodeEvent::ConfigSeen{*h.yaml, h.yaml_id, yamls_.at(*h.yaml)});
}

void TestCluster::WipeRam(size_t host) {
  Host& h = at(host);
  TK_CHECK(!h.node);
  h.store.clear();
  h.generations.clear();
  h.staged.clear();
  h.volume.clear();
  h.yaml.reset();
  h.client.released = false;
}

void TestCluster::LoseHost(size_t host) {
  WipeRam(host);
  at(host).state.Clear();
}

void TestCluster::Corrupt(size_t host, const Blake3& digest) {
  at(host).store.at(digest).good = false;
}
void TestCluster::CutData(size_t from, size_t to) { cut_.insert({from, to}); }
void TestCluster::CutLink(size_t host) {
  if (at(host).link) Close(*at(host).link, true, true);
}
void TestCluster::FailNext(size_t host, const std::string& action) { ++at(host).fail[action]; }

// ---- running ---------------------------------------------------------------------------------

bool TestCluster::RunUntil(const std::function<bool()>& done, Duration limit) {
  const Instant end = now_ + limit;
  while (!done()) {
    if (queue_.empty() || queue_.begin()->first.at > end) {
      now_ = end;
      return done();
    }
    auto next = queue_.extract(queue_.begin());
    now_ = next.key().at;
    next.mapped()();
  }
  return true;
}

void TestCluster::Run(Duration time) {
  RunUntil([] { return false; }, time);
}

void TestCluster::AtTime(Instant when, std::function<void()> what) {
  queue_[{std::max(when, now_), next_order_++}] = std::move(what);
}
void TestCluster::After(Duration delay, std::function<void()> what) {
  AtTime(now_ + delay, std::move(what));
}
Duration TestCluster::Delay() {
  return Duration(1 + prng_.Below(static_cast<uint64_t>(options_.delay_max.count())));
}

void TestCluster::ToNode(size_t host, NodeEvent::Any event) {
  if (!at(host).node) return;
  CarryOut(host, at(host).node->Step(now_, event));
}

void TestCluster::NodeLater(size_t host, NodeEvent::Any event) {
  const uint64_t life = at(host).life;
  After(Duration(1), [this, host, life, event = std::move(event)] {
    if (at(host).life == life) ToNode(host, event);
  });
}

void TestCluster::ToCoordinator(size_t host, const CoordinatorEvent::Any& event) {
  if (!at(host).coordinator) return;
  CarryOut(host, at(host).coordinator->Step(now_, event));
}

void TestCluster::CoordinatorLater(size_t host, CoordinatorEvent::Any event) {
  const uint64_t life = at(host).life;
  After(Delay(), [this, host, life, event = std::move(event)] {
    if (at(host).life == life) ToCoordinator(host, event);
  });
}

void TestCluster::CarryOut(size_t host, const NodeActions& actions) {
  const uint64_t life = at(host).life;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (at(host).life != life) return;  // killed in the middle
    if (at(host).kill_after && (*at(host).kill_after)-- == 0) {
      at(host).kill_after.reset();
      KillAgent(host);
      return;
    }
    const char* name = NameOfAction(actions[i]);
    trace_ += fmt::format("{} {} {}\n", now_.time_since_epoch().count(), at(host).name, name);
    bool ok = true;
    if (auto fail = at(host).fail.find(name); fail != at(host).fail.end() && fail->second > 0) {
      --fail->second;
      ok = false;
    } else {
      ok = std::visit([&](const auto& a) { return Do(host, a); }, actions[i]);
    }
    if (ok) continue;
    NodeEvent::BatchFailed failed{name, Error(Code::kDataLoss, "injected"), {}};
    for (size_t j = i; j < actions.size(); ++j) {
      if (const auto task = TaskOf(actions[j])) failed.skipped.push_back(*task);
    }
    ToNode(host, failed);
    return;
  }
}

void TestCluster::CarryOut(size_t host, const CoordinatorActions& actions) {
  for (const auto& action : actions) {
    if (!at(host).coordinator) return;
    std::visit([&](const auto& a) { Do(host, a); }, action);
  }
}

// ---- the network -----------------------------------------------------------------------------

size_t TestCluster::IndexOf(const std::string& name) const {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (hosts_[i]->name == name) return i;
  }
  return hosts_.size();
}

void TestCluster::Open(size_t host, size_t coordinator, bool local) {
  if (at(host).link) Close(*at(host).link, false, true);
  const uint64_t id = next_connection_++;
  Connection c;
  c.node = host;
  c.coordinator = coordinator;
  c.id = local ? kLocalConnection : id;
  c.node_life = at(host).life;
  c.coordinator_life = coordinator < hosts_.size() ? at(coordinator).life : 0;
  if (local) c.to_coordinator = at(host).local_busy;
  connections_[id] = c;
  at(host).link = id;
  After(Delay(), [this, id, host, coordinator] {
    const auto it = connections_.find(id);
    if (it == connections_.end() || !it->second.open) return;
    if (coordinator >= hosts_.size() || !at(coordinator).coordinator ||
        at(coordinator).life != it->second.coordinator_life) {
      it->second.open = false;
      at(host).link.reset();
      ToNode(host, NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "refused")});
      return;
    }
    ToNode(host, NodeEvent::CoordinatorConnected{});
  });
}

void TestCluster::Close(uint64_t connection, bool tell_node, bool tell_coordinator) {
  Connection& c = connections_.at(connection);
  if (!c.open) return;
  c.open = false;
  Host& h = at(c.node);
  if (h.life == c.node_life && h.link == connection) h.link.reset();
  if (tell_node && h.life == c.node_life) {
    NodeLater(c.node, NodeEvent::CoordinatorLost{Error(Code::kUnavailable, "closed")});
  }
  if (tell_coordinator && c.coordinator < hosts_.size() &&
      at(c.coordinator).life == c.coordinator_life) {
    // After all that was said on it, and before anything on the next connection of that id.
    c.to_coordinator = std::max(c.to_coordinator, now_ + Delay());
    if (c.id == kLocalConnection) h.local_busy = c.to_coordinator;
    AtTime(c.to_coordinator, [this, host = c.coordinator, life = c.coordinator_life, id = c.id] {
      if (at(host).life == life) ToCoordinator(host, CoordinatorEvent::Disconnected{id});
    });
  }
}

void TestCluster::CloseAllOf(size_t host) {
  for (auto& [id, c] : connections_) {
    if (c.open && (c.node == host || c.coordinator == host)) {
      Close(id, c.node != host, c.coordinator != host);
    }
  }
}

bool TestCluster::Do(size_t host, const NodeAction::Connect& a) {
  Open(host, a.local ? host : IndexOf(a.host), a.local);
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::Disconnect&) {
  if (at(host).link) Close(*at(host).link, false, true);
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::Send& a) {
  const Status checked = CheckEnvelope(a.message);
  if (!checked.ok()) Violation("node sends a bad message: " + checked.error().ToString());
  if (!at(host).link) return true;
  const uint64_t id = *at(host).link;
  Connection& c = connections_.at(id);
  c.to_coordinator = std::max(c.to_coordinator, now_ + Delay());
  AtTime(c.to_coordinator, [this, id, message = a.message] {
    const Connection& on = connections_.at(id);
    // What was sent before an orderly close still arrives; with the other side gone, nothing does.
    if (on.open && at(on.coordinator).life == on.coordinator_life) {
      ToCoordinator(on.coordinator, CoordinatorEvent::Received{on.id, message});
    }
  });
  return true;
}

void TestCluster::Do(size_t host, const CoordinatorAction::Send& a) {
  const Status checked = CheckEnvelope(a.message);
  if (!checked.ok()) Violation("coordinator sends a bad message: " + checked.error().ToString());
  for (auto& [id, c] : connections_) {
    if (!c.open || c.coordinator != host || c.id != a.to) continue;
    c.to_node = std::max(c.to_node, now_ + Delay());
    AtTime(c.to_node, [this, id = id, message = a.message] {
      const Connection& on = connections_.at(id);
      if (on.open && at(on.node).life == on.node_life) {
        ToNode(on.node, NodeEvent::Received{message});
      }
    });
  }
}

void TestCluster::Do(size_t host, const CoordinatorAction::CloseConnection& a) {
  for (auto& [id, c] : connections_) {
    if (c.open && c.coordinator == host && c.id == a.connection) Close(id, true, false);
  }
}

// ---- the rendezvous --------------------------------------------------------------------------

bool TestCluster::Do(size_t host, const NodeAction::LocateCoordinator&) {
  NodeLater(host, NodeEvent::CoordinatorLocated{record_});
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::BecomeCoordinator& a) {
  Host& h = at(host);
  if (h.coordinator) return true;
  CoordinatorOptions options;
  options.settings = a.settings;
  options.node_name = h.name;
  options.control_host = h.name;
  options.control_port = 1;
  options.boot = TestId(1000 * (host + 1) + h.life);
  options.run_nonce = TestId(900000 + 100 * host + h.life);
  options.gather_deadline = a.gather_deadline;
  options.timings = options_.timings;
  h.coordinator = std::make_unique<CoordinatorMachine>(options);
  ToCoordinator(host, CoordinatorEvent::Started{WallTime(now_.time_since_epoch())});
  return true;
}

void TestCluster::Do(size_t host, const CoordinatorAction::ReadRendezvous&) {
  CoordinatorLater(host, CoordinatorEvent::RendezvousRead{
                             record_, record_ ? std::to_string(record_version_) : ""});
}

void TestCluster::Do(size_t host, const CoordinatorAction::WriteRendezvous& a) {
  if (a.expected_version != (record_ ? std::to_string(record_version_) : "")) {
    CoordinatorLater(host, CoordinatorEvent::RendezvousFailed{Error(Code::kAborted, "raced")});
    return;
  }
  if (record_ && a.record.epoch() <= record_->epoch()) Violation("an epoch is written twice");
  const Status checked = CheckRendezvousRecord(a.record);
  if (!checked.ok()) Violation("bad rendezvous record: " + checked.error().ToString());
  record_ = a.record;
  ++record_version_;
  CoordinatorLater(host, CoordinatorEvent::RendezvousWritten{std::to_string(record_version_)});
}

void TestCluster::Do(size_t host, const CoordinatorAction::StandDown&) {
  // The machine is still in its Step's caller: it goes in the next turn.
  const uint64_t life = at(host).life;
  After(options_.delay_max * 2, [this, host, life] {
    if (at(host).life != life) return;
    for (auto& [id, c] : connections_) {
      if (c.open && c.coordinator == host) Close(id, true, false);
    }
    at(host).coordinator.reset();
    at(host).coordinator_timers.clear();
  });
}

// ---- timers and logs -------------------------------------------------------------------------

bool TestCluster::Do(size_t host, const NodeAction::SetTimer& a) {
  const uint64_t number = next_timer_++;
  at(host).node_timers[a.timer] = number;
  AtTime(a.at, [this, host, number, timer = a.timer] {
    auto& timers = at(host).node_timers;
    const auto it = timers.find(timer);
    if (it == timers.end() || it->second != number) return;
    timers.erase(it);
    ToNode(host, NodeEvent::TimerFired{timer});
  });
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::CancelTimer& a) {
  at(host).node_timers.erase(a.timer);
  return true;
}
void TestCluster::Do(size_t host, const CoordinatorAction::SetTimer& a) {
  const uint64_t number = next_timer_++;
  at(host).coordinator_timers[a.timer] = number;
  AtTime(a.at, [this, host, number, timer = a.timer] {
    auto& timers = at(host).coordinator_timers;
    const auto it = timers.find(timer);
    if (it == timers.end() || it->second != number) return;
    timers.erase(it);
    ToCoordinator(host, CoordinatorEvent::TimerFired{timer});
  });
}
void TestCluster::Do(size_t host, const CoordinatorAction::CancelTimer& a) {
  at(host).coordinator_timers.erase(a.timer);
}
bool TestCluster::Do(size_t host, const NodeAction::LogText& a) {
  log_.push_back(fmt::format("{:.6f} {} {} {}", ToSeconds(now_.time_since_epoch()), at(host).name,
                             SeverityTag(a.severity), a.text));
  return true;
}
void TestCluster::Do(size_t host, const CoordinatorAction::LogText& a) {
  log_.push_back(fmt::format("{:.6f} {} coord {} {}", ToSeconds(now_.time_since_epoch()),
                             at(host).name, SeverityTag(a.severity), a.text));
}

// ---- the volume ------------------------------------------------------------------------------

bool TestCluster::Do(size_t host, const NodeAction::PersistState& a) {
  const Status checked = CheckNodeState(a.state);
  if (!checked.ok()) Violation("bad node state: " + checked.error().ToString());
  at(host).state = a.state;
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::RemoveConfig& a) {
  if (at(host).yaml && at(host).yaml_id == a.file_id) {
    at(host).yaml.reset();
    NodeLater(host, NodeEvent::ConfigGone{});
  }
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::ReadConfig&) {
  Host& h = at(host);
  if (h.yaml) {
    NodeLater(host, NodeEvent::ConfigSeen{*h.yaml, h.yaml_id, yamls_.at(*h.yaml)});
  } else {
    NodeLater(host, NodeEvent::ConfigGone{});
  }
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::CleanVolume& a) {
  Host& h = at(host);
  NodeEvent::VolumeCleaned cleaned;
  if (!a.run.none()) {
    for (const auto& [name, content] : h.volume) {
      const Step step = std::stoull(name);
      uint32_t occurrence = 1;
      for (const auto& save : a.state.saves()) {
        if (save.step() == step) occurrence = save.occurrence() + 1;
      }
      cleaned.adopted.push_back(StagedName({{a.run, step, occurrence}, a.config.rank, 0}));
      h.staged[cleaned.adopted.back()] = content;
    }
  }
  h.volume.clear();
  NodeLater(host, cleaned);
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::StartWatchingSaves&) {
  at(host).watching = true;
  ScanVolume(host);
  return true;
}

void TestCluster::ScanVolume(size_t host) {
  for (const auto& [name, content] : at(host).volume) {
    NodeLater(host, NodeEvent::SaveSeen{name, std::stoull(name), 0});
  }
}

bool TestCluster::Do(size_t host, const NodeAction::WritePrerestore& a) {
  Host& h = at(host);
  if (h.yaml && h.yaml_id == h.state.config_file_id())
    Violation("the decision is shown before the yaml is gone");
  const auto& choice = h.state.restored();
  if (choice.none() != !a.step.has_value()) Violation("prerestore differs from the choice");
  std::string what = choice.none() ? "none" : choice.generation().save().SerializeAsString();
  const auto [it, added] = released_.emplace(FromProto(h.state.run()), what);
  if (!added && it->second != what) Violation("two nodes of a run are released differently");
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::PlaceLink& a) {
  Host& h = at(host);
  const auto copy = h.store.find(a.digest);
  if (copy == h.store.end()) {
    Violation("a link to a shard that isn't here");
    return false;
  }
  if (!copy->second.good) Violation("a link to bad bytes");
  if (h.verified.count(a.digest) == 0 && h.state.links_placed()) {
    Violation("a link to bytes that were not verified");
  }
  if (h.state.links_placed()) Violation("links are placed twice");
  // A client that has just started anew first waits for its own yaml to go.
  if (h.client.released || h.yaml) return true;
  h.client.released = true;
  h.client.step = a.name.step;
  h.client.digest = a.digest;
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::PlaceNoCheckpoint&) {
  if (!at(host).yaml) at(host).client.released = true;
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::WriteError& a) {
  at(host).client.errors.push_back(a.text);
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::WriteFailed& a) {
  if (at(host).client.released) Violation("replicator.failed after the release: " + a.text);
  at(host).client.failed.push_back(a.text);
  return true;
}

// ---- the store -------------------------------------------------------------------------------

void TestCluster::Held(size_t host, const Blake3& digest) {
  ever_held_[digest].insert(at(host).name);
  at(host).verified.insert(digest);
}

bool TestCluster::Do(size_t host, const NodeAction::RecordGeneration& a) {
  Host& h = at(host);
  CheckCommit(host, a.record);
  const GenerationId id = GenerationIdOf(a.record);
  std::erase_if(h.generations, [&](const auto& other) { return GenerationIdOf(other) == id; });
  h.generations.push_back(a.record);
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::ForgetGenerations& a) {
  std::erase_if(at(host).generations, [&](const auto& other) {
    return other.job() == a.job && (!a.keep || GenerationIdOf(other) != *a.keep);
  });
  return true;
}

bool TestCluster::Do(size_t host, const NodeAction::Stage& a) {
  Host& h = at(host);
  if (!a.name.empty()) {
    // The rename comes first; hashing takes its time.
    if (const auto save = h.volume.find(a.name); save != h.volume.end()) {
      h.staged[a.staged_name] = save->second;
      h.volume.erase(save);
    }
  }
  StartTask(host, a.task, {Task::Kind::kStage, a, false});
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::Pull& a) {
  StartTask(host, a.task, {Task::Kind::kPull, a, false});
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::Verify& a) {
  StartTask(host, a.task, {Task::Kind::kVerify, a, false});
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::DeleteShards& a) {
  CheckDelete(host, a);
  Host& h = at(host);
  for (const Blake3& digest : a.digests) {
    h.store.erase(digest);
    h.verified.erase(digest);
  }
  for (const std::string& name : a.staged) h.staged.erase(name);
  StartTask(host, a.task, {Task::Kind::kDelete, a, false});
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::CancelTask& a) {
  const auto task = at(host).tasks.find(a.task);
  if (task != at(host).tasks.end()) task->second.cancelled = true;
  return true;
}

void TestCluster::StartTask(size_t host, TaskId id, Task task) {
  const auto [it, added] = at(host).tasks.emplace(id, std::move(task));
  if (!added) Violation("a task id is used twice");
  const uint64_t life = at(host).life;
  After(Delay(), [this, host, life, id] {
    if (at(host).life == life) FinishTask(host, id);
  });
}

void TestCluster::FinishTask(size_t host, TaskId id) {
  Host& h = at(host);
  const Task task = h.tasks.at(id);
  h.tasks.erase(id);
  const Error cancelled(Code::kCancelled, "cancelled");
  switch (task.kind) {
    case Task::Kind::kStage: {
      const auto& a = std::get<NodeAction::Stage>(task.action);
      if (task.cancelled) return ToNode(host, NodeEvent::StageFailed{id, cancelled});
      return ToNode(host, FinishStage(h, a));
    }
    case Task::Kind::kPull: {
      const auto& a = std::get<NodeAction::Pull>(task.action);
      if (task.cancelled) {
        return ToNode(host,
                      NodeEvent::Pulled{id, DigestOf(a.wanted.shard()), cancelled, 0, {}, {}});
      }
      return ToNode(host, FinishPull(host, a));
    }
    case Task::Kind::kVerify: {
      const auto& a = std::get<NodeAction::Verify>(task.action);
      const auto copy = h.store.find(a.digest);
      const bool good = copy != h.store.end() && copy->second.good && !task.cancelled;
      if (good) Held(host, a.digest);
      return ToNode(host, NodeEvent::Verified{id, a.digest, good, good ? "" : "bytes differ", 1ms});
    }
    case Task::Kind::kDelete:
      return ToNode(host, NodeEvent::Deleted{id});
  }
}

NodeEvent::Any TestCluster::FinishStage(Host& h, const NodeAction::Stage& a) {
  const auto staged = h.staged.find(a.staged_name);
  if (staged == h.staged.end()) {
    return NodeEvent::StageFailed{a.task, Error(Code::kNotFound, "it is gone")};
  }
  TestShard shard{.save = a.identity.save,
                  .rank = a.identity.rank,
                  .worker = a.identity.worker,
                  .ordinal = a.identity.ordinal,
                  .world = a.identity.world,
                  .content = staged->second};
  if (options_.world.replicas() > 1) shard.logical = staged->second;
  const control::ShardInfo info = MakeShard(shard);
  h.store[DigestOf(info)] = {info, true};
  Held(IndexOf(h.name), DigestOf(info));
  h.staged.erase(staged);
  return NodeEvent::Staged{a.task, info};
}

NodeEvent::Any TestCluster::FinishPull(size_t host, const NodeAction::Pull& a) {
  const Blake3 digest = DigestOf(a.wanted.shard());
  Host& h = at(host);
  NodeEvent::Pulled pulled{a.task, digest, Error(Code::kUnavailable, "no source answers"),
                           0,      {},     2ms};
  if (h.full) {
    pulled.status = Error(Code::kResourceExhausted, "the volume is full");
    return pulled;
  }
  for (const std::string& node : a.wanted.nodes()) {
    const size_t from = IndexOf(node);
    if (from == host) Violation("a node pulls from itself");
    const bool reachable = from < hosts_.size() && at(from).node && cut_.count({from, host}) == 0;
    const auto copy = reachable ? at(from).store.find(digest) : h.store.end();
    if (!reachable || copy == at(from).store.end() || !copy->second.good) {
      pulled.bad_sources.push_back(node);
      continue;
    }
    h.store[digest] = {a.wanted.shard(), true};
    Held(host, digest);
    ++pulls_;
    pulled.status = OkStatus();
    pulled.bytes_pulled = a.wanted.shard().bytes();
    break;
  }
  return pulled;
}

// ---- invariants ------------------------------------------------------------------------------

void TestCluster::Violation(const std::string& text) {
  ok_ = false;
  ADD_FAILURE() << "seed " << options_.seed << " at " << FormatDuration(now_.time_since_epoch())
                << ": " << text;
}

std::vector<std::vector<Rank>> TestCluster::PlacementOf(
    const control::GenerationRecord& record) const {
  PlacementInput input{.nodes = record.world().nodes(),
                       .data_parallelism = record.world().data_parallelism()};
  input.peers_per_node = options_.peers_per_node;
  return Keepers(input);
}

// A commit stands on copies that keepers have verified, not on anybody's plan.
void TestCluster::CheckCommit(size_t host, const control::GenerationRecord& record) {
  const size_t copies = record.world().data_parallelism() > 1
                            ? record.world().data_parallelism()
                            : 1 + (record.world().nodes() > 1 ? PlacementOf(record)[0].size() : 0);
  std::map<std::string, std::set<std::string>> columns;
  const uint32_t width = record.world().nodes() / std::max(1U, record.world().data_parallelism());
  for (int i = 0; i < record.shards_size(); ++i) {
    const auto& shard = record.shards(i);
    const Blake3 digest = DigestOf(shard);
    const std::string key = record.world().data_parallelism() > 1
                                ? std::to_string(static_cast<uint32_t>(i) % width)
                                : digest.Hex();
    columns[key].insert(ever_held_[digest].begin(), ever_held_[digest].end());
  }
  for (const auto& [key, holders] : columns) {
    if (holders.size() < copies) {
      Violation(fmt::format("{} records a commit of step {} with {} copies instead of {}",
                            at(host).name, record.save().step(), holders.size(), copies));
    }
  }
}

// Nothing of the newest generation that this node has recorded may go.
void TestCluster::CheckDelete(size_t host, const NodeAction::DeleteShards& a) {
  const Host& h = at(host);
  if (h.generations.empty()) return;
  const control::GenerationRecord* newest = &h.generations.front();
  for (const auto& record : h.generations) {
    if (GenerationIdOf(*newest) < GenerationIdOf(record)) newest = &record;
  }
  const auto keepers = PlacementOf(*newest);
  for (int i = 0; i < newest->shards_size(); ++i) {
    const Blake3 digest = DigestOf(newest->shards(i));
    if (std::find(a.digests.begin(), a.digests.end(), digest) == a.digests.end()) continue;
    if (CopiesOf(digest) < 2 && newest->world().nodes() > 1) {
      Violation(fmt::format("{} deletes the last copy of committed step {}", h.name,
                            newest->save().step()));
    }
  }
}

// ---- looking ---------------------------------------------------------------------------------

NodeStatus TestCluster::status(size_t host) const {
  return hosts_[host]->node ? hosts_[host]->node->status() : NodeStatus();
}
std::optional<control::JobStatus> TestCluster::job_status() const {
  for (const auto& host : hosts_) {
    if (host->coordinator && record_ && record_->node() == host->name) {
      return host->coordinator->status();
    }
  }
  return std::nullopt;
}

bool TestCluster::AllReleased() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) {
    return !host->rank || (host->node && host->client.released);
  });
}

bool TestCluster::AllCommitted(Step step) const {
  return std::all_of(hosts_.begin(), hosts_.end(), [&](const auto& host) {
    if (!host->rank) return true;
    return host->generations.size() == 1 && host->generations[0].committed() &&
           host->generations[0].save().step() == step;
  });
}

size_t TestCluster::CopiesOf(const Blake3& digest) const {
  size_t copies = 0;
  for (const auto& host : hosts_) {
    const auto copy = host->store.find(digest);
    copies += copy != host->store.end() && copy->second.good ? 1 : 0;
  }
  return copies;
}

std::vector<Blake3> TestCluster::NewestDigests() const {
  const control::GenerationRecord* newest = nullptr;
  for (const auto& host : hosts_) {
    for (const auto& record : host->generations) {
      if (newest == nullptr || GenerationIdOf(*newest) < GenerationIdOf(record)) newest = &record;
    }
  }
  std::vector<Blake3> digests;
  if (newest == nullptr) return digests;
  for (const auto& shard : newest->shards()) digests.push_back(DigestOf(shard));
  return digests;
}

bool TestCluster::Logged(const std::string& part) const {
  return std::any_of(log_.begin(), log_.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

}  // namespace tierkeep
