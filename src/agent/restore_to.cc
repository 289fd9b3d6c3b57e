#include "agent/restore_to.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "format/generation_record.h"
#include "format/messages.h"
#include "tiers/peer/shard_copy.h"

namespace tierkeep {
namespace {

using nlohmann::json;

// One shard that is wanted, and which place it serves.
struct Wanted {
  Rank rank = 0;
  Worker worker = 0;
  Blake3 digest;
  uint64_t bytes = 0;
};

struct Chosen {
  SaveKey save;
  uint64_t save_number = 0;
  bool committed = false;
  std::vector<Wanted> shards;
  // Of the recorded generation: of a large job a node knows those shards that it keeps and few
  // more.
  uint32_t known = 0;
  uint32_t total = 0;
};

bool Fits(const RestoreToRequest& request, const control::GenerationRecord& record) {
  if (record.job() != request.job) return false;
  if (request.step && record.save().step() != *request.step) return false;
  return !request.generation ||
         (request.generation->save_number() == record.save_number() &&
          request.generation->run() == FromProto(record.save().run()).ToString());
}

bool IsWanted(const RestoreToRequest& request, const StatusInputs& in, Rank rank, bool held) {
  if (request.all) return true;
  if (!request.ranks.empty()) {
    return std::find(request.ranks.begin(), request.ranks.end(), rank) != request.ranks.end();
  }
  if (in.node.config && in.node.config->job == request.job) return in.node.config->rank == rank;
  return held;
}

// The newest generation recorded here that fits.
std::optional<Chosen> ChooseRecorded(const RestoreApiParts& parts, const StatusInputs& in,
                                     const RestoreToRequest& request) {
  std::vector<SharedRecord> records = parts.store->Generations();
  // What the job runs from may not be recorded here yet.
  if (in.node.restored && !in.node.restored->none()) {
    records.push_back(Shared(in.node.restored->generation()));
  }
  SharedRecord newest;
  for (const SharedRecord& record : records) {
    if (!Fits(request, *record)) continue;
    if (newest == nullptr || GenerationIdOf(*newest) < GenerationIdOf(*record)) newest = record;
  }
  if (newest == nullptr) return std::nullopt;
  Chosen chosen{.save = FromProto(newest->save()),
                .save_number = newest->save_number(),
                .committed = newest->committed()};
  chosen.known = static_cast<uint32_t>(newest->shards_size());
  chosen.total = SlotsOf(*newest);
  const uint32_t workers = newest->world().workers_per_node();
  for (int i = 0; i < newest->shards_size(); ++i) {
    const auto& shard = newest->shards(i);
    const uint32_t place = SlotAt(*newest, i);
    const Blake3 digest = FixedFromProto<Blake3>(shard.digest());
    if (!IsWanted(request, in, place / workers, parts.store->Find(digest).has_value())) continue;
    chosen.shards.push_back({place / workers, place % workers, digest, shard.bytes()});
  }
  return chosen;
}

// A step that was never committed: the shards of its newest save that are held here.
std::optional<Chosen> ChooseHeld(const StatusInputs& in, const RestoreToRequest& request) {
  if (request.generation) return std::nullopt;
  std::optional<SaveKey> newest;
  for (const HeldShard& shard : in.shards) {
    const ShardIdentity& id = shard.manifest->identity;
    if (id.job != request.job || (request.step && id.save.step != *request.step)) continue;
    if (!newest ||
        std::pair(newest->run, newest->occurrence) < std::pair(id.save.run, id.save.occurrence)) {
      newest = id.save;
    }
  }
  if (!newest) return std::nullopt;
  Chosen chosen{.save = *newest};
  for (const HeldShard& shard : in.shards) {
    const ShardIdentity& id = shard.manifest->identity;
    if (id.job != request.job || id.save != *newest) continue;
    if (!IsWanted(request, in, id.rank, true)) continue;
    chosen.shards.push_back({id.rank, id.worker, shard.digest, shard.manifest->TotalBytes()});
  }
  return chosen;
}

Result<Chosen> Choose(const RestoreApiParts& parts, const StatusInputs& in,
                      const RestoreToRequest& request) {
  auto chosen = ChooseRecorded(parts, in, request);
  if (!chosen) chosen = ChooseHeld(in, request);
  if (!chosen) {
    return Error(Code::kNotFound,
                 fmt::format("no such checkpoint of job {} is known on this node", request.job));
  }
  if (request.all && chosen->known < chosen->total) {
    return Error(Code::kNotFound,
                 fmt::format("this node knows {} of the {} shards of {}: in a large job each node "
                             "copies out its own",
                             chosen->known, chosen->total, chosen->save.ToString()));
  }
  for (const Rank rank : request.ranks) {
    const bool there = std::any_of(chosen->shards.begin(), chosen->shards.end(),
                                   [&](const Wanted& shard) { return shard.rank == rank; });
    if (there) continue;
    return Error(Code::kNotFound, fmt::format("rank {} has no shard in {}, as far as this node "
                                              "knows",
                                              rank, chosen->save.ToString()));
  }
  if (chosen->shards.empty()) {
    return Error(Code::kNotFound,
                 fmt::format("no shard of {} is held here: name ranks", chosen->save.ToString()));
  }
  return std::move(*chosen);
}

struct Target {
  std::shared_ptr<Dir> parent;
  std::string name;
  std::string temporary;
};

// DIR's parent must be there; DIR itself must be absent or empty, and not in RAM beside the volume.
Result<Target> OpenTarget(const RestoreApiParts& parts, const std::string& dir) {
  std::filesystem::path path(dir);
  if (!path.has_filename()) path = path.parent_path();
  if (!path.is_absolute() || !path.has_filename() || path.filename() == "..") {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} is no absolute path of a directory", EscapeForLog(dir)));
  }
  const std::string parent = path.parent_path().string();
  struct stat mount {};
  struct stat there {};
  if (::stat(parts.mount.c_str(), &mount) != 0) return ErrnoError(errno, "look at the mount");
  if (::stat(parent.c_str(), &there) != 0) {
    return ErrnoError(errno, "look at " + EscapeForLog(parent));
  }
  if (there.st_dev == mount.st_dev) {
    return Error(Code::kInvalidArgument,
                 fmt::format("{} lies on the volume's own file system: name a directory elsewhere",
                             EscapeForLog(dir)));
  }
  Target target;
  TK_ASSIGN_OR_RETURN(target.parent, OpenPosixDir(parent));
  target.name = path.filename().string();
  const auto found = target.parent->Stat(target.name);
  if (found.ok()) {
    if (found->type != FileType::kDirectory) {
      return Error(Code::kAlreadyExists,
                   fmt::format("{} is there and is no directory", EscapeForLog(dir)));
    }
    TK_ASSIGN_OR_RETURN(const auto entries, target.parent->List(target.name));
    if (!entries.empty()) {
      return Error(Code::kAlreadyExists,
                   fmt::format("{} is there and isn't empty", EscapeForLog(dir)));
    }
  } else if (found.error().code() != Code::kNotFound) {
    return found.error();
  }
  Id128 nonce;
  parts.random->Fill(nonce.bytes.data(), Id128::kSize);
  target.temporary = ".tierkeep-" + nonce.Hex();
  return target;
}

std::vector<PullSource> Peers(const StatusInputs& in) {
  std::vector<PullSource> sources;
  for (const control::Member& member : in.node.members) {
    if (member.node() == in.node_name) continue;
    sources.push_back({member.node(),
                       {member.data().host(), static_cast<uint16_t>(member.data().port())},
                       member.data_token()});
  }
  return sources;
}

Result<json> CopyAll(const RestoreApiParts& parts, const StatusInputs& in, const Target& target,
                     const Chosen& chosen) {
  json shards = json::array();
  for (const Wanted& wanted : chosen.shards) {
    const std::string name = fmt::format("rank{}-worker{}", wanted.rank, wanted.worker);
    ShardCopyRequest copy;
    copy.digest = wanted.digest;
    copy.store = parts.store;
    copy.sources = Peers(in);
    copy.port = parts.port;
    copy.target = target.parent.get();
    copy.path = target.temporary + "/" + name;
    copy.cancelled = parts.stopping;
    auto copied = CopyShard(copy);
    if (!copied.ok()) return copied.error().With(fmt::format("rank {}", wanted.rank));
    shards.push_back(
        {{"rank", wanted.rank},
         {"worker", wanted.worker},
         {"digest", wanted.digest.Hex()},
         {"bytes", copied->manifest->TotalBytes()},
         {"files",
          std::count_if(copied->manifest->entries.begin(), copied->manifest->entries.end(),
                        [](const ManifestEntry& entry) { return entry.type == EntryType::kFile; })},
         {"from", copied->from.empty() ? in.node_name : copied->from},
         {"path", name}});
  }
  return shards;
}

}  // namespace

