#include "agent/control_plane.h"

#include "agent/settings.h"
#include "base/overloaded.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

// Answers to the rendezvous as events, decoded.
Result<std::optional<control::RendezvousRecord>> DecodeRead(
    const std::string& job, const std::optional<VersionedRecord>& read) {
  if (!read) return std::optional<control::RendezvousRecord>();
  if (read->version == "static") {  // io/rendezvous.h: a fixed address is all there is
    TK_ASSIGN_OR_RETURN(const RendezvousAddress at, ParseRendezvous("static:" + read->bytes));
    control::RendezvousRecord fixed;
    fixed.set_job(job);
    fixed.mutable_coordinator()->set_host(at.host);
    fixed.mutable_coordinator()->set_port(at.port);
    return std::optional<control::RendezvousRecord>(std::move(fixed));
  }
  auto record = DecodeRendezvousRecord(read->bytes);
  if (!record.ok()) return record.error().With("the rendezvous record can't be read");
  return std::optional<control::RendezvousRecord>(std::move(*record));
}

}  // namespace

ControlPlane::ControlPlane(Options options, Runtime* runtime, Clock* clock, RandomSource* random,
                           Metrics* metrics, Logger logger, LoggerFactory coordinator_logger)
    : options_(std::move(options)),
      runtime_(runtime),
      loop_(&runtime->loop()),
      clock_(clock),
      random_(random),
      metrics_(metrics),
      logger_(std::move(logger)),
      coordinator_logger_(std::move(coordinator_logger)) {}

ControlPlane::~ControlPlane() {
  network_.reset();  // no callbacks after this
  slow_.reset();
}

Status ControlPlane::Start(Rendezvous* rendezvous, NodeSink sink) {
  rendezvous_ = rendezvous;
  sink_ = std::move(sink);
  slow_ = runtime_->StartOrdered();
  TK_ASSIGN_OR_RETURN(network_, runtime_->Listen(options_.network, this));
  return OkStatus();
}

void ControlPlane::OnAccepted(ConnectionId connection, const HostPort&) {
  loop_->Post([this, connection] { accepted_[connection] = ""; });
}

void ControlPlane::OnConnected(ConnectionId connection) {
  loop_->Post([this, connection] {
    if (coordinator_ != connection) return;
    connected_ = true;
    sink_(NodeEvent::CoordinatorConnected{});
  });
}

void ControlPlane::OnFrame(ConnectionId connection, std::string frame) {
  loop_->Post([this, connection, frame = std::move(frame)] { HandleFrame(connection, frame); });
}

void ControlPlane::OnClosed(ConnectionId connection, const Error& why) {
  loop_->Post([this, connection, why] { HandleClosed(connection, why); });
}

// What leaves this machine says when it did.
Result<std::string> ControlPlane::Encode(control::Envelope message) const {
  message.set_wall_ms(WallMillis(clock_->WallNow()));
  return EncodeEnvelope(std::move(message));
}

void ControlPlane::NoteClock(const control::Envelope& message) {
  if (message.wall_ms() == 0) return;
  const auto now = static_cast<double>(WallMillis(clock_->WallNow()));
  if (clock_skews_.size() > kNodesMax) clock_skews_.clear();
  clock_skews_[message.sender()] = (static_cast<double>(message.wall_ms()) - now) / 1000;
}

void ControlPlane::HandleFrame(ConnectionId connection, const std::string& frame) {
  auto message = DecodeSharedEnvelope(frame);
  if (!message.ok()) {
    constexpr Duration kPause = 1s;  // strangers must not fill the log
    const Instant now = clock_->Now();
    const uint64_t count = ++malformed_;
    if (spoke_of_malformed_ == Instant::min() || now - spoke_of_malformed_ >= kPause) {
      spoke_of_malformed_ = now;
      logger_.Warning("dropped a control message, the {}. so far: {}", count,
                      message.error().ToString());
    }
    network_->Close(connection);
    return;
  }
  NoteClock(**message);
  if (coordinator_ == connection) {
    sink_(NodeEvent::Received{std::move(*message)});
    return;
  }
  const auto it = accepted_.find(connection);
  if (it == accepted_.end()) return;  // a connection we gave up before
  if (it->second.empty()) it->second = (*message)->job();
  const std::string job = (*message)->job();
  if (job != it->second || !hosts_.contains(job)) {
    if (options_.fixed_address && (*message)->has_join() && !hosts_.empty()) {
      const std::string ours = own_job_;
      ToCoordinator(ours, CoordinatorEvent::Received{connection, *message});
    }
    ++strangers_messages_;
    control::Envelope answer;
    answer.set_job(job);
    answer.set_sender(options_.node_name);
    answer.mutable_rejected()->set_reason("this agent doesn't coordinate job " + job);
    if (auto bytes = Encode(answer); bytes.ok()) network_->Send(connection, *bytes);
    network_->Close(connection);
    return;
  }
  ToCoordinator(job, CoordinatorEvent::Received{connection, std::move(*message)});
}

