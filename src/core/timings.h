// Every wait of the core, in one place: each has a deadline and a defined outcome. The client-side
// budgets they follow are in docs/protocol.md, "Waits".
#pragma once

#include "base/time.h"

namespace tierkeep {

struct CoreTimings {
  // Finding a coordinator, and gathering all ranks: then `.failed` on every member, naming the
  // missing ranks. Orbax gives up after 900 s, PyTorch clients after 300 s.
  Duration gather_deadline_orbax = 840s;
  Duration gather_deadline_pytorch = 270s;
  // Where no jax-init-info.txt tells when the client restarts, the yaml goes after this at the
  // latest: the attempt stays valid.
  Duration config_kept_max = 60s;
  // The yaml stays while a restore's transfer still needs this long; after it is gone the client
  // waits 300 s for its link.
  Duration link_budget = 200s;
  // A yaml that is empty or can't be parsed may become another for so long before it is judged: the
  // PyTorch client writes in place.
  Duration config_bad_max = 2s;
  // The time between two reads that nothing else asks for; and between two yamls that are accepted,
  // after so many in a row that were accepted at once.
  Duration config_settle = 1s;
  int config_burst = 8;
  // One that somebody has open for writing, or that can't be read, is looked at again for so long.
  Duration config_writing_max = 60s;
  // Reconnect and re-read of the rendezvous: first and longest pause.
  Duration reconnect_first = 100ms;
  Duration reconnect_max = 2s;
  // While gathering, how often a member looks whether the record now names another coordinator.
  Duration gather_recheck = 2s;
  // When a run ends while a stranger waits for the rank of a member that is still here: how long
  // that member's new yaml is waited for.
  Duration stranger_grace = 5s;
  // Agents without a rank may hold the only good copy: how long gathering stays open for them when
  // nodes of the previous run are missing and nothing restorable is in sight. Longer than one needs
  // that has to find out first (silent_after) that the coordinator it listens to is gone.
  Duration holder_grace = 50s;
  // How long a holder serves a job that restores while it holds another's shards, too: shorter than
  // holder_grace by more than it takes to find the other's coordinator, which may wait for it.
  Duration holder_turn = 25s;
  Duration holder_poll = 10s;  // how often an idle holder looks at its jobs' records
  Duration ping_interval = 10s;
  Duration silent_after = 35s;  // then the connection counts as lost
  // One restore decision's transfers: then the slow node counts as failed for that decision.
  Duration prepare_deadline = 600s;
  Duration keep_deadline = 600s;
  // For so long may newer saves replace uncommitted ones: then one is seen through.
  Duration overtaken_max = 5s;
  Duration compare_deadline = 60s;  // what differs between replicas: then it stays unknown
  Duration commit_deadline = 60s;   // a member that doesn't record a commit: said, asked again
  Duration retry_pause = 2s;        // after a failed replication of the newest save
  int keep_tries = 3;
  Duration room_recheck = 5s;  // while a copy waits for memory that others may give back unseen
};

static_assert(CoreTimings{}.holder_turn + CoreTimings{}.holder_poll < CoreTimings{}.holder_grace);

}  // namespace tierkeep
