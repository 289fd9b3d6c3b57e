"""Much of the same: thirty restarts of a job, sixteen agents, connections cut again and again."""

import random

import pytest

import proxy
import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(400)


def test_thirty_restarts_in_a_row(make_cluster, seed):
    """Saves in between, or none, ranks as before or swapped: always the newest save, nothing piles
    up in the volume's memory."""
    cluster = make_cluster(2)
    job = Job(cluster, seed, megabytes=1)
    assert job.start() is None
    job.save(1)
    draw = random.Random(seed)
    for step in range(2, 32):
        if draw.random() < 0.7:
            job.save(step)
        job.restart(ranks=draw.choice([[0, 1], [0, 1], [1, 0]]))
        # Own copies, the peers', and those of a rank that moved, hard links counted each time; what
        # is older goes in the background.
        cluster.wait_for(lambda: sum(n.ram_used() for n in cluster.nodes) < 2 * 6 * 1.5 * MIB, 30,
                         f"old copies to go after step {step}")
    cluster.wait_for(
        lambda: sum(len(scripted_job.shards(n)) for n in cluster.nodes) <= 4, 30, "old copies to go")


def test_sixteen_agents_on_one_machine(make_cluster, seed):
    cluster = make_cluster(16, ram_mib=64)
    job = Job(cluster, seed, megabytes=0.25)
    assert job.start() is None
    for step in (1, 2):
        job.save(step)
    lost = random.Random(seed).sample(cluster.nodes, 5)
    pairs = {n.index ^ 1 for n in lost}
    lost = [n for n in lost if n.index not in pairs or n.index % 2 == 0]
    print("lost:", [n.name for n in lost])
    for node in lost:
        node.kill()
        node.wipe_ram()
    for node in lost:
        node.start()
    for node in lost:
        node.wait_ready()
    job.restart()
    job.save(3)
    scripted_job.check_copies(job, 3, nodes_each=2)


@pytest.mark.parametrize("which", ["data", "control"])
def test_connections_are_cut(make_cluster, seed, which):
    """At drawn bytes, four times; each save is committed all the same."""
    cluster = make_cluster(2, start=False)
    proxy.put_behind_proxy(cluster.nodes[0])
    cluster.start()
    with proxy.Proxies(cluster.nodes[0]) as between:
        job = Job(cluster, seed, megabytes=4)
        assert job.start() is None
        draw = random.Random(seed)
        wire = getattr(between, which)
        step = 0
        while wire.cuts < 4:
            step += 1
            assert step < 30, "the connections aren't used"
            wire.cut(draw.randrange(4 * MIB if which == "data" else 3000))
            job.save(step)
        scripted_job.check_copies(job, step, nodes_each=2)
        job.restart()
