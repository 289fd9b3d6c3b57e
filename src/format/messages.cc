#include "format/messages.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/log.h"
#include "format/message_budget.h"
#include "format/message_checks.h"
#include "format/record.h"

namespace tierkeep {
namespace {

constexpr size_t kTextBytesMax = 4096;

template <typename Fixed>
std::string RawOrEmpty(const Fixed& value) {
  return value.IsZero() ? std::string() : value.Raw();
}

void Clean(std::string* text) {
  std::string clean = EscapeForLog(*text, kTextBytesMax);
  if (clean != *text) *text = std::move(clean);
}

void CleanTexts(control::Join* m) {
  for (auto& part : *m->mutable_inventory()->mutable_unreadable()) Clean(part.mutable_detail());
  if (m->has_restored()) Clean(m->mutable_restored()->mutable_reason());
  if (m->has_last_restored()) Clean(m->mutable_last_restored()->mutable_reason());
}

void CleanTexts(control::RestoreStop* m) {
  for (auto& text : *m->mutable_given_up()) Clean(&text);
  Clean(m->mutable_instead());
}

void CleanTexts(control::Envelope* e) {
  switch (e->body_case()) {
    case control::Envelope::kJoin:
      return CleanTexts(e->mutable_join());
    case control::Envelope::kRejected:
      if (e->rejected().has_stop()) CleanTexts(e->mutable_rejected()->mutable_stop());
      return Clean(e->mutable_rejected()->mutable_reason());
    case control::Envelope::kRestore:
      return Clean(e->mutable_restore()->mutable_choice()->mutable_reason());
    case control::Envelope::kRestorePrepared:
      return Clean(e->mutable_restore_prepared()->mutable_error());
    case control::Envelope::kSaveFailed:
      return Clean(e->mutable_save_failed()->mutable_error());
    case control::Envelope::kKept:
      return Clean(e->mutable_kept()->mutable_error());
    case control::Envelope::kDrop:
      return Clean(e->mutable_drop()->mutable_reason());
    case control::Envelope::kGiveBack:
      return Clean(e->mutable_give_back()->mutable_reason());
    case control::Envelope::kRunEnded:
      return Clean(e->mutable_run_ended()->mutable_reason());
    case control::Envelope::kLeaving:
      return Clean(e->mutable_leaving()->mutable_reason());
    case control::Envelope::kJobStatus:
      Clean(e->mutable_job_status()->mutable_restore_reason());
      for (auto& text : *e->mutable_job_status()->mutable_problems()) Clean(&text);
      return;
    default:
      return;
  }
}

Status DecodeInto(std::string_view bytes, control::Envelope* envelope) {
  if (bytes.size() > kFrameBytesMax) {
    return Error(Code::kInvalidArgument,
                 fmt::format("message of {} bytes is over the limit", bytes.size()));
  }
  if (bytes.size() > kAlwaysFitsBytes) {
    TK_RETURN_IF_ERROR(CheckMessageBudget(*control::Envelope::descriptor(), bytes));
  }
  // The library would print a line of its own for each text that isn't UTF-8.
  const google::protobuf::LogSilencer silencer;
  if (!envelope->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Error(Code::kInvalidArgument, "message: it is no encoding of one");
  }
  return CheckEnvelope(*envelope);
}

// Its parts are freed together with it: a message has hundreds of them.
struct EnvelopeInArena {
  explicit EnvelopeInArena(size_t encoded_bytes) : arena(OptionsFor(encoded_bytes)) {}

  static google::protobuf::ArenaOptions OptionsFor(size_t encoded_bytes) {
    google::protobuf::ArenaOptions options;
    options.start_block_size = std::clamp<size_t>(encoded_bytes * 4, 1024, options.max_block_size);
    return options;
  }

