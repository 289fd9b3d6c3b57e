#include "sim/simulation.h"

#include <algorithm>
#include <utility>

namespace tierkeep::sim {
namespace {

constexpr Duration kFaultsMin = 120s;
constexpr Duration kFaultsMax = 600s;
constexpr Duration kConvergeMax = 3000s;
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
  if (prng.Chance(1, 3)) {
    rhythm_ = {1s, 8s};
  }
}

uint64_t Simulation::MountBytes() const { return kAmpleBytes; }

void Simulation::MakeHosts() {
  const size_t count = shape_.nodes + spares_;
  owned_network_ = std::make_unique<SimNetwork>(&world_, count);
  network_ = owned_network_.get();
  rendezvous_ = std::make_unique<SimRendezvous>(&world_);
  host_parts_.world = &world_;
  host_parts_.network = network_;
  host_parts_.rendezvous = rendezvous_.get();
  host_parts_.data_rates = &data_rates_;
  host_parts_.file_rates = &file_rates_;
  host_parts_.server_at = [this](const HostPort& at) {
    const size_t host = HostOf(at.host);
    return host < hosts_.size() ? hosts_[host]->data_server(at.port) : DataServerView{};
  };
  host_parts_.on_log = [this](size_t host, Severity severity, std::string_view text) {
    OnLog(host, severity, text);
  };
  host_parts_.on_change = [](size_t, const FsOp&) {};
  for (size_t i = 0; i < count; ++i) {
    hosts_.push_back(std::make_unique<SimHost>(i, host_parts_, MountBytes()));
  }
}

void Simulation::Start() {
  MakeHosts();
  ledger_ = std::make_unique<Ledger>(&world_, &hosts_);
  JobEvents events;
  events.started = [this](uint32_t attempt) { ledger_->OnStarted(attempt); };
  events.released = [this](uint32_t attempt, std::optional<SaveId> restored) {
    ledger_->OnReleased(attempt, restored);
  };
  job_ =
      std::make_unique<SimJob>(&world_, &hosts_, shape_, rhythm_, options_.seed, std::move(events));
  ledger_->set_job(job_.get());
  nemesis_ = std::make_unique<Nemesis>(NemesisParts{&world_, &hosts_, network_, rendezvous_.get(),
                                                    &data_rates_, &file_rates_, job_.get()});
  for (auto& host : hosts_) {
    world_.After(world_.Between(1us, 2s), [host = host.get()] { host->StartAgent(); });
  }
  job_->StartLater(world_.Between(1us, 3s));
}

void Simulation::OnLog(size_t host, Severity severity, std::string_view text) {
  if (text.starts_with("All files were replicated globally for step")) ledger_->OnCommit(host);
  (void)severity;
}

bool Simulation::RunFor(Duration time) {
  world_.RunUntil(world_.now() + time, Never);
  return !world_.failed();
}

bool Simulation::RunUntilCommitted(uint32_t saves, Duration limit) {
  const bool came = world_.RunUntil(world_.now() + limit, [this, saves] {
    return job_->training() && job_->saves_written() >= saves &&
           ledger_->CommittedEverywhere(job_->attempt(), saves);
  });
  if (!came && !world_.failed()) {
    world_.Fail(fmt::format("no commit within {}: {}", FormatDuration(limit), States()));
  }
  return came;
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
  }
  return text;
}

void Simulation::Converge() {
  nemesis_->End();
  world_.Trace("faults end");
  RunUntilCommitted(1, kConvergeMax);
  if (world_.failed()) return;
  job_->StartLater(1ms);
  RunFor(1s);
  RunUntilCommitted(1, kConvergeMax);
}

SimulationResult Simulation::Run() {
  Start();
  RunFor(world_.Between(10s, 60s));
  nemesis_->Begin();
  RunFor(world_.Between(kFaultsMin, kFaultsMax));
  if (!world_.failed()) Converge();
  return Finish();
}

SimulationResult Simulation::Finish() {
  SimulationResult result;
  result.seed = options_.seed;
  result.failure = world_.failure();
  result.hash = world_.hash();
  result.events = world_.events();
  result.faults = world_.faults_total();
  result.simulated_seconds = ToSeconds(world_.now() - Instant(1000s));
  result.counts = world_.counts();
  result.faults_by_kind = world_.faults();
  result.trace = world_.trace();
  result.setup = fmt::format("{} nodes and {} spares, {}, {} workers, {} replicas, {} peers; {}",
                             shape_.nodes, spares_, FrameworkName(shape_.framework), shape_.workers,
                             shape_.replicas, shape_.peers, nemesis_->Describe());
  return result;
}

SimulationResult RunSeed(const SimulationOptions& options) { return Simulation(options).Run(); }

}  // namespace tierkeep::sim
