#include "sim/simulation.h"

#include <algorithm>
#include <utility>

#include "sim/expected_errors.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kFaultsMin = 120s;
constexpr Duration kFaultsMax = 600s;
constexpr Duration kConvergeMax = 1300s;
constexpr int kStartsMax = 2;
// In the end: for copies that are made and deleted at leisure.
constexpr Duration kSettle = 60s;
constexpr Duration kLastSaveAfter = 10s;
// docs/memory.md: the one that is being protected, and the oldest and the newest that some node
// lacks.
constexpr size_t kUncommittedMax = 3;
// Changes in the volume that an agent doesn't get to at once.
constexpr size_t kWatchQueue = 16384;
constexpr size_t kShortWatchQueue = 2;
constexpr Duration kSettleEvery = 2s;
constexpr Duration kMemoryEvery = 500ms;
// What is over it for less than ten seconds doesn't count.
constexpr Duration kBudgetEvery = 2500ms;
constexpr Duration kLookEvery = 200ms;
constexpr uint32_t kTightTenths = 22;
constexpr Duration kTightPatience = 150s;
constexpr int kTightStartsMax = 3;
constexpr uint64_t kExactMountDraw = 0x6d6f756e74;
constexpr uint64_t kLargeFileMin = 256 << 10;
constexpr uint64_t kAmpleBytes = uint64_t{1} << 40;

bool Never() { return false; }

}  // namespace

Simulation::Simulation(const SimulationOptions& options)
    : options_(options), world_(options.seed, options.trace || options.print) {
  world_.set_print(options.print);
  ChooseShape(options.nodes);
}

Simulation::~Simulation() {
  if (job_) job_->Stop();
  for (auto& host : hosts_) host->KillAgent();
}

void Simulation::ChooseShape(uint32_t nodes) {
  Prng& prng = world_.prng();
  // Small clusters most of the time: their states are no fewer, and they are fast.
  static constexpr uint32_t kNodes[] = {2, 2, 2, 3, 3, 4, 4, 4, 6, 8, 16};
  shape_.nodes = kNodes[prng.Below(std::size(kNodes))];
  if (nodes != 0) shape_.nodes = nodes;
  shape_.framework = static_cast<Framework>(1 + prng.Below(3));
  if (shape_.framework == Framework::kPytorch) {
    shape_.workers = static_cast<uint32_t>(1 + prng.Below(3));
  }
  if (shape_.nodes % 2 == 0 && prng.Chance(1, 3)) shape_.replicas = 2;
  if (shape_.nodes % 4 == 0 && shape_.replicas == 2 && prng.Chance(1, 3)) shape_.replicas = 4;
  if (shape_.nodes > 2 && prng.Chance(1, 4)) shape_.peers = 2;
  shape_.peer_ranks = shape_.replicas == 1 && prng.Chance(1, 4);
  shape_.jax_init = prng.Chance(2, 3);
  shape_.file_bytes = 1024 + prng.Below(12 * 1024);
  spares_ = prng.Below(3);
  ChooseMount();
  if (prng.Chance(1, 3)) {
    rhythm_ = {1s, 8s};
  }
  // Replicas that differ need copies, for which small mounts have no room.
  shape_.diverging = shape_.replicas > 1 && mount_tenths_ == 0 && prng.Chance(1, 2);
  host_parts_.immutable_flags = !prng.Chance(1, 4);
  people_decide_ = prng.Chance(1, 2);
  host_parts_.watch_queue_max = prng.Chance(1, 3) ? kShortWatchQueue : kWatchQueue;
}

// docs/ARCHITECTURE.md, "Memory": committed, and the next one written and replicated.
void Simulation::ChooseMount() {
  Prng& prng = world_.prng();
  if (!prng.Chance(1, 3)) return;
  const uint32_t table = 2 * (shape_.replicas > 1 ? 1 : 1 + shape_.peers);
  mount_tenths_ = table * 10 + 2;
  // Room for what is misplaced after ranks moved, too; without it they stay.
  if (prng.Chance(1, 2)) mount_tenths_ += 10;
  ranks_move_ = mount_tenths_ > table * 10 + 2;
  // The table is for the usual course of things. Under faults it isn't kept yet: what is late or
  // was cut short takes room for two more.
  mount_tenths_ += 20;
  ChooseExactMount();
}

