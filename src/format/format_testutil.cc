#include "format/format_testutil.h"

#include <cstdlib>
#include <map>
#include <random>

namespace tierkeep {
namespace {

void FillFile(Prng* prng, ManifestEntry* e) {
  e->type = EntryType::kFile;
  const uint64_t chunks = prng->Below(4);
  for (uint64_t i = 0; i < chunks; ++i) {
    const uint64_t bytes = prng->Chance(1, 8) ? kChunkBytesMax : 1 + prng->Below(kChunkBytes);
    e->chunks.push_back({bytes, RandomFixed<Xxh128>(prng)});
    e->bytes += bytes;
  }
}

// Any byte but NUL and '/'.
std::string RandomName(Prng* prng) {
  std::string name = prng->Bytes(1 + prng->Below(prng->Chance(1, 16) ? 255 : 6));
  for (char& c : name) {
    if (c == '\0' || c == '/') c = 'x';
  }
  return name == "." || name == ".." ? "dots" : name;
}

ManifestEntry RandomEntry(Prng* prng) {
  ManifestEntry e;
  e.mode = static_cast<uint32_t>(prng->Below(010000));
  e.uid = static_cast<uint32_t>(prng->Next());
  e.gid = static_cast<uint32_t>(prng->Below(3));
  switch (prng->Below(4)) {
    case 0:
      e.type = EntryType::kDirectory;
      break;
    case 1:
      e.type = EntryType::kSymlink;
      e.link_target = RandomName(prng) + "/../" + RandomName(prng);
      break;
    default:
      FillFile(prng, &e);
  }
  return e;
}

}  // namespace

uint64_t TestSeed() {
  if (const char* text = std::getenv("TIERKEEP_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

RunId RandomRun(Prng* prng) { return {1 + prng->Below(1u << 31), RandomFixed<Id128>(prng)}; }

WorldShape RandomWorld(Prng* prng) {
  WorldShape world;
  world.framework = static_cast<Framework>(1 + prng->Below(3));
  const auto partitions = static_cast<uint32_t>(prng->Below(4));
  world.data_parallelism = partitions;
  world.nodes = std::max(1u, partitions) * static_cast<uint32_t>(1 + prng->Below(4));
  world.workers_per_node = static_cast<uint32_t>(1 + prng->Below(3));
  return world;
}

ShardIdentity RandomIdentity(Prng* prng) {
  ShardIdentity id;
  id.job = "job-" + std::to_string(prng->Below(1000));
  id.save = {RandomRun(prng), prng->Next() >> prng->Below(64),
             static_cast<uint32_t>(1 + prng->Below(3))};
  id.world = RandomWorld(prng);
  id.rank = static_cast<Rank>(prng->Below(id.world.nodes));
  id.worker = static_cast<Worker>(prng->Below(id.world.workers_per_node));
  id.ordinal = 1 + prng->Below(1000);
  return id;
}

Manifest RandomManifest(Prng* prng) {
  Manifest m;
  m.identity = RandomIdentity(prng);
  if (prng->Chance(1, 2)) m.logical = RandomFixed<Blake3>(prng);
  ManifestEntry root = RandomEntry(prng);
  root.path.clear();
  if (prng->Chance(1, 8)) {
    root = {};
    FillFile(prng, &root);
    m.entries.push_back(root);
    return m;
  }
  root = {};
  root.type = EntryType::kDirectory;
  root.mode = 0755;
  std::map<std::string, ManifestEntry> entries{{"", root}};
  std::vector<std::string> directories{""};
  for (uint64_t i = prng->Below(40); i > 0; --i) {
    const std::string& parent = directories[prng->Below(directories.size())];
    ManifestEntry e = RandomEntry(prng);
    e.path = (parent.empty() ? "" : parent + "/") + RandomName(prng);
    if (!entries.emplace(e.path, e).second) continue;
    if (e.type == EntryType::kDirectory) directories.push_back(e.path);
  }
  for (auto& [path, e] : entries) m.entries.push_back(std::move(e));
  return m;
}

ShardSummary RandomShard(Prng* prng, const std::string& job, const SaveKey& save,
                         const WorldShape& world, Rank rank, Worker worker) {
  ShardSummary s;
  s.digest = RandomFixed<Blake3>(prng);
  s.identity = {job, save, rank, worker, 1 + prng->Below(100), world};
  if (prng->Chance(1, 2)) s.logical = RandomFixed<Blake3>(prng);
  s.volume_name = (prng->Chance(1, 2) ? "D" : "") + s.digest.Hex();
  s.bytes = prng->Next() >> 20;
  s.manifest_bytes = 1 + prng->Below(1u << 20);
  s.suspect = prng->Chance(1, 4);
  return s;
}

control::GenerationRecord RandomGeneration(Prng* prng, const std::string& job,
                                           const WorldShape& world) {
  control::GenerationRecord record;
  const SaveKey save{RandomRun(prng), prng->Below(1000), static_cast<uint32_t>(1 + prng->Below(2))};
  record.set_job(job);
  *record.mutable_save() = ToProto(save);
  record.set_save_number(1 + prng->Below(100));
  *record.mutable_world() = ToProto(world);
  const uint32_t columns = world.nodes / world.replicas();
  for (Rank rank = 0; rank < world.nodes; ++rank) {
    // Any replica of the rank's column may stand in.
    const Rank whose = rank % columns + columns * static_cast<Rank>(prng->Below(world.replicas()));
    for (Worker worker = 0; worker < world.workers_per_node; ++worker) {
      *record.add_shards() = ToProto(RandomShard(prng, job, save, world, whose, worker));
    }
  }
  record.set_committed(prng->Chance(1, 2));
  if (prng->Chance(1, 2)) {
    *record.mutable_parent_run() = ToProto(RandomRun(prng));
    record.set_parent_save_number(prng->Below(10));
  }
  return record;
}

}  // namespace tierkeep
