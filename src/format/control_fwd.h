// Forward declarations of the generated messages, so that headers don't pull in protobuf.
#pragma once

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
