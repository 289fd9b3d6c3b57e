// Names in the volume and in the store, numbers, jax-init-info.txt: canonical, so that what was
// understood is written the same way again.

#include "base/check.h"
#include "format/decimal.h"
#include "format/store_names.h"
#include "format/volume_names.h"
#include "format/volume_texts.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

void StoreNames(std::string_view name) {
  if (const auto run = ParseRunDirName(name)) TK_CHECK(RunDirName(*run) == name);
  if (const auto unit = ParseStagedName(name)) TK_CHECK(StagedName(*unit) == name);
  if (const auto incoming = ParseIncomingName(name)) TK_CHECK(IncomingName(*incoming) == name);
  if (const auto digest = ParseShardDirName(name)) TK_CHECK(ShardDirName(*digest) == name);
  if (const auto number = ParseGenerationFileName(name)) {
    TK_CHECK(*number > 0 && GenerationFileName(*number) == name);
  }
}

void VolumeNames(std::string_view name) {
  if (const auto meta = ParseWorkerName(name, ".meta")) TK_CHECK(MetaName(*meta) == name);
  if (const auto link = ParseWorkerName(name, ".restore")) {
    TK_CHECK(RestoreName(*link) == name);
    TK_CHECK(IsValidJobName(link->job) && link->rank < kNodesMax &&
             link->worker < kWorkersPerNodeMax);
  }
  if (const auto save = ParseWorkerName(name, ".save")) TK_CHECK(SaveFileName(*save) == name);
  if (const auto h = ParseDataName(name)) {
    TK_CHECK(IsDataHash(*h) && DataName(*h) == name);
    TK_CHECK(ParseMetaText(*h) && MetaText(*h) == *h);
  }
  if (const auto step = ParseStepName(name)) {
    const std::string text = std::to_string(*step);
    TK_CHECK(name.ends_with(text));  // leading zeros alone may stand before it
    TK_CHECK(name.find_first_not_of('0') >= name.size() - text.size());
  }
  if (IsValidJobName(name)) {
    const WorkerName worker{std::string(name), 7, 1, 0};
    TK_CHECK(ParseWorkerName(MetaName(worker), ".meta") == worker);
  }
  if (const auto number = ParseDecimal(name)) TK_CHECK(std::to_string(*number) == name);
  IsBackupDirName(name);
}

}  // namespace

void RunOne(std::string_view input) {
  StoreNames(input);
  VolumeNames(input);
  if (const auto info = ParseJaxInitInfo(input); info.ok()) {
    const auto again = ParseJaxInitInfo(JaxInitInfoText(*info));
    TK_CHECK(again.ok() && *again == *info);
  } else {
    TK_CHECK(info.error().code() == Code::kInvalidArgument);
  }
}

std::vector<std::string> Seeds() {
  const Blake3 digest = ComputeBlake3("a shard");
  const RunId run{17, *Id128::FromBytes(std::string(16, 'n'))};
  const SaveUnit unit{{run, 100, 2}, 3, 1};
  const WorkerName worker{"job-s1-n2-w3", 100, 3, 1};
  return {RunDirName(run),
          StagedName(unit),
          IncomingName({unit, 0xabc}),
          ShardDirName(digest),
          GenerationFileName(12),
          MetaName(worker),
          RestoreName(worker),
          SaveFileName(worker),
          DataName("D" + digest.Hex()),
          DataName(digest.Hex()),
          "000100",
          "18446744073709551615",
          "2026-11-29_17-56",
          JaxInitInfoText({3, "10.0.0.1:4242"})};
}

}  // namespace tierkeep::fuzz
