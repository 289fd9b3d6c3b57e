"""RAM is the user's: what a volume holds at its peak, in sizes of one node's save, and what happens
when it is too small (docs/memory.md; every cell of its tables is tested in memory)."""

import contextlib
import os
import threading
import urllib.request

import pytest

import scripted_job
from scripted_job import MIB, Job
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)

SAVE = 16  # MiB a node
SLACK = 0.1  # manifests, records, directories, pages not filled


class Sampler:
    """Looks every 20 ms how much of each node's mount is used; `peak()` looks too, and is the most
    since the last call, in sizes of a save."""

    def __init__(self, nodes):
        self._nodes = nodes
        self._peak = 0
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._end.wait(0.02):
            self._look()

    def _look(self):
        with self._lock:
            self._peak = max(self._peak, *(used(n) for n in self._nodes))

    def peak(self):
        self._look()
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


# ---- volumes that are too small --------------------------------------------------------------


def sized_job(make_cluster, seed, sizes, **settings):
    """A job of two nodes with one peer each, in volumes of so many saves, that has committed one."""
    cluster = make_cluster(2, settings, start=False, ram_mib=round(sizes * SAVE))
    for node in cluster.nodes:
        node.settings["metrics"] = f"127.0.0.1:{cluster_lib.free_port()}"
    cluster.start()
    if not cluster.mounted:
        pytest.skip("needs a tmpfs of its own for each node, with a size")
    job = Job(cluster, seed, megabytes=SAVE)
    assert job.start() is None
    job.save(1)
    settle(cluster, 2)
    return job


def problems(cluster):
    return "\n".join(p for n in cluster.nodes for p in n.status()["problems"])


def metric(node, name):
    url = "http://" + node.settings["metrics"] + "/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def test_volume_that_is_large_enough(make_cluster, seed):
    job = sized_job(make_cluster, seed, 5.3)
    for step in (2, 3):
        job.save(step)
    for node in job.nodes:
        sizing = node.status()["sizing"]
        assert sizing["fits"], sizing
        assert sizing["own_save_bytes"] == pytest.approx(SAVE * MIB, rel=0.01)
        assert sizing["peers_save_bytes"] == pytest.approx(SAVE * MIB, rel=0.01)
        assert sizing["advised_bytes"] == pytest.approx(5.25 * SAVE * MIB, rel=0.02)
        job.cluster.wait_for_log([node], "The volume of")
        assert "too small" not in node.log()
    job.check_no_errors()


def test_newer_saves_stay_unprotected(make_cluster, seed):
    """The last committed generation keeps its copies; each newer save takes the older one's place;
    a restart gets the newest all the same."""
    job = sized_job(make_cluster, seed, 4.3)
    cluster = job.cluster
    for step in (2, 3):
        job.write(step)
        cluster.wait_for(lambda step=step: f"step {step} lacks copies" in problems(cluster), 20,
                         "the trouble to be reported")
        scripted_job.check_copies(job, 1, nodes_each=2)
        for node in job.nodes:
            # The one that was asked first was the one to tell.
            cluster.wait_for(lambda: node.status()["waiting_for_memory"]["copies"] == 1, 20,
                             f"{node.name} to wait for memory")
            status = node.status()
            assert status["tiers"] == {"staged": step, "committed": 1}
            assert not status["sizing"]["fits"]
            assert metric(node, "tierkeep_pulls_waiting") == 1
            assert metric(node, "tierkeep_volume_advised_bytes") == status["sizing"]["advised_bytes"]
    cluster.wait_for(lambda: not any(scripted_job.shards(n, 2) for n in job.nodes), 20,
                     "the older unprotected save to be dropped")
    cluster.wait_for(lambda: "the committed step 1 is kept" in job.errors() and
                     "would do, this one has" in job.errors(), 20, "replicator.errors to say it")
    assert all(n.log().count("copies of step 2 can't be kept") == 1 for n in job.nodes)
    job.saved = 3
    job.restart()


