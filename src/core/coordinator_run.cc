// While the job runs: saves are matched, protected and committed one at a time, lost redundancy is
// rebuilt, members come back.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

constexpr size_t kLookedAtAgain = 16;

}  // namespace

std::vector<std::string> CoordinatorMachine::Impl::NodesByRank() const {
  std::vector<std::string> nodes;
  for (const auto& [rank, peer] : members_) nodes.push_back(peer.node());
  return nodes;
}

bool CoordinatorMachine::Impl::AllConnected() const {
  return std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.connected && entry.second.join.released();
  });
}

void CoordinatorMachine::Impl::StartRunning() {
  state_ = State::kRunning;
  released_run_ = run_;
  if (!FindCommitted()) return;
  // Done with: the next start decides anew.
  if (choice_) RemoveOrders(&orders_, choice_->orders());
  if (const RestoreOrders open = OpenOrders(); !open.empty()) SpreadOrders(open, "");
  if (committed_) {
    MarkNewest(&*committed_);
  } else if (choice_) {
    MarkNewest(choice_->none() ? nullptr : &choice_->generation());
  }
  if (committed_) {
    matcher_->AlreadyCommitted(*committed_);
    committed_keep_ = PlanProtection(*committed_, NodesByRank(), keepers_).wanted;
    CheckLastCommitted();
  } else if (choice_ && !choice_->none()) {
    if (!IsWhole(choice_->generation())) {
      EndRun("which shards the job was restored from isn't known any more");
      return;
    }
    BeginRebuild(choice_->generation(), /*commits=*/true);
  }
  if (!continuing_) return;
  for (auto& [rank, peer] : members_) ResumeMember(&peer);
}

// ---- matching --------------------------------------------------------------------------------

void CoordinatorMachine::Impl::OnStaged(Peer* member, const control::SaveStaged& m) {
  if (state_ != State::kRunning || m.shards(0).rank() != member->rank()) return;
  const SaveKey save = FromProto(m.save());
  if (save.run != run_) return;
  if (matcher_->IsPast(member->rank(), save, m.ordinal())) {
    if (committed_ && FromProto(committed_->save()) == save) {
      if (commit_open_.count(member->rank()) != 0) SendCommit(*member);
      return;
    }
    control::Envelope message = NewMessage();
    *message.mutable_drop()->mutable_save() = m.save();
    message.mutable_drop()->set_reason("it was dropped before");
    SendTo(*member, std::move(message));
    return;
  }
  for (const auto& shard : m.shards()) holdings_.AddVerified(member->node(), shard);
  Apply(matcher_->Staged(member->rank(), m, now_));
  AfterMatch();
}

void CoordinatorMachine::Impl::OnSaveFailed(Peer* member, const control::SaveFailed& m) {
  if (state_ != State::kRunning || FromProto(m.save().run()) != run_) return;
  Apply(matcher_->Failed(member->rank(), FromProto(m.save()), m.error()));
  AfterMatch();
}

void CoordinatorMachine::Impl::Apply(const SaveMatcher::Drops& drops) {
  for (const auto& drop : drops) {
    TK_CHECK(!committed_ || FromProto(committed_->save()) != drop.save);
    Log(Severity::kWarning,
        fmt::format("Save of {} is dropped: {}", drop.save.ToString(), drop.reason));
    if (active_ && FromProto(active_->record.save()) == drop.save) active_.reset();
    control::Envelope message = NewMessage();
    *message.mutable_drop()->mutable_save() = ToProto(drop.save);
    message.mutable_drop()->set_reason(drop.reason);
    for (const auto& [rank, peer] : members_) {
      SendTo(peer, message);
      holdings_.RemoveCopiesIf(peer.node(), [&](const control::ShardInfo& shard) {
        return FromProto(shard.save()) == drop.save;
      });
    }
  }
}

void CoordinatorMachine::Impl::AfterMatch() {
  const std::optional<SaveKey> save = matcher_->active();
  if (save && !active_) BeginSave(*save);
  if (!active_) EndThinning();
}

