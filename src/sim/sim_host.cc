#include "sim/sim_host.h"

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "format/messages.h"
#include "format/restore_orders.h"

namespace tierkeep::sim {
namespace {

constexpr uint32_t kListErrors = 10;
constexpr Duration kRestartMin = 500ms;
constexpr Duration kRestartMax = 8s;

class SimLogSink : public LogSink {
 public:
  SimLogSink(const HostParts* parts, size_t host, std::shared_ptr<SimProcess> process,
             std::string role)
      : parts_(parts), host_(host), process_(std::move(process)), role_(std::move(role)) {}

  void Write(const LogRecord& record) override {
    if (!process_->alive()) return;  // nobody reads what a dead process would have said
    parts_->world->Trace("n{}{} {} {}", host_, role_, SeverityTag(record.severity), record.text);
    parts_->on_log(host_, record.severity, record.text);
  }

 private:
  const HostParts* const parts_;
  const size_t host_;
  const std::shared_ptr<SimProcess> process_;
  const std::string role_;
};

}  // namespace

SimHost::SimHost(size_t index, const HostParts& parts, uint64_t mount_bytes_max)
    : index_(index), parts_(parts), world_(parts.world), clock_(parts.world) {
  SimFsOptions ram;
  ram.bytes_max = mount_bytes_max;
  ram.device = 2 * index + 1;
  ram.immutable_flags = parts.immutable_flags;
  ram.watch_queue_max = parts.watch_queue_max;
  ram.on_full = [this] { Disturb(); };
  ram.post = [this](std::function<void()> work) {
    world_->After(world_->Between(1us, 300us), std::move(work));
  };
  mount_ = std::make_unique<SimFs>(std::move(ram));
  SimFsOptions disk;
  disk.disk = true;
  disk.device = 2 * index + 2;
  disk_ = std::make_unique<SimFs>(std::move(disk));
  OpenOutside();
}

SimHost::~SimHost() {
  if (life_) life_->process->Kill();
  life_.reset();
}

SimHost::Life::~Life() {
  process->Kill();
  node.reset();
  control.reset();
  pulls.reset();
}

void SimHost::OpenOutside() {
  auto dir = mount_->Open(outsider_);
  TK_CHECK(dir.ok());
  outside_ = std::move(*dir);
}

Logger SimHost::LoggerOf(const std::shared_ptr<SimProcess>& process, std::string role) {
  return Logger(std::make_shared<SimLogSink>(&parts_, index_, process, std::move(role)));
}

// ---- lives -------------------------------------------------------------------------------------

void SimHost::StartAgent() {
  if (life_ != nullptr) return;
  ++lives_;
  Disturb();
  life_ = std::make_unique<Life>();
  Life& life = *life_;
  life.mount = mounts_;
  life.process = std::make_shared<SimProcess>();
  life.process->set_before(
      [this, process = life.process.get()](const FsOp& op) { return BeforeCall(process, op); });
  life.random = std::make_unique<SimRandom>(world_->prng().Next());
  world_->Trace("n{} agent starts, life {}", index_, lives_);
  const Status started = Start(life);
  if (!life.process->alive()) return;  // killed on the way
  if (started.ok()) return;
  world_->Trace("n{} agent can't start: {}", index_, started.error().ToString());
  parts_.on_log(index_, Severity::kError, started.error().ToString());
  KillAgent();
}

Status SimHost::Start(Life& life) {
  SimRuntime::Parts runtime{world_,       &clock_,        &speed_, life.process,
                            mount_.get(), parts_.network, index_};
  life.runtime = std::make_unique<SimRuntime>(runtime);
  TK_ASSIGN_OR_RETURN(life.state_dir, disk_->Open(life.process));
  TK_ASSIGN_OR_RETURN(auto mount, mount_->Open(life.process));
  const Logger logger = LoggerOf(life.process, "");
  TK_ASSIGN_OR_RETURN(life.store, Store::Open(std::shared_ptr<Dir>(std::move(mount)), {},
                                              life.random.get(), logger));
  if (life.process->alive()) parts_.on_opened(index_, *life.store);
  life.stager =
      std::make_unique<Stager>(life.store.get(), nullptr, &clock_, StageOptions{}, logger);
  life.volume = std::make_unique<Volume>(life.store.get(), logger);
  life.data_token.resize(32);
  life.random->Fill(life.data_token.data(), life.data_token.size());
  life.data_port = static_cast<uint16_t>(10000 + lives_ % 1000);
  SimPulls::Parts pulls{world_,       parts_.network,   &clock_, &speed_, parts_.data_rates,
                        life.process, life.store.get(), index_,  logger,  parts_.server_at};
  life.pulls = std::make_unique<SimPulls>(std::move(pulls));
  Status status;
  StartControlAndNode(life, &status);
  return status;
}

void SimHost::StartControlAndNode(Life& life, Status* status) {
  const Logger logger = LoggerOf(life.process, "");
  ControlPlane::Options control;
  control.restore = parts_.restore;
  control.whole_view_max = parts_.whole_view_max;
  control.node_name = HostName(index_);
  control.advertise_host = HostName(index_);
  life.random->Fill(control.boot.bytes.data(), Id128::kSize);
  life.control = std::make_unique<ControlPlane>(
      std::move(control), life.runtime.get(), &clock_, life.random.get(), &life.metrics, logger,
      [this, process = life.process](const std::string&) { return LoggerOf(process, " coord"); });
  *status = life.control->Start(parts_.rendezvous,
                                [&life](NodeEvent::Any event) { life.node->Dispatch(event); });
  if (!status->ok()) return;
  NodeOptions options;
  options.node_name = HostName(index_);
  life.random->Fill(options.agent.bytes.data(), Id128::kSize);
  life.random->Fill(options.boot.bytes.data(), Id128::kSize);
  options.data_host = HostName(index_);
  options.data_port = life.data_port;
  options.data_token = life.data_token;
  NodeHost::Parts node{life.runtime.get(),
                       &clock_,
                       &life.metrics,
                       life.store.get(),
                       life.stager.get(),
                       life.volume.get(),
                       life.pulls.get(),
                       life.control.get(),
                       life.state_dir.get(),
                       life.context,
                       logger,
                       [](std::string_view) { return std::optional<std::string>(); },
                       "client",
                       nullptr,
                       {},
                       [this](const Status&) { OnVolumeLost(); }};
  life.node = std::make_unique<NodeHost>(std::move(node), std::move(options));
  *status = life.node->Start();
}

void SimHost::KillAgent() {
  kill_after_.reset();
  if (!up()) return;
  world_->Trace("n{} agent dies", index_);
  world_->Count("agent crashes");
  life_->process->Kill();
  parts_.network->OnDead(life_->process.get(), false);
  Reap();
}

// Later, since its own code may be running.
void SimHost::Reap() {
  if (std::exchange(reaping_, true)) return;
  world_->After(1us, [this] {
    reaping_ = false;
    life_.reset();
    mount_->ForgetUnmounted();
    StartLater();
  });
}

void SimHost::StartLater() {
  world_->After(world_->Between(kRestartMin, kRestartMax), [this] { StartAgent(); });
}

void SimHost::LoseMachine(bool replaced) {
  world_->Trace("n{} machine lost{}", index_, replaced ? ", replaced" : "");
  world_->Count("agent crashes");
  kill_after_.reset();
  if (up()) {
    life_->process->Kill();
    parts_.network->OnDead(life_->process.get(), true);
    Reap();
  }
  if (replaced) {
    disk_->Vanish();
  } else {
    disk_->Reboot(&world_->prng());
  }
  mount_->Vanish();
  lost_at_ = world_->now();
  OpenOutside();
}

void SimHost::VanishVolume() {
  world_->Trace("n{} RAM volume vanishes", index_);
  ++mounts_;
  mount_->Remount();
  lost_at_ = world_->now();
  Disturb();
  OpenOutside();
}

// It exits in order, with status 1.
void SimHost::OnVolumeLost() {
  if (!up()) return;
  if (sees_mount()) {
    return world_->Fail(fmt::format("n{} ends though its volume is where it was", index_));
  }
  world_->Trace("n{} agent ends without its volume", index_);
  world_->Count("agents that ended without their volume");
  kill_after_.reset();
  life_->process->Kill();
  parts_.network->OnDead(life_->process.get(), false);
  Reap();
}

bool SimHost::GiveOrder(control::RestoreOrder order) {
  if (!up()) return false;
  world_->Trace("n{} is asked: {}", index_, ToString(order));
  order.set_after(WallMillis(clock_.WallNow()));
  life_->node->Dispatch(NodeEvent::OrderGiven{std::move(order)});
  return true;
}

std::optional<control::RestoreStop> SimHost::StopOf(const std::string& job) const {
  if (!up()) return std::nullopt;
  const auto coordinating = life_->control->CoordinatorStatus(job);
  const NodeMachine& machine = life_->node->machine();
  const auto& told = coordinating ? coordinating : machine.job_status();
  if (told && told->has_waiting() && told->waiting().job() == job) return told->waiting();
  const control::NodeState& state = machine.state();
  if (state.has_stop() && state.stop().job() == job) return state.stop();
  return std::nullopt;
}

Instant SimHost::disturbed_at() const {
  return up() && speed_.slow == 1 ? disturbed_at_ : world_->now();
}

void SimHost::Sleep(Duration time) {
  Disturb();
  clock_.Sleep(time);
  if (up()) life_->runtime->sim_loop().ClockMoved();
}

DataServerView SimHost::data_server(uint16_t port) {
  if (!up() || life_->data_port != port) return {};
  return {life_->store.get(), life_->data_token, life_->process};
}

std::vector<DirEntry> SimHost::Entries(std::string_view path) {
  auto entries = outside_->List(path);
  return entries.ok() ? std::move(*entries) : std::vector<DirEntry>();
}

// ---- file operations ---------------------------------------------------------------------------

int SimHost::BeforeCall(SimProcess* process, const FsOp& op) {
  // Before each message. What comes by chance would come there, and hardly anywhere else.
  if (op.call == FsCall::kCheckPath) return failing_ ? failing_(op) : 0;
  if (const Between between = between_) {  // a copy: it may put another one in its place
    between(op);
    if (!process->alive()) return ECANCELED;
  }
  if (kill_after_ && (*kill_after_)-- == 0) {
    world_->Trace("n{} dies before {}", index_, op.ToString());
    kill_after_.reset();
    world_->Count("agent crashes");
    process->Kill();
    parts_.network->OnDead(process, false);
    Reap();
    return ECANCELED;
  }
  if (op.call == FsCall::kRename) {
    world_->Trace("n{} moves {}/{} to {}", index_, op.base, op.path, op.to);
    parts_.on_move(index_, op);
  }
  return InjectedError(op);
}

int SimHost::InjectedError(const FsOp& op) {
  if (const int error = failing_ ? failing_(op) : 0; error != 0) {
    Disturb();
    world_->Trace("n{} error in {}", index_, op.ToString());
    return error;
  }
  const bool changes = Changes(op.call);
  uint32_t rate = changes ? parts_.file_rates->write_errors : parts_.file_rates->read_errors;
  if (op.call == FsCall::kList) rate *= kListErrors;  // there are so few of them
  if (rate == 0 || !world_->Chance(rate)) return 0;
  world_->Fault(changes ? "write error" : "read error");
  Disturb();
  world_->Trace("n{} error in {}", index_, op.ToString());
  return changes && world_->prng().Chance(1, 2) ? ENOSPC : EIO;
}

}  // namespace tierkeep::sim
