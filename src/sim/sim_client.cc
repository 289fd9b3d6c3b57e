#include "sim/sim_client.h"

#include <utility>

#include "format/volume_names.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kPollInterval = 1s;

Duration ConfigLimit(Framework framework) {
  return framework == Framework::kOrbax ? Duration(900s) : Duration(300s);
}

}  // namespace

// One save on its way into the volume.
struct SimClient::Writing {
  SaveId id;
  std::string name;       // at last
  std::string temporary;  // "": made in place
  std::vector<ContentEntry> entries;
  size_t next = 0;
  bool single = false;
  // A file that stays open a while after the end, and gets its last bytes only then.
  std::unique_ptr<File> held;
  std::string held_bytes;
};

SimClient::SimClient(World* world, SimHost* host, ClientOptions options, Events events)
    : world_(world), host_(host), options_(std::move(options)), events_(std::move(events)) {}

SimClient::~SimClient() { Kill(); }

void SimClient::Kill() {
  // Agents wait for whoever writes to a save; what that one leaves half done nobody can tell.
  for (const auto& late : std::exchange(late_, {})) {
    const auto writing = late.lock();
    if (writing && writing->held) (void)writing->held->WriteAll(0, AsBytes(writing->held_bytes));
  }
  process_->Kill();
}

void SimClient::After(Duration delay, std::function<void()> work) {
  world_->After(delay * host_->speed().slow, [process = process_, work = std::move(work)] {
    if (process->alive()) work();
  });
}

void SimClient::Start() {
  world_->Trace("n{} rank {} of attempt {} starts", host(), options_.rank, options_.attempt);
  Enter(State::kOldConfig, ConfigLimit(options_.framework));
  Poll();
}

void SimClient::Enter(State state, Duration limit) {
  state_ = state;
  since_ = world_->now();
  deadline_ = since_ + limit;
}

void SimClient::GiveUpWaiting() {
  static constexpr std::string_view kWaits[] = {"for an old yaml to go", "for its yaml to go",
                                                "for the decision", "for its links"};
  const std::string what =
      fmt::format("rank {} waited {}", options_.rank, kWaits[static_cast<size_t>(state_)]);
  // What went wrong earlier in the same start may be why nothing could be said. And it couldn't
  // look either before the mount was there.
  const Instant since = state_ == State::kOldConfig ? since_ : asked_at_;
  if (volume_ != nullptr) events_.overdue(host(), what, since);
  Fail("waited too long");
}

void SimClient::Fail(const std::string& why) {
  world_->Trace("n{} rank {} gives up: {}", host(), options_.rank, why);
  Kill();
  events_.failed(options_.rank, why);
}

bool SimClient::Exists(std::string_view name) {
  const auto stat = volume_->Stat(name);
  return stat.ok() || stat.error().code() != Code::kNotFound;
}

void SimClient::Remove(const std::string& name) {
  events_.removes(host(), name);
  (void)volume_->RemoveTree(name);
}

void SimClient::Poll() {
  if (volume_ == nullptr) {
    // The mount is there once the agent, or the platform, has made it.
    auto dir = host_->mount().Open(process_, "client");
    if (dir.ok()) volume_ = std::move(*dir);
  }
  if (volume_ != nullptr) PollOnce();
  if (!alive() || state_ == State::kTraining) return;
  if (world_->now() > deadline_) return GiveUpWaiting();
  After(kPollInterval, [this] { Poll(); });
}

void SimClient::PollOnce() {
  const bool orbax = options_.framework == Framework::kOrbax;
  switch (state_) {
    case State::kOldConfig:
      if (Exists(kConfigName)) return;
      Enter(State::kOwnConfig, ConfigLimit(options_.framework));
      return WriteConfig();
    case State::kOwnConfig:
      if (Exists(kConfigName) || !LookForErrors()) return;
      Enter(orbax ? State::kLinks : State::kPrerestore, 300s);
      return;
    case State::kPrerestore:
      if (!LookForErrors() || !Exists(kPrerestoreName)) return;
      Enter(State::kLinks, 300s);
      return;
    case State::kLinks:
      if (LookForErrors()) LookForLinks();
      return;
    case State::kTraining:
      return;
  }
}

void SimClient::WriteConfig() {
  asked_at_ = world_->now();
  const std::string name(kConfigName);
  if (options_.framework == Framework::kOrbax) {
    // Cut short by a crash of the job: whatever stands there is replaced.
    const std::string temporary = name + ".tmp";
    (void)volume_->RemoveTree(temporary);
    auto file = volume_->CreateFile(temporary, 0644);
    Status written = file.ok() ? (*file)->WriteAll(0, AsBytes(options_.config)) : file.error();
    if (file.ok()) file->reset();
    if (written.ok()) written = volume_->Rename(temporary, name);
    if (!written.ok()) Fail("replicator.yaml can't be written: " + written.error().message());
    return;
  }
  auto file = volume_->CreateFile(name, 0644);
  if (!file.ok()) return Fail("replicator.yaml can't be made: " + file.error().message());
  const size_t half = options_.config.size() / 2;
  std::shared_ptr<File> open(std::move(*file));
  if (!open->WriteAll(0, AsBytes(options_.config).first(half)).ok()) {
    return Fail("replicator.yaml can't be written");
  }
  // However slow the host is: agents judge a file that stays unfinished.
  After(world_->Between(1us, 300ms) / host_->speed().slow, [this, open, half]() mutable {
    const Status rest = open->WriteAll(half, AsBytes(options_.config).subspan(half));
    open.reset();
    if (!rest.ok()) Fail("replicator.yaml can't be written");
  });
}

