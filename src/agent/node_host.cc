#include "agent/node_host.h"

#include "agent/replica_compare.h"
#include "base/mutation.h"
#include "base/overloaded.h"
#include "core/action_names.h"
#include "core/restore_choice.h"
#include "format/messages.h"
#include "format/store_names.h"

namespace tierkeep {
namespace {

constexpr uint64_t kTimerOwner = 0;  // coordinators' owners start at 1
constexpr std::string_view kStateFile = "node.state";
constexpr uint64_t kStateBytesMax = 64u << 20;
// Long tasks that may run side by side: a save's hashing, copies pulled, a restore, deletions.
constexpr size_t kTaskThreads = 8;

control::Inventory InventoryOf(const Store& store) {
  control::Inventory out;
  for (const HeldShard& shard : store.Shards()) {
    ShardSummary summary = SummaryOf(*shard.manifest, *shard.encoded);
    summary.suspect = shard.suspect;
    *out.add_shards() = ToProto(summary);
  }
  for (const SharedRecord& record : store.Generations()) *out.add_generations() = *record;
  for (const UnreadableItem& item : store.unreadable()) {
    control::Unreadable& u = *out.add_unreadable();
    if (item.digest) u.set_digest(item.digest->Raw());
    if (item.generation) {
      *u.mutable_run() = ToProto(item.generation->run);
      u.set_save_number(item.generation->save_number);
    }
    u.set_detail(item.detail);
    u.set_damaged(item.damaged);
    u.set_hides_records(item.hides_records);
  }
  return out;
}

// The task that an action would start.
std::optional<TaskId> TaskOf(const NodeAction::Any& action) {
  using A = NodeAction;
  return std::visit(Overloaded{
                        [](const A::Stage& a) { return std::optional(a.task); },
                        [](const A::Pull& a) { return std::optional(a.task); },
                        [](const A::Verify& a) { return std::optional(a.task); },
                        [](const A::DeleteShards& a) { return std::optional(a.task); },
                        [](const A::Compare& a) { return std::optional(a.task); },
                        [](const auto&) { return std::optional<TaskId>(); },
                    },
                    action);
}

// Of files of the agent's own: a few pages, and the same when it is done once more.
bool IsSmallWrite(const NodeAction::Any& action) {
  using A = NodeAction;
  return std::visit(Overloaded{
                        [](const A::WritePrerestore&) { return true; },
                        [](const A::PlaceLink&) { return true; },
                        [](const A::PlaceNoCheckpoint&) { return true; },
                        [](const A::WriteMeta&) { return true; },
                        [](const A::RecordGeneration&) { return true; },
                        [](const auto&) { return false; },
                    },
                    action);
}

bool HasTensorStore(const Manifest& manifest) {
  for (const ManifestEntry& e : manifest.entries) {
    if (e.path.ends_with("manifest.ocdbt")) return true;
  }
  return false;
}

}  // namespace

NodeHost::NodeHost(Parts parts, NodeOptions options)
    : parts_(std::move(parts)),
      loop_(&parts_.runtime->loop()),
      machine_(options),
      options_(std::move(options)) {}

NodeHost::~NodeHost() {
  watch_.reset();
  half_made_.clear();
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, task] : tasks_) task.cancelled->store(true);
  }
  ordered_.reset();      // may still start tasks
  tasks_queue_.reset();  // cancelled tasks end soon
}

