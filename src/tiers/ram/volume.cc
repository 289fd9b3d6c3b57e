#include "tiers/ram/volume.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/escape_name.h"
#include "base/mutation.h"
#include "format/volume_texts.h"

namespace tierkeep {
namespace {

constexpr uint64_t kConfigBytesMax = 1u << 20;
constexpr uint64_t kErrorsBytesMax = 64u << 10;
constexpr uint64_t kJaxInitBytesMax = 4u << 10;
// A file in the store that has its pages already: what it says can be put into a full volume.
constexpr std::string_view kSpareName = "spare";
constexpr std::string_view kReserveName = "reserve";
constexpr uint64_t kReserveBytes = 64u << 10;
constexpr uint64_t kBesideReserveBytes = 16u << 10;  // for what is written meanwhile
constexpr uint32_t kFileMode = 0644;                 // the job's user may be another than ours

struct ReadFile {
  std::string text;
  FileStat stat;
};

// The whole of a regular file, from one inode, as it was at one moment.
Result<ReadFile> ReadStill(Dir& dir, std::string_view name, uint64_t bytes_max) {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    TK_ASSIGN_OR_RETURN(const auto file, dir.OpenFile(name));
    TK_ASSIGN_OR_RETURN(const FileStat before, file->Stat());
    if (before.bytes > bytes_max) {
      return Error(Code::kInvalidArgument,
                   fmt::format("{} has more than {} bytes", name, bytes_max));
    }
    ReadFile read{std::string(static_cast<size_t>(before.bytes), '\0'), before};
    const Status done = file->ReadExactly(0, std::as_writable_bytes(std::span(read.text)));
    TK_ASSIGN_OR_RETURN(const FileStat after, file->Stat());
    const bool still = after.change_time_ns == before.change_time_ns && after.bytes == before.bytes;
    if (!still) continue;
    if (!done.ok()) return done.error();
    return read;
  }
  return Error(Code::kAborted, fmt::format("{} is being written", name));
}

std::string DigestOf(const ReadFile& file) { return ComputeXxh128(AsBytes(file.text)).Hex(); }

ConfigFile ToConfig(ReadFile file) {
  ConfigFile config;
  config.id = fmt::format("{}:{}:{}", file.stat.inode, file.stat.change_time_ns, DigestOf(file));
  config.text = std::move(file.text);
  return config;
}

// Whether somebody who writes a directory in place has said that he is done.
bool HasCommitSuccess(Dir& client, const std::string& name) {
  const auto stat = client.Stat(fmt::format("{}/{}", name, kCommitSuccessName));
  return stat.ok() && stat->type == FileType::kFile;
}

}  // namespace

Volume::Volume(Store* store, Logger logger) : store_(store), logger_(std::move(logger)) {
  MakeSpare();
  KeepReserve();
}

// ---- replicator.yaml ---------------------------------------------------------------------------

Result<std::optional<ConfigFile>> Volume::ReadConfig() {
  Dir& client = store_->client();
  const auto stat = client.Stat(kConfigName);
  if (!stat.ok() && stat.error().code() == Code::kNotFound) return std::optional<ConfigFile>();
  if (!stat.ok()) return stat.error();
  if (stat->type != FileType::kFile) {
    return Error(Code::kInvalidArgument, fmt::format("{} is no regular file", kConfigName));
  }
  auto read = ReadStill(client, kConfigName, kConfigBytesMax);
  if (!read.ok() && read.error().code() == Code::kNotFound) return std::optional<ConfigFile>();
  if (!read.ok()) return read.error();
  // In this order: whoever had it open while it was read is found, or has closed it and changed
  // nothing since.
  const auto writers = client.ProbeWriters(kConfigName);
  const auto after = client.Stat(kConfigName);
  const bool written = writers.ok() && *writers == LeaseResult::kHasWriters;
  if (written || (after.ok() && (after->change_time_ns != read->stat.change_time_ns ||
                                 after->inode != read->stat.inode))) {
    return Error(Code::kAborted, fmt::format("{} is being written", kConfigName));
  }
  return std::optional<ConfigFile>(ToConfig(std::move(*read)));
}

Status Volume::RemoveConfig(std::string_view id) {
  const std::string name(kConfigName);
  if (id.empty()) return store_->RemoveFromVolume({name});
  const auto before = ReadStill(store_->client(), name, kConfigBytesMax);
  if (!before.ok() && before.error().code() == Code::kNotFound) return OkStatus();
  if (!before.ok()) return before.error();
  if (ToConfig(*before).id != id) return OkStatus();
  // Its client may replace the file at this moment, and would wait for ever for the new one to be
  // read: so it is moved aside, looked at again (a rename changes its ctime), and goes back if it
  // was exchanged.
  const std::string aside = store_->TemporaryName("config");
  const Status moved = store_->mount().RenameNew("client/" + name, "store/" + aside);
  if (!moved.ok() && moved.error().code() == Code::kNotFound) return OkStatus();
  if (!moved.ok()) return moved;
  const auto after = ReadStill(store_->root(), aside, kConfigBytesMax);
  const bool same = after.ok() && after->stat.inode == before->stat.inode &&
                    DigestOf(*after) == DigestOf(*before);
  // When a still newer one stands there by now, this one is of the past.
  TK_PROBE_IF(kYamlExchanged, !same);
  if (!same && store_->mount().RenameNew("store/" + aside, "client/" + name).ok()) {
    return OkStatus();
  }
  return store_->root().RemoveTree(aside);
}

