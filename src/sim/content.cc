#include "sim/content.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/prng.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr std::string_view kIdName = "commit_success.txt";  // replicas may differ in it

// Framework pytorch has one file, whose first bytes say who it is.
constexpr size_t kIdBytes = 64;

// One save in so many has values of which the replicas differ.
constexpr uint64_t kDivergesEvery = 5;

uint64_t Mixed(uint64_t seed, std::initializer_list<uint64_t> parts) {
  for (const uint64_t part : parts) {
    seed = (seed ^ part) * 0x9e3779b97f4a7c15U;
    seed ^= seed >> 31;
  }
  return seed;
}

// Which partitions have other values in this save: one, or every second one; nothing if none.
struct OddRows {
  uint32_t modulus = 1, row = 0;
  bool Has(uint32_t of) const { return of % modulus == row; }
};
std::optional<OddRows> OddRowsOf(const SaveId& id, const ContentOptions& options) {
  if (!options.diverging || options.replicas < 2) return std::nullopt;
  const uint64_t drawn = Mixed(options.seed, {id.attempt, id.nth, id.step, 0x0dd});
  if (drawn % kDivergesEvery != 0) return std::nullopt;
  OddRows odd;
  odd.modulus = (drawn >> 8) % 3 == 0 ? 2 : options.replicas;
  odd.row = static_cast<uint32_t>((drawn >> 16) % odd.modulus);
  return odd;
}

uint64_t SeedOf(const SaveId& id, const ContentOptions& options) {
  const uint32_t width = options.nodes / options.replicas;
  return Mixed(options.seed,
               {id.attempt, id.nth, id.step, id.rank % width, id.worker, VariantOf(id, options)});
}

// Equal replicas must write equal bytes, so it names the first of those that do.
std::string Head(const SaveId& id, const ContentOptions& options) {
  const uint32_t width = options.nodes / options.replicas;
  SaveId written = id;
  for (written.rank %= width; VariantOf(written, options) != VariantOf(id, options);) {
    written.rank += width;
  }
  std::string head = written.ToString();
  head.resize(kIdBytes, '\n');
  return head;
}

Error Differs(std::string_view what) { return Error(Code::kDataLoss, std::string(what)); }

Result<std::string> ReadAll(Dir& dir, const std::string& path) {
  return dir.ReadSmallFile(path, 1u << 20);
}

}  // namespace

std::string SaveId::ToString() const {
  return fmt::format("a{} i{} s{} r{} w{}", attempt, nth, step, rank, worker);
}

std::optional<SaveId> SaveId::Parse(std::string_view text) {
  SaveId id;
  unsigned long long step = 0;
  const std::string line(text.substr(0, text.find('\n')));
  if (std::sscanf(line.c_str(), "a%u i%u s%llu r%u w%u", &id.attempt, &id.nth, &step, &id.rank,
                  &id.worker) != 5) {
    return std::nullopt;
  }
  id.step = step;
  if (id.ToString() != line) return std::nullopt;
  return id;
}

uint32_t VariantOf(const SaveId& id, const ContentOptions& options) {
  const auto odd = OddRowsOf(id, options);
  return odd && odd->Has(id.rank / (options.nodes / options.replicas)) ? 1 : 0;
}

std::vector<ContentEntry> ContentOf(const SaveId& id, const ContentOptions& options) {
  Prng prng(SeedOf(id, options));
  std::vector<ContentEntry> entries;
  const auto size = static_cast<size_t>(options.file_bytes);
  if (options.framework == Framework::kPytorch) {
    entries.push_back({"", FileType::kFile, Head(id, options) + prng.Bytes(size)});
    return entries;
  }
  entries.push_back({"", FileType::kDirectory, ""});
  entries.push_back({"array", FileType::kFile, prng.Bytes(size)});
  entries.push_back({"empty", FileType::kFile, ""});
  entries.push_back({"items", FileType::kDirectory, ""});
  // Ledger::CheckpointBytes counts a page for each.
  constexpr uint64_t kSmallMax = 4095;
  const size_t small = prng.Below(3);
  for (size_t i = 0; i < small; ++i) {
    entries.push_back(
        {fmt::format("items/{}", i), FileType::kFile,
         prng.Bytes(1 + prng.Below(std::min(options.file_bytes / 4, kSmallMax) + 1))});
  }
  entries.push_back({"newest", FileType::kSymlink, "items/0"});
  entries.push_back({std::string(kIdName), FileType::kFile, id.ToString()});
  return entries;
}

Result<SaveId> IdentifyContent(Dir& dir, const std::string& path, const ContentOptions& options) {
  const bool single = options.framework == Framework::kPytorch;
  TK_ASSIGN_OR_RETURN(const std::string said,
                      ReadAll(dir, single ? path : JoinPath(path, std::string(kIdName))));
  const auto id = SaveId::Parse(said);
  if (!id) return Differs("its identity is damaged");
  const auto wanted = ContentOf(*id, options);
  if (single) {
    if (said != wanted.front().bytes) return Differs("bytes differ");
    return *id;
  }
  TreeLimits limits;
  TK_ASSIGN_OR_RETURN(const auto tree, WalkTree(dir, path, limits));
  std::map<std::string_view, const ContentEntry*> by_path;
  for (const ContentEntry& entry : wanted) by_path[entry.path] = &entry;
  if (tree.size() != wanted.size()) return Differs("entries are missing or too many");
  for (const TreeEntry& found : tree) {
    const auto it = by_path.find(found.path);
    if (it == by_path.end()) return Differs("unknown entry " + found.path);
    const ContentEntry& entry = *it->second;
    if (found.stat.type != entry.type) return Differs("type of " + found.path);
    if (entry.type == FileType::kSymlink && found.link_target != entry.bytes) {
      return Differs("target of " + found.path);
    }
    if (entry.type != FileType::kFile) continue;
    TK_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(dir, JoinPath(path, found.path)));
    if (bytes != entry.bytes) return Differs("bytes of " + found.path);
  }
  return *id;
}

}  // namespace tierkeep::sim
