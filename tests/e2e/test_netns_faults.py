"""Agents with addresses and links of their own: links that go silent, are unplugged, or are slow."""

import functools
import random
import time

import pytest

import netns
import scripted_job
from scripted_job import Job

pytestmark = pytest.mark.timeout(240)

REASON = netns.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)


@pytest.fixture
def make_net_cluster(make_cluster):
    """make_cluster with each node in a namespace; returns cluster and net."""
    nets = []

    def make(count):
        net = netns.Net(count)
        nets.append(net)
        cluster = make_cluster(count, start=False)
        for node in cluster.nodes:
            net.put(node)
        return cluster.start(), net

    yield make
    for net in nets:
        net.close()


def staged(node, step):
    return any(s["own"] for s in scripted_job.shards(node, step).values())


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["drop", "unplug"])
def test_link_is_gone_while_a_save_is_made(make_net_cluster, seed, how, victim):
    """The save isn't committed while a member can't be reached; it is once the link is back."""
    cluster, net = make_net_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    fault = functools.partial(getattr(net, how), victim)
    fault(True)
    job.write(2)
    cluster.wait_for(lambda: all(staged(n, 2) for n in cluster.nodes), 30, "both to stage step 2")
    assert not any(2 in n.committed_steps() for n in cluster.nodes)
    fault(False)
    job.committed(2)
    scripted_job.check_copies(job, 2, nodes_each=2)
    job.save(3)
    job.restart()


def test_a_member_is_silent_for_long(make_net_cluster, seed):
    """After 35 s without a word its connection counts as lost: that is reported, the run goes on, and
    the save is committed when it is back."""
    cluster, net = make_net_cluster(3)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    net.drop(2, True)
    job.write(2)
    cluster.wait_for(lambda: cluster.nodes[0].status()["missing_ranks"] == [2], 60,
                     "rank 2 to be reported")
    assert cluster.nodes[1].status()["phase"] == "running"
    assert not any(2 in n.committed_steps() for n in cluster.nodes)
    net.drop(2, False)
    job.committed(2)
    scripted_job.check_copies(job, 2, nodes_each=2)
    assert cluster.nodes[0].status()["missing_ranks"] == []
    job.restart()


def test_source_vanishes_while_data_is_restored(make_net_cluster, seed):
    """Rank 2's data is on two other nodes; one of them goes silent in the middle."""
    cluster, net = make_net_cluster(3)
    job = Job(cluster, seed, megabytes=24, peers=2)
    assert job.start() is None
    job.save(1)
    lost = cluster.nodes[2]
    lost.kill()
    lost.wipe_ram()
    for i in (0, 1):
        net.slow(i, 100)  # so that there is a middle
    lost.start()
    lost.wait_ready()
    finish = job.begin()
    victim = random.Random(seed).choice([0, 1])
    print("victim", victim)
    cluster.wait_for(lambda: lost.ram_used() > 4 << 20, 30, "the restore to be in the middle")
    net.drop(victim, True)
    cluster.wait_for(lambda: lost.ram_used() > 23 << 20, 60, "the other source to take over")
    net.drop(victim, False)
    for i in (0, 1):
        net.slow(i, None)
    cluster.wait_for(lambda: all(run.done() for run in finish.runs), 60, "the job to start")
    assert finish() == 1
    job.check_restored(1)
    job.save(2)


def test_slow_link(make_net_cluster, seed):
    """Data crosses a link of 40 Mbit/s; what the coordinator and its member say isn't held up so
    long that anybody counts as lost."""
    cluster, net = make_net_cluster(2)
    job = Job(cluster, seed, megabytes=8)
    assert job.start() is None
    for i in (0, 1):
        net.slow(i, 40)
    begun = time.monotonic()
    job.save(1)
    job.save(2)
    # Each way 16 MiB at 5 MB/s; no machine is faster than its link.
    assert time.monotonic() - begun > 3, "the link isn't slow: the test tests nothing"
    assert cluster.nodes[0].status()["missing_ranks"] == []
    lost = cluster.nodes[1]
    lost.lose_and_return()
    job.restart()
    job.check_no_errors()
