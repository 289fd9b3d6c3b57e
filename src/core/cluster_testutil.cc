#include "core/cluster_testutil.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/action_names.h"
#include "core/core_testutil.h"
#include "core/holdings.h"
#include "core/placement.h"
#include "format/generation_record.h"
#include "format/message_checks.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

std::optional<TaskId> TaskOf(const NodeAction::Any& action) {
  if (const auto* a = std::get_if<NodeAction::Stage>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::Pull>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::Verify>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::DeleteShards>(&action)) return a->task;
  if (const auto* a = std::get_if<NodeAction::Compare>(&action)) return a->task;
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
  if (options_.names_no_peers) {
    config.peer_ranks.emplace();
  } else {
    config.peers_per_node = options_.peers_per_node;
  }
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

void TestCluster::SeeYamlAgain(size_t host) {
  const Host& h = at(host);
  NodeLater(host, NodeEvent::ConfigSeen{*h.yaml, h.yaml_id, yamls_.at(*h.yaml)});
}

void TestCluster::TakeYaml(size_t host) {
  at(host).yaml.reset();
  NodeLater(host, NodeEvent::ConfigGone{});
}

void TestCluster::StartJob() {
  for (size_t i = 0; i < options_.world.nodes; ++i) StartClient(i, static_cast<Rank>(i));
}

void TestCluster::Save(size_t host, Step step, uint64_t content) {
  Host& h = at(host);
  if (!h.client.released) return;
  const std::string name = std::to_string(step);
  if (options_.capacity != 0 && Used(host) + options_.save_bytes > options_.capacity) {
    ++h.client.failed_writes;
    return;
  }
  h.volume[name] = content;
  CheckMemory(host);
  if (h.node && h.watching) NodeLater(host, NodeEvent::SaveSeen{name, step, 0});
}

void TestCluster::SaveOn(size_t host, Step step) {
  if (!at(host).rank) return;
  // Replicas have in common what their position in the partition says.
  const uint32_t width = options_.world.nodes / options_.world.replicas();
  Save(host, step, 1000 * (step + 1) + *at(host).rank % width);
}

void TestCluster::SaveAll(Step step) {
  for (size_t i = 0; i < hosts_.size(); ++i) SaveOn(i, step);
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
  h.met.clear();
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
  options.data_token = TokenOf(host);
  options.on_pressure = options_.on_pressure;
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
void TestCluster::FailNext(size_t host, const std::string& action, Code code) {
  ++at(host).fail[action];
  at(host).fail_code = code;
}

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
    const std::string name(ActionName(actions[i]));
    trace_ += fmt::format("{} {} {}\n", now_.time_since_epoch().count(), at(host).name, name);
    bool ok = true;
    // A task that is to fail does so when it ends; an ordered action fails at once.
    auto fail = at(host).fail.find(name);
    if (!TaskOf(actions[i]) && fail != at(host).fail.end() && fail->second > 0) {
      --fail->second;
      ok = false;
    } else {
      ok = std::visit([&](const auto& a) { return Do(host, a); }, actions[i]);
    }
    if (ok) continue;
    NodeEvent::BatchFailed failed{name, Error(at(host).fail_code, "injected"), {}};
    for (size_t j = i; j < actions.size(); ++j) {
      if (const auto task = TaskOf(actions[j])) failed.skipped.push_back(*task);
    }
    NodeLater(host, failed);
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
  if (a.message.has_commit()) {
    const GenerationId id = GenerationIdOf(a.message.commit().generation());
    told_commit_ = told_commit_ ? std::max(*told_commit_, id) : id;
  }
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
  options.resumes = a.resumes;
  options.restore = options_.restore;
  options.whole_view_max = options_.whole_view_max;
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
  // A run's coordinator, or what it marks, may change its record; all else is a new epoch.
  const bool same = record_ && a.record.epoch() == record_->epoch() &&
                    a.record.boot() == record_->boot() &&
                    a.record.run().SerializeAsString() == record_->run().SerializeAsString();
  if (record_ && !same && a.record.epoch() <= record_->epoch()) {
    Violation("an epoch is written twice");
  }
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

std::string TestCluster::StaleShards(size_t host, Step step) const {
  std::string text;
  for (const auto& [digest, copy] : hosts_[host]->store) {
    const SaveKey save = FromProto(copy.info.save());
    if (save.step == step) continue;
    text += fmt::format("rank {} ordinal {} of {}; ", copy.info.rank(), copy.info.ordinal(),
                        save.ToString());
  }
  return text;
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
  GenerationId newest{};
  std::map<uint32_t, Blake3> by_slot;  // of a large job each host has recorded a part
  for (const auto& host : hosts_) {
    for (const auto& record : host->generations) {
      if (GenerationIdOf(record) < newest) continue;
      if (newest < GenerationIdOf(record)) by_slot.clear();
      newest = GenerationIdOf(record);
      for (int i = 0; i < record.shards_size(); ++i) {
        by_slot[SlotAt(record, i)] = DigestOf(record.shards(i));
      }
    }
  }
  std::vector<Blake3> digests;
  for (const auto& [slot, digest] : by_slot) digests.push_back(digest);
  return digests;
}

bool TestCluster::Logged(const std::string& part) const {
  return std::any_of(log_.begin(), log_.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

std::string LogOf(const TestCluster& cluster) {
  std::string text;
  for (const auto& line : cluster.log()) text += line + "\n";
  return text;
}

void Begin(TestCluster* cluster, Duration patience) {
  cluster->StartJob();
  ASSERT_TRUE(cluster->RunUntil([&] { return cluster->AllReleased(); }, patience))
      << LogOf(*cluster);
  cluster->SaveAll(10);
  ASSERT_TRUE(cluster->RunUntil([&] { return cluster->AllCommitted(10); }, patience))
      << LogOf(*cluster);
}

void RestartWithUnreadable(TestCluster* cluster, size_t host, const std::string& detail,
                           const std::string& digest, bool damaged) {
  control::Unreadable item;
  item.set_detail(detail);
  item.set_digest(digest);
  item.set_damaged(damaged);
  cluster->AddUnreadable(host, item);
  cluster->KillAgent(host);
  cluster->StartAgent(host);
  cluster->StartJob();
}

}  // namespace tierkeep
