#include "agent/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "agent/admin.h"
#include "agent/control_plane.h"
#include "agent/event_loop.h"
#include "agent/metrics.h"
#include "agent/node_host.h"
#include "agent/restore_api.h"
#include "agent/threaded_runtime.h"
#include "base/check.h"
#include "base/log_sinks.h"
#include "format/messages.h"
#include "io/clock.h"
#include "io/file_system.h"
#include "io/http.h"
#include "io/rendezvous.h"
#include "io/sd_notify.h"
#include "io/tls.h"
#include "tiers/peer/data_server.h"
#include "tiers/peer/puller.h"
#include "tiers/ram/stager.h"
#include "tiers/ram/store.h"
#include "tiers/ram/volume.h"

namespace tierkeep {
namespace {

Severity LowestSeverity(const std::string& level) {
  if (level == "debug") return Severity::kDebug;
  if (level == "warning") return Severity::kWarning;
  if (level == "error") return Severity::kError;
  return Severity::kInfo;
}

std::shared_ptr<LogSink> MakeSink(const AgentSettings& s, std::shared_ptr<LineWriter> out,
                                  std::shared_ptr<const LogContext> context) {
  TextLogSink::Options options;
  options.lowest = LowestSeverity(s.log_level);
  if (s.log_format == "json") {
    return std::make_shared<JsonLogSink>(std::move(out), std::move(context), options);
  }
  return std::make_shared<TextLogSink>(std::move(out), std::move(context), options);
}

std::string RandomToken(RandomSource& random) {
  std::string token(32, '\0');
  random.Fill(token.data(), token.size());
  return token;
}

// How many files this process may have open, now as many as it is ever allowed: the usual soft
// limit is meant for programs that use select.
uint64_t RaiseFileLimit() {
  struct rlimit limit;
  TK_CHECK(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

Status LockAlone(int fd, const std::string& what) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return OkStatus();
  return Error(
      Code::kFailedPrecondition,
      fmt::format("another agent uses {}: give each agent of this host its own --state-dir and "
                  "--mount",
                  what));
}

// All parts of one agent, in the order in which they are made; destroyed in reverse.
class Agent {
 public:
  explicit Agent(const AgentSettings& settings) : settings_(settings) {}
  ~Agent();
  Status Start();
  // Until the agent is to exit.
  void Loop();
  void BeginStop();
  // Why it ended by itself; OK when it was asked to.
  const Status& ended() const { return ended_; }
  const Logger& logger() const { return logger_; }

 private:
  Status OpenLog();
  Status OpenState();
  Status OpenTiers();
  Status OpenRendezvous();
  Status StartControl();
  Status StartNode();
  Status StartAdmin();
  StatusInputs Snapshot();
  Status GiveOrder(const control::RestoreOrder& order);

  AgentSettings settings_;
  SystemClock clock_;
  SystemRandom random_;
  EventLoop loop_{&clock_};
  ThreadedRuntime runtime_{&loop_};
  Metrics metrics_;
  Instant started_{};
  std::shared_ptr<LogContext> log_context_ = std::make_shared<LogContext>();
  std::shared_ptr<LineWriter> log_out_;
  Logger logger_;
  std::unique_ptr<Steps> steps_;
  std::shared_ptr<Dir> state_dir_;
  int state_lock_ = -1;
  int mount_lock_ = -1;
  std::shared_ptr<Dir> mount_;
  std::shared_ptr<TlsContext> tls_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Stager> stager_;
  std::unique_ptr<Volume> volume_;
  std::unique_ptr<Puller> puller_;
  std::unique_ptr<ThreadedPulls> pulls_;
  std::string data_token_;
  std::unique_ptr<DataServer> data_server_;
  std::unique_ptr<Rendezvous> rendezvous_;
  CoordinatorPlace place_ = CoordinatorPlace::kRankZero;  // follows from the rendezvous
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<NodeHost> node_;
  std::atomic<bool> stopping_{false};
  Status ended_;  // the loop's thread
  std::unique_ptr<HttpServer> admin_;
  std::unique_ptr<HttpServer> metrics_server_;
};

Agent::~Agent() {
  stopping_ = true;
  metrics_server_.reset();
  admin_.reset();
  node_.reset();
  control_.reset();
  data_server_.reset();
  if (mount_lock_ >= 0) ::close(mount_lock_);
  if (state_lock_ >= 0) ::close(state_lock_);
}

Status Agent::Start() {
  started_ = clock_.Now();
  TK_RETURN_IF_ERROR(OpenLog());
  TK_RETURN_IF_ERROR(OpenState());
  TK_RETURN_IF_ERROR(OpenTiers());
  TK_RETURN_IF_ERROR(StartControl());
  TK_RETURN_IF_ERROR(StartNode());
  TK_RETURN_IF_ERROR(StartAdmin());
  logger_.Info("tierkeep agent {} is ready: mount {}, control port {}, data port {}, admin {}",
               settings_.node_name, settings_.mount, control_->port(), data_server_->port(),
               settings_.admin);
  NotifyReady();
  return OkStatus();
}

Status Agent::OpenLog() {
  if (settings_.log_file.empty()) {
    log_out_ = std::make_shared<LineWriter>(STDOUT_FILENO);
  } else {
    TK_ASSIGN_OR_RETURN(log_out_, LineWriter::Open(settings_.log_file));
  }
  logger_ = Logger(MakeSink(settings_, log_out_, log_context_));
  return OkStatus();
}

Status Agent::OpenState() {
  if (::mkdir(settings_.state_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError(errno, "make state-dir " + settings_.state_dir);
  }
  auto dir = OpenPosixDir(settings_.state_dir);
  if (!dir.ok()) return dir.error().With("state-dir");
  state_dir_ = std::move(*dir);
  const std::string lock = settings_.state_dir + "/lock";
  state_lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (state_lock_ < 0) return ErrnoError(errno, "open " + lock);
  TK_RETURN_IF_ERROR(LockAlone(state_lock_, "state-dir " + settings_.state_dir));
  // The store is swept when it is opened: what another agent is receiving would go.
  mount_lock_ = ::open(settings_.mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (mount_lock_ < 0) return ErrnoError(errno, "open mount " + settings_.mount);
  return LockAlone(mount_lock_, "mount " + settings_.mount);
}

Status Agent::OpenTiers() {
  if (settings_.uses_tls()) {
    TK_ASSIGN_OR_RETURN(tls_, TlsContext::Load(settings_.tls_dir));
  }
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  pool_ = std::make_unique<WorkerPool>(settings_.threads > 0 ? settings_.threads : cores);
  auto mount = OpenPosixDir(settings_.mount);
  if (!mount.ok()) return mount.error().With("mount");
  mount_ = std::move(*mount);
  StoreOptions store_options;
  store_options.pool = pool_.get();
  TK_ASSIGN_OR_RETURN(store_, Store::Open(mount_, store_options, &random_, logger_));
  StageOptions stage_options;
  stage_options.limits.entries_max = settings_.save_entries_max;
  stage_options.limits.depth_max = settings_.save_depth_max;
  stager_ = std::make_unique<Stager>(store_.get(), pool_.get(), &clock_, stage_options, logger_);
  volume_ = std::make_unique<Volume>(store_.get(), logger_);

  DataPortOptions port;
  port.listen_host = settings_.listen;
  port.port = settings_.data_port;
  if (settings_.data_encryption) port.tls = tls_;
  port.bytes_per_second_max = settings_.bandwidth_limit;
  data_token_ = RandomToken(random_);
  TK_ASSIGN_OR_RETURN(data_server_,
                      DataServer::Start(port, data_token_, store_.get(), &clock_, logger_));
  PullerOptions puller;
  puller.port = port;
  puller.streams = settings_.pull_streams;
  puller_ = std::make_unique<Puller>(store_.get(), &clock_, puller, logger_);
  pulls_ = std::make_unique<ThreadedPulls>(puller_.get());
  return OkStatus();
}

Status Agent::StartControl() {
  std::optional<CrashPoint> crash;
  if (!settings_.crash_before.empty()) {
    TK_ASSIGN_OR_RETURN(crash, ParseCrashPoint(settings_.crash_before));
  }
  steps_ = std::make_unique<Steps>(logger_, std::move(crash));
  ControlPlane::Options options;
  options.steps = steps_.get();
  options.node_name = settings_.node_name;
  options.advertise_host = settings_.advertise;
  random_.Fill(options.boot.bytes.data(), Id128::kSize);
  options.network.listen_host = settings_.listen;
  options.network.listen_port = settings_.control_port;
  options.network.tls = tls_;
  // Strangers must leave enough for the files of a save and for the data port.
  options.network.connections_max = static_cast<uint32_t>(
      std::min<uint64_t>(options.network.connections_max, RaiseFileLimit() / 2));
  options.fixed_address = settings_.rendezvous.starts_with("static:");
  options.restore = {.suspect_after = settings_.suspect_after,
                     .restores_max = settings_.max_restores,
                     .absent_wait = settings_.absent_wait,
                     .go_on_without_absent = settings_.on_absent == "go-on"};
  control_ = std::make_unique<ControlPlane>(
      std::move(options), &runtime_, &clock_, &random_, &metrics_, logger_,
      [this](const std::string& job) {
        auto context = std::make_shared<LogContext>();
        context->SetCoordinator(job);
        return Logger(MakeSink(settings_, log_out_, std::move(context)));
      });
  TK_RETURN_IF_ERROR(OpenRendezvous());
  return control_->Start(rendezvous_.get(),
                         [this](NodeEvent::Any event) { node_->Dispatch(event); });
}

Status Agent::OpenRendezvous() {
  TK_ASSIGN_OR_RETURN(const RendezvousAddress address, ParseRendezvous(settings_.rendezvous));
  if (address.kind == RendezvousAddress::Kind::kFile) {
    TK_ASSIGN_OR_RETURN(rendezvous_, OpenFileRendezvous(address.dir));
    return OkStatus();
  }
  StaticRendezvousOptions options;
  options.host = address.host;
  options.port = address.port;
  options.local = address.host == settings_.advertise && address.port == settings_.control_port;
  place_ = options.local ? CoordinatorPlace::kHere : CoordinatorPlace::kElsewhere;
  options.state_dir = settings_.state_dir;
  TK_ASSIGN_OR_RETURN(rendezvous_, OpenStaticRendezvous(options));
  return OkStatus();
}

Status Agent::StartNode() {
  NodeOptions options;
  options.node_name = settings_.node_name;
  random_.Fill(options.agent.bytes.data(), Id128::kSize);
  random_.Fill(options.boot.bytes.data(), Id128::kSize);
  options.data_host = settings_.advertise;
  options.data_port = data_server_->port();
  options.data_token = data_token_;
  options.place = place_;
  options.on_pressure = settings_.on_pressure == "thin" ? OnPressure::kThin : OnPressure::kRefuse;
  NodeHost::Parts parts{&runtime_,
                        &clock_,
                        &metrics_,
                        store_.get(),
                        stager_.get(),
                        volume_.get(),
                        pulls_.get(),
                        control_.get(),
                        state_dir_.get(),
                        log_context_,
                        logger_,
                        [](std::string_view name) -> std::optional<std::string> {
                          const char* value = std::getenv(std::string(name).c_str());
                          return value ? std::optional<std::string>(value) : std::nullopt;
                        },
                        settings_.mount + "/client",
                        steps_.get(),
                        [] { return ReadCgroupMemory(); },
                        [this](const Status& why) {
                          ended_ = why;
                          NotifyStopping();
                          loop_.Stop();
                        }};
  node_ = std::make_unique<NodeHost>(std::move(parts), std::move(options));
  return node_->Start();
}

Status Agent::StartAdmin() {
  AdminSources sources;
  sources.snapshot = [this] { return Snapshot(); };
  sources.metrics = [this](const MetricsSnapshot& s) { return metrics_.Text(s); };
  sources.store = store_.get();
  RestoreApiParts restore;
  restore.snapshot = sources.snapshot;
  restore.give_order = [this](const control::RestoreOrder& order) { return GiveOrder(order); };
  restore.store = store_.get();
  restore.clock = &clock_;
  restore.random = &random_;
  restore.port.stall_limit = DataPortOptions().stall_limit;
  if (settings_.data_encryption) restore.port.tls = tls_;
  restore.mount = settings_.mount;
  restore.stopping = &stopping_;
  sources.restore = MakeRestoreHandler(std::move(restore));
  HttpHandler handler = MakeAdminHandler(std::move(sources));
  auto admin = HttpServer::ListenUnix(settings_.admin, handler);
  if (!admin.ok()) return admin.error().With("admin socket " + settings_.admin);
  admin_ = std::move(*admin);
  if (settings_.metrics.empty()) return OkStatus();
  const auto at = ParseHostPort(settings_.metrics, 0);
  TK_CHECK_MSG(at.has_value(), "LoadSettings has checked it");
  auto server = HttpServer::ListenTcp(*at, ReadOnly(std::move(handler)));
  if (!server.ok()) return server.error().With("metrics " + settings_.metrics);
  metrics_server_ = std::move(*server);
  return OkStatus();
}

StatusInputs Agent::Snapshot() {
  StatusInputs in;
  // The machines belong to the loop's thread.
  std::promise<void> done;
  loop_.Post([&] {
    in.node = node_->status();
    if (in.node.config) {
      in.coordinating = control_->CoordinatorStatus(in.node.config->job);
      in.progress = control_->Progress(in.node.config->job);
    }
    in.node.dropped_messages += control_->dropped_messages();
    in.restore = node_->restore_times();
    in.clock_skews = control_->clock_skews();
    if (const auto at = node_->last_commit_at()) {
      in.last_commit_age_seconds = ToSeconds(clock_.Now() - *at);
    }
    done.set_value();
  });
  done.get_future().wait();
  in.node_name = settings_.node_name;
  in.unreadable = store_->unreadable();
  in.shards = store_->Shards();
  if (const auto space = store_->Space(); space.ok()) in.space = *space;
  in.bytes_pulled = puller_->bytes_pulled();
  in.bytes_served = data_server_->bytes_sent();
  in.rejected_frames = control_->rejected_frames();
  in.rejected_data_requests = data_server_->rejected();
  in.uptime_seconds = ToSeconds(clock_.Now() - started_);
  in.control_port = control_->port();
  in.data_port = data_server_->port();
  return in;
}

void Agent::Loop() {
  loop_.Run();
  // Requests that wait for the loop are answered before their servers go.
  std::atomic<bool> closed{false};
  std::thread closing([&] {
    stopping_ = true;
    metrics_server_.reset();
    admin_.reset();
    closed = true;
    loop_.Stop();
  });
  while (!closed) loop_.Run();
  closing.join();
}

Status Agent::GiveOrder(const control::RestoreOrder& order) {
  std::promise<Status> done;
  loop_.Post([&] {
    node_->Dispatch(NodeEvent::OrderGiven{order});
    node_->WhenPersisted([&done](const Status& status) { done.set_value(status); });
  });
  return done.get_future().get();
}

void Agent::BeginStop() {
  loop_.Post([this] {
    logger_.Info("asked to stop: leaving in order, at most {}",
                 FormatDuration(settings_.stop_budget));
    NotifyStopping();
    // A key of its own: neither the node's nor a coordinator's.
    loop_.SetTimer({UINT64_MAX, 0}, clock_.Now() + settings_.stop_budget, [this] {
      logger_.Warning("the stop budget is over: exiting now; everything is resumable");
      loop_.Stop();
    });
    node_->RequestStop([this] { loop_.Stop(); });
  });
}

}  // namespace

Status RunAgent(const AgentSettings& settings) {
  // Few arenas: threads that hash and copy don't allocate, and each arena would hold memory.
  ::mallopt(M_ARENA_MAX, 2);
  Agent agent(settings);
  if (Status started = agent.Start(); !started.ok()) {
    agent.logger().Error("the agent can't start: {}", started.error().ToString());
    return started;
  }
  std::thread signals([&agent] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int signal = 0;
    sigwait(&set, &signal);
    agent.BeginStop();
  });
  agent.Loop();
  agent.logger().Info("tierkeep agent {} exits", settings.node_name);
  // The loop also ends without a signal where the node machine decides so.
  ::pthread_kill(signals.native_handle(), SIGTERM);
  signals.join();
  return agent.ended();
}

}  // namespace tierkeep
