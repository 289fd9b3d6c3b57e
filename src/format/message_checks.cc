#include "format/message_checks.h"

#include <fmt/format.h>

#include <set>

#include "base/escape_name.h"
#include "format/message_parts.h"
#include "format/messages.h"
#include "format/restore_orders.h"
#include "format/volume_names.h"

namespace tierkeep {
namespace {

using checks::Bad;
using checks::CheckAddress;
using checks::CheckAttempt;
using checks::CheckChoice;
using checks::CheckCounts;
using checks::CheckDigests;
using checks::CheckFixed;
using checks::CheckGeneration;
using checks::CheckJob;
using checks::CheckMember;
using checks::CheckNodeName;
using checks::CheckNodeNames;
using checks::CheckNumber;
using checks::CheckRun;
using checks::CheckSave;
using checks::CheckSettings;
using checks::CheckShard;
using checks::CheckSources;
using checks::CheckStop;
using checks::CheckText;
using checks::CheckToken;
using checks::CheckWanted;
using checks::CheckWorld;
using checks::Presence;
using checks::SameSave;
using checks::SameWorld;
using checks::Shards;

constexpr int kDifferencesMax = 64;
constexpr size_t kConfigTextBytesMax = 64 << 10;
constexpr size_t kConfigIdBytesMax = 256;

// ---- one function a body -----------------------------------------------------------------------

Status CheckBody(const control::SaveStaged& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckSave(m.save()));
  TK_RETURN_IF_ERROR(CheckNumber(m.ordinal(), "ordinal"));
  if (m.shards().empty()) return Bad("no shard");
  const control::ShardInfo& first = m.shards(0);
  for (int i = 0; i < m.shards_size(); ++i) {
    const control::ShardInfo& shard = m.shards(i);
    TK_RETURN_IF_ERROR(CheckShard(shard, job));
    if (shard.worker() != static_cast<uint32_t>(i) || shard.rank() != first.rank() ||
        shard.ordinal() != m.ordinal() || !SameSave(shard.save(), m.save()) ||
        !SameWorld(shard.world(), first.world())) {
      return Bad("shard {} is of another rank, worker, save or world", i);
    }
  }
  if (static_cast<uint32_t>(m.shards_size()) != first.world().workers_per_node()) {
    return Bad("{} shards, not {}", m.shards_size(), first.world().workers_per_node());
  }
  return OkStatus();
}

Status CheckInventory(const control::Inventory& inventory, const std::string& job) {
  for (const auto& shard : inventory.shards()) TK_RETURN_IF_ERROR(CheckShard(shard, job));
  for (const auto& g : inventory.generations()) {
    TK_RETURN_IF_ERROR(CheckGeneration(g, job, Shards::kComplete));
  }
  for (const auto& part : inventory.unreadable()) {
    TK_RETURN_IF_ERROR(
        CheckFixed(part.digest(), Blake3::kSize, "unreadable.digest", Presence::kOptional));
    TK_RETURN_IF_ERROR(CheckRun(part.run(), "unreadable.run", Presence::kOptional));
    TK_RETURN_IF_ERROR(CheckText(part.detail(), "unreadable.detail"));
  }
  return OkStatus();
}

Status CheckJoinRun(const control::Join& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckRun(m.highest_run(), "highest_run", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckRun(m.in_run(), "in_run", Presence::kOptional));
  if (m.released() && !m.has_restored()) return Bad("released without a choice");
  if (m.has_restored()) TK_RETURN_IF_ERROR(CheckChoice(m.restored(), job));
  TK_RETURN_IF_ERROR(CheckRun(m.last_run(), "last_run", Presence::kOptional));
  if (m.has_last_restored()) TK_RETURN_IF_ERROR(CheckChoice(m.last_restored(), job));
  for (const auto& staged : m.staged()) {
    TK_RETURN_IF_ERROR(
        CheckBody(staged, job).map_error([](const Error& e) { return e.With("staged"); }));
    if (staged.save().run().sequence() != m.in_run().sequence() ||
        staged.save().run().nonce() != m.in_run().nonce() || staged.shards(0).rank() != m.rank() ||
        m.holder()) {
      return Bad("staged is of another run or rank");
    }
  }
  return OkStatus();
}

Status CheckBody(const control::Join& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckNodeName(m.node(), "node"));
  if (m.holder()) {
    // Its rank says nothing, and settings only what they were.
    if (m.has_settings()) TK_RETURN_IF_ERROR(CheckSettings(m.settings(), job));
    TK_RETURN_IF_ERROR(CheckAttempt(m.attempt(), Presence::kOptional));
    if (m.has_seat()) TK_RETURN_IF_ERROR(CheckAttempt(m.seat().attempt(), Presence::kRequired));
  } else {
    TK_RETURN_IF_ERROR(CheckSettings(m.settings(), job));
    if (m.rank() >= m.settings().world().nodes()) return Bad("rank {} is too high", m.rank());
    TK_RETURN_IF_ERROR(CheckAttempt(m.attempt(), Presence::kRequired));
    if (m.has_seat()) return Bad("a member tells of a seat");
  }
  TK_RETURN_IF_ERROR(CheckFixed(m.agent_boot(), Id128::kSize, "agent_boot", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckFixed(m.link().agent(), Id128::kSize, "link.agent", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckAddress(m.data(), "data"));
  TK_RETURN_IF_ERROR(CheckToken(m.data_token()));
  TK_RETURN_IF_ERROR(CheckJoinRun(m, job));
  TK_RETURN_IF_ERROR(CheckInventory(m.inventory(), job));
  TK_RETURN_IF_ERROR(CheckRestoreOrders(m.orders(), job));
  TK_RETURN_IF_ERROR(CheckCounts(m.restores(), job));
  return CheckNodeNames(m.previous_nodes(), "previous_nodes");
}

Status CheckBody(const control::Rejected& m, const std::string&) {
  if (m.has_stop()) TK_RETURN_IF_ERROR(CheckStop(m.stop()));
  return CheckText(m.reason(), "reason");
}

// Names are unique, since sources are named by them; ranks too. Of a large job only some are there.
Status CheckBody(const control::RunStart& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckRun(m.run(), "run", Presence::kRequired));
  TK_RETURN_IF_ERROR(CheckNumber(m.epoch(), "epoch"));
  TK_RETURN_IF_ERROR(CheckSettings(m.settings(), job));
  const uint32_t nodes = m.settings().world().nodes();
  std::set<std::string_view> names;
  std::set<uint32_t> ranks;
  for (const auto& member : m.members()) {
    TK_RETURN_IF_ERROR(CheckMember(member));
    if (!names.insert(member.node()).second)
      return Bad("member '{}' is named twice", member.node());
    if (member.holder()) continue;
    if (member.rank() >= nodes || !ranks.insert(member.rank()).second) {
      return Bad("member '{}' has rank {}, taken or too high", member.node(), member.rank());
    }
  }
  return OkStatus();
}

Status CheckBody(const control::Restore& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckChoice(m.choice(), job));
  if (m.choice().none() && !m.wanted().empty()) return Bad("shards are wanted without a choice");
  return CheckWanted(m.wanted(), job);
}

