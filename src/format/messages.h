// Control messages and durable records: C++ values <-> the generated classes of
// proto/control.proto, and decoding that checks everything, so that no malformed message ever
// reaches a decision.
//
// The rule: bytes from outside become a message only through a Decode function here; FromProto is
// for messages that came from one (or were made by ToProto) and crashes on any other.
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/result.h"
#include "control.pb.h"
#include "format/ids.h"
#include "format/manifest.h"
#include "format/replicator_config.h"

namespace tierkeep {

inline constexpr uint32_t kFrameBytesMax = 64u << 20;
// A token that admits to a data port: random, at least this long.
inline constexpr size_t kDataTokenBytesMin = 16;
inline constexpr size_t kDataTokenBytesMax = 64;

// One copy of a shard, as its holder describes it.
struct ShardSummary {
  Blake3 digest;  // the shard's name
  ShardIdentity identity;
  Blake3 logical;           // zero: not computed
  std::string volume_name;  // H
  uint64_t bytes = 0;
  uint64_t manifest_bytes = 0;
  bool suspect = false;  // may serve, but counts only after it is verified again
  auto operator<=>(const ShardSummary&) const = default;
};
// `encoded` is the encoding of `manifest`.
ShardSummary SummaryOf(const Manifest& manifest, std::string_view encoded);

// A none run, attempt or digest becomes an empty message or field, and the reverse.
control::RunId ToProto(const RunId& run);
control::AttemptId ToProto(const AttemptId& attempt);
control::SaveKey ToProto(const SaveKey& save);
control::WorldShape ToProto(const WorldShape& world);
control::ShardInfo ToProto(const ShardSummary& shard);
RunId FromProto(const control::RunId& message);
AttemptId FromProto(const control::AttemptId& message);
SaveKey FromProto(const control::SaveKey& message);
WorldShape FromProto(const control::WorldShape& message);
ShardSummary FromProto(const control::ShardInfo& message);
GenerationId GenerationIdOf(const control::GenerationRecord& record);
// A checked digest, id or other field of fixed size.
template <typename Fixed>
Fixed FixedFromProto(const std::string& bytes) {
  if (bytes.empty()) return {};
  const auto value = Fixed::FromBytes(bytes);
  TK_CHECK(value.has_value());
  return *value;
}

// The part of a configuration that crosses the wire.
control::JobSettings SettingsOf(const JobConfig& config);
// `own` with `settings` in place of that part: what holds for this node once the job has agreed.
// The node's rank, peer-ranks, master and master-port stay its own.
JobConfig WithSettings(const JobConfig& own, const control::JobSettings& settings);

// Whether a message keeps every rule of docs/protocol.md, "Control": sizes of digests and ids,
// ranks and workers within the world, names of the allowed form, one job throughout.
Status CheckEnvelope(const control::Envelope& envelope);

// The content of one frame (io/frame_network.h adds its length). Texts for people (reasons, errors)
// are made valid UTF-8 and cut to 4 KiB. kInvalidArgument: a rule is broken; kResourceExhausted:
// over kFrameBytesMax.
Result<std::string> EncodeEnvelope(control::Envelope envelope);
// kInvalidArgument for anything that isn't a whole, checked message; kUnimplemented for one of a
// kind that this version doesn't know. Never allocates more than a small multiple of `bytes`.
Result<control::Envelope> DecodeEnvelope(std::string_view bytes);

// A message that nobody changes any more; copies share it. Made of a plain one, or where what was
// decoded lies in one piece of memory. Never empty, but after it was moved from.
class SharedEnvelope {
 public:
  SharedEnvelope(control::Envelope message)  // NOLINT(google-explicit-constructor)
      : message_(std::make_shared<const control::Envelope>(std::move(message))) {}
  explicit SharedEnvelope(std::shared_ptr<const control::Envelope> message)
      : message_(std::move(message)) {}

  const control::Envelope& operator*() const { return *message_; }
  const control::Envelope* operator->() const { return message_.get(); }

 private:
  std::shared_ptr<const control::Envelope> message_;
};
// As DecodeEnvelope, faster: an arena holds all of the message's parts.
Result<SharedEnvelope> DecodeSharedEnvelope(std::string_view bytes);

// ---- durable records: payload and frame (format/record.h) together ---------------------------
// Encode: kInvalidArgument when a rule is broken. Decode: kDataLoss for all that isn't one whole,
// checked record.
Result<std::string> EncodeGenerationRecord(const control::GenerationRecord& record);
Result<control::GenerationRecord> DecodeGenerationRecord(std::string_view bytes);
Result<std::string> EncodeNodeState(const control::NodeState& state);
Result<control::NodeState> DecodeNodeState(std::string_view bytes);
Result<std::string> EncodeRendezvousRecord(const control::RendezvousRecord& record);
Result<control::RendezvousRecord> DecodeRendezvousRecord(std::string_view bytes);

}  // namespace tierkeep
