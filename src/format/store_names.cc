#include "format/store_names.h"

#include <fmt/format.h>

#include "base/check.h"
#include "format/decimal.h"

namespace tierkeep {
namespace {

// Cuts the part before the next '-' off `text`; the rest is left without the '-'.
std::optional<std::string_view> TakePart(std::string_view& text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::string_view part = text.substr(0, dash);
  text.remove_prefix(dash + 1);
  return part;
}

std::optional<uint64_t> TakeNumber(std::string_view& text, uint64_t max) {
  const auto part = TakePart(text);
  if (!part) return std::nullopt;
  return ParseDecimal(*part, max);
}

}  // namespace

std::string RunDirName(const RunId& run) {
  TK_CHECK(!run.none());
  return fmt::format("{}-{}", run.sequence, run.nonce.Hex());
}

std::optional<RunId> ParseRunDirName(std::string_view name) {
  const auto sequence = TakeNumber(name, UINT64_MAX);
  const auto nonce = Id128::FromHex(name);
  if (!sequence || *sequence == 0 || !nonce) return std::nullopt;
  return RunId{*sequence, *nonce};
}

std::string StagedName(const SaveUnit& unit) {
  TK_CHECK(unit.save.occurrence > 0);
  return fmt::format("{}-{}-{}-{}-{}", RunDirName(unit.save.run), unit.save.step,
                     unit.save.occurrence, unit.rank, unit.worker);
}

std::optional<SaveUnit> ParseStagedName(std::string_view name) {
  const size_t run_end = name.find('-', name.find('-') + 1);
  if (run_end == std::string_view::npos) return std::nullopt;
  const auto run = ParseRunDirName(name.substr(0, run_end));
  std::string_view rest = name.substr(run_end + 1);
  const auto step = TakeNumber(rest, UINT64_MAX);
  const auto occurrence = TakeNumber(rest, UINT32_MAX);
  const auto rank = TakeNumber(rest, kNodesMax - 1);
  const auto worker = ParseDecimal(rest, kWorkersPerNodeMax - 1);
  if (!run || !step || !occurrence || *occurrence == 0 || !rank || !worker) return std::nullopt;
  return SaveUnit{{*run, *step, static_cast<uint32_t>(*occurrence)},
                  static_cast<Rank>(*rank),
                  static_cast<Worker>(*worker)};
}

std::string IncomingName(const IncomingUnit& incoming) {
  return fmt::format("{}.{:016x}", StagedName(incoming.unit), incoming.nonce);
}

std::optional<IncomingUnit> ParseIncomingName(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || name.size() != dot + 17) return std::nullopt;
  const auto unit = ParseStagedName(name.substr(0, dot));
  const auto nonce = FixedBytes<SaveUnit, 8>::FromHex(name.substr(dot + 1));
  if (!unit || !nonce) return std::nullopt;
  IncomingUnit incoming{*unit, 0};
  for (const uint8_t byte : nonce->bytes) incoming.nonce = incoming.nonce << 8 | byte;
  return incoming;
}

std::string GenerationFileName(uint64_t save_number) {
  TK_CHECK(save_number > 0);
  return std::to_string(save_number);
}

std::optional<uint64_t> ParseGenerationFileName(std::string_view name) {
  const auto number = ParseDecimal(name);
  if (!number || *number == 0) return std::nullopt;
  return number;
}

std::string StagedPath(const SaveUnit& unit) {
  return fmt::format("{}/{}", kStagedDir, StagedName(unit));
}
std::string IncomingPath(const IncomingUnit& incoming) {
  return fmt::format("{}/{}", kIncomingDir, IncomingName(incoming));
}
std::string ShardPath(const Blake3& digest) {
  return fmt::format("{}/{}", kShardsDir, ShardDirName(digest));
}
std::string ShardManifestPath(const Blake3& digest) {
  return fmt::format("{}/{}", ShardPath(digest), kShardManifestName);
}
std::string ShardDataPath(const Blake3& digest) {
  return fmt::format("{}/{}", ShardPath(digest), kShardDataName);
}
std::string ShardStatePath(const Blake3& digest) {
  return fmt::format("{}/{}", ShardPath(digest), kShardStateName);
}
std::string GenerationPath(const GenerationId& id) {
  return fmt::format("{}/{}/{}", kGenerationsDir, RunDirName(id.run),
                     GenerationFileName(id.save_number));
}

}  // namespace tierkeep