// Just a size of docs/memory.md's tables, where these say that every next save is committed and
// every restore rebuilt. Drawn apart, so that other seeds' schedules stay what they were.
void Simulation::ChooseExactMount() {
  Prng prng(options_.seed ^ kExactMountDraw);
  if (shape_.replicas == 1 || !prng.Chance(1, 2)) return;
  static constexpr uint32_t kSizes[] = {22, 30, 40};
  mount_tenths_ = kSizes[prng.Below(std::size(kSizes))];
  ranks_move_ = true;
  // Beside which the room for small files is little.
  shape_.file_bytes = kLargeFileMin + prng.Below(kLargeFileMin);
}

uint64_t Simulation::MountBytes() const {
  if (mount_tenths_ == 0) return kAmpleBytes;
  return Ledger::CheckpointBytes(shape_) * mount_tenths_ / 10 + Ledger::kSmallFilesBytes;
}

void Simulation::MakeHosts() {
  // Enough for the usual course of things; a save that is late may find no room.
  if (mount_tenths_ != 0) world_.Fault("small mounts");
  const size_t count = shape_.nodes + spares_;
  owned_network_ = std::make_unique<SimNetwork>(&world_, count);
  network_ = owned_network_.get();
  rendezvous_ = std::make_unique<SimRendezvous>(&world_);
  host_parts_.world = &world_;
  host_parts_.restore.go_on_without_absent = !people_decide_;
  host_parts_.network = network_;
  host_parts_.rendezvous = rendezvous_.get();
  host_parts_.data_rates = &data_rates_;
  host_parts_.file_rates = &file_rates_;
  // Drawn apart, so that a seed's schedule stays what it was: every other job is treated as a large
  // one, whose members know their own part only.
  host_parts_.whole_view_max = Prng(options_.seed).Chance(1, 2) ? 0 : kWholeViewMax;
  host_parts_.server_at = [this](const HostPort& at) {
    const size_t host = HostOf(at.host);
    return host < hosts_.size() ? hosts_[host]->data_server(at.port) : DataServerView{};
  };
  host_parts_.on_move = [this](size_t host, const FsOp& op) {
    if (!hosts_[host]->sees_mount()) return;  // in a tree that nobody else sees
    moments_->OnMove(hosts_[host].get(), op);
    fates_->OnMove(host, op);
  };
  host_parts_.on_opened = [this](size_t host, Store& store) {
    moments_->OnOpened(hosts_[host].get(), store);
  };
  host_parts_.on_log = [this](size_t host, Severity severity, std::string_view text) {
    OnLog(host, severity, text);
  };
  for (size_t i = 0; i < count; ++i) {
    hosts_.push_back(std::make_unique<SimHost>(i, host_parts_, MountBytes()));
  }
}

void Simulation::Start() {
  MakeHosts();
  ledger_ = std::make_unique<Ledger>(&world_, &hosts_);
  JobEvents events;
  events.started = [this](uint32_t attempt) {
    ledger_->OnStarted(attempt);
    people_->OnStarted();
  };
  events.damaged = [this](size_t host, Instant since) {
    return ledger_->DamagedSince(host, since);
  };
  events.went_on = [this](std::optional<SaveId> restored) { ledger_->OnWentOn(restored); };
  events.released = [this](uint32_t attempt, std::optional<SaveId> restored) {
    ledger_->OnReleased(attempt, restored);
    people_->OnReleased(restored);
    fates_->OnReleased();
  };
  events.stands = [this](size_t host, const std::string& name, const SaveId& id) {
    outcomes_->OnSaved(host, name);
    fates_->OnSaved(host, name, id);
  };
  events.removes = [this](size_t host, const std::string& name) { fates_->OnRemoved(host, name); };
  events.overdue = [this](size_t host, const std::string& what, Instant since) {
    outcomes_->OnOverdue(host, what, since);
  };
  outcomes_ = std::make_unique<Outcomes>(&world_, &hosts_);
  outcomes_->Watch();
  job_ =
      std::make_unique<SimJob>(&world_, &hosts_, shape_, rhythm_, options_.seed, std::move(events));
  ledger_->set_job(job_.get());
  budget_ = std::make_unique<Budget>(&world_, &hosts_, job_.get(), ledger_.get());
  fates_ = std::make_unique<Fates>(&world_, &hosts_, job_.get(), ledger_.get());
  fates_->Watch();
  moments_ = std::make_unique<Moments>(&world_, ledger_.get(), job_.get());
  ledger_->set_people_decide(people_decide_);
  people_ = std::make_unique<SimOperator>(&world_, &hosts_, job_.get(), ledger_.get());
  nemesis_ = std::make_unique<Nemesis>(NemesisParts{
      &world_, &hosts_, network_, rendezvous_.get(), &data_rates_, &file_rates_, job_.get(),
      ledger_.get(), people_.get(), MountBytes(), options_.seed, ranks_move_});
  people_->Watch();
  for (auto& host : hosts_) {
    world_.After(world_.Between(1us, 2s), [host = host.get()] { host->StartAgent(); });
  }
  job_->StartLater(world_.Between(1us, 3s));
  WatchMemory();
  WatchBudget();
}

