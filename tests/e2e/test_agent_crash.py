"""Agents that are killed at any moment, start again, and go on without a new replicator.yaml."""

import itertools
import random

import pytest

import proxy
import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(240)

BOTH = [[0], [1], [0, 1]]


def restart_agents(nodes):
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait_ready()


def wait_running(job):
    job.cluster.wait_for(lambda: all(n.status()["phase"] == "running" for n in job.nodes), 30,
                         "all nodes to be in the run again")


@pytest.mark.parametrize("victims", BOTH, ids=str)
def test_b9_killed_while_idle(make_cluster, seed, victims):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(7)
    run = cluster.nodes[0].status()["run"]
    held = [scripted_job.shards(n) for n in cluster.nodes]
    nodes = [cluster.nodes[i] for i in victims]
    for node in nodes:
        node.kill()
    restart_agents(nodes)
    wait_running(job)
    assert [n.status()["run"] for n in cluster.nodes] == [run, run]
    assert [sorted(scripted_job.shards(n)) for n in cluster.nodes] == [sorted(h) for h in held]
    assert [n.status()["network"]["bytes_pulled"] for n in nodes] == [0] * len(nodes)
    job.save(8)
    scripted_job.check_copies(job, 8, nodes_each=2)
    job.restart()


@pytest.mark.parametrize("victims", BOTH, ids=str)
def test_killed_while_a_save_is_replicated(make_cluster, seed, victims):
    """Rank 0's data is held on its way, after a seeded count of bytes, when the kill comes."""
    with scripted_job.job_behind_proxy(make_cluster, seed, megabytes=24) as (job, between):
        cluster = job.cluster
        after = random.Random(seed).randrange(20_000, 23 * MIB)
        print("held after", after)
        between.data.hold(after)
        job.write(2)
        cluster.wait_for(between.data.holding.is_set, 20, "the replication to be in the middle")
        assert not any(2 in n.committed_steps() for n in cluster.nodes)
        nodes = [cluster.nodes[i] for i in victims]
        for node in nodes:
            node.kill()
        between.data.release()
        proxy.put_before_proxy(cluster.nodes[0])
        restart_agents(nodes)
        job.committed(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.save(3)
        scripted_job.check_copies(job, 3, nodes_each=2)
        job.restart()


def test_killed_at_seeded_moments(make_cluster, seed):
    """Five saves, each with another kill: of a drawn node, when a drawn thing has happened."""
    cluster = make_cluster(3)
    job = Job(cluster, seed, megabytes=8)
    assert job.start() is None
    job.save(1)
    draw = random.Random(seed)

    def something_staged(node, step):
        return any(s["own"] for s in scripted_job.shards(node, step).values())

    def something_kept(node, step):
        return any(not s["own"] for s in scripted_job.shards(node, step).values())

    moments = {
        "at once": lambda node, step: True,
        "staged": something_staged,
        "kept": lambda node, step: something_kept(node, step) or step in node.committed_steps(),
        "first commit": lambda node, step: any(step in n.committed_steps() for n in job.nodes),
    }
    for step, name in enumerate(draw.choices(sorted(moments), k=5), start=2):
        victim = draw.choice(cluster.nodes)
        print(f"step {step}: {victim.name}, {name}")
        job.write(step)
        cluster.wait_for(lambda: moments[name](victim, step), 20, f"{name} on {victim.name}")
        victim.kill()
        restart_agents([victim])
        job.committed(step)
    scripted_job.check_copies(job, job.saved, nodes_each=2)
    job.restart()


@pytest.mark.parametrize("victims", BOTH, ids=str)
def test_killed_while_data_is_restored(make_cluster, seed, victims):
    """Node 1 has lost its RAM and pulls its data from node 0 when the kill comes: the job waits,
    and gets its data all the same."""
    cluster = make_cluster(2, start=False)
    source, lost = cluster.nodes
    proxy.put_behind_proxy(source)
    cluster.start()
    with proxy.Proxies(source) as between:
        job = Job(cluster, seed, megabytes=24)
        assert job.start() is None
        job.save(1)
        lost.kill()
        lost.wipe_ram()
        after = random.Random(seed).randrange(20_000, 23 * MIB)
        print("held after", after)
        between.data.hold(after)
        restart_agents([lost])  # it may fetch its copies before the job is back
        restored = job.begin()
        cluster.wait_for(between.data.holding.is_set, 20, "the restore to be in the middle")
        nodes = [cluster.nodes[i] for i in victims]
        for node in nodes:
            node.kill()
        between.data.release()
        proxy.put_before_proxy(source)
        restart_agents(nodes)
        assert restored() == 1
        job.check_restored(1)
        job.save(2)
        scripted_job.check_copies(job, 2, nodes_each=2)


def test_a5_saves_made_while_the_agents_are_down(make_cluster, seed):
    """The job trains on without its agents; what it saved meanwhile is found afterwards."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for node in cluster.nodes:
        node.kill()
    job.write(2)
    restart_agents(cluster.nodes)
    job.committed(2)
    job.save(3)
    job.restart()


def test_job_and_agents_gone_before_the_commit(make_cluster, seed):
    """A complete save that never reached its commit is restored too."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for node in cluster.nodes:
        node.kill()
    job.write(2)
    finish = job.begin()  # every process starts anew, and so does every agent
    restart_agents(cluster.nodes)
    assert finish() == 2
    job.check_restored(2)
    job.save(3)
    job.restart()


def test_power_cut_of_each_node_in_turn(make_cluster, seed):
    """Agent and RAM are gone, in every order of three nodes' losses."""
    cluster = make_cluster(3)
    job = Job(cluster, seed, megabytes=2)
    assert job.start() is None
    orders = list(itertools.permutations(range(3)))
    order = random.Random(seed).choice(orders)
    print("order", order)
    for step, victim in enumerate(order, start=1):
        job.save(step)
        node = cluster.nodes[victim]
        node.kill()
        node.wipe_ram()
        restart_agents([node])
        job.restart()
    # Redundancy is rebuilt behind the job's back.
    cluster.wait_for(lambda: sum(len(scripted_job.shards(n, job.saved)) for n in cluster.nodes) == 6,
                     30, "all copies to be back")
    scripted_job.check_copies(job, job.saved, nodes_each=2)
