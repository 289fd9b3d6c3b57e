#include "sim/sim_job.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "format/volume_names.h"

namespace tierkeep::sim {

SimJob::SimJob(World* world, std::vector<std::unique_ptr<SimHost>>* hosts, JobShape shape,
               JobRhythm rhythm, uint64_t content_seed, JobEvents events)
    : world_(world),
      hosts_(*hosts),
      shape_(shape),
      next_shape_(std::move(shape)),
      rhythm_(rhythm),
      content_seed_(content_seed),
      events_(std::move(events)) {
  placement_.resize(hosts_.size());
  std::iota(placement_.begin(), placement_.end(), 0);  // beyond the ranks: spares
}

ContentOptions SimJob::content() const {
  return {content_seed_,   shape_.framework,  shape_.nodes,
          shape_.replicas, shape_.file_bytes, shape_.diverging};
}

// ---- attempts ----------------------------------------------------------------------------------

void SimJob::Stop() {
  for (auto& client : clients_) {
    if (client != nullptr) client->Kill();
    ended_.push_back(std::move(client));
  }
  clients_.clear();
  training_ = false;
  ++starts_planned_;
  world_->After(1us, [this] { ended_.clear(); });
}

void SimJob::StartLater(Duration delay) {
  world_->After(delay, [this, number = ++starts_planned_] {
    if (number == starts_planned_) Start();
  });
}

void SimJob::Start() {
  Stop();
  ++attempt_;
  shape_ = next_shape_;
  failed_ = false;
  nth_ = 0;
  saves_written_ = 0;
  save_complete_ = true;
  ready_.assign(shape_.nodes, std::nullopt);
  clients_.resize(shape_.nodes);
  world_->Count("job starts");
  world_->Trace("attempt {} of {}: {} nodes", attempt_, shape_.name, shape_.nodes);
  events_.started(attempt_);
  SimClient::Events events;
  const uint32_t attempt = attempt_;
  events.ready = [this, attempt](Rank rank, std::optional<SaveId> restored) {
    OnReady(attempt, rank, restored);
  };
  events.failed = [this, attempt](Rank rank, const std::string& why) {
    OnFailed(attempt, rank, why);
  };
  events.saved = [this, attempt](uint32_t nth) { OnSaved(attempt, nth); };
  events.damaged = events_.damaged;
  events.stands = events_.stands;
  events.removes = events_.removes;
  events.overdue = events_.overdue;
  for (Rank rank = 0; rank < shape_.nodes; ++rank) {
    ClientOptions options;
    options.job = shape_.name;
    options.framework = shape_.framework;
    options.nodes = shape_.nodes;
    options.rank = rank;
    options.workers = shape_.workers;
    options.attempt = attempt_;
    options.config = ConfigOf(rank);
    options.content = content();
    SimHost* host = hosts_[placement_[rank]].get();
    clients_[rank] = std::make_unique<SimClient>(world_, host, std::move(options), events);
    world_->After(world_->Between(1us, 5s), [this, attempt, rank] {
      if (attempt != attempt_ || rank >= clients_.size() || !clients_[rank]->alive()) return;
      WriteJaxInit(placement_[rank]);
      clients_[rank]->Start();
    });
  }
}

std::string SimJob::ConfigOf(Rank rank) const {
  std::string text = fmt::format(
      "job-name: {}\nframework: {}\nnode-rank: {}\nnodes: {}\nbackup-interval-minutes: 30\n",
      shape_.name, FrameworkName(shape_.framework), rank, shape_.nodes);
  if (shape_.workers > 1) text += fmt::format("workers-per-node: {}\n", shape_.workers);
  if (shape_.replicas > 1) text += fmt::format("assume-data-parallelism: {}\n", shape_.replicas);
  if (shape_.peer_ranks) {
    std::vector<Rank> peers;
    for (uint32_t i = 1; i <= shape_.peers; ++i) peers.push_back((rank + i) % shape_.nodes);
    text += fmt::format("peer-ranks: [{}]\n", fmt::join(peers, ", "));
  } else if (shape_.replicas == 1) {
    text += fmt::format("peers-per-node: {}\n", shape_.peers);
  }
  return text;
}

// The platform's work, before the process starts.
void SimJob::WriteJaxInit(size_t host) {
  if (!shape_.jax_init || shape_.framework != Framework::kOrbax) return;
  Dir& mount = hosts_[host]->outside();
  const std::string name = "client/" + std::string(kJaxInitName);
  const std::string temporary = "client/.tmp." + std::string(kJaxInitName);
  (void)mount.RemoveTree(temporary);
  auto file = mount.CreateFile(temporary, 0644);
  if (!file.ok()) return;
  const std::string text = fmt::format("{}\nn0:8476 of attempt {}\n", host, attempt_);
  const Status written = (*file)->WriteAll(0, AsBytes(text));
  file->reset();
  if (written.ok()) (void)mount.Rename(temporary, name);
}

void SimJob::ShuffleRanks() {
  for (size_t i = placement_.size(); i > 1; --i) {
    std::swap(placement_[i - 1], placement_[world_->prng().Below(i)]);
  }
}

void SimJob::SwapHost() {
  const size_t nodes = next_shape_.nodes;
  if (nodes >= placement_.size()) return;
  const size_t spare = nodes + world_->prng().Below(placement_.size() - nodes);
  std::swap(placement_[world_->prng().Below(nodes)], placement_[spare]);
}

void SimJob::KillProcess(size_t host) {
  for (Rank rank = 0; rank < clients_.size(); ++rank) {
    if (clients_[rank] == nullptr || clients_[rank]->host() != host) continue;
    if (!clients_[rank]->alive()) continue;
    clients_[rank]->Kill();
    OnFailed(attempt_, rank, "killed");
  }
}

bool SimJob::ChangeRestored(size_t host) {
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& client) {
    return client != nullptr && client->host() == host && client->ChangeRestored();
  });
}