Status CheckBody(const control::RestorePrepared& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckNumber(m.decision(), "decision"));
  TK_RETURN_IF_ERROR(CheckText(m.error(), "error"));
  TK_RETURN_IF_ERROR(CheckDigests(m.bad_shards(), "bad_shards"));
  return CheckNodeNames(m.bad_sources(), "bad_sources");
}

Status CheckBody(const control::SaveFailed& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckSave(m.save()));
  TK_RETURN_IF_ERROR(CheckNumber(m.ordinal(), "ordinal"));
  return CheckText(m.error(), "error");
}

Status CheckBody(const control::Keep& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckNumber(m.order(), "order"));
  return CheckWanted(m.wanted(), job);
}

Status CheckBody(const control::Kept& m, const std::string&) {
  const bool numbered = m.ok() || m.waiting() || !m.out_of_space();
  if (numbered) TK_RETURN_IF_ERROR(CheckNumber(m.order(), "order"));
  TK_RETURN_IF_ERROR(CheckText(m.error(), "error"));
  TK_RETURN_IF_ERROR(CheckDigests(m.held(), "held"));
  if (m.waiting() && m.ok()) return Bad("an order that waits is called done");
  return CheckNodeNames(m.bad_sources(), "bad_sources");
}

Status CheckBody(const control::GiveBack& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckDigests(m.digests(), "digests"));
  return CheckText(m.reason(), "reason");
}

Status CheckBody(const control::Drop& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckSave(m.save()));
  return CheckText(m.reason(), "reason");
}

Status CheckBody(const control::Commit& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckGeneration(m.generation(), job, Shards::kComplete));
  if (!m.generation().committed()) return Bad("the generation isn't committed");
  TK_RETURN_IF_ERROR(CheckDigests(m.obsolete(), "obsolete"));
  return CheckDigests(m.keep(), "keep");
}

Status CheckBody(const control::CommitRecorded& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckRun(m.run(), "run", Presence::kRequired));
  TK_RETURN_IF_ERROR(CheckNumber(m.save_number(), "save_number"));
  return CheckDigests(m.missing(), "missing");
}

