// Marks in the product's code for the simulator. Nothing of them is in the product: there a
// mutation is the constant false and a probe is no code. They live only where TIERKEEP_MUTABLE is
// defined, in the second build of the marked files, which tierkeep-sim-mutable is made of.
//
// A *mutation* takes away one guard: `if (done || TK_MUTATION(kCommitOnSendersWord))`. The suite
// shows that the simulator notices each within a bounded number of schedules: a guard that nothing
// would miss is not tested. A *probe* marks a rare path: a suite run that never comes by fails.
//
// Included by .cc files alone: only those with marks are built twice. docs/testing.md says how to
// add one. Threads (of the mutable build): one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tierkeep {

// X(enumerator, name for the command line)
#define TK_MUTATIONS(X)                                           \
  /* A save commits as soon as its owners have it. */             \
  X(kCommitOnSendersWord, "commit-on-senders-word")               \
  /* Older shards go when a newer save is staged. */              \
  X(kCollectBeforeCommit, "collect-before-commit")                \
  /* What the node holds is restored unread. */                   \
  X(kLinkBeforeVerify, "link-before-verify")                      \
  /* A directory of the store that can't be listed is empty. */   \
  X(kListingErrorIsEmpty, "listing-error-is-empty")               \
  /* The highest step is the newest. */                           \
  X(kNewestByStep, "newest-by-step")                              \
  /* What a crash left in incoming/ becomes a shard. */           \
  X(kAdoptFromIncoming, "adopt-from-incoming")                    \
  /* A restarted agent cleans the volume of its running job. */   \
  X(kCleanOnResume, "clean-on-resume")                            \
  /* Nodes are restored from replicas with different values. */   \
  X(kMixReplicas, "mix-replicas")                                 \
  /* An older coordinator is listened to. */                      \
  X(kAcceptOlderEpoch, "accept-older-epoch")                      \
  /* A join that an older connection brings late counts. */       \
  X(kAcceptOlderConnection, "accept-older-connection")            \
  /* A step that is saved again is the same save. */              \
  X(kLoseOccurrence, "lose-occurrence")                           \
  /* A copy that the job may have changed counts. */              \
  X(kCountSuspectCopy, "count-suspect-copy")                      \
  /* Received bytes are taken whatever their digest is. */        \
  X(kTakeWithoutDigest, "take-without-digest")                    \
  /* Copies that a restore found missing are not made again. */   \
  X(kNoRebuild, "no-rebuild")                                     \
  /* The same yaml, seen again, is a new attempt. */              \
  X(kSameYamlIsNew, "same-yaml-is-new")                           \
  /* A run's sequence is the wall clock's, lower or not. */       \
  X(kLowRunSequence, "low-run-sequence")                          \
  /* A newer complete save doesn't drop the uncommitted one. */   \
  X(kTwoUncommitted, "two-uncommitted")                           \
  /* Whoever is prepared is released. */                          \
  X(kReleaseEarly, "release-early")                               \
  /* A save counts while somebody still writes to it. */          \
  X(kIgnoreWriters, "ignore-writers")                             \
  /* Links before the decision: clients take it for none. */      \
  X(kLinksBeforeDecision, "links-before-decision")                \
  /* Obsolete shards stay. */                                     \
  X(kNeverCollect, "never-collect")                               \
  /* A node without a rank keeps what others have by now. */      \
  X(kHolderKeepsCopies, "holder-keeps-copies")                    \
  /* A save that no coordinator can be told of is given up. */    \
  X(kDropUntold, "drop-untold")                                   \
  /* What may have been committed unheard goes like the rest. */  \
  X(kForgetInDoubt, "forget-in-doubt")                            \
  /* An order to skip a generation isn't obeyed. */               \
  X(kIgnoreSkip, "ignore-skip")                                   \
  /* Nobody waits for a newer generation whose nodes are away. */ \
  X(kForgetAbsent, "forget-absent")                               \
  /* A job that can't start in time isn't told. */                \
  X(kNoStartDeadline, "no-start-deadline")                        \
  /* What a watch has lost is not looked for. */                  \
  X(kIgnoreOverflow, "ignore-overflow")                           \
  /* Replicas with different values stand in for copies. */       \
  X(kDivergentCopies, "divergent-copies")                         \
  /* What a run was restored from or skipped is forgotten.     */ \
  X(kForgetBranches, "forget-branches")                           \
  /* An epoch isn't raised above the rendezvous record's. */      \
  X(kLowEpoch, "low-epoch")                                       \
  /* What one attempt was refused for is told to the next. */     \
  X(kRefusedForGood, "refused-for-good")                          \
  /* A record that can't be read commits nothing. */              \
  X(kHiddenRecordIsNone, "hidden-record-is-none")                 \
  /* A rank goes to an older start's node as to any other. */     \
  X(kForgetSeat, "forget-seat")                                   \
  /* Links of the attempt before stay in the volume. */           \
  X(kOldLinksStay, "old-links-stay")                              \
  /* What a crash left half made in the store stays. */           \
  X(kNeverSweep, "never-sweep")                                   \
  /* The agent works on in a volume that nobody else sees. */     \
  X(kIgnoreVanishedVolume, "ignore-vanished-volume")              \
  /* Copies are told of without a look at the volume. */          \
  X(kTellUnlooked, "tell-unlooked")

