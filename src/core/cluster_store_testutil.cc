// What the hosts of a TestCluster do with actions on their volumes and stores, and the invariants
// that are checked on the way.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "core/cluster_testutil.h"
#include "core/core_testutil.h"
#include "core/holdings.h"
#include "core/placement.h"
#include "format/generation_record.h"
#include "format/message_checks.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {

// ---- the volume ------------------------------------------------------------------------------

bool TestCluster::Do(size_t host, const NodeAction::PersistState& a) {
  if (!a.bytes.ok()) Violation("bad node state: " + a.bytes.error().ToString());
  auto state = DecodeNodeState(*a.bytes);
  if (!state.ok()) Violation("the state doesn't read back: " + state.error().ToString());
  at(host).state = std::move(*state);
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

bool TestCluster::Do(size_t host, const NodeAction::DiscardSaves& a) {
  for (const std::string& name : a.names) at(host).volume.erase(name);
  return true;
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
  ever_known_[digest] = at(host).store.at(digest).info;
  at(host).verified.insert(digest);
}

bool TestCluster::Do(size_t host, const NodeAction::RecordGeneration& a) {
  Host& h = at(host);
  CheckCommit(host, *a.record);
  const GenerationId id = GenerationIdOf(*a.record);
  std::erase_if(h.generations, [&](const auto& other) { return GenerationIdOf(other) == id; });
  h.generations.push_back(*a.record);
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
    std::erase_if(h.unreadable, [&](const auto& item) { return item.digest() == digest.Raw(); });
  }
  for (const std::string& name : a.staged) h.staged.erase(name);
  StartTask(host, a.task, {Task::Kind::kDelete, a, false});
  return true;
}
bool TestCluster::Do(size_t host, const NodeAction::Compare& a) {
  StartTask(host, a.task, {Task::Kind::kCompare, a, false});
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
  const Error injected(h.fail_code, "injected");
  const auto fails = [&](const char* name) {
    const auto it = h.fail.find(name);
    return it != h.fail.end() && it->second > 0 && it->second-- > 0;
  };
  switch (task.kind) {
    case Task::Kind::kStage: {
      const auto& a = std::get<NodeAction::Stage>(task.action);
      if (task.cancelled) return ToNode(host, NodeEvent::StageFailed{id, cancelled});
      if (fails("Stage")) {
        h.staged.erase(a.staged_name);  // a refused save is moved aside
        return ToNode(host, NodeEvent::StageFailed{id, injected});
      }
      return ToNode(host, FinishStage(h, a));
    }
    case Task::Kind::kPull: {
      const auto& a = std::get<NodeAction::Pull>(task.action);
      if (task.cancelled) {
        return ToNode(host,
                      NodeEvent::Pulled{id, DigestOf(a.wanted.shard()), cancelled, 0, {}, {}});
      }
      if (fails("Pull")) {
        return ToNode(host, NodeEvent::Pulled{id, DigestOf(a.wanted.shard()), injected, 0, {}, {}});
      }
      return ToNode(host, FinishPull(host, a));
    }
    case Task::Kind::kVerify: {
      const auto& a = std::get<NodeAction::Verify>(task.action);
      const auto copy = h.store.find(a.digest);
      const bool unread = copy != h.store.end() && copy->second.unread;
      const bool good = copy != h.store.end() && copy->second.good && !unread && !task.cancelled;
      if (good) Held(host, a.digest);
      const char* problem = good ? "" : unread ? "input/output error" : "bytes differ";
      return ToNode(host, NodeEvent::Verified{id, a.digest, good, problem, 1ms, unread});
    }
    case Task::Kind::kCompare: {
      const auto& a = std::get<NodeAction::Compare>(task.action);
      if (fails("Compare")) return;  // never answers
      return ToNode(host, NodeEvent::Compared{id, FinishCompare(host, a)});
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
  // What a save takes includes its manifest.
  if (options_.save_bytes != 0) shard.bytes = options_.save_bytes - kTestManifestBytes;
  const control::ShardInfo info = MakeShard(shard);
  h.store[DigestOf(info)] = {info, true};
  Held(IndexOf(h.name), DigestOf(info));
  h.staged.erase(staged);
  return NodeEvent::Staged{a.task, info};
}

// To its data port, in this life.
std::string TestCluster::TokenOf(size_t host) const {
  return fmt::format("token of {:>16} {}", hosts_[host]->name, hosts_[host]->life);
}

bool TestCluster::Do(size_t host, const NodeAction::UseMembers& a) {
  Host& h = at(host);
  h.met.clear();
  for (const auto& member : a.members) h.met[member.node()] = member.data_token();
  return true;
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
  const uint64_t needed = a.wanted.shard().bytes() + a.wanted.shard().manifest_bytes();
  if (options_.capacity != 0 && Used(host) + needed > options_.capacity) {
    pulled.status = Error(Code::kResourceExhausted, "no room for a shard");
    return pulled;
  }
  for (const std::string& node : a.wanted.nodes()) {
    const size_t from = IndexOf(node);
    if (from == host) Violation("a node pulls from itself");
    // As the agent does: by the addresses and tokens that it was told, which are good for one life.
    const auto met = h.met.find(node);
    const bool reachable = from < hosts_.size() && at(from).node && cut_.count({from, host}) == 0 &&
                           met != h.met.end() && met->second == TokenOf(from);
    const auto copy = reachable ? at(from).store.find(digest) : h.store.end();
    if (!reachable || copy == at(from).store.end() || !copy->second.good) {
      pulled.bad_sources.push_back(node);
      continue;
    }
    h.store[digest] = {a.wanted.shard(), true};
    Held(host, digest);
    CheckMemory(host);
    ++pulls_;
    pulled.status = OkStatus();
    pulled.bytes_pulled = a.wanted.shard().bytes();
    break;
  }
  return pulled;
}

// Replicas of other content differ in one value.
Result<LogicalDifference> TestCluster::FinishCompare(size_t host, const NodeAction::Compare& a) {
  if (at(host).store.count(DigestOf(a.own)) == 0) return Error(Code::kNotFound, "it is gone");
  for (const std::string& node : a.other.nodes()) {
    const size_t from = IndexOf(node);
    if (from == host) Violation("a node compares with itself");
    if (from >= hosts_.size() || !at(from).node || cut_.count({from, host}) != 0) continue;
    if (at(from).store.count(DigestOf(a.other.shard())) == 0) continue;
    LogicalDifference difference;
    if (a.own.logical() != a.other.shard().logical()) {
      difference = {1, {"state: the value of b'w' differs"}};
    }
    return difference;
  }
  return Error(Code::kUnavailable, "no source answers");
}

// ---- memory ----------------------------------------------------------------------------------

uint64_t TestCluster::Used(size_t host) const {
  const Host& h = *hosts_[host];
  uint64_t bytes = h.taken + (h.staged.size() + h.volume.size()) * options_.save_bytes;
  for (const auto& [digest, copy] : h.store) {
    bytes += copy.info.bytes() + copy.info.manifest_bytes();
  }
  return bytes;
}

MemoryRoom TestCluster::RoomOf(size_t host) const {
  const uint64_t unlimited = uint64_t{1} << 40;
  MemoryRoom room;
  room.total_bytes = options_.capacity != 0 ? options_.capacity : unlimited;
  room.free_bytes = room.total_bytes - std::min(room.total_bytes, Used(host));
  const Host& h = *hosts_[host];
  if (!h.pull_limit) return room;
  uint64_t charged = 0;
  for (const auto& [digest, copy] : h.store) {
    if (copy.info.rank() != h.rank) charged += copy.info.bytes() + copy.info.manifest_bytes();
  }
  room.limit_bytes = *h.pull_limit;
  room.limit_free_bytes = *h.pull_limit - std::min(*h.pull_limit, charged);
  return room;
}

void TestCluster::CheckMemory(size_t host) {
  const uint64_t used = Used(host);
  peak_used_ = std::max(peak_used_, used);
  if (options_.capacity != 0 && used > options_.capacity) {
    Violation(fmt::format("{} holds {} of {}", at(host).name, used, options_.capacity));
  }
}

bool TestCluster::Do(size_t host, const NodeAction::ReadMemory&) {
  NodeLater(host, NodeEvent::MemorySeen{RoomOf(host)});
  return true;
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
  // Whether copies fit is said by the node; the promise is then that of a job without peers.
  if (options_.names_no_peers && Logged("no in-cluster redundancy")) {
    return std::vector<std::vector<Rank>>(record.world().nodes());
  }
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
                                ? std::to_string(SlotAt(record, i) % width)
                                : digest.Hex();
    columns[key].insert(ever_held_[digest].begin(), ever_held_[digest].end());
  }
  // A part doesn't tell of all replicas.
  for (const auto& [digest, shard] : ever_known_) {
    if (IsWhole(record) || record.world().data_parallelism() <= 1) break;
    if (FromProto(shard.save()) != FromProto(record.save())) continue;
    const auto column = columns.find(std::to_string(shard.rank() % width));
    if (column == columns.end()) continue;
    column->second.insert(ever_held_[digest].begin(), ever_held_[digest].end());
  }
  for (const auto& [key, holders] : columns) {
    if (holders.size() < copies) {
      Violation(fmt::format("{} records a commit of step {} with {} copies instead of {}",
                            at(host).name, record.save().step(), holders.size(), copies));
    }
  }
}

// Another replica's good shard of the save, with the same values.
bool TestCluster::HasEqual(const control::ShardInfo& shard) const {
  const WorldShape world = FromProto(shard.world());
  const uint32_t width = world.nodes / world.replicas();
  if (shard.logical().empty() || world.replicas() == 1) return false;
  for (const auto& host : hosts_) {
    for (const auto& [digest, copy] : host->store) {
      const control::ShardInfo& other = copy.info;
      const bool same_place = other.rank() % width == shard.rank() % width;
      if (copy.good && digest != DigestOf(shard) && same_place &&
          other.logical() == shard.logical() &&
          FromProto(other.save()) == FromProto(shard.save())) {
        return true;
      }
    }
  }
  return false;
}

// Nothing of the newest generation that this node has recorded may go before a newer commit has
// been told of.
void TestCluster::CheckDelete(size_t host, const NodeAction::DeleteShards& a) {
  const Host& h = at(host);
  if (h.generations.empty()) return;
  const control::GenerationRecord* newest = &h.generations.front();
  for (const auto& record : h.generations) {
    if (GenerationIdOf(*newest) < GenerationIdOf(record)) newest = &record;
  }
  if (told_commit_ && GenerationIdOf(*newest) < *told_commit_) return;
  for (int i = 0; i < newest->shards_size(); ++i) {
    const Blake3 digest = DigestOf(newest->shards(i));
    if (std::find(a.digests.begin(), a.digests.end(), digest) == a.digests.end()) continue;
    if (CopiesOf(digest) < 2 && newest->world().nodes() > 1 && !HasEqual(newest->shards(i))) {
      Violation(fmt::format("{} deletes the last copy of committed step {}", h.name,
                            newest->save().step()));
    }
  }
}

}  // namespace tierkeep