Status NodeHost::Start() {
  NodeEvent::Started started;
  auto bytes = parts_.state_dir->ReadSmallFile(kStateFile, kStateBytesMax);
  if (bytes.ok()) {
    auto state = DecodeNodeState(*bytes);
    if (!state.ok()) {
      return state.error().With(fmt::format(
          "the agent's state ({} in the state directory) can't be read; move it away to start "
          "afresh: checkpoints in RAM are kept",
          kStateFile));
    }
    started.state = std::move(*state);
  } else if (bytes.error().code() != Code::kNotFound) {
    return bytes.error();
  }
  if (!started.state.config_text().empty()) {
    auto parsed = ParseReplicatorConfig(started.state.config_text(), parts_.environment);
    if (parsed.ok()) started.config = std::move(parsed->config);
  }
  started.inventory = InventoryOf(*parts_.store);
  // Could not read is never empty: without its names what was taken would be left out of a restore.
  auto staged = parts_.store->Staged();
  if (!staged.ok()) {
    return staged.error().With("saves that were taken but not hashed can't be listed; all is kept");
  }
  started.staged = std::move(*staged);
  started.jax_init = parts_.volume->ReadJaxInit().value_or("");
  started.links_stand = started.config && LinksStand(started.state, *started.config);

  tasks_queue_ = parts_.runtime->StartPool(kTaskThreads);
  ordered_ = parts_.runtime->StartOrdered();
  // Watched before anything is looked at: what comes later is reported, what was there is scanned.
  TK_ASSIGN_OR_RETURN(watch_, parts_.runtime->Watch(parts_.volume_path,
                                                    [this](const DirChange& c) { OnChange(c); }));
  Post(std::move(started));
  ordered_->Submit([this] { ReadConfigNow(); });
  return OkStatus();
}

// All of them: who has one only still waits for the others.
bool NodeHost::LinksStand(const control::NodeState& state, const JobConfig& config) const {
  if (!state.released() || state.restored().none()) return false;
  const control::GenerationRecord& generation = state.restored().generation();
  const auto shards = ShardsOfRank(generation, config.rank);
  const Step step = generation.save().step();
  for (Worker worker = 0; worker < shards.size(); ++worker) {
    const WorkerName name{config.job, step, config.rank, worker};
    if (!parts_.volume->RestoreLinkStands(name, shards[worker].volume_name())) return false;
  }
  return shards.size() == config.world.workers_per_node;
}

void NodeHost::RequestStop(std::function<void()> done) {
  stopped_ = std::move(done);
  Dispatch(NodeEvent::StopRequested{});
}

void NodeHost::Post(NodeEvent::Any event) {
  loop_->Post([this, event = std::move(event)] { Dispatch(event); });
}

void NodeHost::Dispatch(const NodeEvent::Any& event) {
  if (std::holds_alternative<NodeEvent::Started>(event)) LookEverySoOften();
  if (volume_lost_) return;
  Observe(event);
  NodeActions actions = machine_.Step(parts_.clock->Now(), event);
  NodeActions ordered;
  for (NodeAction::Any& action : actions) {
    ObserveAction(action);
    if (const auto* set = std::get_if<NodeAction::SetTimer>(&action)) {
      Announce(action);
      loop_->SetTimer({kTimerOwner, set->timer}, set->at,
                      [this, timer = set->timer] { Dispatch(NodeEvent::TimerFired{timer}); });
    } else if (const auto* cancel = std::get_if<NodeAction::CancelTimer>(&action)) {
      Announce(action);
      loop_->CancelTimer({kTimerOwner, cancel->timer});
    } else if (const auto* task = std::get_if<NodeAction::CancelTask>(&action)) {
      Announce(action);
      Flag(task->task)->store(true);
    } else {
      ordered.push_back(std::move(action));
    }
  }
  if (ordered.empty()) return;
  ordered_->Submit([this, batch = std::move(ordered)]() mutable { RunBatch(&batch); });
}

