#include "format/volume_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "format/decimal.h"

namespace tierkeep {
namespace {

constexpr size_t kJobNameBytesMax = 128;

std::string Format(const WorkerName& n, std::string_view ending) {
  return fmt::format("{}-s{}-n{}-w{}{}", n.job, n.step, n.rank, n.worker, ending);
}

// Takes "-<letter><number>" off the end of `text`.
std::optional<uint64_t> TakeNumber(std::string_view& text, char letter, uint64_t max) {
  const size_t dash = text.rfind('-');
  if (dash == std::string_view::npos || dash + 1 >= text.size() || text[dash + 1] != letter) {
    return std::nullopt;
  }
  const auto number = ParseDecimal(text.substr(dash + 2), max);
  if (number) text = text.substr(0, dash);
  return number;
}

}  // namespace

std::string MetaName(const WorkerName& name) { return Format(name, ".meta"); }
std::string RestoreName(const WorkerName& name) { return Format(name, ".restore"); }
std::string SaveFileName(const WorkerName& name) { return Format(name, ".save"); }
std::string DataName(std::string_view h) { return fmt::format("{}.data", h); }

std::optional<WorkerName> ParseWorkerName(std::string_view name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  name.remove_suffix(ending.size());
  const auto worker = TakeNumber(name, 'w', kWorkersPerNodeMax - 1);
  if (!worker) return std::nullopt;
  const auto rank = TakeNumber(name, 'n', kNodesMax - 1);
  if (!rank) return std::nullopt;
  const auto step = TakeNumber(name, 's', UINT64_MAX);
  if (!step || !IsValidJobName(name)) return std::nullopt;
  return WorkerName{std::string(name), *step, static_cast<Rank>(*rank),
                    static_cast<Worker>(*worker)};
}

bool IsDataHash(std::string_view h) {
  if (h.starts_with('D')) h.remove_prefix(1);
  if (h.size() != 64) return false;
  // Eight at a time, since each entry of each message has one: a high bit for each that is good.
  constexpr uint64_t kEach = 0x0101010101010101;
  uint64_t good = 0x80 * kEach;
  for (size_t i = 0; i < 64; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, h.data() + i, sizeof(word));
    const auto at_least = [&](char c) {  // as long as no byte has its high bit
      return word + (0x80 - static_cast<uint64_t>(c)) * kEach;
    };
    const uint64_t digits = at_least('0') & ~at_least('9' + 1);
    const uint64_t letters = at_least('a') & ~at_least('z' + 1);
    good &= (digits | letters) & ~word;
  }
  return good == 0x80 * kEach;
}

std::optional<std::string> ParseDataName(std::string_view name) {
  if (!name.ends_with(".data")) return std::nullopt;
  name.remove_suffix(5);
  if (!IsDataHash(name)) return std::nullopt;
  return std::string(name);
}

std::optional<Step> ParseStepName(std::string_view name) {
  Step step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

bool IsValidJobName(std::string_view name) { return IsPlainName(name, kJobNameBytesMax); }

}  // namespace tierkeep