Status CheckBody(const control::RunEnded& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckRun(m.run(), "run", Presence::kRequired));
  return CheckText(m.reason(), "reason");
}

Status CheckBody(const control::Leaving& m, const std::string&) {
  return CheckText(m.reason(), "reason");
}

Status CheckBody(const control::Compare& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckNumber(m.order(), "order"));
  TK_RETURN_IF_ERROR(CheckShard(m.own(), job));
  TK_RETURN_IF_ERROR(CheckSources(m.other(), job));
  if (m.own().logical().empty() || m.other().shard().logical().empty()) {
    return Bad("shards without a logical digest are to be compared");
  }
  return OkStatus();
}

template <typename List>
Status CheckDifferences(const List& differences, uint64_t total) {
  if (differences.size() > kDifferencesMax || static_cast<uint64_t>(differences.size()) > total) {
    return Bad("{} differences of {}", differences.size(), total);
  }
  for (const std::string& text : differences) TK_RETURN_IF_ERROR(CheckText(text, "differences"));
  return OkStatus();
}

Status CheckBody(const control::Compared& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckNumber(m.order(), "order"));
  TK_RETURN_IF_ERROR(CheckText(m.error(), "error"));
  return CheckDifferences(m.differences(), m.total());
}

Status CheckBody(const control::Divergence& m, const std::string&) {
  TK_RETURN_IF_ERROR(CheckSave(m.save()));
  TK_RETURN_IF_ERROR(CheckText(m.text(), "text"));
  if (m.odd().empty() || static_cast<uint32_t>(m.odd_size()) > m.odd_total()) {
    return Bad("{} odd replicas of {}", m.odd_size(), m.odd_total());
  }
  for (const auto& odd : m.odd()) {
    if (odd.rank() >= kNodesMax || odd.reference_rank() >= kNodesMax) return Bad("rank too high");
    TK_RETURN_IF_ERROR(CheckNodeName(odd.node(), "odd.node"));
    TK_RETURN_IF_ERROR(CheckNodeName(odd.reference_node(), "odd.reference_node"));
    TK_RETURN_IF_ERROR(CheckText(odd.unknown(), "odd.unknown"));
    TK_RETURN_IF_ERROR(CheckDifferences(odd.differences(), odd.total()));
  }
  return OkStatus();
}

Status CheckBody(const control::JobStatus& m, const std::string& job) {
  TK_RETURN_IF_ERROR(CheckText(m.state(), "state"));
  TK_RETURN_IF_ERROR(CheckText(m.restore_reason(), "restore_reason"));
  for (const auto& text : m.problems()) TK_RETURN_IF_ERROR(CheckText(text, "problems"));
  for (const uint32_t rank : m.missing_ranks()) {
    if (rank >= kNodesMax) return Bad("missing rank {} is too high", rank);
  }
  if (m.has_divergence()) TK_RETURN_IF_ERROR(CheckBody(m.divergence(), job));
  if (m.has_waiting()) TK_RETURN_IF_ERROR(CheckStop(m.waiting()));
  if (!m.has_last_committed()) return OkStatus();
  return CheckGeneration(m.last_committed(), job, Shards::kCompleteOrNone);
}

Status CheckAnyBody(const control::Envelope& e) {
  switch (e.body_case()) {
    case control::Envelope::kJoin:
      if (e.join().node() != e.sender()) return Bad("its node isn't the sender");
      return CheckBody(e.join(), e.job());
    case control::Envelope::kRejected:
      return CheckBody(e.rejected(), e.job());
    case control::Envelope::kRunStart:
      return CheckBody(e.run_start(), e.job());
    case control::Envelope::kRestore:
      return CheckBody(e.restore(), e.job());
    case control::Envelope::kRestorePrepared:
      return CheckBody(e.restore_prepared(), e.job());
    case control::Envelope::kRelease:
      return CheckNumber(e.release().decision(), "decision");
    case control::Envelope::kSaveStaged:
      return CheckBody(e.save_staged(), e.job());
    case control::Envelope::kSaveFailed:
      return CheckBody(e.save_failed(), e.job());
    case control::Envelope::kKeep:
      return CheckBody(e.keep(), e.job());
    case control::Envelope::kKept:
      return CheckBody(e.kept(), e.job());
    case control::Envelope::kDrop:
      return CheckBody(e.drop(), e.job());
    case control::Envelope::kCommit:
      return CheckBody(e.commit(), e.job());
    case control::Envelope::kCommitRecorded:
      return CheckBody(e.commit_recorded(), e.job());
    case control::Envelope::kPing:
      return OkStatus();
    case control::Envelope::kRunEnded:
      return CheckBody(e.run_ended(), e.job());
    case control::Envelope::kLeaving:
      return CheckBody(e.leaving(), e.job());
    case control::Envelope::kJobStatus:
      return CheckBody(e.job_status(), e.job());
    case control::Envelope::kCompare:
      return CheckBody(e.compare(), e.job());
    case control::Envelope::kCompared:
      return CheckBody(e.compared(), e.job());
    case control::Envelope::kDivergence:
      return CheckBody(e.divergence(), e.job());
    case control::Envelope::kGiveBack:
      return CheckBody(e.give_back(), e.job());
    case control::Envelope::kRestoreOrders:
      return CheckRestoreOrders(e.restore_orders().orders(), e.job());
    case control::Envelope::BODY_NOT_SET:
      break;
  }
  return Error(Code::kUnimplemented, "its kind is not known to this version");
}

