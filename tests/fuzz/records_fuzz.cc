// Small durable records: the agent's state, generation records, the rendezvous. The first byte
// chooses the kind; the rest is a payload that gets its header and digest here, or, with the top
// bit, a whole record.

#include "base/check.h"
#include "format/message_testutil.h"
#include "format/messages.h"
#include "format/record.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

template <typename Message>
void Check(std::string_view bytes, Result<Message> (*decode)(std::string_view),
           Result<std::string> (*encode)(const Message&)) {
  const auto decoded = decode(bytes);
  if (!decoded.ok()) {
    TK_CHECK(decoded.error().code() == Code::kDataLoss);
    return;
  }
  const auto encoded = encode(*decoded);
  TK_CHECK(encoded.ok());
  const auto again = decode(*encoded);
  TK_CHECK(again.ok() && *encode(*again) == *encoded);
}

control::NodeState State(MessageMaker* maker) {
  control::NodeState state;
  state.set_agent(maker->prng.Bytes(16));
  state.set_attempt_counter(3);
  state.set_config_text("job-name: j\n");
  state.set_config_file_id("42-17-abc");
  const control::Envelope envelope = maker->Join();
  const control::Join& join = envelope.join();
  *state.mutable_attempt() = join.attempt();
  *state.mutable_run() = ToProto(maker->run);
  state.set_epoch(7);
  *state.mutable_highest_run() = ToProto(maker->run);
  state.set_highest_epoch(7);
  state.set_released(true);
  *state.mutable_restored() = join.restored();
  state.add_nodes("node-a");
  state.set_last_ordinal(2);
  *state.add_saves() = ToProto(maker->save);
  *state.mutable_last_run() = ToProto(maker->run);
  *state.mutable_last_restored() = join.last_restored();
  *state.mutable_last_world() = ToProto(MessageMaker::World());
  return state;
}

control::RendezvousRecord Rendezvous(MessageMaker* maker) {
  control::RendezvousRecord record;
  record.set_job(MessageMaker::kJob);
  record.set_epoch(9);
  *record.mutable_run() = ToProto(maker->run);
  maker->Data(record.mutable_coordinator());
  record.set_boot(maker->prng.Bytes(16));
  record.set_node("node-a");
  return record;
}

}  // namespace

void RunOne(std::string_view input) {
  Input in(input);
  const unsigned choice = in.Byte();
  const auto kind = static_cast<RecordKind>(1 + (choice & 0x7f) % 5);
  const std::string bytes = choice & 0x80 ? std::string(in.rest()) : EncodeRecord(kind, in.rest());
  switch (kind) {
    case RecordKind::kNodeState:
      return Check(bytes, DecodeNodeState, EncodeNodeState);
    case RecordKind::kGeneration:
      return Check(bytes, DecodeGenerationRecord, EncodeGenerationRecord);
    case RecordKind::kRendezvous:
      return Check(bytes, DecodeRendezvousRecord, EncodeRendezvousRecord);
    default: {
      const auto payload = DecodeRecord(kind, bytes);
      TK_CHECK(!payload.ok() || EncodeRecord(kind, *payload) == bytes);
    }
  }
}

std::vector<std::string> Seeds() {
  MessageMaker maker{Prng(2)};
  const std::string state = State(&maker).SerializeAsString();
  const std::string generation =
      RandomGeneration(&maker.prng, MessageMaker::kJob, MessageMaker::World()).SerializeAsString();
  const std::string rendezvous = Rendezvous(&maker).SerializeAsString();
  return {Raw("\0") + state, Raw("\1") + generation, Raw("\2") + rendezvous,
          Raw("\3") + std::string(16, 'i'),
          Raw("\x81") + EncodeRecord(RecordKind::kGeneration, generation)};
}

}  // namespace tierkeep::fuzz
