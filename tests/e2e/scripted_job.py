"""A training job without a training framework: what its processes do to the volumes, and what they
must find there afterwards. Every byte follows from a seed.
"""

import concurrent.futures
import contextlib
import functools
import os
import random
import re

import proxy
from tierkeep_demo import volume as volume_lib

MIB = 1 << 20


def read_tree(root):
    """{relative path: bytes} of all files below `root`."""
    out = {}
    for where, _, names in os.walk(root):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as f:
                out[os.path.relpath(path, root)] = f.read()
    return out


def write_tree(root, files):
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)


class OrbaxVolume(volume_lib.TorchVolume):
    """The same client's side for framework `orbax`, with the differences that Orbax has."""

    data_parallelism = None

    def configure(self, job, rank, nodes, peer_ranks=None, peers_per_node=None, minutes=30):
        self._wait(self._yaml_gone, "an old replicator.yaml to vanish")
        lines = [f"job-name: {job}", "framework: orbax", f"node-rank: {rank}", f"nodes: {nodes}",
                 f"backup-interval-minutes: {minutes}"]
        if self.data_parallelism is not None:
            lines.append(f"assume-data-parallelism: {self.data_parallelism}")
        if peer_ranks is not None:
            lines += ["peer-ranks:"] + [f"- {r}" for r in peer_ranks]
        if peers_per_node is not None:
            lines.append(f"peers-per-node: {peers_per_node}")
        with open(self._at("replicator.yaml.tmp"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")
        os.rename(self._at("replicator.yaml.tmp"), self._at("replicator.yaml"))

    def wait_restored(self):
        def markers():
            self.check_errors()
            return [n for n in os.listdir(self.path) if n.endswith(".restore")] or None

        (name,) = self._wait(markers, "a .restore marker")
        step = int(re.fullmatch(r".+-s(\d+)-n(\d+)-w(\d+)\.restore", name)[1])
        if not os.path.islink(self._at(name)):
            assert step == 0 and os.path.getsize(self._at(name)) == 0
            os.unlink(self._at(name))
            return None
        os.rename(self._at(name), self.restored_path(step))
        return step

    def restored_path(self, step):
        return self._at(str(step))

    @contextlib.contextmanager
    def save(self, step):
        path = self._at(f"{step}.orbax-checkpoint-tmp-1")
        os.mkdir(path)
        yield path
        with open(os.path.join(path, "commit_success.txt"), "w", encoding="utf-8") as f:
            f.write(f"Checkpoint commit was successful to {path}")
        if os.path.islink(self._at(str(step))):
            os.unlink(self._at(str(step)))
        os.rename(path, self._at(str(step)))


@functools.lru_cache(maxsize=6)  # drawing takes longer than all that is done with it
def random_tree(seed, size):
    """{path: bytes} of so many bytes in all: large and small files, an empty one, directories."""
    draw = random.Random(seed)
    large = size - 67_038
    return {".metadata": draw.randbytes(1500), "__0_0.distcp": draw.randbytes(large // 3),
            "empty": b"", "optimizer/part0": draw.randbytes(large - large // 3),
            "optimizer/deep/one": draw.randbytes(1), "optimizer/deep/some": draw.randbytes(65_537)}


class Job:
    """One job on `nodes`; the rank of a node is its place in the list unless start() says else.

    `megabytes` is about how much each rank saves. `data(step, rank)` may replace what is saved.
    """

    def __init__(self, cluster, seed, name="e2e", nodes=None, framework="pytorch.distributed",
                 megabytes=4, peers=1, peer_ranks=None, data_parallelism=None, data=None):
        self.cluster, self.seed, self.name = cluster, seed, name
        self.nodes = list(nodes or cluster.nodes)
        self.framework, self.megabytes = framework, megabytes
        self.peers, self.peer_ranks = peers, peer_ranks
        self.data_parallelism = data_parallelism
        self.data = data or self._data
        self.kinds = {}  # by rank: clients that aren't of the job's framework
        self.saved = None
        self.volumes = {}

    def _data(self, step, rank):
        return random_tree(f"{self.seed}/{self.name}/{step}/{rank}", int(self.megabytes * MIB))

    def node_of(self, rank):
        return self.ranked[rank]

    # ---- start

    def begin(self, ranks=None, limit=60):
        """The processes of all nodes start; returns a function that waits for what they all
        restored. Its failure is the first process's failure."""
        self._new_processes(ranks, limit)
        pool = concurrent.futures.ThreadPoolExecutor(len(self.nodes))
        runs = [pool.submit(self._process, rank) for rank in self.volumes]
        pool.shutdown(wait=False)

        def wait():
            steps = [run.result() for run in runs]
            assert len(set(steps)) == 1, f"not one decision for all: {steps}"
            return steps[0]

        wait.runs = runs
        return wait

    def _new_processes(self, ranks=None, limit=60):
        ranks = list(ranks or range(len(self.nodes)))
        self.ranked = {rank: node for node, rank in zip(self.nodes, ranks, strict=True)}
        common = OrbaxVolume if self.framework == "orbax" else volume_lib.TorchVolume
        self.volumes = {}
        for rank, node in sorted(self.ranked.items()):
            kind = self.kinds.get(rank, common)
            self.volumes[rank] = kind(node.volume, poll=0.01, limit=limit)
            self.volumes[rank].data_parallelism = self.data_parallelism

    def begin_by_hand(self):
        """New processes, of which the caller configures each when it likes; returns a function that
        looks what they restored."""
        self._new_processes()
        return lambda: min(v.wait_restored() for v in self.volumes.values())

    def configure(self, rank):
        self.volumes[rank].configure(
            self.name, rank, len(self.nodes), peers_per_node=self.peers,
            peer_ranks=None if self.peer_ranks is None else self.peer_ranks[rank])

    def _process(self, rank):
        self.configure(rank)
        self.volumes[rank].wait_released()
        return self.volumes[rank].wait_restored()

    def start(self, **options):
        return self.begin(**options)()

    def restart(self, **options):
        """Starts the job, which must get its newest save back, byte for byte, on every node."""
        step = self.start(**options)
        assert step == self.saved
        self.check_restored(step)

    # ---- save

    def write(self, step):
        """Every rank saves; nothing is waited for."""
        for rank, volume in self.volumes.items():
            with volume.save(step) as path:
                write_tree(path, self.data(step, rank))

    def committed(self, step, seconds=60):
        """Waits until every node has logged the commit; it is then what a restart must restore."""
        self.cluster.wait_committed(step, seconds, self.nodes)
        self.saved = step

    def save(self, step, seconds=60):
        self.write(step)
        self.committed(step, seconds)

    # ---- checks

    def check_restored(self, step):
        for rank, volume in self.volumes.items():
            check_files(read_tree(volume.restored_path(step)), self.data(step, rank),
                        f"rank {rank}, restored step {step}")

    def check_no_errors(self):
        for rank, volume in self.volumes.items():
            volume.check_errors()
            assert volume.errors == [], f"rank {rank}"

    def errors(self):
        """All that replicator.errors said on any node so far."""
        for volume in self.volumes.values():
            volume.check_errors()
        return "\n".join(text for v in self.volumes.values() for text in v.errors)


def check_files(got, want, what):
    got = {name: data for name, data in got.items() if name != "commit_success.txt"}
    assert sorted(got) == sorted(want), f"{what}: other files"
    assert [n for n in want if got[n] != want[n]] == [], f"{what}: other bytes"


# ---- what a node's store holds

def shards(node, step=None):
    """{digest: the status's account} of the shards that a node says it holds."""
    return {s["digest"]: s for s in node.status()["store"]["shards"]
            if step is None or s["step"] == step}


def shard_path(node, digest, *parts):
    return os.path.join(node.store, "shards", digest, *parts)


def data_files(node, digest, at_least=1):
    """Paths of the files of a shard that have so many bytes."""
    paths = [os.path.join(where, name)
             for where, _, names in os.walk(shard_path(node, digest, "data")) for name in names]
    return sorted(p for p in paths if os.path.getsize(p) >= at_least)


def check_copies(job, step, nodes_each):
    """Every rank's shard of `step` is on `nodes_each` nodes, each copy equal to what was saved, and
    the manifests are equal byte by byte."""
    holders = {}
    for node in job.nodes:
        for digest, shard in shards(node, step).items():
            holders.setdefault((shard["rank"], digest), []).append(node)
    assert sorted(rank for rank, _ in holders) == sorted(job.volumes), holders.keys()
    for (rank, digest), nodes in holders.items():
        assert len(nodes) == nodes_each, f"rank {rank}: on {[n.name for n in nodes]}"
        assert job.node_of(rank) in nodes
        manifests = set()
        for node in nodes:
            check_files(read_tree(shard_path(node, digest, "data")), job.data(step, rank),
                        f"rank {rank}'s copy on {node.name}")
            with open(shard_path(node, digest, "manifest"), "rb") as f:
                manifests.add(f.read())
        assert len(manifests) == 1


def wait_marked(job, node, times=1):
    """Waits until the job's record in the rendezvous names a node so often: after its own name, if
    it coordinates, it stands there for the newest generation, a moment after the commit."""
    folder = os.path.join(job.cluster.rendezvous, job.name)

    def named():
        newest = max(n for n in os.listdir(folder) if n.endswith(".record"))
        with open(os.path.join(folder, newest), "rb") as f:
            return f.read().count(node.name.encode()) >= times

    job.cluster.wait_for(named, 20, f"the record to name {node.name}")


@contextlib.contextmanager
def job_behind_proxy(make_cluster, seed, megabytes, settings=None):
    """A running job of two nodes that has committed step 1; what node 0 sends passes a proxy. Gives
    the job and the node's proxies."""
    cluster = make_cluster(2, settings, start=False)
    owner = cluster.nodes[0]
    proxy.put_behind_proxy(owner)
    cluster.start()
    with proxy.Proxies(owner) as between:
        job = Job(cluster, seed, megabytes=megabytes)
        assert job.start() is None
        job.save(1)
        yield job, between
