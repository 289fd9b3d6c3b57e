"""The training job's side of the benchmark: writes saves and yaml files, sees what agents do.

One `Job` plays the processes of all nodes of a cluster, for framework `orbax`, from one thread.
"""

import concurrent.futures
import os
import re
import threading
import time

import bench_machine as machine
from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import job as job_lib

MIB = machine.MIB
COMMITTED = cluster_lib.COMMITTED
_MARKER = re.compile(r"bench-s(\d+)-n(\d+)-w(\d+)\.restore")
_BLOCK = os.urandom(8 * MIB)


def write_plain_files(path, size, files, mark):
    """`files` files of together `size` bytes, which begin differently for each `mark`."""
    os.makedirs(os.path.join(path, "state"))
    for k in range(files):
        with open(os.path.join(path, "state", f"part-{k:02d}"), "wb", buffering=0) as f:
            left = size // files
            head = f"{mark} {k}".encode().ljust(4096)[:left]
            left -= f.write(head)
            while left:
                left -= f.write(memoryview(_BLOCK)[:min(left, len(_BLOCK))])


def copy_tree(source, target):
    """A copy written as Orbax writes: each file in one go, in large pieces."""
    for where, _, names in os.walk(source):
        to = os.path.join(target, os.path.relpath(where, source))
        os.makedirs(to, exist_ok=True)
        for name in names:
            with open(os.path.join(where, name), "rb", buffering=0) as f, \
                    open(os.path.join(to, name), "wb", buffering=0) as out:
                while piece := f.read(8 * MIB):
                    out.write(piece)


def tree_bytes(path):
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, names in os.walk(path) for f in names)


class _NodeService(threading.Thread):
    """Releases one Orbax process with "nothing to restore" and leaves its saves alone."""

    def __init__(self, volume, rank):
        super().__init__(daemon=True)
        self._volume, self._rank, self.stop = volume, rank, threading.Event()

    def run(self):
        yaml = os.path.join(self._volume, "replicator.yaml")
        while not self.stop.wait(0.05):
            if os.path.exists(yaml):
                os.unlink(yaml)
                marker = f"bench-s0-n{self._rank}-w0.restore"
                with open(os.path.join(self._volume, marker), "w", encoding="ascii"):
                    pass


def orbax_templates(cluster, root, state_mib, value_mib, python):
    """Has two real Orbax processes save once into directories below `root`; returns the saves."""
    here = os.path.dirname(os.path.abspath(__file__))
    port = cluster_lib.free_port()
    volumes, services, processes = [], [], []
    for rank in range(2):
        volume = os.path.join(root, f"{value_mib}-{rank}")
        os.makedirs(volume)
        volumes.append(volume)
        job_lib.write_jax_init_info(volume, rank, f"127.0.0.1:{port}")
        services.append(_NodeService(volume, rank))
        services[-1].start()
    for rank, volume in enumerate(volumes):
        argv = [python, os.path.join(here, "orbax_save.py"), "--volume", volume, "--slices", "2",
                "--state-mib", str(state_mib), "--value-mib", str(value_mib)]
        log = os.path.join(cluster.work, f"orbax-{value_mib}-{rank}.log")
        processes.append((cluster.spawn(argv, log, job_lib.jax_environment(rank, 2)), log))
    try:
        for process, log in processes:
            if process.wait(600) != 0:
                with open(log, encoding="utf-8", errors="replace") as f:
                    raise RuntimeError("the Orbax process failed\n" + f.read()[-3000:])
    finally:
        for process, _ in processes:
            cluster.kill_process(process)
        for service in services:
            service.stop.set()
    return [os.path.join(v, "1") for v in volumes]


class _LogReader:
    """New text of a growing file."""

    def __init__(self, path):
        self._path, self._at = path, os.path.getsize(path) if os.path.exists(path) else 0

    def read(self):
        with open(self._path, "rb") as f:
            f.seek(self._at)
            data = f.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        return data[:end].decode(errors="replace")


