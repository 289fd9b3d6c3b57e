// Where a node's memory is short: what gives way, in this order (docs/memory.md).
//
// 1. Copies pushed aside by restore.version have their place here, once there is such a thing.
// 2. Misplaced copies after a reshuffle: of the generation that the run was restored from, on a
//    node that shall not have them, as soon as enough other nodes have verified ones.
// 3. With --on-pressure=thin: peers' copies of the last committed generation, while a newer one is
//    complete and its owners' own copies are there.
//
// A node's own part of the last committed generation never gives way.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {

// Orbax writes `peer-ranks: []` where it doesn't care, as for a job of one slice.
bool CoordinatorMachine::Impl::PeersAreOptional() const {
  if (settings_.has_peers_per_node() || settings_.world().data_parallelism() > 1) return false;
  return std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
    const auto& own = entry.second.join.settings();
    return own.has_peer_ranks() && own.peer_ranks().empty();
  });
}

void CoordinatorMachine::Impl::OnNoRoom(std::optional<Protection>* slot, Peer* member,
                                        const control::Kept& m) {
  Protection& protection = **slot;
  for (const std::string& held : m.held()) {
    const auto* shard = holdings_.Find(FixedFromProto<Blake3>(held));
    if (shard != nullptr) holdings_.AddVerified(member->node(), control::ShardInfo(*shard));
  }
  if (optional_peers_ && !m.waiting()) {
    GiveUpPeers(member->node(), m.error());
    return;
  }
  const auto [entry, first] = protection.no_room.try_emplace(member->node());
  entry->second = {m.short_bytes(), m.may_thin()};
  if (!first) return MakeRoom(&protection);
  const std::string why = fmt::format("node {}: {}", member->node(), m.error());
  if (!protection.rebuild && !protection.plan.disagreements.empty()) {
    SayUncommitted(protection, why);
  } else {
    SetProblem(protection.rebuild ? "redundancy" : "unprotected",
               fmt::format("step {} lacks copies: {}", protection.record.save().step(), why));
  }
  // Again, even if it is recorded there: what it made obsolete may still be there.
  if (committed_) SendCommit(*member);
  // What is newer and complete takes its place at once.
  if (!protection.rebuild) matcher_->ActiveStalled();
  MakeRoom(&protection);
}

// For this run: the next one, perhaps with smaller saves, tries again.
void CoordinatorMachine::Impl::GiveUpPeers(const std::string& node, const std::string& why) {
  optional_peers_ = false;
  keepers_.assign(keepers_.size(), {});
  SetProblem("alone", fmt::format("The job names no peers, and copies don't fit: its checkpoints "
                                  "have no in-cluster redundancy. Node {}: {}",
                                  node, why));
  ClearProblem("unprotected");
  ClearProblem("redundancy");
  for (auto* slot : {&active_, &rebuild_}) {
    if (!*slot) continue;
    (*slot)->plan = PlanProtection((*slot)->record, NodesByRank(), keepers_);
    (*slot)->orders.clear();
    (*slot)->no_room.clear();
    (*slot)->stalled = (*slot)->waiting = false;
    Pump(slot);
  }
  FreePeersCopies();
}

// Of the committed generation, where all who own a shard have it: the next save takes their room.
void CoordinatorMachine::Impl::FreePeersCopies() {
  if (!committed_) return;
  ProtectionPlan plan = PlanProtection(*committed_, NodesByRank(), keepers_);
  if (!Missing(plan, holdings_).empty()) return;
  committed_keep_ = std::move(plan.wanted);
  for (const auto& [rank, peer] : members_) {
    SendCommit(peer);
    const auto& keep = committed_keep_[peer.node()];
    holdings_.RemoveCopiesIf(peer.node(), [&](const control::ShardInfo& shard) {
      return FromProto(shard.save()) == FromProto(committed_->save()) &&
             keep.count(DigestOf(shard)) == 0;
    });
  }
}