void NodeHost::Observe(const NodeEvent::Any& event) {
  const Instant now = parts_.clock->Now();
  if (const auto* seen = std::get_if<NodeEvent::ConfigSeen>(&event)) {
    if (seen->parsed && seen->parsed->ok()) {
      const JobConfig& c = (*seen->parsed)->config;
      parts_.log_context->SetNode(c.job, c.rank, c.world.nodes);
      framework_ = FrameworkName(c.world.framework);
      times_ = RestoreTimes{};
      times_.yaml_seen = now;
    }
  } else if (const auto* started = std::get_if<NodeEvent::Started>(&event)) {
    if (started->config) {
      const JobConfig& c = *started->config;
      parts_.log_context->SetNode(c.job, c.rank, c.world.nodes);
      framework_ = FrameworkName(c.world.framework);
    }
  } else if (const auto* received = std::get_if<NodeEvent::Received>(&event)) {
    if (received->message->has_restore() && times_.yaml_seen) {
      times_.to_decision = now - *times_.yaml_seen;
    }
  } else if (const auto* pulled = std::get_if<NodeEvent::Pulled>(&event)) {
    parts_.metrics->ObserveOperation("CheckpointReplication", framework_, pulled->status,
                                     pulled->took);
  }
}

void NodeHost::ObserveAction(const NodeAction::Any& action) {
  const Instant now = parts_.clock->Now();
  if (const auto* stage = std::get_if<NodeAction::Stage>(&action)) {
    save_started_.emplace(stage->identity.save, now);
  } else if (const auto* record = std::get_if<NodeAction::RecordGeneration>(&action)) {
    last_commit_at_ = now;
    const auto it = save_started_.find(FromProto(record->record->save()));
    if (it == save_started_.end()) return;
    parts_.metrics->ObserveOperation("CheckpointReplicationTotal", framework_, OkStatus(),
                                     now - it->second);
    // Older ones were dropped; they never end any more.
    save_started_.erase(save_started_.begin(), std::next(it));
  } else if (const auto* send = std::get_if<NodeAction::Send>(&action)) {
    if (send->message.has_restore_prepared() && times_.yaml_seen) {
      times_.to_prepared = now - *times_.yaml_seen;
      times_.bytes_pulled = send->message.restore_prepared().bytes_pulled();
    }
  } else if (std::holds_alternative<NodeAction::WritePrerestore>(action) && times_.yaml_seen) {
    times_.to_release = now - *times_.yaml_seen;
    parts_.metrics->ObserveOperation("CheckpointRestore", framework_, OkStatus(),
                                     *times_.to_release);
  }
}

void NodeHost::Announce(const NodeAction::Any& action) {
  if (parts_.steps != nullptr) parts_.steps->Announce(action);
}

void NodeHost::RunBatch(NodeActions* actions) {
  for (size_t i = 0; i < actions->size() && !volume_lost_; ++i) {
    NodeAction::Any& action = (*actions)[i];
    Announce(action);
    const Status done = Carry(&action);
    if (done.ok()) continue;
    const std::string name(ActionName(action));
    parts_.logger.Error("{} failed: {}", name, done.error().ToString());
    NodeEvent::BatchFailed failed{name, done.error(), {}};
    for (const NodeAction::Any& skipped : std::span(*actions).subspan(i)) {
      if (const auto task = TaskOf(skipped)) failed.skipped.push_back(*task);
      if (const auto* stage = std::get_if<NodeAction::Stage>(&skipped)) GiveUpSave(*stage);
    }
    Post(std::move(failed));
    return;
  }
}

Status NodeHost::Carry(NodeAction::Any* action) {
  const auto carry = [&] { return std::visit([this](auto& a) { return Do(a); }, *action); };
  const Status done = carry();
  const bool full = !done.ok() && done.error().code() == Code::kResourceExhausted;
  // What starts the job, or makes room by itself.
  if (full && IsSmallWrite(*action) && parts_.volume->GiveUpReserve()) return carry();
  return done;
}

Status NodeHost::OnLoop(std::function<void()> work) {
  loop_->Post(std::move(work));
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::PersistState& a) {
  persisted_ = a.bytes.ok() ? parts_.state_dir->WriteFileAtomically(kStateFile, *a.bytes, 0600)
                            : Status(a.bytes.error());
  return persisted_;
}