// ---- saves -------------------------------------------------------------------------------------

Result<std::vector<FoundSave>> Volume::ListSaves(Framework framework, std::string_view job,
                                                 SaveScan scan) {
  Dir& client = store_->client();
  TK_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, client.List(""));
  std::vector<FoundSave> saves;
  for (const DirEntry& entry : entries) {
    if (framework == Framework::kPytorch) {
      const auto name = ParseWorkerName(entry.name, ".save");
      if (entry.type != FileType::kFile || !name || name->job != job) continue;
      // One that is still written is reported by the watch when its writer closes it.
      const auto writers = scan == SaveScan::kRunning
                               ? client.ProbeWriters(entry.name)
                               : Result<LeaseResult>(LeaseResult::kNoWriters);
      if (writers.ok() && *writers == LeaseResult::kHasWriters) continue;
      saves.push_back({entry.name, name->step, name->worker, name->rank, true});
      continue;
    }
    const auto step = ParseStepName(entry.name);
    if (entry.type != FileType::kDirectory || !step) continue;
    const bool finished =
        framework == Framework::kPytorchDistributed || HasCommitSuccess(client, entry.name);
    if (!finished && scan == SaveScan::kAtStart) continue;
    saves.push_back({entry.name, *step, 0, 0, finished});
  }
  std::sort(saves.begin(), saves.end(), [](const FoundSave& a, const FoundSave& b) {
    return std::tie(a.step, a.worker, a.name) < std::tie(b.step, b.worker, b.name);
  });
  return saves;
}

Status Volume::Clean(const std::vector<std::string>& keep_data) {
  std::set<std::string> keep{std::string(kConfigName), std::string(kJaxInitName)};
  for (const std::string& h : keep_data) keep.insert(DataName(h));
  TK_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, store_->client().List(""));
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (DirEntry& entry : entries) {
    if (TK_MUTATION(kOldLinksStay) && entry.name.ends_with(".restore")) continue;
    if (keep.contains(entry.name)) continue;
    const bool is_save = entry.type != FileType::kSymlink &&
                         (ParseStepName(entry.name) || entry.name.ends_with(".save"));
    if (is_save) {
      logger_.Warning("the save {} is removed from the volume: the job that starts can't use it",
                      EscapeName(entry.name));
    }
    names.push_back(std::move(entry.name));
  }
  return store_->RemoveFromVolume(names);
}

// ---- what we write -----------------------------------------------------------------------------

// Made inside the store, where nobody can meddle, then renamed over whatever stands at the name.
Status Volume::PutByRename(const std::string& temporary, std::string_view name) {
  const std::string to = fmt::format("client/{}", name);
  Status put = store_->mount().Rename("store/" + temporary, to);
  for (int i = 0; i < 3 && !put.ok(); ++i) {
    if (put.error().code() == Code::kResourceExhausted) break;
    // A directory or something immutable stands there.
    put = store_->RemoveFromVolume({std::string(name)});
    if (put.ok()) put = store_->mount().Rename("store/" + temporary, to);
  }
  if (!put.ok()) (void)store_->root().Unlink(temporary);
  return put;
}

Status Volume::Put(std::string_view name, std::string_view content) {
  const std::string temporary = store_->TemporaryName("text");
  TK_RETURN_IF_ERROR(store_->root().WriteFileAtomically(temporary, content, kFileMode));
  return PutByRename(temporary, name);
}

Status Volume::WritePrerestore(std::optional<Step> step, std::string_view backup) {
  Prerestore prerestore;
  prerestore.step = step;
  if (step && !backup.empty()) prerestore.backup = std::string(backup);
  return Put(kPrerestoreName, PrerestoreText(prerestore));
}

Status Volume::PlaceRestoreLink(const WorkerName& name, std::string_view h) {
  if (!IsDataHash(h)) return Error(Code::kInvalidArgument, "no data name: " + EscapeName(h));
  const auto data = store_->client().Stat(DataName(h));
  if (!data.ok()) return data.error();
  if (data->type != FileType::kDirectory && data->type != FileType::kFile) {
    return Error(Code::kFailedPrecondition, DataName(h) + " is neither directory nor file");
  }
  const std::string temporary = store_->TemporaryName("restore");
  TK_RETURN_IF_ERROR(store_->root().MakeSymlink(DataName(h), temporary));
  return PutByRename(temporary, RestoreName(name));
}

bool Volume::RestoreLinkStands(const WorkerName& name, std::string_view h) {
  if (!store_->client().Stat(DataName(h)).ok()) return false;
  const std::string step = std::to_string(name.step);
  for (const std::string& place : {RestoreName(name), step, "step=" + step}) {
    const auto target = store_->client().ReadLink(place);
    if (target.ok() && *target == DataName(h)) return true;
  }
  return false;
}