void ControlPlane::HandleClosed(ConnectionId connection, const Error& why) {
  if (coordinator_ == connection) {
    coordinator_.reset();
    connected_ = false;
    sink_(NodeEvent::CoordinatorLost{why});
    return;
  }
  const auto it = accepted_.find(connection);
  if (it == accepted_.end()) return;
  const std::string job = it->second;
  accepted_.erase(it);
  if (hosts_.contains(job)) ToCoordinator(job, CoordinatorEvent::Disconnected{connection});
}

void ControlPlane::Locate(const std::string& job) {
  slow_->Submit([this, job] {
    auto read = rendezvous_->Read(job);
    NodeEvent::Any event;
    if (!read.ok()) {
      event = NodeEvent::LocateFailed{read.error()};
    } else if (auto record = DecodeRead(job, *read); !record.ok()) {
      event = NodeEvent::LocateFailed{record.error()};
    } else {
      event = NodeEvent::CoordinatorLocated{std::move(*record)};
    }
    loop_->Post([this, event = std::move(event)]() mutable { sink_(std::move(event)); });
  });
}

void ControlPlane::BecomeCoordinator(const NodeAction::BecomeCoordinator& action) {
  const std::string job = action.settings.job();
  own_job_ = job;
  const std::string serialized = action.settings.SerializeAsString();
  if (const auto it = hosts_.find(job); it != hosts_.end()) {
    if (it->second.settings == serialized) return;
    Remove(job, "the job starts again with other settings");
  }
  CoordinatorOptions options;
  options.settings = action.settings;
  options.node_name = options_.node_name;
  options.control_host = options_.advertise_host;
  options.control_port = network_->port();
  options.boot = options_.boot;
  random_->Fill(options.run_nonce.bytes.data(), Id128::kSize);
  options.resumes = action.resumes;
  options.gather_deadline = action.gather_deadline;
  options.restore = options_.restore;
  options.whole_view_max = options_.whole_view_max;
  options.timings = options_.timings;
  Host& host = hosts_[job];
  host.owner = next_owner_++;
  host.settings = serialized;
  host.machine = std::make_unique<CoordinatorMachine>(std::move(options));
  host.logger = coordinator_logger_(job);
  host.registering_since = clock_->Now();
  ToCoordinator(job, CoordinatorEvent::Started{clock_->WallNow()});
}

void ControlPlane::Connect(const HostPort& to, bool local) {
  Disconnect();
  if (!local) {
    coordinator_ = network_->Connect(to);
    return;
  }
  if (!hosts_.contains(own_job_)) {  // it stood down since it was made
    loop_->Post([this, link = link_] {
      const Error gone(Code::kUnavailable, "this agent coordinates the job no longer");
      if (link == link_) sink_(NodeEvent::CoordinatorLost{gone});
    });
    return;
  }
  local_job_ = own_job_;
  loop_->Post([this, link = link_] {
    if (link == link_) sink_(NodeEvent::CoordinatorConnected{});
  });
}

void ControlPlane::Disconnect() {
  ++link_;  // what is still on its way over the old one is no news
  if (coordinator_) {
    // Forgotten first: its closing is no news to the node.
    const ConnectionId old = *coordinator_;
    coordinator_.reset();
    connected_ = false;
    network_->Close(old);
  }
  if (!local_job_.empty()) {
    const std::string job = std::exchange(local_job_, "");
    if (hosts_.contains(job)) {
      ToCoordinator(job, CoordinatorEvent::Disconnected{kLocalConnection});
    }
  }
}

void ControlPlane::Send(control::Envelope message) {
  if (local_job_.empty() && !coordinator_) return;
  auto bytes = local_job_.empty() ? Encode(std::move(message)) : EncodeEnvelope(std::move(message));
  if (!bytes.ok()) {
    logger_.Error("a message of ours breaks a rule and was not sent: {}", bytes.error().ToString());
    return;
  }
  if (local_job_.empty()) {
    network_->Send(*coordinator_, std::move(*bytes));
    return;
  }
  // Through the same encoding as a remote member's: texts are cleaned and all is checked alike.
  auto decoded = DecodeSharedEnvelope(*bytes);
  TK_CHECK_MSG(decoded.ok(), "what EncodeEnvelope wrote reads back");
  ToCoordinator(local_job_, CoordinatorEvent::Received{kLocalConnection, std::move(*decoded)});
}

std::optional<control::JobStatus> ControlPlane::CoordinatorStatus(const std::string& job) const {
  const auto it = hosts_.find(job);
  if (it == hosts_.end()) return std::nullopt;
  return it->second.machine->status();
}

uint64_t ControlPlane::rejected_frames() const {
  return malformed_ + (network_ ? network_->rejected_frames() : 0);
}

uint64_t ControlPlane::dropped_messages() const {
  uint64_t dropped = strangers_messages_ + dropped_by_former_;
  for (const auto& [job, host] : hosts_) dropped += host.machine->dropped_messages();
  return dropped;
}

std::vector<RankProgress> ControlPlane::Progress(const std::string& job) const {
  const auto it = hosts_.find(job);
  return it == hosts_.end() ? std::vector<RankProgress>() : it->second.machine->progress();
}