Status NodeHost::Do(const NodeAction::RemoveConfig& a) {
  return parts_.volume->RemoveConfig(a.file_id);
}

Status NodeHost::Do(const NodeAction::ReadConfig&) {
  ReadConfigNow();
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::StartWatchingSaves& a) {
  watching_saves_ = true;
  save_framework_ = a.framework;
  save_job_ = a.job;
  ScanSaves();
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::LocateCoordinator& a) {
  return OnLoop([this, a] { parts_.control->Locate(a.job); });
}

Status NodeHost::Do(const NodeAction::BecomeCoordinator& a) {
  return OnLoop([this, a] { parts_.control->BecomeCoordinator(a); });
}

Status NodeHost::Do(const NodeAction::Connect& a) {
  return OnLoop([this, a] { parts_.control->Connect({a.host, a.port}, a.local); });
}

Status NodeHost::Do(const NodeAction::Disconnect&) {
  return OnLoop([this] { parts_.control->Disconnect(); });
}

// A message may be large: it is given on, not copied.
Status NodeHost::Do(NodeAction::Send& a) {
  return OnLoop([this, message = std::move(a.message)]() mutable {
    // Any message may be, or rest on, a word about copies: what was staged, verified, recorded.
    if (!TK_MUTATION(kTellUnlooked) && !VolumeStands()) {
      TK_PROBE(kVanishedUntold);
      return;
    }
    parts_.control->Send(std::move(message));
  });
}

// Not worth a failed batch: what stays is removed by the next cleaning, which doesn't take it over.
Status NodeHost::Do(const NodeAction::DiscardSaves& a) {
  const Status removed = parts_.store->RemoveFromVolume(a.names);
  if (removed.ok()) return removed;
  parts_.logger.Error("useless saves could not be removed: {}", removed.error().ToString());
  for (const std::string& name : a.names) {
    if (const auto stat = parts_.store->client().Stat(name); stat.ok()) {
      useless_inodes_.insert(stat->inode);
    }
  }
  return OkStatus();
}

// The machine drops a save that can't be taken. Left in the volume it would be the newest of all
// that the next start finds there, however many were committed since.
void NodeHost::GiveUpSave(const NodeAction::Stage& stage) {
  if (!stage.name.empty()) (void)Do(NodeAction::DiscardSaves{{stage.name}});
}

Status NodeHost::Do(const NodeAction::WritePrerestore& a) {
  return parts_.volume->WritePrerestore(a.step, "");
}

Status NodeHost::Do(const NodeAction::PlaceLink& a) {
  const auto held = parts_.store->Find(a.digest);
  if (!held) return Error(Code::kNotFound, "shard " + a.digest.Hex() + " is gone");
  TK_RETURN_IF_ERROR(parts_.store->LinkIntoVolume(a.digest));
  return parts_.volume->PlaceRestoreLink(a.name, held->volume_name);
}

Status NodeHost::Do(const NodeAction::PlaceNoCheckpoint& a) {
  return parts_.volume->PlaceNoCheckpointMarker(a.name);
}

Status NodeHost::Do(const NodeAction::WriteMeta& a) {
  return parts_.volume->WriteMeta(a.name, a.h);
}

Status NodeHost::Do(const NodeAction::RemoveOtherMetas& a) {
  return parts_.volume->RemoveOtherMetas(a.keep);
}

Status NodeHost::Do(const NodeAction::RecordGeneration& a) {
  return parts_.store->WriteGeneration(a.record);
}

Status NodeHost::Do(const NodeAction::WriteError& a) { return parts_.volume->AppendError(a.text); }

Status NodeHost::Do(const NodeAction::WriteFailed& a) {
  return parts_.volume->AppendFailed(a.text);
}