// A complete save overtakes any older one without enough copies (SaveMatcher), also that which the
// run was restored from: all members have gone on from it.
void CoordinatorMachine::Impl::GiveUpRestored(Protection* active) {
  if (!rebuild_ || !rebuild_->commits || rebuild_->record.committed() || !AllConnected()) return;
  if (std::none_of(active->no_room.begin(), active->no_room.end(),
                   [](const auto& entry) { return entry.second.short_bytes > 0; })) {
    return;
  }
  if (MayHideRecordOf(FromProto(rebuild_->record.save().run()))) return;
  const std::string text = fmt::format(
      "step {}, which the job runs from and which lacks copies, goes: step {} is complete, and "
      "memory is short",
      rebuild_->record.save().step(), active->record.save().step());
  Log(Severity::kWarning, text);
  rebuild_.reset();
  restored_dropped_ = true;
  ClearProblem("redundancy");
  for (const auto& [rank, member] : members_) {
    const uint64_t given = DropRestored(member);
    const auto no_room = active->no_room.find(member.node());
    if (no_room != active->no_room.end()) no_room->second.Give(given);
  }
}

// Some node's record that can't be read may say that a save of this run is committed.
bool CoordinatorMachine::Impl::MayHideRecordOf(const RunId& run) const {
  for (const auto& [node, items] : holdings_.unreadable()) {
    for (const auto& item : items) {
      if (item.hides_records() || (item.has_run() && FromProto(item.run()) == run)) return true;
    }
  }
  return false;
}

// Said to a member that is back, too: it may not have heard it.
uint64_t CoordinatorMachine::Impl::DropRestored(const Peer& member) {
  const control::GenerationRecord& restored = choice_->generation();
  control::Envelope message = NewMessage();
  *message.mutable_drop()->mutable_save() = restored.save();
  message.mutable_drop()->set_reason("a newer save is complete, and memory is short");
  SendTo(member, std::move(message));
  uint64_t given = 0;
  for (const auto& shard : restored.shards()) {
    if (!holdings_.Has(member.node(), DigestOf(shard))) continue;
    given += shard.bytes() + shard.manifest_bytes();
    holdings_.RemoveCopy(member.node(), DigestOf(shard));
  }
  return given;
}

void CoordinatorMachine::Impl::MakeRoom(Protection* protection) {
  for (auto& [node, no_room] : protection->no_room) {
    const auto member = members_.ByNode(node);
    if (member == members_.end() || !member->second.connected) continue;
    if (no_room.short_bytes == 0) continue;
    no_room.Give(GiveBack(member->second, MisplacedOn(node, no_room.short_bytes),
                          "other nodes have them now that ranks have moved, and memory is short"));
  }
  if (protection->rebuild) return;
  GiveUpRestored(protection);
  for (auto& [node, no_room] : protection->no_room) {
    const auto member = members_.ByNode(node);
    if (member == members_.end() || !member->second.connected) continue;
    Thin(*protection, member->second, &no_room);
  }
}

void CoordinatorMachine::Impl::Thin(const Protection& active, const Peer& member, NoRoom* no_room) {
  if (!no_room->may_thin || no_room->short_bytes == 0) return;
  const auto last = LastCommittedOn(member.node());
  if (!last) return;
  const std::vector<Blake3> thinnable = ThinnableOn(*last, member, no_room->short_bytes);
  if (thinnable.empty()) return;
  thinned_ = true;
  // What is being made there again of it has no room, either.
  if (rebuild_ &&
      (!rebuild_->commits || FromProto(rebuild_->record.save()) == FromProto(last->save()))) {
    rebuild_.reset();
  }
  const std::string text = fmt::format(
      "memory is short (--on-pressure=thin): of the committed step {} only its "
      "owners' own copies are sure until step {} is committed",
      last->save().step(), active.record.save().step());
  SetProblem("thinned", text);
  no_room->Give(GiveBack(member, thinnable, text));
}

// Without it the job can't start: as after ranks moved, where every node has a shard that another
// one needs. Of the restored generation, and of older ones, a copy at least stays on another
// member.
bool CoordinatorMachine::Impl::MakeRoomToRestore(const Peer& member, uint64_t bytes) {
  const std::vector<Blake3> spare = SpareOn(member, bytes);
  if (spare.empty()) return false;
  GiveBack(member, spare,
           "other nodes have them, and there is no room for the shard that the job goes on from");
  return true;
}

