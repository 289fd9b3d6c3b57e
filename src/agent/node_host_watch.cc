// What the job does in its volume, as events for the node machine.
#include <utility>

#include "agent/node_host.h"
#include "base/mutation.h"

namespace tierkeep {
namespace {

// Directories made in place that are watched at a time: each costs a thread and descriptors.
constexpr size_t kHalfMadeMax = 16;

}  // namespace

void NodeHost::OnChange(const DirChange& change) {
  using Kind = DirChange::Kind;
  if (change.kind == Kind::kOverflow) {
    TK_PROBE(kWatchOverflow);
    if (TK_MUTATION(kIgnoreOverflow)) return;
    ordered_->Submit([this] {
      parts_.volume->MakeRoomForStart();
      ReadConfigNow();
      if (watching_saves_) ScanSaves();
    });
    return;
  }
  const bool starts = change.name.find(kConfigName) != std::string::npos ||
                      change.name.find(kJaxInitName) != std::string::npos;
  if (starts && change.kind != Kind::kGone) {
    ordered_->Submit([this] { parts_.volume->MakeRoomForStart(); });  // under a temporary name, too
  }
  if (change.name == kConfigName) {
    // One that is written without an end must not fill the queue.
    if (change.kind != Kind::kCreated && config_to_read_.exchange(true)) return;
    ordered_->Submit([this, made = change.kind == Kind::kCreated] {
      if (!made) config_to_read_ = false;
      // One made in place is read when its writer closes it. What nobody will close is looked at
      // now: a link, pipe or directory, or a further name of a file.
      const auto stat = parts_.store->client().Stat(kConfigName);
      const bool in_writing =
          made && stat.ok() && stat->type == FileType::kFile && stat->links == 1;
      if (!in_writing) ReadConfigNow();
    });
  } else if (change.name == kJaxInitName) {
    if (change.kind == Kind::kMovedIn || change.kind == Kind::kWritten) {
      ordered_->Submit([this] { ReadJaxInit(); });
    }
  } else if (change.kind != Kind::kGone &&
             (ParseStepName(change.name) || ParseWorkerName(change.name, ".save"))) {
    const bool in_place = change.kind == Kind::kCreated;
    ordered_->Submit([this, name = change.name, in_place] {
      if (std::exchange(scan_due_, false)) ScanSaves();
      ReportSave(name, in_place);
    });
  }
}

void NodeHost::ReadConfigNow() {
  // In the order in which they are written: one that came with the yaml must not be taken for a
  // later start than the yaml's.
  ReadJaxInit();
  auto file = parts_.volume->ReadConfig();
  if (!file.ok() && file.error().code() != Code::kInvalidArgument) {
    const bool written = file.error().code() == Code::kAborted;
    if (!written) parts_.logger.Error("replicator.yaml: {}", file.error().ToString());
    // The machine asks again, for a while.
    Post(NodeEvent::ConfigSeen{
        "", "", Error(written ? Code::kAborted : Code::kUnavailable, file.error().message())});
    return;
  }
  if (!file.ok()) {
    // Not a file that a client writes: out of the way, and said where a client looks.
    parts_.logger.Error("replicator.yaml was removed: {}", file.error().message());
    for (const Status& s :
         {parts_.volume->AppendFailed(file.error().message()), parts_.volume->RemoveConfig("")}) {
      if (!s.ok()) parts_.logger.Error("{}", s.error().ToString());
    }
    return;
  }
  if (!*file) {
    Post(NodeEvent::ConfigGone{});
    return;
  }
  NodeEvent::ConfigSeen seen{(*file)->text, (*file)->id, std::nullopt};
  if (!seen.text.empty()) seen.parsed = Parsed(seen.text);
  Post(std::move(seen));
}

// A job that starts again mostly brings the same text.
const Result<ParsedConfig>& NodeHost::Parsed(const std::string& text) {
  if (!parsed_ || parsed_->first != text) {
    parsed_.emplace(text, ParseReplicatorConfig(text, parts_.environment));
  }
  return parsed_->second;
}

void NodeHost::ReadJaxInit() {
  if (auto text = parts_.volume->ReadJaxInit()) Post(NodeEvent::JaxInitChanged{std::move(*text)});
}

void NodeHost::ReportSave(const std::string& name, bool made_in_place) {
  if (!watching_saves_) return;  // the scan finds it later
  FoundSave save;
  save.name = name;
  if (save_framework_ == Framework::kPytorch) {
    const auto worker = ParseWorkerName(name, ".save");
    if (!worker || worker->job != save_job_ || made_in_place) return;
    save.step = worker->step;
    save.worker = worker->worker;
    save.rank = worker->rank;
  } else {
    const auto step = ParseStepName(name);
    if (!step) return;
    save.step = *step;
  }
  const auto stat = parts_.store->client().Stat(name);
  const FileType wanted =
      save_framework_ == Framework::kPytorch ? FileType::kFile : FileType::kDirectory;
  // It is looked for again before the next one is taken: found by the job's next start alone it
  // would be the newest.
  scan_due_ = scan_due_ || (!stat.ok() && stat.error().code() != Code::kNotFound);
  if (!stat.ok() || stat->type != wanted) return;  // gone again, or a link: never a save
  if (made_in_place) {
    // Counts once commit_success.txt is in it, which only a watch inside can tell.
    if (save_framework_ != Framework::kOrbax) return;
    const bool complete =
        parts_.store->client().Stat(name + "/" + std::string(kCommitSuccessName)).ok();
    if (!complete) {
      half_made_.remove_if([&](const auto& made) { return made.first == name; });
      auto inner = parts_.runtime->Watch(
          parts_.volume_path + "/" + name, [this, name](const DirChange& change) {
            if (change.name == kCommitSuccessName && change.kind != DirChange::Kind::kGone) {
              ordered_->Submit([this, name] { ReportSave(name, true); });
            }
          });
      if (inner.ok()) {
        half_made_.emplace_back(name, std::move(*inner));
        // The job's next start finds what isn't watched any more.
        if (half_made_.size() > kHalfMadeMax) half_made_.pop_front();
        // It may have been finished before the watch began.
        if (!parts_.store->client().Stat(name + "/" + std::string(kCommitSuccessName)).ok()) return;
      } else {
        return;
      }
    }
  }
  half_made_.remove_if([&](const auto& made) { return made.first == name; });
  if (!reported_inodes_.insert(stat->inode).second) return;
  Post(NodeEvent::SaveSeen{save.name, save.step, save.worker, save.rank});
}

void NodeHost::ScanSaves() {
  auto saves = parts_.volume->ListSaves(save_framework_, save_job_);
  if (!saves.ok()) {
    parts_.logger.Error("the volume can't be listed: {}", saves.error().ToString());
    scan_due_ = true;
    return;
  }
  // One that isn't finished is being made in place, by a job that went on while no agent was there
  // to see it begin.
  for (const FoundSave& save : *saves) ReportSave(save.name, !save.finished);
}

}  // namespace tierkeep
