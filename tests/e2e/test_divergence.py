"""Data-parallel replicas with real OCDBT stores that disagree: which rank, and which keys."""

import os
import random
import re

import pytest
import tensorstore

import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(240)


def open_store(path):
    return tensorstore.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/"}).result()


def write_step(path, rank, pairs, files):
    """A step directory as Orbax leaves it; all that says who wrote it differs from rank to rank."""
    item = os.path.join(path, "state")
    store = open_store(item)
    with tensorstore.Transaction() as transaction:
        for key, value in pairs.items():
            store.with_transaction(transaction)[key] = value
    scripted_job.write_tree(path, {
        "state/commit_success.txt": f"written to {path}".encode(),
        f"state/array_metadatas/process_{rank}": b"%d" % rank,
        "_CHECKPOINT_METADATA": b'{"item_handlers": {"state": "x"}, "init_timestamp_nsecs": %d}' %
                                (1000 + rank),
        **files})


class ReplicaJob:
    """Every rank saves the same arrays, but for what `differences` says: {step: {rank: change}}, a
    change being a function of (pairs, files)."""

    def __init__(self, cluster, seed, differences):
        self.seed, self.differences = seed, differences
        count = len(cluster.nodes)
        self.job = Job(cluster, seed, framework="orbax", data_parallelism=count, peers=1)

    def content(self, step, rank):
        draw = random.Random(f"{self.seed}/{step}")
        pairs = {f"params.w{i}/c/0/0": draw.randbytes(size)
                 for i, size in enumerate((40, 5000, 300_000, MIB))}
        files = {"metrics/metrics": draw.randbytes(300)}
        self.differences.get(step, {}).get(rank, lambda *_: None)(pairs, files)
        return pairs, files

    def write(self, step):
        for rank, volume in self.job.volumes.items():
            with volume.save(step) as path:
                write_step(path, rank, *self.content(step, rank))

    def save(self, step):
        self.write(step)
        self.job.committed(step)

    def check_restored_row(self, step):
        """All ranks have the arrays of one and the same rank; returns which ranks' they may be."""
        rows = []
        for volume in self.job.volumes.values():
            root = volume.restored_path(step)
            store = open_store(os.path.join(root, "state"))
            pairs = {key.decode(): bytes(store[key]) for key in store.list().result()}
            metrics = scripted_job.read_tree(root).get("metrics/metrics")
            rows.append([rank for rank in self.job.volumes
                         if self.content(step, rank)[0] == pairs
                         and self.content(step, rank)[1].get("metrics/metrics") == metrics])
        assert all(row == rows[0] for row in rows), f"not one row for all: {rows}"
        assert rows[0], "what was restored is nobody's"
        return rows[0]


