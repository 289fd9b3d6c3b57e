"""Starts the processes of a training job, one a node, as a job scheduler would."""

import os
import sys
import time

from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import events

PYTHON_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class JobError(RuntimeError):
    """A training process failed; the text has the end of its log."""


def write_jax_init_info(volume, rank, address):
    """What the CSI driver leaves in the volume: process id and coordinator, in one rename."""
    temporary = os.path.join(volume, ".tmp.jax-init-info.txt")
    with open(temporary, "w", encoding="utf-8") as f:
        f.write(f"{rank}\n{address}\n")
    os.rename(temporary, os.path.join(volume, "jax-init-info.txt"))


def base_environment():
    """The environment of every training process."""
    env = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    env["PYTHONPATH"] = os.pathsep.join(
        [PYTHON_ROOT] + ([env["PYTHONPATH"]] if env.get("PYTHONPATH") else []))
    return env


def jax_environment(rank, ranks, devices=1):
    """Orbax gives JAX only process id and coordinator; on TPU the hardware tells the number of
    processes. JAX's Open MPI detection supplies it here. One thread for a matrix product: several
    processes share few cores, and sums keep their order."""
    flags = [f"--xla_force_host_platform_device_count={devices}",
             "--xla_cpu_multi_thread_eigen=false"]
    return dict(
        base_environment(), JAX_PLATFORMS="cpu", XLA_FLAGS=" ".join(flags),
        OMPI_MCA_orte_hnp_uri="1.0;tcp://127.0.0.1:1", OMPI_COMM_WORLD_SIZE=str(ranks),
        OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_RANK="0")


def torch_environment(rank, ranks, port, stubs):
    """torchrun's variables, those of the multi-tier client, and the stub CUDA libraries."""
    env = dict(base_environment(), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               RANK=str(rank), WORLD_SIZE=str(ranks), NODE_RANK=str(rank), NNODES=str(ranks),
               OMP_NUM_THREADS="1")
    if stubs:
        env["LD_LIBRARY_PATH"] = os.pathsep.join(
            [stubs] + ([env["LD_LIBRARY_PATH"]] if env.get("LD_LIBRARY_PATH") else []))
    return env


class Worker:
    """One training process."""

    def __init__(self, rank, node, process, log_path):
        self.rank, self.node, self.process = rank, node, process
        self.log = events.EventLog(log_path)

    def tail(self, lines=30):
        text = self.log.text().splitlines()[-lines:]
        return "\n".join(f"  rank {self.rank}| {x}" for x in text)


class Job:
    """One start of a job on a cluster. `ranks[i]` is the rank that node i gets."""

    def __init__(self, cluster, name, logs, framework, arguments, ranks=None, python=sys.executable,
                 devices=1, stubs=None):
        os.makedirs(logs, exist_ok=True)
        self.cluster, self.name, self.workers = cluster, name, []
        ranks = list(range(len(cluster.nodes))) if ranks is None else ranks
        port = cluster_lib.free_port()
        self.started = time.time()
        if framework == "jax":
            for node, rank in zip(cluster.nodes, ranks, strict=True):
                write_jax_init_info(node.volume, rank, f"127.0.0.1:{port}")
        for node, rank in zip(cluster.nodes, ranks, strict=True):
            env = (jax_environment(rank, len(ranks), devices) if framework == "jax" else
                   torch_environment(rank, len(ranks), port, stubs))
            log_path = os.path.join(logs, f"{name}-rank{rank}.log")
            process = cluster.spawn([python, *arguments(node, rank)], log_path, env)
            self.workers.append(Worker(rank, node, process, log_path))

    def poll(self):
        """Returns the new events as [(worker, event)]; a process that failed is an error."""
        new = [(w, e) for w in self.workers for e in w.log.read()]
        for w in self.workers:
            if w.process.poll() not in (None, 0):
                raise JobError(f"rank {w.rank} of {self.name} ended with {w.process.returncode}\n"
                               + w.tail())
        return sorted(new, key=lambda x: x[1]["t"])

    def running(self):
        return any(w.process.poll() is None for w in self.workers)

    def wait(self, seconds, every=0.02, on_events=None):
        """Returns when all processes have ended with 0."""
        end = time.monotonic() + seconds
        while True:
            alive = self.running()
            new = self.poll()
            if on_events:
                on_events(new)
            if not alive:
                return
            if time.monotonic() > end:
                raise JobError(f"{self.name} still runs after {seconds:.0f} s\n" +
                               "\n".join(w.tail() for w in self.workers))
            time.sleep(every)

    def kill(self, nodes=None):
        """SIGKILL to the processes on `nodes`, or to all."""
        for w in self.workers:
            if nodes is None or w.node in nodes:
                self.cluster.kill_process(w.process)

    def events(self, kind, rank=None):
        return [e for w in self.workers if rank in (None, w.rank) for e in w.log.events
                if e["event"] == kind]
