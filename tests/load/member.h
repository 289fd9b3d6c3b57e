// One simulated member of a job, as the coordinator sees it: it says what the protocol asks for and
// holds no data, so nobody must pull from it. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "control.pb.h"
#include "format/ids.h"

namespace tierkeep {

class Member {
 public:
  // Of a job of `nodes` ranks, framework pytorch.distributed. `keeper` is told as the rank that
  // keeps the copy of this one's saves. Certain ids follow from the rank, so they are the same in
  // each run of the program.
  Member(std::string job, Rank rank, uint32_t nodes, Rank keeper);

  // A new start of the job's process: what was heard of the run before is history.
  control::Envelope Join();
  // It saved `step`, and has hashed it.
  control::Envelope Save(Step step);
  // What a message of the coordinator makes it say. An error ends the program: this member was
  // refused, or was told what it can't do.
  Result<std::optional<control::Envelope>> Hear(const control::Envelope& message);

  bool entered() const { return entered_; }    // RunStart since the last Join
  bool decided() const { return decided_; }    // Restore
  bool released() const { return released_; }  // Release
  Step committed() const { return record_ ? record_->save().step() : 0; }  // 0: none
  Step restored() const { return restored_; }                              // 0: none

 private:
  control::Envelope NewMessage() const;

  const std::string job_;
  const Rank rank_;
  const WorldShape world_;
  const Rank keeper_;
  const std::string node_;
  uint64_t attempt_ = 0;
  RunId run_;
  Epoch epoch_ = 0;
  bool entered_ = false;
  bool decided_ = false;
  bool released_ = false;
  Step restored_ = 0;
  uint64_t ordinal_ = 0;
  std::vector<control::ShardInfo> held_;  // own and others'
  std::optional<control::GenerationRecord> record_;
};

}  // namespace tierkeep
