// Who may take part: agreement on the job, two claims to one rank, claims of an earlier start.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/mutation.h"
#include "core/coordinator_impl.h"

namespace tierkeep {
namespace {

constexpr uint64_t kAgeMaxMs = 24 * 3600 * 1000;

Duration CappedAge(uint64_t ms) { return std::chrono::milliseconds(std::min(ms, kAgeMaxMs)); }

std::string NameOf(const std::string& node, Rank rank, const control::Address& address) {
  return fmt::format("node {} (rank {}, {})", node, rank, address.host());
}

// What all must agree on, as (name, value) texts in a fixed order.
std::vector<std::pair<std::string, std::string>> Essentials(const control::JobSettings& settings) {
  const WorldShape world = FromProto(settings.world());
  return {{"job-name", settings.job()},
          {"framework", std::string(FrameworkName(world.framework))},
          {"nodes", std::to_string(world.nodes)},
          {"workers-per-node", std::to_string(world.workers_per_node)},
          {"assume-data-parallelism", std::to_string(world.data_parallelism)}};
}

}  // namespace

// How old its yaml is, at least. An agent that was restarted knows only since when it runs; but its
// run began after the yaml had been accepted, at the time that the run's number tells.
Duration CoordinatorMachine::Impl::AttemptAge(const control::Join& join) const {
  uint64_t age = join.attempt_age_ms();
  const uint64_t wall = WallMillis(wall_ + (now_ - started_));
  const uint64_t begun = join.in_run().sequence();
  const bool restarted = join.agent_boot() != join.attempt().boot();
  if (join.has_in_run() && restarted && begun < wall) age = std::max(age, wall - begun);
  return CappedAge(age);
}

bool CoordinatorMachine::Impl::CheckAgreement(const Peer& peer) {
  if (peer.rank() >= peer.join.settings().world().nodes()) {
    Reject(peer,
           fmt::format("node-rank {} is out of range: the job has {} nodes", peer.rank(),
                       peer.join.settings().world().nodes()),
           true);
    return false;
  }
  // Those that are here agree with each other: one of them speaks for all.
  for (const auto& [rank, member] : members_) {
    if (member.agent() == peer.agent()) continue;
    const auto ours = Essentials(member.join.settings());
    const auto theirs = Essentials(peer.join.settings());
    for (size_t i = 0; i < ours.size(); ++i) {
      if (ours[i].second == theirs[i].second) continue;
      const std::string reason =
          fmt::format("the nodes disagree on {}: {} says {}, {} says {}", ours[i].first,
                      NameOf(member.node(), rank, member.join.data()), ours[i].second,
                      NameOf(peer.node(), peer.rank(), peer.join.data()), theirs[i].second);
      Reject(peer, reason, true);
      RejectMembers(reason);
      return false;
    }
    break;
  }
  return true;
}

// At a fixed address a node with another job-name comes here too. While all are being gathered that
// is a yaml that differs; later the machine may only be about to start that job.
void CoordinatorMachine::Impl::RefuseOtherJob(ConnectionId from, const control::Envelope& message) {
  if (state_ != State::kGathering || members_.empty() || message.join().holder()) return;
  const auto& [rank, member] = *members_.begin();
  const control::Join& join = message.join();
  const std::string reason =
      fmt::format("the nodes disagree on job-name: {} says {}, {} says {}",
                  NameOf(member.node(), rank, member.join.data()), job(),
                  NameOf(join.node(), join.rank(), join.data()), message.job());
  control::Envelope answer = NewMessage();
  answer.set_job(message.job());
  answer.mutable_rejected()->set_attempt(join.attempt().counter());
  answer.mutable_rejected()->set_reason(reason);
  answer.mutable_rejected()->set_fatal(true);
  SendTo(from, std::move(answer));
  RejectMembers(reason);
}

// A process that was released in a run that is over may train on. Whoever claims its rank with an
// older yaml is of an earlier start of the job.
void CoordinatorMachine::Impl::NoteSeat(const control::Seat& told) {
  if (TK_MUTATION(kForgetSeat)) return;
  const Rank rank = told.rank();
  const Seat seat = {told.attempt().agent(), now_ - CappedAge(told.attempt_age_ms())};
  const auto known = seated_.find(rank);
  if (known != seated_.end() && seat.accepted < known->second.accepted) return;
  seated_[rank] = seat;
  const auto member = members_.find(rank);
  if (member == members_.end() || member->second.agent() == seat.agent ||
      member->second.accepted >= seat.accepted) {
    return;
  }
  if (state_ == State::kGathering && RefuseOlderClaim(member->second)) {
    members_.Erase(rank);
  } else if (state_ == State::kRestoring && !continuing_) {
    EndRun(fmt::format("rank {} has been another node's since", rank));
    seated_[rank] = seat;  // when its members come again they are looked at
  }
}

// A node whose yaml is older than that of the rank's member in the run that has just ended is of an
// earlier start of the job. That member was released and may train on: whoever were released beside
// this node would go on from something else.
bool CoordinatorMachine::Impl::RefuseOlderClaim(const Peer& peer) {
  const auto seated = seated_.find(peer.rank());
  if (seated == seated_.end() || seated->second.agent == peer.agent() ||
      peer.accepted >= seated->second.accepted || TK_MUTATION(kForgetSeat)) {
    return false;
  }
  const std::string reason = fmt::format(
      "rank {} has been another node's since; this one needs a new replicator.yaml", peer.rank());
  Log(Severity::kWarning, fmt::format("Node {} is refused: {}", peer.node(), reason));
  Reject(peer, reason, true);
  holdings_.RemoveNode(peer.node());
  return true;
}

// Two agents for one rank or of one node name (a host that began anew, or a mistake): the one whose
// yaml is younger takes part, the other stays out until it has a new one.
bool CoordinatorMachine::Impl::ResolveDuplicates(const Peer& peer) {
  const auto refused = refused_attempts_.find(peer.agent());
  if (refused != refused_attempts_.end() && refused->second == peer.attempt()) {
    Reject(peer,
           fmt::format("another node has taken rank {}; this one needs a new replicator.yaml",
                       peer.rank()),
           true);
    return false;
  }
  for (const auto it : {members_.find(peer.rank()), members_.ByNode(peer.node())}) {
    if (it == members_.end() || it->second.agent() == peer.agent()) continue;
    const Peer& other = it->second;
    const bool newer = peer.accepted >= other.accepted;
    const std::string what =
        it->first == peer.rank() ? fmt::format("rank {}", peer.rank()) : "node name " + peer.node();
    const Peer& winner = newer ? peer : other;
    const std::string reason =
        fmt::format("{} is claimed by {} and by {}: the latter is newer and takes part", what,
                    newer ? NameOf(other.node(), other.rank(), other.join.data())
                          : NameOf(peer.node(), peer.rank(), peer.join.data()),
                    NameOf(winner.node(), winner.rank(), winner.join.data()));
    Log(Severity::kError, reason);
    TK_PROBE(kRankTakenByNewer);
    const Peer& loser = newer ? other : peer;
    Reject(loser, reason, true);
    refused_attempts_[loser.agent()] = loser.attempt();
    if (!newer) return false;
    holdings_.RemoveNode(other.node());
    members_.Erase(it);
    return ResolveDuplicates(peer);
  }
  return true;
}

}  // namespace tierkeep
