"""How jobs start: in any order, late, twice, after the coordinator's death, with a bad yaml."""

import os
import random

import pytest

import scripted_job
from scripted_job import Job
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(240)


def test_any_order_of_agents_and_processes(make_cluster, seed):
    """Three agents and three yaml files, in a drawn order; the next one comes once the one before
    has been seen."""
    cluster = make_cluster(3, start=False)
    job = Job(cluster, seed)
    draw = random.Random(seed)
    todo = [(kind, i) for kind in ("agent", "process") for i in range(3)]
    draw.shuffle(todo)
    print("order", todo)
    # The processes' side by hand, so that each begins when it is drawn.
    job.ranked = dict(enumerate(cluster.nodes))
    job.volumes = {i: volume_lib.TorchVolume(n.volume, poll=0.01, limit=60)
                   for i, n in enumerate(cluster.nodes)}
    for kind, i in todo:
        if kind == "agent":
            cluster.nodes[i].start()
            cluster.nodes[i].wait_ready()
        else:
            job.configure(i)
        node = cluster.nodes[i]
        if node.agent and os.path.exists(os.path.join(node.volume, "replicator.yaml")):
            cluster.wait_for(lambda: node.status()["phase"] not in ("idle", "cleaning"), 20,
                             f"{node.name} to take up the job")
    assert [job.volumes[i].wait_restored() for i in range(3)] == [None] * 3
    job.save(1)
    job.restart()


def test_node_that_comes_late(make_cluster, seed):
    cluster = make_cluster(3, start=False)
    late = cluster.nodes[random.Random(seed).randrange(3)]
    print("late", late.name)
    early = [n for n in cluster.nodes if n is not late]
    for node in early:
        node.start()
    for node in early:
        node.wait_ready()
    job = Job(cluster, seed)
    restored = job.begin()
    cluster.wait_for(lambda: all(n.status()["phase"] in ("locating", "joining") for n in early),
                     20, "the others to wait")
    # Nobody is released before all are there.
    assert all(not any(name.endswith(".restore") for name in os.listdir(n.volume))
               for n in cluster.nodes)
    late.start()
    late.wait_ready()
    assert restored() is None
    job.save(1)
    job.check_no_errors()


def test_b4_record_of_a_dead_coordinator(make_cluster, seed):
    """Rank 0's machine is gone for good; its record still stands. The job goes on elsewhere with
    what the other node kept."""
    cluster = make_cluster(3)
    first, kept, fresh = cluster.nodes
    job = Job(cluster, seed, nodes=[first, kept])
    assert job.start() is None
    job.save(1)
    first.kill()
    first.wipe_ram()
    moved = Job(cluster, seed, nodes=[fresh, kept])
    restored = moved.begin()
    assert restored() == 1
    moved.check_restored(1)
    moved.save(2)
    scripted_job.check_copies(moved, 2, nodes_each=2)
    moved.restart(ranks=(1, 0))


def test_old_host_serves_what_it_holds(make_cluster, seed):
    """The job moves to two other machines, and the old ones, without a rank, give its data."""
    cluster = make_cluster(4)
    job = Job(cluster, seed, nodes=cluster.nodes[:2])
    assert job.start() is None
    job.save(1)
    moved = Job(cluster, seed, nodes=cluster.nodes[2:])
    assert moved.start() == 1
    moved.check_restored(1)
    moved.save(2)
    moved.restart()


