// Forward declarations of the generated messages, so that headers don't pull in protobuf.
#pragma once

#include <memory>

namespace tierkeep::control {
class Address;
class Envelope;
class GenerationRecord;
class Inventory;
class Join;
class NodeState;
class RendezvousRecord;
class RestoreChoice;
class ShardInfo;
}  // namespace tierkeep::control

namespace tierkeep {
// A record names all shards of a job: it is given on, not copied.
using SharedRecord = std::shared_ptr<const control::GenerationRecord>;
}  // namespace tierkeep