def test_thin_gives_up_the_older_copies(make_cluster, seed):
    job = sized_job(make_cluster, seed, 4.3, **{"on-pressure": "thin"})
    for step in (2, 3):
        job.save(step)
        settle(job.cluster, 2)
        scripted_job.check_copies(job, step, nodes_each=2)
    job.cluster.wait_for(lambda: any("--on-pressure=thin" in n.log() for n in job.nodes), 20,
                         "a log to say it")
    job.cluster.wait_for(lambda: problems(job.cluster) == "", 20, "nothing to be left to report")
    job.restart()


@contextlib.contextmanager
def ballast(node, leave):
    """Fills the node's volume but for so many bytes."""
    path = os.path.join(node.volume, "ballast")
    with open(path, "wb") as f:
        space = os.fstatvfs(f.fileno())
        os.posix_fallocate(f.fileno(), 0, space.f_bavail * space.f_frsize - leave)
        yield f
    os.unlink(path)


def test_save_commits_when_memory_is_given_back(make_cluster, seed):
    """To the last page, and then again free: no new save is needed."""
    job = sized_job(make_cluster, seed, 6)
    cluster, node = job.cluster, job.nodes[1]
    with ballast(node, (SAVE + 1) * MIB) as f:
        job.write(2)
        cluster.wait_for(lambda: "step 2 lacks copies" in problems(cluster), 20,
                         "the trouble to be reported")
        cluster.wait_for(lambda: "the committed step 1 is kept" in job.errors(), 20,
                         "replicator.errors to say it")
        # Not a page is left now.
        with contextlib.suppress(OSError):
            while True:
                f.seek(0, os.SEEK_END)
                os.write(f.fileno(), bytes(4096))
        assert os.statvfs(node.mount).f_bfree == 0
        scripted_job.check_copies(job, 1, nodes_each=2)
        assert node.status()["phase"] == "running"
    job.committed(2)
    scripted_job.check_copies(job, 2, nodes_each=2)
    job.save(3)
    job.restart()


@contextlib.contextmanager
def memory_limit(pid, limit):
    """Puts the process into a control group of its own with a limit; yields a function that sets
    another."""
    groups = dict(line.split(":", 2)[1:] for line in open("/proc/self/cgroup").read().splitlines())
    if "memory" in groups:
        root, name = "/sys/fs/cgroup/memory" + groups["memory"], "memory.limit_in_bytes"
    else:
        root, name = "/sys/fs/cgroup" + groups.get("", ""), "memory.max"
    group = os.path.join(root, f"tierkeep-test-{pid}")

    def set_limit(value):
        with open(os.path.join(group, name), "w") as f:
            f.write(str(value))

    try:
        os.mkdir(group)
        set_limit(limit)
        with open(os.path.join(group, "cgroup.procs"), "w") as f:
            f.write(str(pid))
    except OSError as e:
        with contextlib.suppress(OSError):
            os.rmdir(group)
        pytest.skip(f"needs the right to make control groups: {e}")
    try:
        yield set_limit
    finally:
        with open(os.path.join(root, "cgroup.procs"), "w") as f:
            f.write(str(pid))
        os.rmdir(group)


def test_the_agents_control_group_counts(make_cluster, seed):
    """Pulled copies are charged to the agent: beyond its limit it would be killed, so it waits."""
    job = sized_job(make_cluster, seed, 8)
    cluster, node = job.cluster, job.nodes[1]
    with memory_limit(node.agent.pid, (SAVE - 1) * MIB) as set_limit:
        job.write(2)
        cluster.wait_for(lambda: "control group a memory limit of" in problems(cluster), 20,
                         "the trouble to be reported")
        assert node.status()["sizing"]["memory_limit_bytes"] == (SAVE - 1) * MIB
        scripted_job.check_copies(job, 1, nodes_each=2)
        set_limit(1 << 30)
        job.committed(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