Status NodeHost::Do(const NodeAction::LogText& a) {
  parts_.logger.WriteText(a.severity, a.text, std::source_location::current());
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::UseMembers& a) {
  peers_.clear();
  for (const control::Member& m : a.members) {
    peers_[m.node()] = {{m.data().host(), static_cast<uint16_t>(m.data().port())}, m.data_token()};
  }
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::ExitNow&) {
  return OnLoop([this] {
    if (stopped_) stopped_();
  });
}

Status NodeHost::Do(const NodeAction::CleanVolume& action) {
  watching_saves_ = false;
  half_made_.clear();
  reported_inodes_.clear();
  // A job whose agent lost its memory: its saves stand below every run that is known.
  const RunId run = action.run.none() ? RunId{1, {}} : action.run;
  NodeEvent::VolumeCleaned cleaned;
  TK_ASSIGN_OR_RETURN(const std::vector<FoundSave> saves,
                      parts_.volume->ListSaves(action.config.world.framework, action.config.job,
                                               SaveScan::kAtStart));
  for (const FoundSave& save : saves) {
    const WorldShape& world = action.config.world;
    if (world.framework == Framework::kPytorch &&
        (save.rank != action.config.rank || save.worker >= world.workers_per_node)) {
      parts_.logger.Warning("{} was left in the volume and isn't this node's: it is removed",
                            EscapeForLog(save.name));
      continue;
    }
    const auto stat = parts_.store->client().Stat(save.name);
    if (stat.ok() && useless_inodes_.contains(stat->inode)) continue;
    uint32_t occurrence = 1;
    for (const control::SaveKey& known : action.state.saves()) {
      if (known.step() == save.step) occurrence = known.occurrence() + 1;
    }
    const std::string name =
        StagedName({{run, save.step, occurrence}, action.config.rank, save.worker});
    const Status taken = parts_.stager->Take(save.name, name);
    if (taken.ok()) {
      cleaned.adopted.push_back(name);
    } else {
      parts_.logger.Warning("step {} left in the volume was not taken over: {}", save.step,
                            taken.error().ToString());
    }
  }
  TK_RETURN_IF_ERROR(parts_.volume->Clean({}));
  useless_inodes_.clear();
  Post(std::move(cleaned));
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::ForgetGenerations& action) {
  for (const SharedRecord& record : parts_.store->Generations()) {
    if (record->job() != action.job) continue;
    if (action.keep && GenerationIdOf(*record) == *action.keep) continue;
    TK_RETURN_IF_ERROR(parts_.store->DeleteGeneration(*record));
  }
  return OkStatus();
}

std::shared_ptr<std::atomic<bool>> NodeHost::Flag(TaskId task) {
  const std::lock_guard lock(mutex_);
  Task& t = tasks_[task];
  if (!t.cancelled) t.cancelled = std::make_shared<std::atomic<bool>>(false);
  return t.cancelled;
}

void NodeHost::EndTask(TaskId task) {
  const std::lock_guard lock(mutex_);
  tasks_.erase(task);
}

Status NodeHost::Do(const NodeAction::Stage& action) {
  // The rename happens here, in order; the hashing beside everything else.
  if (!action.name.empty()) {
    if (const Status taken = parts_.stager->Take(action.name, action.staged_name); !taken.ok()) {
      // Gone, or something that is no save, and its client's.
      const Code code = taken.error().code();
      if (code != Code::kNotFound && code != Code::kFailedPrecondition) GiveUpSave(action);
      Post(NodeEvent::StageFailed{action.task, taken.error()});
      return OkStatus();
    }
  }
  std::shared_ptr<StageJob> job =
      parts_.stager->Start(action.staged_name, action.identity, Flag(action.task));
  tasks_queue_->Submit([this, task = action.task, job] { StageOn(task, job); });
  return OkStatus();
}