class Job:
    """The processes of a job on all nodes of `cluster`, which they see through their volumes."""

    def __init__(self, cluster, data_parallelism=None):
        self.cluster, self.nodes = cluster, cluster.nodes
        self.data_parallelism = data_parallelism

    # ---- start of a run

    def _yaml(self, rank):
        count = len(self.nodes)
        lines = ["job-name: bench", "framework: orbax", f"node-rank: {rank}", f"nodes: {count}",
                 f"peer-ranks: [{(rank + 1) % count}]", "backup-interval-minutes: 10000"]
        if self.data_parallelism:
            lines.append(f"assume-data-parallelism: {self.data_parallelism}")
        return "\n".join(lines)

    def begin(self, expected, limit=120.0):
        """All processes write their yaml; returns seconds from the last one to the last link.

        What was restored must be `expected` (None for nothing). As the real client does, each
        process then takes its marker away.
        """
        for rank, node in enumerate(self.nodes):
            with open(os.path.join(node.volume, "replicator.yaml.tmp"), "w",
                      encoding="ascii") as f:
                f.write(self._yaml(rank))
        watch = machine.Watch()
        for rank, node in enumerate(self.nodes):
            watch.add(node.volume, watch.CREATE | watch.MOVED_TO, rank)
        for node in self.nodes:
            yaml = os.path.join(node.volume, "replicator.yaml")
            start = time.monotonic()
            os.rename(yaml + ".tmp", yaml)
        seen = {}
        try:
            while len(seen) < len(self.nodes):
                events = watch.wait(0.5)
                now = time.monotonic()
                for rank, name in events:
                    if _MARKER.fullmatch(name):
                        seen.setdefault(rank, (now - start, name))
                if now - start > limit:
                    raise self._late("restore markers", limit)
        finally:
            watch.close()
        for rank, node in enumerate(self.nodes):
            self._consume(node, seen[rank][1], expected)
        return max(t for t, _ in seen.values())

    def _consume(self, node, name, expected):
        step = int(_MARKER.fullmatch(name)[1])
        path = os.path.join(node.volume, name)
        if os.path.islink(path):
            if step != expected or not os.path.isdir(path):
                raise RuntimeError(f"{node.name} restored {name}, not step {expected}")
            os.rename(path, os.path.join(node.volume, str(step)))
        else:
            if expected is not None:
                raise RuntimeError(f"{node.name} restored nothing, not step {expected}")
            os.unlink(path)

    def _late(self, what, limit):
        return cluster_lib.ClusterError(f"waited {limit:.0f} s for {what}\n" +
                                        "\n".join(n.tail() for n in self.nodes))

    # ---- saves

    def write(self, step, writer):
        """Everything of a save but its last act: `writer(path, rank)` fills each directory."""
        paths = [os.path.join(n.volume, f"{step}.orbax-checkpoint-tmp-1") for n in self.nodes]

        def one(rank):
            os.makedirs(paths[rank], exist_ok=True)
            writer(paths[rank], rank)
            with open(os.path.join(paths[rank], "commit_success.txt"), "w",
                      encoding="ascii") as f:
                f.write(f"Checkpoint commit was successful to {paths[rank]}")

        with concurrent.futures.ThreadPoolExecutor(len(paths)) as pool:
            list(pool.map(one, range(len(paths))))
        return paths

    def finish(self, step, paths, limit=120.0):
        """Renames all saves into place; returns seconds from the first rename until every node
        has logged that the step is replicated globally."""
        watch = machine.Watch()
        logs = {}
        for rank, node in enumerate(self.nodes):
            logs[rank] = _LogReader(node.log_path)
            watch.add(node.log_path, watch.MODIFY, rank)
        for node in self.nodes:
            old = os.path.join(node.volume, str(step))
            if os.path.islink(old):
                os.unlink(old)
        start = time.monotonic()
        for node, path in zip(self.nodes, paths, strict=True):
            os.rename(path, os.path.join(node.volume, str(step)))
        seen = {}
        try:
            while len(seen) < len(self.nodes):
                for rank in {r for r, _ in watch.wait(0.5)}:
                    if str(step) in COMMITTED.findall(logs[rank].read()):
                        seen.setdefault(rank, time.monotonic() - start)
                if time.monotonic() - start > limit:
                    raise self._late(f"step {step} to be committed", limit)
        finally:
            watch.close()
        return max(seen.values())

    def wait_held(self, own, peer, limit=60.0):
        """Waits until each node's agent holds `own` and `peer` bytes in shards whose manifests
        are there, and its mount holds no more than these; returns seconds."""
        start = time.monotonic()
        waiting = list(self.nodes)
        while waiting:
            node = waiting[0]
            store = node.status()["store"]
            # Orbax's process 0 writes some more metadata than the others.
            differs = max(abs(store["own_bytes"] - own), abs(store["peer_bytes"] - peer))
            if differs < MIB and machine.used(node.mount) <= 1.02 * (own + peer) + 4 * MIB:
                waiting.pop(0)
                continue
            if time.monotonic() - start > limit:
                raise self._late(f"{node.name} to hold {own} and {peer} bytes, it holds "
                                 f"{store['own_bytes']} and {store['peer_bytes']}, its mount "
                                 f"{machine.used(node.mount)}", limit)
            time.sleep(0.05)
        return time.monotonic() - start