// Members that are here and have verified that shard, or an equal replica of it.
size_t CoordinatorMachine::Impl::OthersWith(const control::ShardInfo& shard,
                                            const std::string& node) const {
  const WorldShape world = FromProto(settings_.world());
  const uint32_t width = world.nodes / world.replicas();
  const auto is_equal = [&](const control::ShardInfo& other) {
    if (other.digest() == shard.digest()) return true;
    return world.replicas() > 1 && !shard.logical().empty() && other.logical() == shard.logical() &&
           other.worker() == shard.worker() && other.rank() % width == shard.rank() % width &&
           FromProto(other.save()) == FromProto(shard.save());
  };
  return static_cast<size_t>(
      std::count_if(members_.begin(), members_.end(), [&](const auto& entry) {
        const Peer& other = entry.second;
        if (other.node() == node || !other.connected) return false;
        bool has = false;
        holdings_.ForEachCopy(other.node(), [&](const control::ShardInfo& held) {
          has = has || (is_equal(held) && holdings_.HasVerified(other.node(), DigestOf(held)));
        });
        return has;
      }));
}

// Those go first of which most others have copies; all or nothing.
std::vector<Blake3> CoordinatorMachine::Impl::SpareOn(const Peer& member, uint64_t bytes) const {
  std::set<Blake3> wanted;
  for (const auto& shard : ShardsOfRank(choice_->generation(), member.rank())) {
    wanted.insert(DigestOf(shard));
  }
  std::multimap<size_t, const control::ShardInfo*, std::greater<>> spare;
  holdings_.ForEachCopy(member.node(), [&](const control::ShardInfo& shard) {
    if (wanted.count(DigestOf(shard)) != 0) return;
    const size_t others = OthersWith(shard, member.node());
    if (others > 0) spare.emplace(others, &shard);
  });
  std::vector<Blake3> digests;
  uint64_t found = 0;
  for (const auto& [others, shard] : spare) {
    if (found + found / 8 >= bytes) break;
    digests.push_back(DigestOf(*shard));
    found += shard->bytes() + shard->manifest_bytes();
  }
  // Shards of one job are about as large as each other; what lacks after that is asked for again.
  if (found + found / 8 < bytes) digests.clear();
  return digests;
}

// As many copies as placement demands are on other members.
std::vector<Blake3> CoordinatorMachine::Impl::MisplacedOn(const std::string& node,
                                                          uint64_t bytes) const {
  std::vector<Blake3> digests;
  if (!rebuild_) return digests;
  const auto& wanted = rebuild_->plan.wanted;
  uint64_t found = 0;
  for (const auto& shard : rebuild_->record.shards()) {
    const Blake3 digest = DigestOf(shard);
    if (found >= bytes) break;
    if (!holdings_.Has(node, digest) || wanted.at(node).count(digest) != 0) continue;
    const auto demanded = std::count_if(wanted.begin(), wanted.end(), [&](const auto& entry) {
      return entry.second.count(digest) != 0;
    });
    const std::vector<std::string> holders = holdings_.HoldersOf(digest);
    const auto others = std::count_if(holders.begin(), holders.end(), [&](const auto& holder) {
      return holder != node && wanted.count(holder) != 0 && holdings_.HasVerified(holder, digest);
    });
    if (others < demanded) continue;
    digests.push_back(digest);
    found += shard.bytes() + shard.manifest_bytes();
  }
  return digests;
}

// Of this run, or what the runs before it left on that node.
std::shared_ptr<const control::GenerationRecord> CoordinatorMachine::Impl::LastCommittedOn(
    const std::string& node) const {
  if (committed_) return committed_;
  std::shared_ptr<const control::GenerationRecord> last;
  const auto records = holdings_.records().find(node);
  if (records == holdings_.records().end()) return last;
  for (const auto& record : records->second) {
    if (!record->committed() || record->world().nodes() != settings_.world().nodes()) continue;
    if (!last || GenerationIdOf(*last) < GenerationIdOf(*record)) last = record;
  }
  return last;
}

// A node that has not recorded it takes its copies for those of a save that was never committed,
// and may have given them up by itself.
bool CoordinatorMachine::Impl::KnowsOf(const std::string& node,
                                       const control::GenerationRecord& last) const {
  if (committed_) return true;
  const auto records = holdings_.records().find(node);
  return records != holdings_.records().end() &&
         std::any_of(records->second.begin(), records->second.end(), [&](const auto& record) {
           return record->committed() && FromProto(record->save()) == FromProto(last.save());
         });
}

