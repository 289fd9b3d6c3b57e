"""Two thousand members on real connections, and a real agent that coordinates them."""

import random

import pytest

import hostile
import large_job
import scripted_job

pytestmark = pytest.mark.timeout(500)

NODES = 2000


def test_two_thousand_connections(make_cluster, seed):
    """Join, a decision, a save to its commit, and a restart that restores it: all on connections that
    last, with a bounded number of messages for each member."""
    if reason := large_job.why_not(NODES):
        pytest.skip(reason)

    def data(step):
        draw = random.Random(f"{seed}/{step}")
        return {"weights": draw.randbytes(1 << 20), "notes": draw.randbytes(100)}

    cluster = make_cluster(1)
    node = cluster.nodes[0]
    at_rest = hostile.resident(node.agent.pid)
    with large_job.LargeJob(cluster, NODES, data) as job:
        step, joined = job.start()
        assert step is None
        status = node.status()
        assert [r["rank"] for r in status["ranks"] if r["connected"]] == list(range(NODES))
        assert (status["missing_ranks"], status["problems"]) == ([], [])
        assert NODES - 1 <= hostile.descriptors(node.agent.pid) < NODES + large_job.SPARE_FILES
        saved = job.save(7)
        step, restored = job.start()
        assert (step, restored["restored"]) == (7, 7)
        scripted_job.check_files(scripted_job.read_tree(job.volume.restored_path(7)), data(7),
                                 "what rank 0 restored")
        again = job.save(8)
        job.volume.check_errors()
        assert job.volume.errors == []
        assert node.status()["network"]["rejected_frames"] == 0
        print(f"the agent's memory: {at_rest >> 20} MiB at rest, "
              f"{hostile.resident(node.agent.pid) >> 20} MiB now")
    for report in (joined, saved, restored, again):
        print(report)
        assert report["members"] == NODES - 1
        assert report["connections_lost"] == 0
        assert max(report["messages_in"], report["messages_out"]) <= 12 * NODES
