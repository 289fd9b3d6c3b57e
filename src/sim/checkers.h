// Every promise that the simulator looks after, by the place that sees it broken. The suite of
// tierkeep-sim-mutable shows for each that some missing guard of the product breaks it: a checker
// that can't fail is none. docs/testing.md, "A checker".
#pragma once

#include <cstdint>

namespace tierkeep::sim {

// X(enumerator, what is broken)
#define TK_CHECKERS(X)                                                       \
  /* scenarios.cc: what a schedule with a name demands beside all others. */ \
  X(kScenario, "what a scenario demands")                                    \
  /* world.cc: a bound of the simulator's own. */                            \
  X(kCircles, "it goes round in circles")                                    \
  /* ledger.cc */                                                            \
  X(kBehindCommit, "a restore from behind the newest commit")                \
  X(kAbandonedBranch, "a restore from an abandoned branch")                  \
  X(kCommitLacksCopies, "a commit without all of its copies")                \
  X(kLastCopyGone, "the last good copy of a committed shard is gone")        \
  X(kSavesPileUp, "uncommitted saves pile up")                               \
  X(kNotInPlace, "in the end a copy is missing or something is left over")   \
  /* budget.cc */                                                            \
  X(kMemoryBudget, "a mount holds more than docs/memory.md allows")          \
  /* moments.cc */                                                           \
  X(kShardOverlooked, "a shard is overlooked at the start")                  \
  X(kLinkBeforeDecision, "a link appears before the decision")               \
  X(kBadLink, "a link appears that leads to something bad")                  \
  /* operator.cc */                                                          \
  X(kOrderIgnored, "an order to skip a step is not obeyed")                  \
  /* outcomes.cc */                                                          \
  X(kWaitsInVain, "a process waits for nothing")                             \
  X(kSaveLeft, "nothing comes of a finished save")                           \
  /* fates.cc */                                                             \
  X(kSaveVanished, "a finished save is gone, and nobody says why")           \
  /* sim_client.cc */                                                        \
  X(kFailedWhileTraining, "replicator.failed while the job trains")          \
  X(kForeignLink, "a link for another rank or job")                          \
  X(kBadCheckpoint, "a bad checkpoint is handed out")                        \
  /* sim_job.cc */                                                           \
  X(kNodesDiffer, "nodes go on from different saves")                        \
  /* sim_rendezvous.cc */                                                    \
  X(kEpochFalls, "an epoch lower than the one before")                       \
  X(kRunFalls, "a run's sequence no higher than the one before")             \
  /* sim_runtime.cc */                                                       \
  X(kOldEpochActs, "a message of an earlier epoch has an effect")            \
  X(kOldConnectionActs, "a message of an older connection has an effect")    \
  /* simulation.cc */                                                        \
  X(kUnexplainedError, "an error that no fault explains")                    \
  X(kNoCommit, "no commit in time")                                          \
  X(kNotRebuilt, "copies are not made again")

enum class Checker : uint8_t {
#define TK_ENUMERATOR(name, text) name,
  TK_CHECKERS(TK_ENUMERATOR)
#undef TK_ENUMERATOR
};

}  // namespace tierkeep::sim