  google::protobuf::Arena arena;
  control::Envelope* const envelope =
      google::protobuf::Arena::CreateMessage<control::Envelope>(&arena);
};

template <typename Message>
Result<std::string> EncodeChecked(RecordKind kind, const Message& message, const Status& checked) {
  TK_RETURN_IF_ERROR(checked);
  return EncodeRecord(kind, message.SerializeAsString());
}

template <typename Message>
Result<Message> DecodeChecked(RecordKind kind, std::string_view bytes,
                              Status (*check)(const Message&)) {
  TK_ASSIGN_OR_RETURN(const std::string payload, DecodeRecord(kind, bytes));
  Message message;
  if (!message.ParseFromString(payload)) {
    return Error(Code::kDataLoss, "record: its payload is no message of its kind");
  }
  if (const Status s = check(message); !s.ok()) {
    return Error(Code::kDataLoss, fmt::format("record: {}", s.error().message()));
  }
  return message;
}

}  // namespace

ShardSummary SummaryOf(const Manifest& manifest, std::string_view encoded) {
  ShardSummary s;
  s.digest = ManifestDigest(encoded);
  s.identity = manifest.identity;
  s.logical = manifest.logical;
  s.volume_name = VolumeDataName(manifest, s.digest);
  s.bytes = manifest.TotalBytes();
  s.manifest_bytes = encoded.size();
  return s;
}

control::RunId ToProto(const RunId& run) {
  control::RunId m;
  if (run.none()) return m;
  m.set_sequence(run.sequence);
  m.set_nonce(run.nonce.Raw());
  return m;
}

control::AttemptId ToProto(const AttemptId& attempt) {
  control::AttemptId m;
  if (attempt.counter == 0) return m;
  m.set_agent(attempt.agent.Raw());
  m.set_boot(attempt.boot.Raw());
  m.set_counter(attempt.counter);
  return m;
}

control::SaveKey ToProto(const SaveKey& save) {
  control::SaveKey m;
  *m.mutable_run() = ToProto(save.run);
  m.set_step(save.step);
  m.set_occurrence(save.occurrence);
  return m;
}

control::WorldShape ToProto(const WorldShape& world) {
  control::WorldShape m;
  m.set_framework(static_cast<uint32_t>(world.framework));
  m.set_nodes(world.nodes);
  m.set_workers_per_node(world.workers_per_node);
  m.set_data_parallelism(world.data_parallelism);
  return m;
}

control::ShardInfo ToProto(const ShardSummary& shard) {
  control::ShardInfo m;
  m.set_digest(shard.digest.Raw());
  m.set_job(shard.identity.job);
  *m.mutable_save() = ToProto(shard.identity.save);
  m.set_rank(shard.identity.rank);
  m.set_worker(shard.identity.worker);
  m.set_ordinal(shard.identity.ordinal);
  *m.mutable_world() = ToProto(shard.identity.world);
  m.set_logical(RawOrEmpty(shard.logical));
  m.set_volume_name(shard.volume_name);
  m.set_bytes(shard.bytes);
  m.set_manifest_bytes(shard.manifest_bytes);
  m.set_suspect(shard.suspect);
  return m;
}

RunId FromProto(const control::RunId& m) {
  return {m.sequence(), FixedFromProto<Id128>(m.nonce())};
}

AttemptId FromProto(const control::AttemptId& m) {
  return {FixedFromProto<Id128>(m.agent()), FixedFromProto<Id128>(m.boot()), m.counter()};
}

SaveKey FromProto(const control::SaveKey& m) {
  return {FromProto(m.run()), m.step(), m.occurrence()};
}

WorldShape FromProto(const control::WorldShape& m) {
  TK_CHECK(m.framework() >= 1 && m.framework() <= 3);
  return {static_cast<Framework>(m.framework()), m.nodes(), m.workers_per_node(),
          m.data_parallelism()};
}

ShardSummary FromProto(const control::ShardInfo& m) {
  ShardSummary s;
  s.digest = FixedFromProto<Blake3>(m.digest());
  s.identity = {m.job(),    FromProto(m.save()), m.rank(),
                m.worker(), m.ordinal(),         FromProto(m.world())};
  s.logical = FixedFromProto<Blake3>(m.logical());
  s.volume_name = m.volume_name();
  s.bytes = m.bytes();
  s.manifest_bytes = m.manifest_bytes();
  s.suspect = m.suspect();
  return s;
}

GenerationId GenerationIdOf(const control::GenerationRecord& record) {
  return {FromProto(record.save().run()), record.save_number()};
}

control::JobSettings SettingsOf(const JobConfig& config) {
  control::JobSettings m;
  m.set_job(config.job);
  *m.mutable_world() = ToProto(config.world);
  if (config.peer_ranks) {
    m.set_has_peer_ranks(true);
    for (const Rank peer : *config.peer_ranks) m.add_peer_ranks(peer);
  }
  if (config.peers_per_node) {
    m.set_has_peers_per_node(true);
    m.set_peers_per_node(*config.peers_per_node);
  }
  m.set_backup_interval_minutes(config.backup_interval_minutes.value_or(0));
  m.set_backup_interval_steps(config.backup_interval_steps.value_or(0));
  return m;
}

JobConfig WithSettings(const JobConfig& own, const control::JobSettings& settings) {
  const auto unless_zero = [](uint32_t n) { return n > 0 ? std::optional(n) : std::nullopt; };
  JobConfig config = own;
  config.job = settings.job();
  config.world = FromProto(settings.world());
  config.peers_per_node.reset();
  if (settings.has_peers_per_node()) config.peers_per_node = settings.peers_per_node();
  config.backup_interval_minutes = unless_zero(settings.backup_interval_minutes());
  config.backup_interval_steps = unless_zero(settings.backup_interval_steps());
  return config;
}

Result<std::string> EncodeEnvelope(control::Envelope envelope) {
  CleanTexts(&envelope);
  TK_RETURN_IF_ERROR(CheckEnvelope(envelope));
  const size_t size = envelope.ByteSizeLong();
  if (size > kFrameBytesMax) {
    return Error(Code::kResourceExhausted,
                 fmt::format("message of {} bytes is over the limit of {}", size, kFrameBytesMax));
  }
  return envelope.SerializeAsString();
}

Result<control::Envelope> DecodeEnvelope(std::string_view bytes) {
  control::Envelope envelope;
  TK_RETURN_IF_ERROR(DecodeInto(bytes, &envelope));
  return envelope;
}

Result<SharedEnvelope> DecodeSharedEnvelope(std::string_view bytes) {
  auto decoded = std::make_shared<EnvelopeInArena>(bytes.size());
  TK_RETURN_IF_ERROR(DecodeInto(bytes, decoded->envelope));
  const control::Envelope* const envelope = decoded->envelope;
  return SharedEnvelope(std::shared_ptr<const control::Envelope>(std::move(decoded), envelope));
}

Result<std::string> EncodeGenerationRecord(const control::GenerationRecord& record) {
  return EncodeChecked(RecordKind::kGeneration, record, CheckGenerationRecord(record));
}
Result<control::GenerationRecord> DecodeGenerationRecord(std::string_view bytes) {
  return DecodeChecked(RecordKind::kGeneration, bytes, &CheckGenerationRecord);
}
Result<std::string> EncodeNodeState(const control::NodeState& state) {
  return EncodeChecked(RecordKind::kNodeState, state, CheckNodeState(state));
}
Result<control::NodeState> DecodeNodeState(std::string_view bytes) {
  return DecodeChecked(RecordKind::kNodeState, bytes, &CheckNodeState);
}
Result<std::string> EncodeRendezvousRecord(const control::RendezvousRecord& record) {
  return EncodeChecked(RecordKind::kRendezvous, record, CheckRendezvousRecord(record));
}
Result<control::RendezvousRecord> DecodeRendezvousRecord(std::string_view bytes) {
  return DecodeChecked(RecordKind::kRendezvous, bytes, &CheckRendezvousRecord);
}

}  // namespace tierkeep