void SimJob::OnFailed(uint32_t attempt, Rank rank, const std::string& why) {
  if (attempt != attempt_ || std::exchange(failed_, true)) return;
  last_failure_ = fmt::format("rank {}: {}", rank, why);
  world_->Trace("attempt {} failed, {}", attempt, last_failure_);
  training_ = false;
  StartLater(world_->Between(500ms, 15s));
}

void SimJob::OnReady(uint32_t attempt, Rank rank, std::optional<SaveId> restored) {
  if (attempt != attempt_) return;
  ready_[rank] = restored;
  for (const auto& other : ready_) {
    if (!other || *other == restored) continue;
    const auto text = [](const std::optional<SaveId>& id) {
      return id ? id->ToString() : std::string("nothing");
    };
    return world_->Fail(Checker::kNodesDiffer,
                        fmt::format("attempt {}: rank {} goes on from {}, another from {}", attempt,
                                    rank, text(restored), text(*other)));
  }
  events_.went_on(restored);
  if (failed_ ||
      !std::all_of(ready_.begin(), ready_.end(), [](const auto& r) { return bool(r); })) {
    return;
  }
  training_ = true;
  step_ = restored ? restored->step : 0;
  world_->Count("job releases");
  if (restored) world_->Count("restores");
  events_.released(attempt, restored);
  PlanSave();
}

// ---- saves -------------------------------------------------------------------------------------

void SimJob::PlanSave() {
  const Duration pause = world_->Between(rhythm_.save_every_min, rhythm_.save_every_max);
  world_->After(pause, [this, attempt = attempt_] {
    if (attempt != attempt_ || !training_) return;
    if (saving_ && save_complete_) SaveNow();
    PlanSave();
  });
}

void SimJob::SaveNow(bool new_step) {
  if (!training_ || !save_complete_) return;
  ++nth_;
  // The same step once more, as a client does that saves at the end of its work: the same state.
  if (nth_ == 1 || new_step || !world_->prng().Chance(1, 12)) {
    step_ += 1 + world_->prng().Below(10);
    save_id_ = nth_;
  }
  begun_.emplace_back(attempt_, save_id_);
  save_complete_ = false;
  saved_parts_ = 0;
  world_->Count("saves");
  for (Rank rank = 0; rank < shape_.nodes; ++rank) {
    if (VariantOf({attempt_, save_id_, step_, rank, 0}, content()) == 0) continue;
    world_->Fault("replicas diverge");
    break;
  }
  for (auto& client : clients_) client->Save(save_id_, step_);
}

size_t SimJob::SavesSince(uint32_t attempt, uint32_t nth) const {
  const auto first = std::find(begun_.begin(), begun_.end(), std::pair(attempt, nth));
  return first == begun_.end() ? begun_.size() : static_cast<size_t>(begun_.end() - first) - 1;
}

void SimJob::OnSaved(uint32_t attempt, uint32_t nth) {
  if (attempt != attempt_ || nth != save_id_) return;
  if (++saved_parts_ < shape_.nodes * shape_.workers) return;
  save_complete_ = true;
  ++saves_written_;
}

}  // namespace tierkeep::sim
