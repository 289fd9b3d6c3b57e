#include "sim/mutable/hints.h"

namespace tierkeep::sim {

const std::vector<Demand>& Demands() {
  using C = Checker;
  using M = Mutation;
  static const std::vector<Demand> kDemands = {
      {C::kScenario, M::kSameYamlIsNew},
      {C::kBehindCommit, M::kForgetAbsent},
      {C::kAbandonedBranch, M::kForgetBranches},
      {C::kCommitLacksCopies, M::kCommitOnSendersWord},
      {C::kLastCopyGone, M::kCollectBeforeCommit},
      {C::kSavesPileUp, M::kTwoUncommitted},
      {C::kNotInPlace, M::kNeverCollect},
      {C::kMemoryBudget, M::kHolderKeepsCopies},
      {C::kShardOverlooked, M::kListingErrorIsEmpty},
      {C::kLinkBeforeDecision, M::kLinksBeforeDecision},
      {C::kBadLink, M::kIgnoreWriters},
      {C::kOrderIgnored, M::kIgnoreSkip},
      {C::kWaitsInVain, M::kNoStartDeadline},
      {C::kSaveLeft, M::kIgnoreOverflow},
      {C::kSaveVanished, M::kDropUntold},
      {C::kFailedWhileTraining, M::kRefusedForGood},
      {C::kForeignLink, M::kOldLinksStay},
      {C::kBadCheckpoint, M::kOldLinksStay},
      {C::kNodesDiffer, M::kMixReplicas},
      {C::kEpochFalls, M::kLowEpoch},
      {C::kRunFalls, M::kLowRunSequence},
      {C::kOldEpochActs, M::kAcceptOlderEpoch},
      {C::kOldConnectionActs, M::kAcceptOlderConnection},
      {C::kUnexplainedError, M::kLoseOccurrence},
      {C::kNoCommit, M::kReleaseEarly},
      {C::kNotRebuilt, M::kNoRebuild},
  };
  return kDemands;
}

const std::vector<Hint>& Hints() {
  using M = Mutation;
  static const std::vector<Hint> kHints = {
      {M::kAcceptOlderConnection, {"--scenario read-behind-a-newer-one"}},
      {M::kAcceptOlderEpoch, {"--seed 5"}},
      {M::kAdoptFromIncoming, {"--seed 9"}},
      {M::kCleanOnResume, {"--seed 16"}},
      {M::kCommitOnSendersWord, {"--seed 19"}},
      {M::kCountSuspectCopy, {"--seed 24"}},
      {M::kDivergentCopies, {"--seed 6"}},
      {M::kDropUntold, {"--scenario saved-untold"}},
      {M::kForgetAbsent, {"--scenario newer-generation-is-away"}},
      {M::kForgetBranches, {"--scenario abandoned-branch"}},
      {M::kForgetInDoubt, {"--scenario commit-unheard", "--seed 25"}},
      {M::kForgetSeat, {"--scenario older-claim-comes-first"}},
      {M::kHiddenRecordIsNone, {"--scenario little-room-and-unread-records"}},
      {M::kHolderKeepsCopies, {"--scenario late-holder-is-freed"}},
      {M::kIgnoreOverflow, {"--scenario watch-overflows"}},
      {M::kIgnoreSkip, {"--scenario skip-as-asked"}},
      {M::kIgnoreVanishedVolume, {"--scenario volume-vanishes"}},
      {M::kIgnoreWriters, {"--seed 8"}},
      {M::kLinkBeforeVerify, {"--seed 12"}},
      {M::kListingErrorIsEmpty, {"--scenario starts-without-a-listing"}},
      {M::kLoseOccurrence, {"--seed 4"}},
      {M::kLowRunSequence, {"--seed 3"}},
      {M::kMixReplicas, {"--seed 6"}},
      {M::kNeverSweep, {"--seed 4"}},
      {M::kNewestByStep, {"--scenario newer-generation-is-away"}},
      {M::kOldLinksStay, {"--seed 1", "--seed 3"}},
      {M::kRefusedForGood, {"--scenario failed-on-full-mount", "--seed 32"}},
      {M::kSameYamlIsNew, {"--scenario dies-before-the-yaml-goes"}},
      {M::kTakeWithoutDigest, {"--seed 4"}},
      {M::kTellUnlooked, {"--scenario copy-in-a-vanished-volume"}},
      {M::kTwoUncommitted, {"--scenario no-copy-can-be-made"}},
  };
  return kHints;
}

}  // namespace tierkeep::sim