void Simulation::OnLog(size_t host, Severity severity, std::string_view text) {
  if (text.starts_with("All files were replicated globally")) world_.Count("commits recorded");
  fates_->OnLog(host, text);
  if (severity < Severity::kError) return;
  world_.Count("errors logged");
  if (!IsExplained(world_, text)) {
    world_.Fail(Checker::kUnexplainedError,
                fmt::format("n{} complains without reason: {}", host, text));
  }
}

bool Simulation::RunFor(Duration time) {
  world_.RunUntil(world_.now() + time, Never);
  return !world_.failed();
}

bool Simulation::TryUntilCommitted(uint32_t saves, Duration limit) {
  // Not after each event: looking at all agents costs more than most events.
  Instant next_look = world_.now();
  return world_.RunUntil(world_.now() + limit, [this, saves, &next_look] {
    if (world_.now() < next_look) return false;
    next_look = world_.now() + kLookEvery;
    return job_->training() && job_->saves_written() >= saves &&
           ledger_->CommittedEverywhere(saves);
  });
}

bool Simulation::RunUntilCommitted(uint32_t saves, Duration limit) {
  bool came = false;
  uint64_t failed = SavesFailed();
  for (int i = 0; i < kTightStartsMax && mount_tenths_ == kTightTenths && !came; ++i) {
    came = TryUntilCommitted(saves, kTightPatience);
    if (came || world_.failed() || std::exchange(failed, SavesFailed()) == failed) break;
    // docs/memory.md, "two saves waiting" in 2.2: no write. The job can't go on, and starts again.
    world_.Count("jobs started again since a save had no room");
    job_->StartLater(1ms);
  }
  came = came || TryUntilCommitted(saves, limit);
  if (!came && !world_.failed()) {
    world_.Fail(Checker::kNoCommit,
                fmt::format("no commit within {}: {}", FormatDuration(limit), States()));
  }
  return came;
}

bool Simulation::RestartUntilCommitted(Duration limit) {
  job_->StartLater(1ms);
  return RunFor(1s) && RunUntilCommitted(1, limit);
}

// What stands on a mount, for a run that doesn't come to its end.
std::string Simulation::Contents(SimHost* host) {
  std::string text = fmt::format("{} of {} bytes used", host->mount().use().bytes, MountBytes());
  for (const std::string_view part : {"client", "store/shards", "store/staged", "store/incoming"}) {
    const auto entries = host->outside().List(part);
    if (!entries.ok() || entries->empty()) continue;
    text += fmt::format(", {}:", part);
    for (const DirEntry& entry : *entries) text += " " + entry.name.substr(0, 40);
  }
  return text;
}

std::string Simulation::States() {
  std::string text = fmt::format("attempt {} {}, last failure: {}", job_->attempt(),
                                 job_->training() ? "trains" : "waits", job_->last_failure());
  for (auto& host : hosts_) {
    if (host->node() == nullptr) {
      text += fmt::format("; n{} down", host->index());
      continue;
    }
    const NodeStatus status = host->node()->status();
    text += fmt::format("; n{} {}", host->index(), status.phase);
    if (!status.last_error.empty()) text += " (" + status.last_error + ")";
    if (mount_tenths_ != 0) text += " [" + Contents(host.get()) + "]";
  }
  return text;
}

void Simulation::Converge() {
  nemesis_->End();
  world_.Trace("faults end");
  // A yaml of a process that is gone may still stand for its rank, and win: whoever starts jobs
  // looks whether they are protected, and tries again.
  for (int i = 0; i < kStartsMax && !TryUntilCommitted(1, kConvergeMax); ++i) {
    if (world_.failed()) return;
    world_.Count("jobs started again since nothing was committed");
    job_->StartLater(1ms);
  }
  // docs/memory.md, "two saves waiting" in 2.2: no write. Where each node skipped a save that the
  // other has, neither finds room for the next; a job whose save fails ends, and starts again.
  if (!SaveLast()) return;
  if (mount_tenths_ == kTightTenths && last_save_failed_ && !ledger_->NotInPlace().empty()) {
    world_.Count("jobs started again since their last save had no room");
    budget_->Begin(Budget::Stretch::kDisturbed);
    job_->set_saving(true);
    if (!SaveLast()) return;
  }
  ledger_->CheckAllInPlace();
  fates_->CheckAll();
  if (!world_.failed()) RebuildOne();
}