// A choice in a record that doesn't name the job itself.
Status CheckOwnChoice(const control::RestoreChoice& choice) {
  const std::string& job = choice.generation().job();
  if (!choice.none() && !IsValidJobName(job)) return Bad("job is no job name");
  return CheckChoice(choice, job);
}

std::string BodyName(const control::Envelope& e) {
  const auto* field = control::Envelope::descriptor()->FindFieldByNumber(e.body_case());
  return field == nullptr ? "message" : field->name();
}

}  // namespace

Status CheckEnvelope(const control::Envelope& envelope) {
  if (!IsValidJobName(envelope.job())) {
    return Bad("message: job '{}' is no job name", EscapeName(envelope.job(), 64));
  }
  TK_RETURN_IF_ERROR(CheckNodeName(envelope.sender(), "message: sender"));
  TK_RETURN_IF_ERROR(CheckRun(envelope.run(), "message: run", Presence::kOptional));
  return CheckAnyBody(envelope).map_error(
      [&](const Error& e) { return e.With(BodyName(envelope)); });
}

Status CheckGenerationRecord(const control::GenerationRecord& record) {
  if (!IsValidJobName(record.job())) return Bad("job is no job name");
  return CheckGeneration(record, record.job(), Shards::kComplete);
}

Status CheckNodeState(const control::NodeState& state) {
  TK_RETURN_IF_ERROR(CheckFixed(state.agent(), Id128::kSize, "agent"));
  if (state.config_text().size() > kConfigTextBytesMax) return Bad("config_text is too long");
  if (state.config_file_id().size() > kConfigIdBytesMax) return Bad("config_file_id is too long");
  TK_RETURN_IF_ERROR(CheckAttempt(state.attempt(), Presence::kOptional));
  const uint64_t attempt = state.attempt().counter();
  if (attempt > state.attempt_counter()) return Bad("attempt is newer than attempt_counter");
  TK_RETURN_IF_ERROR(CheckRun(state.run(), "run", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckRun(state.highest_run(), "highest_run", Presence::kOptional));
  if (state.released() && !state.has_restored()) return Bad("released without a choice");
  if (state.has_restored()) TK_RETURN_IF_ERROR(CheckOwnChoice(state.restored()));
  TK_RETURN_IF_ERROR(CheckRun(state.last_run(), "last_run", Presence::kOptional));
  if (state.has_last_restored()) TK_RETURN_IF_ERROR(CheckOwnChoice(state.last_restored()));
  for (const auto& save : state.saves()) TK_RETURN_IF_ERROR(CheckSave(save));
  TK_RETURN_IF_ERROR(CheckRestoreOrders(state.orders(), ""));
  TK_RETURN_IF_ERROR(CheckDigests(state.given_back(), "given_back"));
  TK_RETURN_IF_ERROR(CheckCounts(state.restores(), ""));
  if (state.has_stop()) TK_RETURN_IF_ERROR(CheckStop(state.stop()));
  return CheckNodeNames(state.nodes(), "nodes");
}

Status CheckRendezvousRecord(const control::RendezvousRecord& record) {
  if (!IsValidJobName(record.job())) return Bad("job is no job name");
  TK_RETURN_IF_ERROR(CheckNumber(record.epoch(), "epoch"));
  TK_RETURN_IF_ERROR(CheckRun(record.run(), "run", Presence::kOptional));
  TK_RETURN_IF_ERROR(CheckAddress(record.coordinator(), "coordinator"));
  TK_RETURN_IF_ERROR(CheckFixed(record.boot(), Id128::kSize, "boot"));
  if (record.has_newest()) {
    TK_RETURN_IF_ERROR(CheckRun(record.newest().run(), "newest", Presence::kRequired));
    TK_RETURN_IF_ERROR(CheckWorld(record.newest().world()));
    TK_RETURN_IF_ERROR(CheckNodeNames(record.newest().nodes(), "newest.nodes"));
  }
  return CheckNodeName(record.node(), "node");
}

}  // namespace tierkeep