def flip(key):
    def change(pairs, _):
        value = bytearray(pairs[key])
        value[len(value) // 2] ^= 4
        pairs[key] = bytes(value)

    return change


def divergence(cluster, step):
    """What the coordinator's status says about that step, once it has been compared."""

    def told():
        found = cluster.nodes[0].status()["divergence"]
        return found if found and found["step"] == step else None

    cluster.wait_for(told, 60, f"step {step} to be called divergent")
    return told()


def error_line(cluster, step):
    cluster.wait_for_log(cluster.nodes[:1], "coord ", "ERR ", f"disagree at step {step}:")
    (line,) = [line for line in cluster.nodes[0].log().splitlines()
               if re.search(rf"coord .*ERR .*disagree at step {step}:", line)]
    return line


def metric(node):
    return node.metric("tierkeep_divergent_saves_total")


CASES = {
    "small value": (flip("params.w0/c/0/0"), ["state: the value of b'params.w0/c/0/0' differs"]),
    "value": (flip("params.w1/c/0/0"), ["state: the value of b'params.w1/c/0/0' differs"]),
    "large value": (flip("params.w3/c/0/0"), ["state: the value of b'params.w3/c/0/0' differs"]),
    "missing key": (lambda pairs, _: pairs.pop("params.w2/c/0/0"),
                    ["state: the value of b'params.w2/c/0/0' is only in rank 0's"]),
    "extra key": (lambda pairs, _: pairs.update({"params.extra": b"x" * 500}),
                  ["state: the value of b'params.extra' is only in rank 1's"]),
    "other file": (lambda _, files: files.update({"metrics/metrics": b"other"}),
                   ["the file metrics/metrics differs (5 and 300 bytes)"]),
    "missing file": (lambda _, files: files.pop("metrics/metrics"),
                     ["the file metrics/metrics is only in rank 0's"]),
}


@pytest.mark.parametrize("case", CASES)
def test_of_two_replicas_the_key_is_named(make_cluster, seed, case):
    change, differences = CASES[case]
    cluster = make_cluster(2)
    replicas = ReplicaJob(cluster, seed, {2: {1: change}})
    assert replicas.job.start() is None
    replicas.save(1)
    assert cluster.nodes[0].status()["divergence"] is None
    assert metric(cluster.nodes[0]) == 0
    replicas.save(2)
    found = divergence(cluster, 2)
    assert [(o["rank"], o["node"], o["reference_rank"], o["outvoted"]) for o in found["odd"]] == [
        (1, "node1", 0, False)]
    assert found["odd"][0]["differences"] == differences
    assert found["odd"][0]["differences_total"] == 1
    line = error_line(cluster, 2)
    for part in ("rank 1 (node node1)", "rank 0 (node node0)", *differences):
        assert part in line
    assert metric(cluster.nodes[0]) == 1
    told = lambda: all(differences[0] in replicas.job.errors() for _ in [0])
    cluster.wait_for(told, 20, "replicator.errors to name the key")
    assert all(len(scripted_job.shards(n, 2)) == 2 for n in cluster.nodes)
    assert replicas.job.start() == 2
    replicas.check_restored_row(2)
    # Equal again: nothing is left of it.
    replicas.save(3)
    assert cluster.nodes[0].status()["divergence"] is None
    assert "disagree" not in "\n".join(cluster.nodes[0].status()["problems"])


def test_bookkeeping_is_no_divergence(make_cluster, seed):
    """Object names, paths, timestamps and process files differ in every save of this file."""
    cluster = make_cluster(2)
    replicas = ReplicaJob(cluster, seed, {})
    assert replicas.job.start() is None
    for step in (1, 2):
        replicas.save(step)
        digests = [set(scripted_job.shards(n, step)) for n in cluster.nodes]
        assert digests[0].isdisjoint(digests[1]), "the replicas' bytes are equal: nothing is tested"
        assert [n.status()["network"]["bytes_pulled"] for n in cluster.nodes] == [0, 0]
    assert cluster.nodes[0].status()["divergence"] is None
    assert metric(cluster.nodes[0]) == 0
    replicas.job.check_no_errors()


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_of_three_replicas_the_odd_one_is_named_and_outvoted(make_cluster, seed, odd):
    cluster = make_cluster(3)
    replicas = ReplicaJob(cluster, seed, {2: {odd: flip("params.w2/c/0/0")}})
    assert replicas.job.start() is None
    replicas.save(1)
    replicas.save(2)
    found = divergence(cluster, 2)
    assert [(o["rank"], o["outvoted"]) for o in found["odd"]] == [(odd, True)]
    line = error_line(cluster, 2)
    assert f"rank {odd} (node node{odd}) holds other values" in line
    assert "which 2 replicas agree on" in line
    cluster.nodes[1].lose_and_return()
    assert replicas.job.start() == 2
    assert odd not in replicas.check_restored_row(2)


def test_without_room_for_copies_it_stays_uncommitted(make_cluster, seed):
    cluster = make_cluster(2, ram_mib=16)
    big = {"x": random.Random(seed).randbytes(5 * MIB)}

    def change(pairs, _):
        pairs.update(big)
        pairs["params.w0/c/0/0"] = b"other"

    replicas = ReplicaJob(
        cluster, seed, {1: {r: lambda pairs, _: pairs.update(big) for r in (0, 1)},
                        2: {0: lambda pairs, _: pairs.update(big), 1: change}})
    assert replicas.job.start() is None
    replicas.save(1)
    replicas.write(2)
    found = divergence(cluster, 2)
    assert found["odd"][0]["differences"] == ["state: the value of b'params.w0/c/0/0' differs "
                                              "(5 and 40 bytes)"]
    cluster.wait_for(
        lambda: "step 2 stays uncommitted" in "\n".join(cluster.nodes[0].status()["problems"]), 60,
        "the lack of room to be said")
    assert all(n.committed_steps() == [1] for n in cluster.nodes)
    cluster.wait_for(lambda: "stays uncommitted" in replicas.job.errors(), 20,
                     "replicator.errors to say it")
    # The job trains on: an equal save needs no copies.
    replicas.save(3)
    assert cluster.nodes[0].status()["problems"] == []
