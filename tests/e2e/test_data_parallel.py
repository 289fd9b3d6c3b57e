"""Framework orbax with assume-data-parallelism: equal replicas keep each other, others do not."""

import random

import pytest

import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(240)


def tree(seed, step, which, megabytes=4):
    draw = random.Random(f"{seed}/{step}/{which}")
    return {"state/array/0": draw.randbytes(megabytes * MIB), "metrics": draw.randbytes(300)}


def pulled(cluster):
    return [n.status()["network"]["bytes_pulled"] for n in cluster.nodes]


def lose(node):
    node.kill()
    node.wipe_ram()
    node.start()
    node.wait_ready()


def test_equal_replicas_commit_without_a_byte_crossing(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed, framework="orbax", data_parallelism=2, peers=None,
              peer_ranks=[[1], [0]], data=lambda step, rank: tree(seed, step, "all"))
    assert job.start() is None
    for step in (0, 1, 2):
        job.save(step)
        assert [len(scripted_job.shards(n, step)) for n in cluster.nodes] == [1, 1]
    assert pulled(cluster) == [0, 0]
    job.check_no_errors()
    job.restart()
    assert pulled(cluster) == [0, 0]
    for node in cluster.nodes:
        lose(node)
        job.restart()
        size = sum(len(x) for x in job.data(job.saved, 0).values())
        assert node.status()["network"]["bytes_pulled"] >= size
        job.save(job.saved + 1)


def test_partitions_of_two_nodes(make_cluster, seed):
    """Two replicas of two nodes each: what is equal is at the same place of the other one."""
    cluster = make_cluster(4)
    job = Job(cluster, seed, framework="orbax", data_parallelism=2, peers=None,
              peer_ranks=[[2], [3], [0], [1]],
              data=lambda step, rank: tree(seed, step, rank % 2, megabytes=1))
    assert job.start() is None
    job.save(1)
    assert pulled(cluster) == [0] * 4
    lose(cluster.nodes[random.Random(seed).randrange(4)])
    job.restart()
    job.save(2)
    # Ranks may move: what a node needs is then elsewhere.
    job.restart(ranks=(1, 0, 3, 2))
    job.save(3)
    job.check_no_errors()


def test_a10_replicas_that_differ_are_reported_and_copied(make_cluster, seed):
    cluster = make_cluster(2)
    odd = {"steps": {2}}

    def data(step, rank):
        return tree(seed, step, f"rank {rank}" if step in odd["steps"] else "all")

    job = Job(cluster, seed, framework="orbax", data_parallelism=2, peers=None,
              peer_ranks=[[1], [0]], data=data)
    assert job.start() is None
    job.save(1)
    assert pulled(cluster) == [0, 0]
    job.save(2)
    # Both shards are on both nodes, and that was so when it was committed: none is on its way.
    scripted_job.check_copies(job, 2, nodes_each=2)
    size = sum(len(x) for x in data(2, 0).values())
    assert all(p >= size for p in pulled(cluster))
    # They are compared while the copies are made, and nobody waits for that.
    cluster.wait_for(
        lambda: "disagree" in "\n".join(cluster.nodes[0].status()["problems"]) and
        "disagree" in cluster.nodes[0].log(), 30, "the disagreement to be reported")
    job.save(3)
    assert "disagree" not in "\n".join(cluster.nodes[0].status()["problems"])

    job.save(4)
    odd["steps"].add(5)
    job.save(5)
    before = [scripted_job.shards(n, 5) for n in cluster.nodes]
    assert [len(b) for b in before] == [2, 2]
    lose(cluster.nodes[1])
    # One consistent row for all.
    assert job.start() == 5
    got = [scripted_job.read_tree(v.restored_path(5)) for v in job.volumes.values()]
    for files in got:
        files.pop("commit_success.txt")
    own = [data(5, 0), data(5, 1)]
    assert got in ([own[0], own[0]], [own[1], own[1]])


def test_bookkeeping_does_not_count_as_a_difference(make_cluster, seed):
    cluster = make_cluster(2)

    def data(step, rank):
        return {**tree(seed, step, "all", 1),
                "_CHECKPOINT_METADATA": b'{"item_handlers": {"state": "x"}, "init_timestamp_nsecs":'
                                        b' %d, "commit_timestamp_nsecs": %d}' % (rank, rank + 7)}

    job = Job(cluster, seed, framework="orbax", data_parallelism=2, peers=None,
              peer_ranks=[[1], [0]], data=data)
    assert job.start() is None
    job.save(1)
    assert pulled(cluster) == [0, 0]
    assert cluster.nodes[0].status()["problems"] == []