// ---- protection ------------------------------------------------------------------------------

void CoordinatorMachine::Impl::BeginSave(const SaveKey& save) {
  Protection protection;
  control::GenerationRecord& record = protection.record;
  record.set_job(job());
  *record.mutable_save() = ToProto(save);
  record.set_save_number(next_number_);
  *record.mutable_world() = settings_.world();
  for (const auto& [rank, staged] : matcher_->ActiveShards()) {
    for (const auto& shard : staged.shards()) {
      *record.add_shards() = shard;
      record.mutable_shards(record.shards_size() - 1)->clear_suspect();
    }
  }
  if (choice_ && !choice_->none()) {
    *record.mutable_parent_run() = choice_->generation().save().run();
    record.set_parent_save_number(choice_->generation().save_number());
  }
  protection.plan = PlanProtection(record, NodesByRank(), keepers_);
  NoteReplicas(protection);
  ClearProblem("unprotected");
  active_ = std::move(protection);
  Pump(&active_);
}

void CoordinatorMachine::Impl::BeginRebuild(const control::GenerationRecord& record, bool commits) {
  TK_PROBE(kRebuild);
  if (TK_MUTATION(kNoRebuild)) return;
  Protection protection;
  protection.record = record;
  protection.rebuild = true;
  protection.commits = commits;
  for (auto& shard : *protection.record.mutable_shards()) shard.clear_suspect();
  protection.plan = PlanProtection(record, NodesByRank(), keepers_);
  rebuild_ = std::move(protection);
  Pump(&rebuild_);
}

// Brings `missing` up to date. Only of one node, where nothing else can have changed; then those
// that are left when there are but a few, so that none stays for nothing. False: it can't be
// protected, which has been dealt with.
bool CoordinatorMachine::Impl::LookForMissing(std::optional<Protection>* slot,
                                              const std::string* only) {
  Protection& protection = **slot;
  auto& missing = protection.missing;
  if (only != nullptr && protection.looked_at == holdings_.losses()) {
    const auto look = [&](auto it) {
      std::erase_if(it->second,
                    [&](const Blake3& digest) { return holdings_.HasVerified(it->first, digest); });
      return it->second.empty() ? missing.erase(it) : std::next(it);
    };
    if (const auto it = missing.find(*only); it != missing.end()) look(it);
    if (missing.size() <= kLookedAtAgain) {
      for (auto it = missing.begin(); it != missing.end();) it = look(it);
    }
    return true;
  }
  protection.looked_at = holdings_.losses();
  missing = Missing(protection.plan, holdings_);
  for (const auto& [node, digests] : missing) {
    for (const Blake3& digest : digests) {
      if (holdings_.Find(digest) != nullptr) continue;
      if (continuing_ && protection.commits && protection.rebuild &&
          !protection.record.committed()) {
        // Perhaps it gave way to a newer save (GiveUpRestored).
        SetProblem("redundancy",
                   fmt::format("step {}, which the job runs from, has shards without a copy: the "
                               "next commit takes its place",
                               protection.record.save().step()));
        protection.stalled = true;
        return false;
      }
      if (protection.rebuild) {
        FailTry(&protection,
                protection.plan.copies_needed
                    ? "the last copy of a shard is gone"
                    : "a replica's own copy is gone; its equals hold the data until the next save",
                /*final=*/true);
      } else {
        Apply(matcher_->DropActive("a node lost it before there was a copy"));
        AfterMatch();
      }
      return false;
    }
  }
  return true;
}

// Looks at what is missing and does the next thing about it; `only`: the one node whose copies
// have changed since.
void CoordinatorMachine::Impl::Pump(std::optional<Protection>* slot, const std::string* only) {
  if (!*slot || state_ != State::kRunning) return;
  Protection& protection = **slot;
  if (!LookForMissing(slot, only)) return;
  if (protection.missing.empty() || TK_MUTATION(kCommitOnSendersWord)) {
    TK_PROBE_IF(kCommitWaits, protection.commits && !AllConnected());
    if (!protection.commits) {
      ClearProblem("redundancy");
      slot->reset();
      if (names_no_peers_ && !optional_peers_) FreePeersCopies();
      for (const auto& [node, holder] : holders_) RelieveHolder(holder);
    } else if (AllConnected()) {
      Commit(slot);
    }
    return;
  }
  if (!protection.stalled && !protection.waiting && SendKeeps(&protection, only)) {
    Arm(kKeepTimer, options_.timings.keep_deadline);
  }
}