Status Volume::PlaceNoCheckpointMarker(const WorkerName& name) {
  WorkerName marker = name;
  marker.step = 0;
  return Put(RestoreName(marker), "");
}

Status Volume::WriteMeta(const WorkerName& name, std::string_view h) {
  if (!IsDataHash(h)) return Error(Code::kInvalidArgument, "no data name: " + EscapeName(h));
  return Put(MetaName(name), MetaText(h));
}

Status Volume::RemoveOtherMetas(const std::vector<WorkerName>& keep) {
  std::set<std::string> kept;
  for (const WorkerName& name : keep) kept.insert(MetaName(name));
  TK_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, store_->client().List(""));
  std::vector<std::string> others;
  for (const DirEntry& entry : entries) {
    if (entry.name.ends_with(".meta") && !kept.contains(entry.name)) others.push_back(entry.name);
  }
  if (others.empty()) return OkStatus();
  return store_->RemoveFromVolume(others);
}

// Not by O_APPEND: a client may have planted anything at the name, or hold the file open.
Status Volume::Append(std::string_view name, std::string_view line) {
  const std::lock_guard lock(append_mutex_);
  std::string text;
  const auto stat = store_->client().Stat(name);
  if (stat.ok() && stat->type == FileType::kFile && stat->links == 1) {
    // One that can't be read or is longer than we write isn't ours: it gives way.
    auto read = store_->client().ReadSmallFile(name, kErrorsBytesMax);
    if (read.ok()) text = std::move(*read);
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += line;
  text += '\n';
  if (text.size() > kErrorsBytesMax) {
    const size_t cut = text.find('\n', text.size() - kErrorsBytesMax - 1);
    text.erase(0, cut + 1 < text.size() ? cut + 1 : text.size() - kErrorsBytesMax);
  }
  const Status put = Put(name, text);
  if (!put.ok() && !PutSpare(name, text).ok()) {
    // The store can't be written. Beside its target the job could meddle with a file; what it
    // would gain is its own text in its own volume.
    if (!store_->client().WriteFileAtomically(name, text, kFileMode).ok()) return put;
  }
  if (!spare_) MakeSpare();
  return OkStatus();
}

// Without one, errors are lost on a full volume alone: that is no error.
void Volume::MakeSpare() {
  Dir& root = store_->root();
  auto file = root.CreateFile(kSpareName, kFileMode);
  if (!file.ok() && file.error().code() == Code::kAlreadyExists) {
    file = root.OpenFileReadWrite(kSpareName);
  }
  if (!file.ok() || !(*file)->Allocate(0, kErrorsBytesMax).ok()) return;
  const auto stat = (*file)->Stat();
  spare_ = stat.ok() && root.SetOwnerAndMode(kSpareName, stat->uid, stat->gid, kFileMode).ok();
}

Status Volume::PutSpare(std::string_view name, std::string_view content) {
  if (!std::exchange(spare_, false)) return Error(Code::kResourceExhausted, "no spare file");
  TK_ASSIGN_OR_RETURN(const auto file, store_->root().OpenFileReadWrite(kSpareName));
  TK_RETURN_IF_ERROR(file->WriteAll(0, AsBytes(content)));
  TK_RETURN_IF_ERROR(file->Resize(content.size()));
  return PutByRename(std::string(kSpareName), name);
}

Status Volume::AppendError(std::string_view line) { return Append(kErrorsName, line); }

Status Volume::AppendFailed(std::string_view line) {
  TK_RETURN_IF_ERROR(AppendError(line));
  return Append(kFailedName, line);
}

// ---- room for a start --------------------------------------------------------------------------

// A job that is being started may find no page for its yaml: then its next try does.
void Volume::MakeRoomForStart() {
  const auto space = store_->Space();
  if (!space.ok() || space->free_bytes >= kReserveBytes || !GiveUpReserve()) return;
  logger_.Warning("the volume is full: reserved memory is given up for the job's start");
}

void Volume::KeepReserve() {
  if (reserve_) return;
  Dir& root = store_->root();
  const auto space = store_->Space();
  if (!space.ok() || space->free_bytes < kReserveBytes + kBesideReserveBytes) return;
  auto file = root.CreateFile(kReserveName, 0600);
  if (!file.ok() && file.error().code() == Code::kAlreadyExists) {
    file = root.OpenFileReadWrite(kReserveName);
  }
  reserve_ = file.ok() && (*file)->Allocate(0, kReserveBytes).ok();
}

bool Volume::GiveUpReserve() {
  reserve_ = false;
  return store_->root().Unlink(std::string(kReserveName)).ok();
}

std::optional<std::string> Volume::ReadJaxInit() {
  auto text = store_->client().ReadSmallFile(kJaxInitName, kJaxInitBytesMax);
  if (!text.ok()) return std::nullopt;
  return std::move(*text);
}

}  // namespace tierkeep
