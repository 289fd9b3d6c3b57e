// Judges facts: pure functions, any thread. Each but CheckSizing
// returns at least one finding.
#pragma once

#include "platform/doctor/facts.h"
#include "platform/doctor/finding.h"

namespace tierkeep::doctor {

Findings CheckAgent(const AgentFacts& agent);
Findings CheckMount(const MountFacts& mount);
Findings CheckMemory(const MemoryFacts& memory, const MountFacts& mount);
Findings CheckHugePages(const HugePageFacts& pages, const MountFacts& mount);
Findings CheckLimits(const LimitFacts& limits);
Findings CheckPort(const PortFacts& port);
Findings CheckPeer(const PeerFacts& peer);
Findings CheckTls(const TlsFacts& tls, WallTime now);
Findings CheckClocks(const RendezvousFacts& rendezvous, const AgentFacts& agent);
Findings CheckRendezvous(const RendezvousFacts& rendezvous, const AgentFacts& agent);
Findings CheckStateDir(const StateDirFacts& state);
// What the running agent advises; empty before it has seen a save.
Findings CheckSizing(const AgentFacts& agent);
// No agent of this version keeps backups.
Findings CheckBucket();

}  // namespace tierkeep::doctor