bool SimClient::LookForErrors() {
  for (const std::string_view name : {kErrorsName, kFailedName}) {
    const auto text = volume_->ReadSmallFile(name, 1u << 20);
    if (!text.ok()) continue;
    (void)volume_->Unlink(name);
    if (name != kFailedName || text->empty()) continue;
    if (state_ == State::kTraining) {
      world_->Fail(Checker::kFailedWhileTraining,
                   fmt::format("n{}: replicator.failed while the job trains: {}", host(), *text));
    }
    Fail("replicator.failed: " + *text);
    return false;
  }
  return true;
}

void SimClient::LookForLinks() {
  const auto entries = volume_->List("");
  if (!entries.ok()) return;
  std::vector<std::string> names;
  for (const DirEntry& entry : *entries) {
    if (!entry.name.ends_with(".restore")) continue;
    const auto worker = ParseWorkerName(entry.name, ".restore");
    if (!worker || worker->job != options_.job || worker->rank != options_.rank ||
        worker->worker >= options_.workers) {
      return world_->Fail(Checker::kForeignLink,
                          fmt::format("n{}: link {} isn't for rank {} of {}", host(), entry.name,
                                      options_.rank, options_.job));
    }
    names.push_back(entry.name);
  }
  if (names.empty()) return;
  // Clients take the first that they see; one that is there before the others of its node must
  // already be right, and the others follow.
  auto restored = Take(names);
  if (!restored.ok()) {
    if (!alive()) return;
    // Its run may have ended since: then the next one has cleared it away.
    NodeHost* node = host_->node();
    const bool gone = restored.error().code() == Code::kNotFound &&
                      (node == nullptr || node->status().phase != "running");
    if (gone) return Fail("its checkpoint was taken away");
    if (events_.damaged(host(), asked_at_)) return Fail("its checkpoint was damaged after all");
    return world_->Fail(Checker::kBadCheckpoint,
                        fmt::format("n{}: rank {} was given a bad checkpoint: {}", host(),
                                    options_.rank, restored.error().ToString()));
  }
  if (names.size() < options_.workers) return;
  state_ = State::kTraining;
  world_->Trace("n{} rank {} goes on from {}", host(), options_.rank,
                *restored ? (*restored)->ToString() : "nothing");
  events_.ready(options_.rank, *restored);
}

Result<std::optional<SaveId>> SimClient::Take(const std::vector<std::string>& names) {
  std::optional<std::optional<SaveId>> all;
  for (const std::string& name : names) {
    const WorkerName worker = *ParseWorkerName(name, ".restore");
    std::optional<SaveId> one;
    TK_ASSIGN_OR_RETURN(const FileStat stat, volume_->Stat(name));
    if (stat.type == FileType::kSymlink) {
      TK_ASSIGN_OR_RETURN(const std::string target, volume_->ReadLink(name));
      TK_ASSIGN_OR_RETURN(const SaveId id, IdentifyContent(*volume_, target, options_.content));
      const uint32_t width = options_.nodes / options_.content.replicas;
      if (id.step != worker.step || id.rank % width != options_.rank % width ||
          id.worker != worker.worker) {
        return Error(Code::kDataLoss, fmt::format("{} leads to {}", name, id.ToString()));
      }
      one = id;
      // Of partitions with different values, which: all nodes must go on from the same.
      one->rank = VariantOf(id, options_.content);
      one->worker = 0;
    }
    if (all && *all != one) return Error(Code::kDataLoss, "workers of different saves");
    all = one;
  }
  if (names.size() < options_.workers) return *all;
  for (const std::string& name : names) {
    if (*all) restored_.push_back(*volume_->ReadLink(name));
    const WorkerName worker = *ParseWorkerName(name, ".restore");
    if (!*all) {
      if (options_.framework == Framework::kOrbax) (void)volume_->Unlink(name);
    } else if (options_.framework == Framework::kOrbax) {
      (void)volume_->Rename(name, std::to_string(worker.step));
    } else if (options_.workers == 1) {
      (void)volume_->Rename(name, fmt::format("step={}", worker.step));
    }
  }
  return *all;
}