// On a thread of the tasks; gives it back while the save's writers are waited for.
void NodeHost::StageOn(TaskId task, std::shared_ptr<StageJob> job) {
  const auto staged = job->Advance();
  if (!staged) {
    tasks_queue_->SubmitAfter(job->pause(), [this, task, job] { StageOn(task, job); });
    return;
  }
  EndTask(task);
  if (!staged->ok()) return Post(NodeEvent::StageFailed{task, staged->error()});
  parts_.metrics->ObserveHashing(HasTensorStore((*staged)->manifest), (*staged)->hash_time);
  const auto held = parts_.store->Find((*staged)->digest);
  if (!held) {
    return Post(NodeEvent::StageFailed{task, Error(Code::kNotFound, "the staged shard is gone")});
  }
  ShardSummary summary = SummaryOf(*held->manifest, *held->encoded);
  summary.suspect = held->suspect;
  Post(NodeEvent::Staged{task, ToProto(summary)});
}

std::vector<PullSource> NodeHost::SourcesOf(const control::SourceList& wanted) const {
  std::vector<PullSource> sources;
  for (const std::string& node : wanted.nodes()) {
    const auto peer = peers_.find(node);
    if (peer == peers_.end() || node == options_.node_name) continue;
    sources.push_back({node, peer->second.address, peer->second.token});
  }
  return sources;
}

Status NodeHost::Do(const NodeAction::Compare& action) {
  PullRequest request;
  request.digest = FixedFromProto<Blake3>(action.other.shard().digest());
  request.sources = SourcesOf(action.other);
  const auto flag = Flag(action.task);
  parts_.pulls->StartListing(
      *tasks_queue_, std::move(request), FixedFromProto<Blake3>(action.other.shard().logical()),
      [this, action, flag](Result<std::vector<LogicalLine>> other) {
        auto difference =
            CompareWithReplica(parts_.store, action.own, {action.other.shard(), std::move(other)},
                               {flag.get(), parts_.logger});
        EndTask(action.task);
        Post(NodeEvent::Compared{action.task, std::move(difference)});
      });
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::Pull& action) {
  PullRequest request;
  request.digest = FixedFromProto<Blake3>(action.wanted.shard().digest());
  using Why = NodeAction::Pull::Why;
  request.priority = action.why == Why::kRestore     ? PullPriority::kRestore
                     : action.why == Why::kReplicate ? PullPriority::kReplicate
                                                     : PullPriority::kRebuild;
  request.sources = SourcesOf(action.wanted);
  const Blake3 digest = request.digest;
  parts_.pulls->Start(
      *tasks_queue_, std::move(request), Flag(action.task),
      [this, task = action.task, digest](PullResult result) {
        EndTask(task);
        Post(NodeEvent::Pulled{task, digest, std::move(result.status), result.bytes_pulled,
                               std::move(result.bad_sources), result.took});
      });
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::Verify& action) {
  tasks_queue_->Submit([this, action, flag = Flag(action.task)] {
    const Instant begin = parts_.clock->Now();
    VerifyResult result = parts_.store->Verify(action.digest, flag.get());
    EndTask(action.task);
    Post(NodeEvent::Verified{action.task, action.digest, result.ok, std::move(result.problem),
                             parts_.clock->Now() - begin, result.unread});
  });
  return OkStatus();
}

Status NodeHost::Do(const NodeAction::DeleteShards& action) {
  parts_.volume->KeepReserve();  // of what was given back before
  tasks_queue_->Submit([this, action] {
    for (const Blake3& digest : action.digests) {
      if (const Status s = parts_.store->Delete(digest); !s.ok()) {
        parts_.logger.Error("shard {} could not be deleted: {}", digest.Hex(),
                            s.error().ToString());
      }
    }
    NodeEvent::Deleted deleted{action.task};
    for (const std::string& name : action.staged) {
      if (const Status s = parts_.store->DeleteStaged(name); !s.ok()) {
        parts_.logger.Error("staged save {} could not be deleted: {}", name, s.error().ToString());
        deleted.staged_left.push_back(name);
      }
    }
    EndTask(action.task);
    Post(std::move(deleted));
  });
  return OkStatus();
}

}  // namespace tierkeep