bool CoordinatorMachine::Impl::SendKeeps(Protection* protection, const std::string* only) {
  const auto send = [&](const std::string& node, const std::vector<Blake3>& lacks) {
    const auto member = members_.ByNode(node);
    return member != members_.end() && SendKeep(protection, member->second, lacks);
  };
  if (only != nullptr) {
    const auto lacks = protection->missing.find(*only);
    return lacks != protection->missing.end() && send(*only, lacks->second);
  }
  bool sent = false;
  for (const auto& [node, lacks] : protection->missing) sent = send(node, lacks) || sent;
  return sent;
}

bool CoordinatorMachine::Impl::SendKeep(Protection* protection, const Peer& peer,
                                        const std::vector<Blake3>& lacks) {
  if (!peer.connected || !peer.join.released()) return false;
  const auto [order, added] = protection->orders.emplace(peer.node(), next_order_);
  if (!added) return false;
  ++next_order_;
  control::Envelope message = NewMessage();
  auto* keep = message.mutable_keep();
  keep->set_order(order->second);
  keep->set_rebuild(protection->rebuild);
  keep->set_optional(optional_peers_);
  for (const Blake3& digest : lacks) {
    auto* wanted = keep->add_wanted();
    *wanted->mutable_shard() = *holdings_.Find(digest);
    auto sources = SourcesFor(holdings_, failures_, digest, peer.node(), peer.rank());
    // Cut off from all of them: then any may be tried again.
    if (sources.empty()) sources = SourcesFor(holdings_, {}, digest, peer.node(), peer.rank());
    AddSources(wanted, std::move(sources));
  }
  SendTo(peer, std::move(message));
  return true;
}

void CoordinatorMachine::Impl::OnKept(Peer* member, const control::Kept& m) {
  if (m.order() == 0) {
    if (optional_peers_ && m.out_of_space()) GiveUpPeers(member->node(), m.error());
    return;
  }
  for (auto* slot : {&active_, &rebuild_}) {
    if (!*slot) continue;
    Protection& protection = **slot;
    const auto order = protection.orders.find(member->node());
    if (order == protection.orders.end() || order->second != m.order()) continue;
    if (m.waiting() || (optional_peers_ && m.out_of_space())) {
      OnNoRoom(slot, member, m);
      return;
    }
    protection.orders.erase(order);
    protection.no_room.erase(member->node());
    for (const std::string& held : m.held()) {
      const auto* shard = holdings_.Find(FixedFromProto<Blake3>(held));
      if (shard != nullptr) holdings_.AddVerified(member->node(), control::ShardInfo(*shard));
    }
    if (const auto missing = protection.missing.find(member->node());
        missing != protection.missing.end()) {
      std::vector<Blake3> wanted = missing->second;
      std::erase_if(wanted, [&](const Blake3& digest) {
        return holdings_.HasVerified(member->node(), digest);
      });
      for (const std::string& source : m.bad_sources()) {
        NoteSourceFailed(member->node(), source, wanted);
      }
    }
    if (!m.ok()) {
      FailTry(&protection, fmt::format("node {}: {}", member->node(), m.error()), m.out_of_space());
    }
    const std::string node = member->node();
    Pump(slot, &node);
    // What is held now may make other copies needless.
    for (auto* other : {&active_, &rebuild_}) {
      if (*other) MakeRoom(&**other);
    }
    return;
  }
  ++dropped_messages_;
}