def test_job_is_started_again_in_mid_run(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    runs = [cluster.nodes[0].status()["run"]]
    for step in (2, 3):
        job.restart()
        runs.append(cluster.nodes[0].status()["run"])
        job.save(step)
    assert len(set(runs)) == 3 and runs == sorted(runs)


def test_job_is_started_twice_while_it_gathers(make_cluster, seed):
    """One process gives up and is started again before the others are there."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    first = volume_lib.TorchVolume(cluster.nodes[0].volume, poll=0.01, limit=60)
    first.configure(job.name, 0, 2)
    node = cluster.nodes[0]
    cluster.wait_for(lambda: node.status()["phase"] in ("locating", "joining"), 20,
                     "the first attempt")
    # The agent may keep the yaml while it gathers; a client that is killed leaves it, and the next
    # one takes it away.
    yaml = os.path.join(node.volume, "replicator.yaml")
    if os.path.exists(yaml):
        os.unlink(yaml)
    assert job.start() is None
    job.save(1)
    job.restart()


def test_other_job_on_the_same_machines(make_cluster, seed):
    """Its checkpoints are its own: the one before isn't restored."""
    cluster = make_cluster(2)
    one = Job(cluster, seed, name="one")
    assert one.start() is None
    one.save(5)
    two = Job(cluster, seed, name="two")
    assert two.start() is None
    two.save(3)
    two.restart()


def test_abandoned_branch_does_not_win(make_cluster, seed):
    """Steps go back: newest is what was saved last, not what has the highest number."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(900)
    job.save(100)
    job.restart()
    assert job.saved == 100
    job.save(200)
    job.restart()
    # The same step again, with other bytes.
    plain = job.data
    job.data = lambda step, rank: {name: data[::-1] for name, data in plain(step, rank).items()}
    job.save(200)
    job.restart()


BAD = {
    "rank beyond the world": ("node-rank: 1", "node-rank: 2", ["node-rank", "'2'", "below nodes"]),
    "no such framework": ("framework: pytorch.distributed", "framework: tensorflow",
                          ["framework", "'tensorflow'", "orbax"]),
    "not a number": ("nodes: 2", "nodes: two", ["nodes", "'two'", "whole number"]),
    "a name that escapes": ("job-name: e2e", "job-name: ../e2e", ["job-name", "'../e2e'", "begin"]),
    "no peers": ("peers-per-node: 1\n", "", ["peer-ranks", "peers-per-node"]),
    "not yaml": ("nodes: 2", "nodes: [2", ["replicator.yaml"]),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_b14_bad_yaml(make_cluster, seed, case):
    cluster = make_cluster(2)
    node = cluster.nodes[1]
    old, new, words = BAD[case]
    good = ("job-name: e2e\nframework: pytorch.distributed\nnode-rank: 1\nnodes: 2\n"
            "peers-per-node: 1\nbackup-interval-minutes: 30\n")
    assert old in good
    path = os.path.join(node.volume, "replicator.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(good.replace(old, new))
    cluster.wait_for(lambda: not os.path.exists(path), 20, "the yaml to go")
    # The answer is there before the yaml goes.
    with open(os.path.join(node.volume, "replicator.failed"), encoding="utf-8") as f:
        text = f.read()
    print(text)
    assert [w for w in words if w not in text] == []
    assert os.path.exists(os.path.join(node.volume, "replicator.errors"))
    # The same agents take the corrected job.
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)


def test_nodes_that_do_not_agree(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    job.volumes = {i: volume_lib.TorchVolume(n.volume, poll=0.01, limit=60)
                   for i, n in enumerate(cluster.nodes)}
    job.volumes[0].configure("e2e", 0, 2)
    job.volumes[1].configure("e2e", 1, 3)
    for volume in job.volumes.values():
        with pytest.raises(volume_lib.ReplicatorFailed) as failed:
            volume.wait_released()
            volume.wait_restored()
        assert "node0" in str(failed.value) and "node1" in str(failed.value)
    assert job.start() is None
    job.save(1)


def test_empty_yaml_resets_the_agent(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for node in cluster.nodes:
        path = os.path.join(node.volume, "replicator.yaml")
        with open(path, "w", encoding="utf-8"):
            pass
        cluster.wait_for(lambda: not os.path.exists(path), 20, "the empty yaml to go")
    cluster.wait_for(lambda: all(n.status()["phase"] == "idle" for n in cluster.nodes), 20,
                     "the agents to be idle")
    job.restart()
    job.save(2)


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_a12_copies_are_where_they_were_asked_for(make_cluster, seed, peers):
    cluster = make_cluster(4)
    job = Job(cluster, seed, megabytes=1, peers=peers)
    assert job.start() is None
    job.save(1)
    scripted_job.check_copies(job, 1, nodes_each=1 + peers)
    # That many nodes may be lost.
    lost = random.Random(seed).sample(cluster.nodes, peers)
    print("lost", [n.name for n in lost])
    for node in lost:
        node.kill()
        node.wipe_ram()
        node.start()
    for node in lost:
        node.wait_ready()
    job.restart()


def test_explicit_peers(make_cluster, seed):
    cluster = make_cluster(4)
    ring = {0: [2], 1: [3], 2: [1], 3: [0]}
    job = Job(cluster, seed, megabytes=1, peers=None, peer_ranks=ring)
    assert job.start() is None
    job.save(1)
    for rank, (keeper,) in ring.items():
        ranks = {s["rank"] for s in scripted_job.shards(cluster.nodes[keeper], 1).values()}
        assert ranks == {keeper, rank}
