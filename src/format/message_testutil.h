// For tests: one valid message of each kind that agents and coordinator exchange.
#pragma once

#include <string>
#include <vector>

#include "base/prng.h"
#include "control.pb.h"
#include "format/format_testutil.h"
#include "format/messages.h"

namespace tierkeep {

// Everything but the shape of the job follows from `prng`, and differs from call to call.
struct MessageMaker {
  static constexpr char kJob[] = "job-1";
  static WorldShape World() { return {Framework::kOrbax, 4, 1, 2}; }

  Prng prng;
  RunId run = RandomRun(&prng);
  SaveKey save{run, 100, 1};

  ShardSummary Shard(Rank rank);
  control::Envelope Empty();
  std::string Token();
  void Data(control::Address* address);
  control::JobSettings Settings();
  control::RestoreChoice Choice();
  control::SaveStaged Staged();
  control::Compare Compare();
  control::Divergence Divergence();
  control::Envelope Join();
  control::Envelope RunStart();
  control::Envelope Restore();
  control::Envelope Prepared();
  control::Envelope Commit();
  std::vector<control::Envelope> All();
};

}  // namespace tierkeep