void CoordinatorMachine::Impl::FailTry(Protection* protection, const std::string& why, bool final) {
  const uint64_t step = protection->record.save().step();
  if (protection->stalled) return;
  Log(Severity::kError, fmt::format("Failed: replication for step {}, {}", step, why));
  const std::string key = protection->rebuild ? "redundancy" : "unprotected";
  if (!protection->rebuild && !protection->plan.disagreements.empty()) {
    SayUncommitted(*protection, why);
  } else {
    problems_.Set(key, fmt::format("step {} lacks copies: {}", step, why));
  }
  if (final || ++protection->failed_tries >= options_.timings.keep_tries) {
    protection->stalled = true;
    if (!protection->rebuild) matcher_->ActiveStalled();
    return;
  }
  protection->waiting = true;
  Arm(kRetryTimer, options_.timings.retry_pause);
}

void CoordinatorMachine::Impl::RetryKeeps() {
  for (auto* slot : {&active_, &rebuild_}) {
    if (!*slot) continue;
    (*slot)->waiting = false;
    Pump(slot);
  }
}

void CoordinatorMachine::Impl::KeepDeadline() {
  for (auto* slot : {&active_, &rebuild_}) {
    if (!*slot) continue;
    // What waits for memory was told, and is asked for no other way.
    const auto& no_room = (*slot)->no_room;
    std::string node;
    std::erase_if((*slot)->orders, [&](const auto& order) {
      if (no_room.count(order.first) != 0) return false;
      if (node.empty()) node = order.first;
      return true;
    });
    if (node.empty()) continue;
    FailTry(&**slot,
            fmt::format("node {} did not answer within {}", node,
                        FormatDuration(options_.timings.keep_deadline)),
            /*final=*/false);
    Pump(slot);
  }
}

// ---- commit ----------------------------------------------------------------------------------

void CoordinatorMachine::Impl::Commit(std::optional<Protection>* slot) {
  Protection protection = std::move(**slot);
  slot->reset();
  protection.record.set_committed(true);
  committed_ = std::make_shared<const control::GenerationRecord>(std::move(protection.record));
  committed_cutter_.emplace(*committed_);
  committed_keep_ = std::move(protection.plan.wanted);
  commit_open_.clear();
  for (const auto& [rank, peer] : members_) commit_open_.insert(rank);
  if (protection.rebuild) {
    ClearProblem("redundancy");
  } else {
    ++next_number_;
    matcher_->ActiveCommitted();
    rebuild_.reset();
    ClearProblem("unprotected");
    ClearProblem("redundancy");
    ClearProblem("lost");
    ClearProblem("thinned");
    thinned_ = restored_dropped_ = false;
    ClearProblem("suspect");
    problems_.ErasePrefix("restore ");
    ForEachPeer([](Peer& peer) { peer.join.clear_restores(); });
  }
  MarkNewest(&*committed_);
  Log(Severity::kInfo, fmt::format("Generation {} of {} is committed", committed_->save_number(),
                                   FromProto(committed_->save()).ToString()));
  const bool own = !protection.rebuild;
  const auto gone = [&](const std::set<Blake3>& keep, const control::ShardInfo& shard) {
    if (keep.count(DigestOf(shard)) != 0) return false;
    if (FromProto(shard.save().run()) != run_) return true;
    const auto& same_rank = committed_->shards(
        static_cast<int>(shard.rank() * committed_->world().workers_per_node() + shard.worker()));
    return own && shard.ordinal() <= same_rank.ordinal();
  };
  for (const auto& [rank, peer] : members_) {
    SendCommit(peer);
    const auto& keep = committed_keep_[peer.node()];
    holdings_.RemoveCopiesIf(peer.node(), [&](const auto& shard) { return gone(keep, shard); });
  }
  for (const auto& [node, holder] : holders_) {
    SendCommit(holder);
    holdings_.RemoveNode(node);
  }
  std::erase_if(failures_,
                [&](const auto& failed) { return holdings_.Find(failed.first.digest) == nullptr; });
  Arm(kCommitTimer, options_.timings.commit_deadline);
}

