// For tests: seeds, and random but valid manifests, configurations and messages.
#pragma once

#include <cstdint>
#include <string>

#include "base/prng.h"
#include "control.pb.h"
#include "format/ids.h"
#include "format/manifest.h"
#include "format/messages.h"

namespace tierkeep {

// TIERKEEP_TEST_SEED where it is set, else a fresh one. Put it into a SCOPED_TRACE.
uint64_t TestSeed();

template <typename Fixed>
Fixed RandomFixed(Prng* prng) {
  Fixed value = *Fixed::FromBytes(prng->Bytes(Fixed::kSize));
  value.bytes[0] |= 1;  // never all zero
  return value;
}

RunId RandomRun(Prng* prng);
WorldShape RandomWorld(Prng* prng);
ShardIdentity RandomIdentity(Prng* prng);
// A tree of up to about 40 entries of every kind, or a single file.
Manifest RandomManifest(Prng* prng);

// A shard of this place; everything else random.
ShardSummary RandomShard(Prng* prng, const std::string& job, const SaveKey& save,
                         const WorldShape& world, Rank rank, Worker worker);
control::GenerationRecord RandomGeneration(Prng* prng, const std::string& job,
                                           const WorldShape& world);

}  // namespace tierkeep
