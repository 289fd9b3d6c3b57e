// The rules of docs/protocol.md, "Control", for each message (see CheckEnvelope in messages.h) and
// for the durable records. All fail with kInvalidArgument, naming message, field and rule.
#pragma once

#include "base/result.h"
#include "control.pb.h"

namespace tierkeep {

Status CheckGenerationRecord(const control::GenerationRecord& record);
Status CheckNodeState(const control::NodeState& state);
Status CheckRendezvousRecord(const control::RendezvousRecord& record);

}  // namespace tierkeep