void ControlPlane::ToCoordinator(const std::string& job, const CoordinatorEvent::Any& event) {
  const auto it = hosts_.find(job);
  if (it == hosts_.end()) return;
  Run(job, it->second.machine->Step(clock_->Now(), event));
}

void ControlPlane::Run(const std::string& job, CoordinatorActions actions) {
  using A = CoordinatorAction;
  for (A::Any& action : actions) {
    const auto it = hosts_.find(job);
    if (it == hosts_.end()) return;  // stood down
    Host& host = it->second;
    if (options_.steps != nullptr) options_.steps->Announce(action);
    std::visit(Overloaded{
                   [&](const A::ReadRendezvous&) { ReadRendezvous(job); },
                   [&](const A::WriteRendezvous& a) { WriteRendezvous(job, a); },
                   [&](A::Send& a) { SendTo(job, a.to, std::move(a.message)); },
                   [&](const A::CloseConnection& a) {
                     if (a.connection != kLocalConnection) network_->Close(a.connection);
                   },
                   [&](const A::SetTimer& a) {
                     loop_->SetTimer({host.owner, a.timer}, a.at, [this, job, timer = a.timer] {
                       ToCoordinator(job, CoordinatorEvent::TimerFired{timer});
                     });
                   },
                   [&](const A::CancelTimer& a) {
                     loop_->CancelTimer({host.owner, a.timer});
                   },
                   [&](const A::LogText& a) {
                     host.logger.WriteText(a.severity, a.text, std::source_location::current());
                   },
                   [&](const A::CountDivergence&) { metrics_->CountDivergence(); },
                   [&](const A::StandDown& a) { Remove(job, a.reason); },
               },
               action);
  }
}

void ControlPlane::SendTo(const std::string& job, ConnectionId to, control::Envelope message) {
  if (to == kLocalConnection) {
    // Posted, so that the two machines never run inside each other.
    loop_->Post([this, job, message = std::move(message), link = link_]() mutable {
      if (link == link_ && local_job_ == job) sink_(NodeEvent::Received{std::move(message)});
    });
    return;
  }
  auto bytes = Encode(std::move(message));
  if (!bytes.ok()) {
    logger_.Error("a message of the coordinator breaks a rule and was not sent: {}",
                  bytes.error().ToString());
    return;
  }
  network_->Send(to, std::move(*bytes));
}

void ControlPlane::ReadRendezvous(const std::string& job) {
  const uint64_t owner = hosts_.at(job).owner;
  slow_->Submit([this, job, owner] {
    auto read = rendezvous_->Read(job);
    CoordinatorEvent::Any event;
    if (!read.ok()) {
      event = CoordinatorEvent::RendezvousFailed{read.error()};
    } else if (auto record = DecodeRead(job, *read); !record.ok()) {
      event = CoordinatorEvent::RendezvousFailed{record.error()};
    } else {
      event = CoordinatorEvent::RendezvousRead{std::move(*record),
                                               *read ? (*read)->version : std::string()};
    }
    loop_->Post([this, job, owner, event = std::move(event)] {
      const auto it = hosts_.find(job);
      if (it != hosts_.end() && it->second.owner == owner) ToCoordinator(job, event);
    });
  });
}

void ControlPlane::WriteRendezvous(const std::string& job,
                                   const CoordinatorAction::WriteRendezvous& write) {
  const uint64_t owner = hosts_.at(job).owner;
  const Instant since = hosts_.at(job).registering_since;
  slow_->Submit([this, job, owner, since, write] {
    CoordinatorEvent::Any event;
    Status outcome;
    if (auto bytes = EncodeRendezvousRecord(write.record); !bytes.ok()) {
      outcome = bytes.error();
    } else if (auto version = rendezvous_->CompareAndSwap(job, write.expected_version, *bytes);
               !version.ok()) {
      outcome = version.error();
    } else {
      event = CoordinatorEvent::RendezvousWritten{*version};
    }
    metrics_->ObserveOperation("CoordinatorRegistration", "", outcome, clock_->Now() - since);
    if (!outcome.ok()) event = CoordinatorEvent::RendezvousFailed{outcome.error()};
    loop_->Post([this, job, owner, event = std::move(event)] {
      const auto it = hosts_.find(job);
      if (it != hosts_.end() && it->second.owner == owner) ToCoordinator(job, event);
    });
  });
}

void ControlPlane::Remove(const std::string& job, const std::string& reason) {
  const auto it = hosts_.find(job);
  if (it == hosts_.end()) return;
  it->second.logger.Warning("no longer coordinator of job {}: {}", job, reason);
  loop_->CancelTimersOf(it->second.owner);
  dropped_by_former_ += it->second.machine->dropped_messages();
  hosts_.erase(it);
  for (const auto& [connection, of] : accepted_) {
    if (of == job) network_->Close(connection);
  }
  if (local_job_ == job) {
    local_job_.clear();
    loop_->Post([this, reason, link = link_] {
      if (link == link_) sink_(NodeEvent::CoordinatorLost{Error(Code::kUnavailable, reason)});
    });
  }
}

}  // namespace tierkeep