bool SimClient::ChangeRestored() {
  if (!training() || restored_.empty()) return false;
  const std::string& tree = restored_[world_->prng().Below(restored_.size())];
  const std::string path =
      options_.framework == Framework::kPytorch ? tree : JoinPath(tree, "array");
  auto file = volume_->OpenFileReadWrite(path);
  if (!file.ok()) {
    if (file.error().code() == Code::kNotFound) return false;
    world_->Trace("n{} takes {} apart: {}", host(), tree, file.error().message());
    return volume_->RemoveTree(tree).ok();
  }
  const std::string bytes = world_->prng().Bytes(16);
  world_->Trace("n{} writes into {}", host(), path);
  return (*file)->WriteAll(0, AsBytes(bytes)).ok();
}

// ---- saves -------------------------------------------------------------------------------------

void SimClient::Save(uint32_t nth, Step step) {
  if (!training() || !LookForErrors()) return;
  const bool single = options_.framework == Framework::kPytorch;
  for (Worker worker = 0; worker < options_.workers; ++worker) {
    auto writing = std::make_shared<Writing>();
    writing->id = {options_.attempt, nth, step, options_.rank, worker};
    writing->single = single;
    writing->entries = ContentOf(writing->id, options_.content);
    if (single) {
      writing->name = SaveFileName({options_.job, step, options_.rank, worker});
      if (world_->prng().Chance(1, 2)) writing->temporary = writing->name + ".tmp";
    } else if (options_.framework == Framework::kOrbax) {
      writing->name = std::to_string(step);
      if (world_->prng().Chance(3, 4)) {
        writing->temporary = writing->name + ".orbax-checkpoint-tmp-1";
      }
    } else {
      writing->name = std::to_string(step);
      writing->temporary = fmt::format("step={}-unfinished", step);
    }
    BeginWrite(writing);
  }
}

void SimClient::BeginWrite(const std::shared_ptr<Writing>& writing) {
  After(world_->Between(1us, 500ms), [this, writing] {
    if (!writing->temporary.empty()) {
      (void)volume_->RemoveTree(writing->temporary);
    } else {
      // Its own link of that step, or an earlier save that nobody took.
      if (Exists(writing->name)) Remove(writing->name);
    }
    WriteNext(writing);
  });
}

void SimClient::WriteNext(const std::shared_ptr<Writing>& writing) {
  const bool held = writing->held != nullptr;
  const Status written = WriteEntry(*writing, writing->entries[writing->next]);
  if (!written.ok()) return EndWrite(writing, written);
  if (!held && writing->held != nullptr) late_.push_back(writing);
  if (++writing->next == writing->entries.size()) {
    return After(world_->Between(1us, 20ms), [this, writing] { EndWrite(writing, OkStatus()); });
  }
  After(world_->Between(1us, 50ms), [this, writing] { WriteNext(writing); });
}

Status SimClient::WriteEntry(Writing& writing, const ContentEntry& entry) {
  const std::string& top = writing.temporary.empty() ? writing.name : writing.temporary;
  const std::string path = JoinPath(top, entry.path);
  if (entry.type == FileType::kDirectory) return volume_->MakeDir(path, 0755);
  if (entry.type == FileType::kSymlink) return volume_->MakeSymlink(entry.bytes, path);
  TK_ASSIGN_OR_RETURN(auto file, volume_->CreateFile(path, 0644));
  TK_RETURN_IF_ERROR(file->WriteAll(0, AsBytes(entry.bytes)));
  if (writing.single || entry.path != "array") return OkStatus();
  // A thread of the job that is slow to write its last bytes.
  if (world_->prng().Chance(1, 12)) {
    std::string unfinished = entry.bytes;
    unfinished.back() ^= 1;
    TK_RETURN_IF_ERROR(file->WriteAll(0, AsBytes(unfinished)));
    writing.held = std::move(file);
    writing.held_bytes = entry.bytes;
  } else if (!world_->HadFault("small mounts") && world_->prng().Chance(1, 20)) {
    // Another name for the same file, as tools make them that save only what has changed.
    (void)volume_->RemoveTree("shared-array");
    (void)volume_->HardLink(path, "shared-array");
  }
  return OkStatus();
}

void SimClient::EndWrite(const std::shared_ptr<Writing>& writing, const Status& status) {
  Status done = status;
  const std::string& top = writing->temporary.empty() ? writing->name : writing->temporary;
  if (done.ok() && !writing->temporary.empty()) {
    // A link of the restored step stands at that name: the client takes it away first.
    const auto stat = volume_->Stat(writing->name);
    if (stat.ok()) Remove(writing->name);
    done = volume_->Rename(writing->temporary, writing->name);
  }
  if (!done.ok()) {
    world_->Trace("n{} rank {} can't save {}: {}", host(), options_.rank, writing->id.ToString(),
                  done.error().message());
    world_->Count("saves that failed");
    writing->held.reset();
    (void)volume_->RemoveTree(top);
  } else {
    world_->Trace("n{} wrote {}", host(), writing->id.ToString());
    events_.stands(host(), writing->name, writing->id);
  }
  if (writing->held != nullptr) {
    After(world_->Between(1ms, 3s), [writing] {
      (void)writing->held->WriteAll(0, AsBytes(writing->held_bytes));
      writing->held.reset();
    });
  }
  events_.saved(writing->id.nth);
}

}  // namespace tierkeep::sim