Result<json> RestoreTo(const RestoreApiParts& parts, const StatusInputs& in,
                       const RestoreToRequest& request) {
  TK_ASSIGN_OR_RETURN(const Chosen chosen, Choose(parts, in, request));
  TK_ASSIGN_OR_RETURN(const Target target, OpenTarget(parts, request.dir));
  uint64_t bytes = 0;
  for (const Wanted& wanted : chosen.shards) bytes += wanted.bytes;
  TK_ASSIGN_OR_RETURN(const SpaceInfo space, target.parent->Space());
  if (bytes > space.free_bytes) {
    return Error(Code::kResourceExhausted,
                 fmt::format("{} are needed for {}, and {} are free", FormatBytes(bytes),
                             EscapeForLog(request.dir), FormatBytes(space.free_bytes)));
  }
  TK_RETURN_IF_ERROR(target.parent->MakeDir(target.temporary, 0700));
  json out = {{"version", 1},
              {"job", request.job},
              {"step", chosen.save.step},
              {"run", chosen.save.run.ToString()},
              {"occurrence", chosen.save.occurrence},
              {"save", chosen.save_number == 0 ? json(nullptr) : json(chosen.save_number)},
              {"committed", chosen.committed}};
  const auto fill = [&]() -> Status {
    TK_ASSIGN_OR_RETURN(out["shards"], CopyAll(parts, in, target, chosen));
    TK_RETURN_IF_ERROR(target.parent->WriteFileAtomically(target.temporary + "/tierkeep.json",
                                                          out.dump(2) + "\n", 0644));
    TK_RETURN_IF_ERROR(target.parent->SyncDir(target.temporary));
    TK_RETURN_IF_ERROR(target.parent->Rename(target.temporary, target.name));
    return target.parent->SyncDir("");
  };
  if (const Status filled = fill(); !filled.ok()) {
    (void)target.parent->RemoveTree(target.temporary);
    return filled.error();
  }
  out["dir"] = request.dir;
  return out;
}

}  // namespace tierkeep
