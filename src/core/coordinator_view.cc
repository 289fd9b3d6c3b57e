// What a member is told of the others and of a generation's shards: all of it in small jobs; in
// large ones a part whose size doesn't depend on the job's.
//
// The entry of a shard goes to the node that it serves, to those that keep a copy by placement and
// to the next node in the ring of ranks. So it is unknown only while all of them are away or have
// lost it, and then a restore waits as for a shard whose holders are away.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"
#include "core/restore_candidates.h"

namespace tierkeep {
namespace {

// To either side in the ring of ranks: of any nodes that are away at least those are named whose
// neighbour is here.
uint32_t RingNeighbours(uint32_t nodes) { return std::clamp(nodes / 16, 1U, 8U); }
constexpr size_t kSourcesMax = 8;

void Describe(const CoordinatorPeer& peer, bool holder, control::Member* entry) {
  entry->set_rank(holder ? 0 : peer.rank());
  entry->set_node(peer.node());
  entry->set_agent(peer.agent());
  *entry->mutable_data() = peer.join.data();
  entry->set_holder(holder);
  entry->set_data_token(peer.join.data_token());
}

}  // namespace

bool CoordinatorMachine::Impl::WholeView() const {
  const auto& world = settings_.world();
  return world.nodes() * world.workers_per_node() <= options_.whole_view_max;
}

bool CoordinatorMachine::Impl::IsMember(const Peer& peer) const {
  const auto member = members_.find(peer.rank());
  return member != members_.end() && &member->second == &peer;
}

// Once a run: what was told stays true when placement is given up for lack of memory.
void CoordinatorMachine::Impl::LayOutNeighbours() {
  linked_.clear();
  beside_.clear();
  if (WholeView()) return;
  const uint32_t nodes = settings_.world().nodes();
  linked_.resize(nodes);
  beside_.resize(nodes);
  for (Rank rank = 0; rank < nodes; ++rank) {
    beside_[rank].insert(rank);
    beside_[(rank + 1) % nodes].insert(rank);
    for (const Rank keeper : keepers_[rank]) {
      beside_[keeper].insert(rank);
      linked_[keeper].insert(rank);
      linked_[rank].insert(keeper);
    }
  }
}

std::set<Rank> CoordinatorMachine::Impl::NeighboursOf(Rank rank) const {
  std::set<Rank> neighbours = linked_[rank];
  const uint32_t nodes = settings_.world().nodes();
  for (uint32_t distance = 1; distance <= RingNeighbours(nodes); ++distance) {
    neighbours.insert((rank + distance) % nodes);
    neighbours.insert((rank + nodes - distance) % nodes);
  }
  neighbours.erase(rank);  // alone
  return neighbours;
}

std::set<uint32_t> CoordinatorMachine::Impl::SlotsOfView(const control::GenerationRecord& record,
                                                         Rank rank) const {
  std::set<uint32_t> slots;
  for (const Rank other : beside_[rank]) {
    for (Worker worker = 0; worker < record.world().workers_per_node(); ++worker) {
      slots.insert(SlotOf(record, other, worker));
    }
  }
  return slots;
}

// ---- members ---------------------------------------------------------------------------------

void CoordinatorMachine::Impl::SendRunStart(const Peer& peer, bool continued) {
  control::Envelope message = NewMessage();
  auto* start = message.mutable_run_start();
  *start->mutable_run() = ToProto(run_);
  start->set_epoch(epoch_);
  *start->mutable_settings() = settings_;
  start->set_continued(continued);
  if (!WholeView()) {
    if (IsMember(peer)) {
      Describe(peer, false, start->add_members());
      for (const Rank rank : NeighboursOf(peer.rank())) {
        Describe(members_.at(rank), false, start->add_members());
      }
    }
    SendTo(peer, std::move(message));
    return;
  }
  std::set<std::string> named;
  for (const auto& [rank, member] : members_) {
    Describe(member, false, start->add_members());
    named.insert(member.node());
  }
  for (const auto& [node, holder] : holders_) {
    if (named.insert(node).second) Describe(holder, true, start->add_members());
  }
  for (const auto& [rank, stranger] : pending_) {
    if (named.insert(stranger.node()).second) Describe(stranger, true, start->add_members());
  }
  SendTo(peer, std::move(message));
}

// Again to all, when addresses or tokens have changed: who has begun takes the members only. In a
// large job they are named where they are to serve.
void CoordinatorMachine::Impl::TellMembers(const Peer* holder) {
  if (!WholeView()) {
    if (holder != nullptr) SendRunStart(*holder, true);
    return;
  }
  for (const auto& [rank, peer] : members_) SendRunStart(peer, peer.join.released());
  for (const auto& [node, peer] : holders_) SendRunStart(peer, true);
}

// It has another address or token.
void CoordinatorMachine::Impl::TellMoved(const Peer& moved) {
  if (!WholeView()) {
    for (const Rank rank : NeighboursOf(moved.rank())) {
      const Peer& other = members_.at(rank);
      SendRunStart(other, other.join.released());
    }
    return;
  }
  for (const auto& [rank, other] : members_) {
    if (&other != &moved) SendRunStart(other, other.join.released());
  }
}

void CoordinatorMachine::Impl::AddSources(control::SourceList* wanted,
                                          std::vector<std::string> nodes) const {
  const bool whole = WholeView();
  if (!whole && nodes.size() > kSourcesMax) nodes.resize(kSourcesMax);
  for (std::string& node : nodes) {
    const auto holder = holders_.find(node);
    TK_PROBE_IF(kHolderServes, holder != holders_.end());
    if (!whole) {
      const auto member = members_.ByNode(node);
      const auto stranger = pending_.ByNode(node);
      if (member != members_.end()) {
        Describe(member->second, false, wanted->add_members());
      } else if (holder != holders_.end()) {
        Describe(holder->second, true, wanted->add_members());
      } else if (stranger != pending_.end()) {
        Describe(stranger->second, true, wanted->add_members());
      }
    }
    wanted->add_nodes(std::move(node));
  }
}

// ---- the restored generation -----------------------------------------------------------------

void CoordinatorMachine::Impl::SetChoice(control::RestoreChoice choice) {
  choice_cutter_.reset();
  control::GenerationRecord generation = std::move(*choice.mutable_generation());
  choice.clear_generation();
  choice_head_ = choice;
  choice_ = std::move(choice);
  if (choice_->none()) return;
  *choice_->mutable_generation() = std::move(generation);
  choice_cutter_.emplace(choice_->generation());
}

// False: the rank's own shards aren't known.
bool CoordinatorMachine::Impl::AddChoice(control::RestoreChoice* choice, Rank rank) const {
  if (WholeView()) {
    *choice = *choice_;
    return true;
  }
  *choice = choice_head_;
  if (choice_->none()) return true;
  const control::GenerationRecord& generation = choice_->generation();
  *choice->mutable_generation() = choice_cutter_->Part(SlotsOfView(generation, rank));
  for (Worker worker = 0; worker < generation.world().workers_per_node(); ++worker) {
    if (EntryOf(generation, rank, worker) == nullptr) return false;
  }
  return true;
}

// A run that goes on: what some were released with holds for all, put together from what they
// brought, and from what those had prepared that weren't released. False: the run has ended.
bool CoordinatorMachine::Impl::FindReleasedChoice() {
  std::vector<const control::GenerationRecord*> parts;
  std::string key;
  const auto add = [&](const Peer& peer) {
    const control::RestoreChoice& restored = peer.join.restored();
    if (!choice_ || restored.decision() != decision_ || restored.none()) return;
    const std::string of = WholeKey(restored.generation());
    if (key.empty()) key = of;
    if (key == of) parts.push_back(&restored.generation());
  };
  for (const auto& [rank, peer] : members_) {
    if (!peer.join.released()) continue;
    if (!choice_) {
      choice_ = peer.join.restored();
      decision_ = choice_->decision();
    }
    if (IsWhole(choice_->generation()) || choice_->none()) break;
    add(peer);
  }
  if (!choice_) return true;
  control::RestoreChoice choice = *choice_;
  if (!parts.empty()) {
    for (const auto& [rank, peer] : members_) {
      if (!peer.join.released()) add(peer);
    }
    AssembledRecord found = AssembleFor(holdings_, parts);
    if (!found.contradiction.empty()) {
      EndRun(found.contradiction);
      return false;
    }
    *choice.mutable_generation() = std::move(found.record);
  }
  SetChoice(std::move(choice));
  return true;
}

// ---- the committed generation ----------------------------------------------------------------

// What an earlier coordinator of the run has committed, if it has. False: the run has ended.
bool CoordinatorMachine::Impl::FindCommitted() {
  next_number_ = 1;
  uint64_t newest = 0;                                                         // committed one
  std::map<std::string, std::vector<const control::GenerationRecord*>> parts;  // of that
  for (const auto& [node, records] : holdings_.records()) {
    for (const auto& record : records) {
      if (FromProto(record->save().run()) != run_) continue;
      next_number_ = std::max<uint64_t>(next_number_, record->save_number() + 1);
      if (!record->committed() || record->save_number() < newest) continue;
      if (record->save_number() > newest) parts.clear();
      newest = record->save_number();
      parts[WholeKey(*record)].push_back(record.get());
    }
  }
  if (parts.empty()) return true;
  AssembledRecord found = AssembleFor(holdings_, parts.begin()->second);
  if (parts.size() > 1 || !IsWhole(found.record)) {
    // Nothing may be dropped or collected on a guess; all of it stays for the next start.
    EndRun(fmt::format("which shards belong to its committed {} isn't known for certain",
                       FromProto(found.record.save()).ToString()));
    return false;
  }
  committed_ = std::make_shared<const control::GenerationRecord>(std::move(found.record));
  committed_cutter_.emplace(*committed_);
  return true;
}

void CoordinatorMachine::Impl::AddCommitted(control::Commit* commit, const Peer& peer) const {
  AddObsolete(commit, peer);
  if (WholeView()) {
    *commit->mutable_generation() = *committed_;
    return;
  }
  std::set<uint32_t> slots;
  if (IsMember(peer)) {
    slots = SlotsOfView(*committed_, peer.rank());
    // It judges by their entries which copies of this run are older.
    holdings_.ForEachCopy(peer.node(), [&](const control::ShardInfo& shard) {
      if (FromProto(shard.save().run()) != run_) return;
      slots.insert(SlotOf(*committed_, shard.rank(), shard.worker()));
    });
  }
  *commit->mutable_generation() = committed_cutter_->Part(slots);
}

// Copies that a node can't read and that only others know to be of a recorded generation, or that
// were given up for this run.
void CoordinatorMachine::Impl::AddObsolete(control::Commit* commit, const Peer& peer) const {
  const auto unreadable = holdings_.unreadable().find(peer.node());
  if (unreadable == holdings_.unreadable().end()) return;
  std::set<std::string> digests;
  for (const auto& item : unreadable->second) {
    if (!item.digest().empty()) digests.insert(item.digest());
  }
  if (digests.empty()) return;
  const bool given_up =
      choice_ && std::any_of(choice_->orders().begin(), choice_->orders().end(),
                             [&](const auto& order) { return order.without() == peer.node(); });
  if (given_up) {
    for (const std::string& digest : digests) commit->add_obsolete(digest);
    return;
  }
  std::set<const control::GenerationRecord*> seen;
  for (const auto& [node, records] : holdings_.records()) {
    for (const auto& record : records) {
      if (!seen.insert(record.get()).second) continue;
      for (const auto& shard : record->shards()) {
        if (digests.erase(shard.digest()) != 0) commit->add_obsolete(shard.digest());
      }
    }
  }
}

}  // namespace tierkeep