#define TK_PROBES(X)                                               \
  X(kRankTakenByNewer, "rank taken by a newer attempt")            \
  X(kSecondSourceFailed, "third holder after two bad ones")        \
  X(kOlderGeneration, "fallback to an older generation")           \
  X(kDivergentReplicas, "divergent replicas at a commit")          \
  X(kOneRowForAll, "one partition's row restored for all")         \
  X(kReplicaStandsIn, "an equal replica's shard stands in")        \
  X(kResumeMidRestore, "a run goes on in mid-restore")             \
  X(kResumeMidRelease, "a release is finished after a restart")    \
  X(kResumeMidClean, "a cleaning is finished after a restart")     \
  X(kHolderServes, "a holder without a rank serves")               \
  X(kWaitedForHolders, "a decision waits for absent nodes")        \
  X(kWaitedForSource, "a restore waits for a silent source")       \
  X(kNewerCoordinator, "a newer coordinator takes over")           \
  X(kOlderEpochDropped, "word of an older coordinator dropped")    \
  X(kOlderLinkDropped, "word of an older connection dropped")      \
  X(kStrangersTakeOver, "strangers fill all ranks of a run")       \
  X(kRunEndsForYaml, "a member's new yaml ends the run")           \
  X(kRunGoesOn, "a restarted coordinator goes on with the run")    \
  X(kSaveRefused, "a save refused")                                \
  X(kSaveOvertaken, "an uncommitted save overtaken by a newer")    \
  X(kSaveSkipped, "a save that some node skipped dropped")         \
  X(kStepSavedAgain, "a step saved again within a run")            \
  X(kSaveAdopted, "a leftover save of the last run adopted")       \
  X(kNoRoomForPull, "a pull refused for want of room")             \
  X(kWrongBytesReceived, "wrong bytes from a source")              \
  X(kBadCopyReplaced, "an own bad copy replaced by a peer's")      \
  X(kSuspectCleared, "a suspect copy verified again")              \
  X(kLinksTakenApart, "restored links taken apart by the job")     \
  X(kUnreadableItem, "something unreadable in a store")            \
  X(kDamagedCopyIsLost, "a damaged copy that no record names")     \
  X(kRestoreBlocked, "a decision blocked by something unreadable") \
  X(kRebuild, "lost copies rebuilt")                               \
  X(kCommitWaits, "a protected save waits for a member")           \
  X(kCommitTakenBack, "a commit that could not be recorded")       \
  X(kCommitMisses, "a node lacks what a commit has it keep")       \
  X(kSaveInDoubt, "a save that may be committed kept unheard")     \
  X(kWriterWaitedFor, "an open writer waited for")                 \
  X(kChangedWhileHashed, "a save changed while it was hashed")     \
  X(kSharedFileCopied, "a file with a second name copied")         \
  X(kYamlExchanged, "a yaml exchanged while it was removed")       \
  X(kWatchOverflow, "a watch overflowed")                          \
  X(kVolumeVanished, "a vanished volume noticed")                  \
  X(kVanishedUntold, "copies in a vanished volume untold")

enum class Mutation : uint8_t {
  kNone,
#define TK_ENUMERATOR(name, text) name,
  TK_MUTATIONS(TK_ENUMERATOR)
};
enum class Probe : uint8_t { TK_PROBES(TK_ENUMERATOR) kCount };
#undef TK_ENUMERATOR

#ifdef TIERKEEP_MUTABLE
inline Mutation selected_mutation = Mutation::kNone;
inline std::array<uint64_t, static_cast<size_t>(Probe::kCount)> probe_hits{};

#define TK_MUTATION(name) (::tierkeep::selected_mutation == ::tierkeep::Mutation::name)
#define TK_PROBE_IF(name, condition) \
  ((condition) ? void(++::tierkeep::probe_hits[size_t(::tierkeep::Probe::name)]) : void(0))
#else
#define TK_MUTATION(name) (static_cast<void>(::tierkeep::Mutation::name), false)
// `condition` is compiled, never evaluated.
#define TK_PROBE_IF(name, condition) \
  static_cast<void>(sizeof(::tierkeep::Probe::name) + sizeof(bool(condition)))
#endif
#define TK_PROBE(name) TK_PROBE_IF(name, true)

}  // namespace tierkeep
