// The agents that a coordinator speaks to, found by rank or name, connection, agent and node
// without looking through all of them: a large job has tens of thousands.
//
// Threads: one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/events.h"
#include "format/ids.h"
#include "format/messages.h"

namespace tierkeep {

// An agent that takes part, or could.
struct CoordinatorPeer {
  control::Join join;
  ConnectionId connection = 0;
  bool connected = true;
  int failures = 0;  // own failures to prepare, not a source's
  Instant heard;
  Instant joined;
  Instant accepted;  // its yaml
  // It wanted the rank while another's run went on, and that other one is here still: until then
  // the other's new yaml is waited for.
  Instant doubted_until{};
  std::optional<Instant> contested;  // when another agent came under this one's node name

  const std::string& node() const { return join.node(); }
  Rank rank() const { return join.rank(); }
  const std::string& agent() const { return join.attempt().agent(); }
  uint64_t attempt() const { return join.attempt().counter(); }
  RunId in_run() const { return FromProto(join.in_run()); }
};

// Peers by key, a rank or a node's name. What a peer is found by (its join's node and agent, its
// connection) changes by Put alone; all else may be changed in place.
template <typename Key>
class PeerTable {
 public:
  using Map = std::map<Key, CoordinatorPeer>;
  using iterator = typename Map::iterator;
  using const_iterator = typename Map::const_iterator;

  iterator begin() { return peers_.begin(); }
  iterator end() { return peers_.end(); }
  const_iterator begin() const { return peers_.begin(); }
  const_iterator end() const { return peers_.end(); }
  bool empty() const { return peers_.empty(); }
  size_t size() const { return peers_.size(); }
  size_t count(const Key& key) const { return peers_.count(key); }
  iterator find(const Key& key) { return peers_.find(key); }
  const_iterator find(const Key& key) const { return peers_.find(key); }
  CoordinatorPeer& at(const Key& key) { return peers_.at(key); }
  const CoordinatorPeer& at(const Key& key) const { return peers_.at(key); }

  CoordinatorPeer& Put(const Key& key, CoordinatorPeer peer) {
    if (const auto old = peers_.find(key); old != peers_.end()) Forget(key, old->second);
    by_connection_[peer.connection] = key;
    by_agent_[peer.agent()] = key;
    by_node_[peer.node()] = key;
    CoordinatorPeer& slot = peers_[key];
    slot = std::move(peer);
    return slot;
  }
  iterator Erase(iterator it) {
    Forget(it->first, it->second);
    return peers_.erase(it);
  }
  void Erase(const Key& key) {
    if (const auto it = peers_.find(key); it != peers_.end()) Erase(it);
  }
  CoordinatorPeer Take(iterator it) {
    Forget(it->first, it->second);
    CoordinatorPeer peer = std::move(it->second);
    peers_.erase(it);
    return peer;
  }
  void clear() {
    peers_.clear();
    by_connection_.clear();
    by_agent_.clear();
    by_node_.clear();
  }

  // The one that came last, where two go by one name. end() if there is none.
  iterator ByConnection(ConnectionId connection) { return By(peers_, by_connection_, connection); }
  iterator ByAgent(const std::string& agent) { return By(peers_, by_agent_, agent); }
  iterator ByNode(const std::string& node) { return By(peers_, by_node_, node); }
  const_iterator ByNode(const std::string& node) const { return By(peers_, by_node_, node); }

 private:
  template <typename Peers, typename Index, typename Name>
  static auto By(Peers& peers, const Index& index, const Name& name) {
    const auto found = index.find(name);
    return found == index.end() ? peers.end() : peers.find(found->second);
  }
  void Forget(const Key& key, const CoordinatorPeer& peer) {
    Forget(&by_connection_, peer.connection, key);
    Forget(&by_agent_, peer.agent(), key);
    Forget(&by_node_, peer.node(), key);
  }
  template <typename Index, typename Name>
  static void Forget(Index* index, const Name& name, const Key& key) {
    const auto found = index->find(name);
    if (found != index->end() && found->second == key) index->erase(found);
  }

  Map peers_;
  std::map<ConnectionId, Key> by_connection_;
  std::map<std::string, Key> by_agent_;
  std::map<std::string, Key> by_node_;
};

}  // namespace tierkeep
