"""RAM is the user's: what a volume holds at its peak, in sizes of one node's save."""

import os
import threading

import pytest

import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(60)

SAVE = 16  # MiB a node
SLACK = 0.1  # manifests, records, directories, pages not filled


class Sampler:
    """Looks every 20 ms how much of each node's mount is used; `peak()` is the most so far since
    the last call, in sizes of a save."""

    def __init__(self, nodes):
        self._nodes = nodes
        self._peak = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._end.wait(0.02):
            now = max(used(n) for n in self._nodes)
            with self._lock:
                self._peak = max(self._peak, now)

    def peak(self):
        with self._lock:
            value, self._peak = self._peak, 0
        return value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


def used(node):
    if not node.cluster.mounted:
        return node.ram_used() / MIB / SAVE
    space = os.statvfs(node.mount)
    return (space.f_blocks - space.f_bfree) * space.f_frsize / MIB / SAVE


def settle(cluster, sizes):
    """Waits until every node is down to so many saves: what is older is deleted in the
    background."""
    cluster.wait_for(lambda: all(used(n) <= sizes + SLACK for n in cluster.nodes), 20,
                     f"volumes to be down to {sizes}; now {[used(n) for n in cluster.nodes]}")


@pytest.mark.parametrize("placement", ["data parallel", "one peer"])
def test_volume_use_stays_within_the_table(make_cluster, seed, placement):
    cluster = make_cluster(2)
    if placement == "one peer":
        quiet, arriving = 2, 4
        job = Job(cluster, seed, megabytes=SAVE)
    else:
        quiet, arriving = 1, 2
        job = Job(cluster, seed, megabytes=SAVE, framework="orbax", data_parallelism=2, peers=None,
                  peer_ranks=[[1], [0]])
        plain = job.data
        job.data = lambda step, rank: plain(step, 0)
    assert job.start() is None
    with Sampler(cluster.nodes) as sampler:
        for step in range(1, 6):
            job.save(step)
            settle(cluster, quiet)
            peak = sampler.peak()
            print(f"step {step}: peak {peak:.2f}")
            assert peak <= (quiet if step == 1 else arriving) + SLACK
            assert peak > quiet - SLACK, "the samples missed the save"
        # A restored tree is hard links, and takes nothing.
        job.restart()
        settle(cluster, quiet)
        assert sampler.peak() <= quiet + SLACK
        job.save(6)
        settle(cluster, quiet)
        assert sampler.peak() <= arriving + SLACK


def test_lost_redundancy_is_rebuilt_without_a_save(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed, megabytes=SAVE)
    assert job.start() is None
    job.save(1)
    node = cluster.nodes[1]
    node.kill()
    node.wipe_ram()
    node.start()
    node.wait_ready()
    with Sampler(cluster.nodes) as sampler:
        job.restart()
        cluster.wait_for(lambda: [len(scripted_job.shards(n, 1)) for n in cluster.nodes] == [2, 2],
                         30, "both copies to be back")
        scripted_job.check_copies(job, 1, nodes_each=2)
        assert sampler.peak() <= 2 + SLACK
