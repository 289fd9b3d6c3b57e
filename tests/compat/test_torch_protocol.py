"""Framework `pytorch.distributed`: a scripted client (no torch needed) against real agents.

Every rank's data is different, so what a lost node gets back has crossed between the nodes.
"""

import concurrent.futures
import os
import random

import pytest

from tierkeep_demo import bitflip
from tierkeep_demo import status as status_lib
from tierkeep_demo import volume as volume_lib

NODES = 3
pytestmark = [pytest.mark.timeout(240), pytest.mark.journey]


def shard(seed, step, rank):
    """{path: bytes} of what a rank saves: small and large files, an empty one, directories."""
    draw = random.Random(f"{seed}/{step}/{rank}")
    return {"__0_0.distcp": draw.randbytes(3_000_001), ".metadata": draw.randbytes(1500),
            "empty": b"", "optimizer/part0": draw.randbytes(9_000_000),
            "optimizer/deep/part1": draw.randbytes(1)}


def read_tree(root):
    out = {}
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as f:
                out[os.path.relpath(path, root)] = f.read()
    return out


class Client:
    """The job on all nodes: `ranks[i]` is the rank of node i."""

    def __init__(self, cluster, seed):
        self.cluster, self.seed = cluster, seed
        self.saved = None  # the newest committed step
        print("seed", seed)

    def start(self, ranks=(0, 1, 2)):
        """Starts the job everywhere; returns the restored step, the same on all nodes."""
        self.volumes = {rank: volume_lib.TorchVolume(node.volume, poll=0.01, limit=60)
                        for node, rank in zip(self.cluster.nodes, ranks, strict=True)}

        def one(rank):
            volume = self.volumes[rank]
            volume.configure("torch-job", rank, NODES)
            volume.wait_released()
            return volume.wait_restored()

        with concurrent.futures.ThreadPoolExecutor(NODES) as pool:
            steps = list(pool.map(one, sorted(self.volumes)))
        assert len(set(steps)) == 1, f"not one decision for all: {steps}"
        return steps[0]

    def save(self, step):
        for rank, volume in self.volumes.items():
            with volume.save(step) as path:
                for name, data in shard(self.seed, step, rank).items():
                    target = os.path.join(path, name)
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    with open(target, "wb") as f:
                        f.write(data)
        self.cluster.wait_committed(step)
        self.saved = step

    def restart(self, **options):
        """Starts the job, which must get its newest save back, byte for byte, on every node."""
        assert self.start(**options) == self.saved
        self.check_restored(self.saved)

    def check_restored(self, step):
        for rank, volume in self.volumes.items():
            got = read_tree(volume.restored_path(step))
            want = shard(self.seed, step, rank)
            assert sorted(got) == sorted(want), f"rank {rank}: other files"
            assert [n for n in want if got[n] != want[n]] == [], f"rank {rank}: other bytes"

    def check_no_errors(self):
        for volume in self.volumes.values():
            volume.check_errors()
            assert volume.errors == []


@pytest.fixture(scope="module")
def client(make_cluster):
    return Client(make_cluster(NODES), seed=20261)


def test_cold_start_finds_nothing_and_commits(client):
    assert client.start() is None
    client.save(9)
    client.save(19)
    client.check_no_errors()


def test_restart_restores_the_newest(client):
    client.restart()
    client.save(29)


@pytest.mark.parametrize("lost", [1, 0, 2])
def test_lost_node_gets_its_data_from_a_peer(client, lost):
    node = client.cluster.nodes[lost]
    node.lose_and_return()
    client.restart()
    size = sum(len(x) for x in shard(client.seed, client.saved, lost).values())
    assert status_lib.bytes_pulled(node.status()) >= size
    client.save(client.saved + 10)


def test_swapped_ranks_get_their_own_data(client):
    client.restart(ranks=(2, 0, 1))
    client.save(client.saved + 10)
    client.restart(ranks=(0, 1, 2))


def test_agents_killed_and_restarted_keep_their_copies(client):
    for node in client.cluster.nodes:
        node.kill()
    client.cluster.start()
    client.restart()


def test_flipped_bit_in_a_store_is_found(client):
    """One bit of a node's own copy flips while its agent is down; the bytes restored are right."""
    node = client.cluster.nodes[1]
    node.kill()
    size = len(shard(client.seed, client.saved, 1)["optimizer/part0"])
    copies = [os.path.join(where, name) for where, _, names in os.walk(node.store)
              for name in names if os.path.getsize(os.path.join(where, name)) == size]
    assert copies, "the node's store has no copy at all"
    for path in copies:
        print("flipped", path, bitflip.flip_bit_in_file(path, client.seed))
    node.start()
    node.wait_ready()
    client.restart()