// Of the last committed generation.
bool CoordinatorMachine::Impl::IsOwnShard(Rank rank, const Blake3& digest) const {
  for (Worker worker = 0; worker < committed_->world().workers_per_node(); ++worker) {
    const control::ShardInfo* own = EntryOf(*committed_, rank, worker);
    if (own != nullptr && DigestOf(*own) == digest) return true;
  }
  return false;
}

void CoordinatorMachine::Impl::SendCommit(const Peer& peer) {
  control::Envelope message = NewMessage();
  AddCommitted(message.mutable_commit(), peer);
  message.mutable_commit()->set_optional_peers(optional_peers_);
  const auto keep = committed_keep_.find(peer.node());
  if (keep != committed_keep_.end() && !peer.join.holder()) {
    for (const Blake3& digest : keep->second) {
      // Given back for a newer save, or never made where nobody named peers and they don't fit, of
      // which this machine may not have heard: the member has no reason to miss it.
      const bool may_lack = thinned_ || (names_no_peers_ && !IsOwnShard(peer.rank(), digest));
      if (may_lack && !holdings_.Has(peer.node(), digest)) continue;
      message.mutable_commit()->add_keep(digest.Raw());
    }
  }
  SendTo(peer, std::move(message));
}

void CoordinatorMachine::Impl::OnCommitRecorded(Peer* member, const control::CommitRecorded& m) {
  if (!committed_ || m.save_number() != committed_->save_number() ||
      FromProto(m.run()) != FromProto(committed_->save().run())) {
    return;
  }
  holdings_.SetRecord(member->node(), committed_);
  commit_open_.erase(member->rank());
  ClearProblem("commit " + member->node());
  if (commit_open_.empty()) Disarm(kCommitTimer);
  if (m.missing().empty()) {
    for (const auto& [node, holder] : holders_) RelieveHolder(holder);
    return;
  }
  TK_PROBE(kCommitMisses);
  for (const std::string& digest : m.missing()) {
    holdings_.RemoveCopy(member->node(), FixedFromProto<Blake3>(digest));
  }
  Pump(&rebuild_);
  CheckLastCommitted();
}

void CoordinatorMachine::Impl::CommitDeadline() {
  for (const Rank rank : commit_open_) {
    const std::string& node = members_.at(rank).node();
    SetProblem("commit " + node, fmt::format("node {} has not recorded the commit of step {}", node,
                                             committed_->save().step()));
    // Until then it keeps the older generation too, which takes memory.
    SendCommit(members_.at(rank));
  }
  if (!commit_open_.empty()) Arm(kCommitTimer, options_.timings.commit_deadline);
}

void CoordinatorMachine::Impl::CheckLastCommitted() {
  if (!committed_ || rebuild_ || thinned_ || state_ != State::kRunning) return;
  ProtectionPlan plan = PlanProtection(*committed_, NodesByRank(), keepers_);
  if (!Missing(plan, holdings_).empty()) BeginRebuild(*committed_, /*commits=*/false);
}

// A member that is back: whatever is due to it is said again.
void CoordinatorMachine::Impl::ResumeMember(Peer* member) {
  if (!member->join.released()) {
    if (choice_ && !waiting_for_holders_) SendRestore(*member);
    return;
  }
  if (state_ != State::kRunning) return;
  for (auto* slot : {&active_, &rebuild_}) {
    if (!*slot) continue;
    (*slot)->orders.erase(member->node());
    (*slot)->no_room.erase(member->node());
  }
  // Before all else, and even if it is recorded there: collecting may have been cut short, and what
  // is committed must not count as a save in flight any more.
  if (committed_) SendCommit(*member);
  if (restored_dropped_) DropRestored(*member);
  std::set<SaveKey> has;
  for (const auto& staged : member->join.staged()) has.insert(FromProto(staged.save()));
  Apply(matcher_->Rejoined(member->rank(), has));
  for (const auto& staged : std::exchange(*member->join.mutable_staged(), {})) {
    OnStaged(member, staged);
  }
  Pump(&active_);
  Pump(&rebuild_);
  CheckLastCommitted();
  if (active_) MakeRoom(&*active_);
}

}  // namespace tierkeep