// Who is not to give up its copy of a rank's shard: the rank's own node, or where it has none, as
// after ranks have moved, the first that has.
const CoordinatorPeer* CoordinatorMachine::Impl::OwnerOf(const control::GenerationRecord& last,
                                                         Rank rank, const Blake3& digest) const {
  const auto has = [&](const Peer& member) {
    return member.connected && holdings_.HasVerified(member.node(), digest) &&
           KnowsOf(member.node(), last);
  };
  if (const Peer& own = members_.at(rank); has(own)) return &own;
  for (const auto& [other, member] : members_) {
    if (has(member)) return &member;
  }
  return nullptr;
}

// All or nothing: copies given up without getting the room would be given up for nothing.
std::vector<Blake3> CoordinatorMachine::Impl::ThinnableOn(const control::GenerationRecord& last,
                                                          const Peer& member,
                                                          uint64_t bytes) const {
  std::vector<Blake3> digests;
  uint64_t found = 0;
  for (int i = 0; i < last.shards_size() && found < bytes; ++i) {
    const control::ShardInfo& shard = last.shards(i);
    const Blake3 digest = DigestOf(shard);
    if (!holdings_.Has(member.node(), digest)) continue;
    const Peer* owner = OwnerOf(last, static_cast<Rank>(shard.rank()), digest);
    if (owner == nullptr || owner->node() == member.node()) continue;
    digests.push_back(digest);
    found += shard.bytes() + shard.manifest_bytes();
  }
  if (found < bytes) digests.clear();
  return digests;
}

uint64_t CoordinatorMachine::Impl::GiveBack(const Peer& member, const std::vector<Blake3>& digests,
                                            const std::string& reason) {
  if (digests.empty()) return 0;
  uint64_t bytes = 0;
  control::Envelope message = NewMessage();
  for (const Blake3& digest : digests) {
    const control::ShardInfo& shard = *holdings_.Find(digest);
    bytes += shard.bytes() + shard.manifest_bytes();
    message.mutable_give_back()->add_digests(digest.Raw());
    holdings_.RemoveCopy(member.node(), digest);
  }
  message.mutable_give_back()->set_reason(reason);
  SendTo(member, std::move(message));
  return bytes;
}

// The newer save for which copies were given up is gone: what is left is protected again.
void CoordinatorMachine::Impl::EndThinning() {
  if (!std::exchange(thinned_, false)) return;
  ClearProblem("thinned");
  CheckLastCommitted();
  const bool from_committed = choice_ && !choice_->none() && choice_->generation().committed();
  if (!committed_ && !rebuild_ && from_committed) {
    BeginRebuild(choice_->generation(), /*commits=*/true);
  }
}

// Whether all that it has of the job is of the committed generation, and with all members that
// are to keep it.
bool CoordinatorMachine::Impl::MayRelieve(const std::string& holder) const {
  bool has = false;
  bool needed = false;
  holdings_.ForEachCopy(holder, [&](const control::ShardInfo& shard) {
    has = true;
    const Blake3 digest = DigestOf(shard);
    const auto lacks = [&](Rank rank) {
      const std::string& node = members_.at(rank).node();
      const auto keep = committed_keep_.find(node);
      return keep != committed_keep_.end() && keep->second.count(digest) != 0 &&
             !holdings_.HasVerified(node, digest);
    };
    const auto rank = static_cast<Rank>(shard.rank());
    needed = needed || FromProto(shard.save()) != FromProto(committed_->save()) ||
             rank >= keepers_.size() || lacks(rank) ||
             std::any_of(keepers_[rank].begin(), keepers_[rank].end(), lacks);
  });
  return has && !needed;
}

// A node of an earlier run that came when the generation was already where it belongs: without
// another save nothing else would free its memory.
void CoordinatorMachine::Impl::RelieveHolder(const Peer& holder) {
  if (state_ != State::kRunning || !committed_ || rebuild_ || thinned_ || !commit_open_.empty() ||
      !AllConnected() || TK_MUTATION(kHolderKeepsCopies) || !MayRelieve(holder.node())) {
    return;
  }
  SendCommit(holder);
  holdings_.RemoveNode(holder.node());
}

}  // namespace tierkeep
