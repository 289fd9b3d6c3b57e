"""Data connections on which nothing moves any more, though nobody closes them: longer than the data
port's own limit, which is ten seconds."""

import random

import pytest

import proxy
import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(400)

STALLED = "no byte moved for too long"


def test_one_connection_of_a_save_stalls_for_good(make_cluster, seed):
    """Its ranges come over other ones, and the save commits; so does the next one."""
    with scripted_job.job_behind_proxy(make_cluster, seed, megabytes=24) as (job, between):
        after = random.Random(seed).randrange(20_000, 20 * MIB)
        print("stalls after", after)
        between.data.stall(after)
        job.save(2)
        assert between.data.stalls == 1, "nothing stalled: the test tests nothing"
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.save(3)
        job.restart()


def test_the_only_source_stalls_beyond_the_limit(make_cluster, seed):
    """The keeper gives up, says so, and asks again: once the data moves again the save commits without
    anybody saving anew."""
    with scripted_job.job_behind_proxy(make_cluster, seed, megabytes=16) as (job, between):
        cluster = job.cluster
        keeper = cluster.nodes[1]
        between.data.hold(random.Random(seed).randrange(20_000, 14 * MIB))
        job.write(2)
        cluster.wait_for(lambda: STALLED in keeper.log(), 60, "the keeper to give up")
        assert between.data.holding.is_set()
        assert not any(2 in n.committed_steps() for n in cluster.nodes)
        scripted_job.check_copies(job, 1, nodes_each=2)
        between.data.release()
        job.committed(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.save(3)
        job.restart()


@pytest.mark.parametrize("stalled", [0, 1])
def test_a_source_of_a_restore_stalls_for_good(make_cluster, seed, stalled):
    """The other one gives all that is lacking, and the job starts while the first is still silent."""
    cluster = make_cluster(3, start=False)
    lost = cluster.nodes[2]
    for node in cluster.nodes[:2]:
        proxy.put_behind_proxy(node)
    cluster.start()
    proxies = [proxy.Proxies(node) for node in cluster.nodes[:2]]
    try:
        job = Job(cluster, seed, megabytes=24, peers=2)
        assert job.start() is None
        job.save(1)
        lost.kill()
        lost.wipe_ram()
        silent = proxies[stalled].data
        silent.hold(random.Random(seed).randrange(20_000, 4 * MIB))
        lost.start()
        lost.wait_ready()
        job.restart(limit=200)
        assert silent.holding.is_set(), "nothing stalled: the test tests nothing"
        silent.release()
        job.save(2)
        scripted_job.check_copies(job, 2, nodes_each=3)
    finally:
        for between in proxies:
            between.__exit__()