uint64_t Simulation::SavesFailed() const { return world_.count("saves that failed"); }

// A commit of one more start, and then of one more save.
bool Simulation::SaveLast() {
  if (!RestartUntilCommitted(kConvergeMax)) return false;
  budget_->Begin(Budget::Stretch::kMended);
  job_->set_saving(false);
  // What some node skipped, since a client overwrote it with the same step again, goes with this.
  if (!RunFor(kLastSaveAfter)) return false;
  ledger_->CheckUncommitted(kUncommittedMax);
  const uint64_t failed = SavesFailed();
  job_->SaveNow(/*new_step=*/true);
  const bool committed = RunFor(kSettle) && RunUntilCommitted(1, kConvergeMax);
  last_save_failed_ = SavesFailed() > failed;
  return committed;
}

// A machine is lost while nothing is saved any more: what the job is restored from must get all of
// its copies back.
void Simulation::RebuildOne() {
  if (!nemesis_->LoseOne()) return;
  RestartInPlace("after a loss");
  // What is handed out now may be written into: a copy that isn't to be trusted is none, least of
  // all of another rank's host.
  if (world_.failed() || !ranks_move_ || !nemesis_->ChangeOne()) return;
  job_->ShuffleRanks();
  world_.Fault("ranks moved");
  RestartInPlace("after a change");
}

void Simulation::RestartInPlace(const char* when) {
  budget_->Begin(Budget::Stretch::kMoved);
  job_->StartLater(1ms);
  if (!RunFor(1s)) return;
  Instant next_look = world_.now();
  std::string missing;
  world_.RunUntil(world_.now() + kConvergeMax, [this, &next_look, &missing] {
    if (world_.now() < next_look) return false;
    next_look = world_.now() + kSettleEvery;
    missing = job_->training() ? ledger_->NotInPlace() : "the job waits";
    return missing.empty();
  });
  if (!missing.empty() && !world_.failed()) {
    world_.Fail(Checker::kNotRebuilt,
                fmt::format("{}, without further saves, {}: {}", when, missing, States()));
  }
  budget_->Begin(Budget::Stretch::kRebuilt);
  RunFor(kSettle);
}

void Simulation::WatchMemory() {
  ledger_->CheckMemory();
  world_.After(kMemoryEvery, [this] { WatchMemory(); });
}

void Simulation::WatchBudget() {
  budget_->Look();
  world_.After(kBudgetEvery, [this] { WatchBudget(); });
}

SimulationResult Simulation::Run() {
  Start();
  budget_->Begin(Budget::Stretch::kUndisturbed);
  RunFor(world_.Between(10s, 60s));
  budget_->Begin(Budget::Stretch::kDisturbed);
  nemesis_->Begin();
  RunFor(world_.Between(kFaultsMin, kFaultsMax));
  if (!world_.failed()) Converge();
  return Finish();
}

SimulationResult Simulation::Finish() {
  SimulationResult result;
  result.seed = options_.seed;
  result.failure = world_.failure();
  result.checker = world_.checker();
  result.hash = world_.hash();
  result.events = world_.events();
  result.faults = world_.faults_total();
  result.simulated_seconds = ToSeconds(world_.now() - Instant(1000s));
  result.counts = world_.counts();
  result.faults_by_kind = world_.faults();
  result.trace = world_.trace();
  result.counts["peak percent"] = ledger_->peak_percent();
  const std::string mount =
      (mount_tenths_ == 0
           ? "ample mounts"
           : fmt::format("mounts of {}.{} checkpoints", mount_tenths_ / 10, mount_tenths_ % 10)) +
      (host_parts_.immutable_flags ? "" : " without flags") +
      (shape_.diverging ? ", replicas diverge" : "") + (people_decide_ ? ", people decide" : "");
  result.setup =
      fmt::format("{} nodes and {} spares, {}, {} workers, {} replicas, {} peers, {}; {}",
                  shape_.nodes, spares_, FrameworkName(shape_.framework), shape_.workers,
                  shape_.replicas, shape_.peers, mount, nemesis_->Describe());
  return result;
}

SimulationResult RunSeed(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace tierkeep::sim
