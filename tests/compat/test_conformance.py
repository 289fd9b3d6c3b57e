"""Every published client, scripted (clients.py), against real agents, in every order of events that
jobs go through. A test is one client in one scenario, on agents of its own.
"""

import concurrent.futures
import contextlib
import os
import random
import sys
import threading
import zlib

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))

import clients  # noqa: E402
import scripted_job  # noqa: E402
from tierkeep_demo import cluster as cluster_lib  # noqa: E402
from tierkeep_demo import job as job_lib  # noqa: E402
from tierkeep_demo import volume as volume_lib  # noqa: E402

pytestmark = pytest.mark.timeout(240)

LATE_POLLS = 60  # a minute of the clients' clock
SECONDS = 60


class Scenario:
    """A job of one kind of client on the first nodes of a cluster."""

    JOB = "conformance"

    def __init__(self, cluster, kind, seed, count):
        self.cluster, self.kind, self.seed, self.count = cluster, kind, seed, count
        self.draw = random.Random(seed)
        self.ranks = {rank: cluster.nodes[rank] for rank in range(count)}  # whose node is whose
        self.clients, self.saved, self.version = {}, None, 0

    def replace_a_rank(self, spare):
        """A machine is lost for good, and a spare one gets its rank."""
        lost = self.draw.randrange(self.count)
        print("lost rank", lost)
        self.ranks[lost].kill()
        self.ranks[lost].wipe_ram()
        self.ranks[lost] = spare

    # ---- start

    def write_jax_init_info(self):
        """What the platform does at every start of a job that needs it."""
        port = cluster_lib.free_port()
        for rank, node in self.ranks.items():
            if hasattr(self.kind, "jax_init_info"):
                job_lib.write_jax_init_info(node.volume, rank, f"127.0.0.1:{port}")

    def make_clients(self):
        self.clients = {rank: self.kind(node, rank, self.count, self.JOB)
                        for rank, node in self.ranks.items()}

    def start(self, late=None):
        """Starts all processes, `late`'s after the others have polled LATE_POLLS times; returns the
        step that all restored."""
        self.write_jax_init_info()
        if not self.clients:
            self.make_clients()
        # One release for each early client: the late one waits for all of them.
        waited = threading.Semaphore(0)

        def run(client):
            if client.rank == late:
                for _ in range(self.count - 1):
                    assert waited.acquire(timeout=SECONDS)
            elif late is not None:
                client.on_poll = (LATE_POLLS, waited.release)
            return client.start()

        with concurrent.futures.ThreadPoolExecutor(self.count) as pool:
            runs = {rank: pool.submit(run, c) for rank, c in self.clients.items()}
        steps = {rank: r.result() for rank, r in runs.items()}
        assert len(set(steps.values())) == 1, f"not one decision for all: {steps}"
        return steps[0]

    def restart(self, **options):
        """All processes end and start again: they get what was saved last, byte for byte."""
        self.clients = {}
        step = self.start(**options)
        assert step == self.saved
        if step is not None:
            self.check_restored(step)

    def check_restored(self, step):
        for rank, client in self.clients.items():
            scripted_job.check_files(
                without_notes(scripted_job.read_tree(client.restored_path(step))),
                self.data(step, rank), f"rank {rank}, restored step {step}")

    # ---- saves

    def data(self, step, rank):
        """Equal for the same rank of every replica."""
        return scripted_job.random_tree(
            f"{self.seed}/{self.version}/{step}/{rank % (self.count // self.kind.replicas)}",
            600_000)

    def writer(self, step, rank):
        return lambda path: scripted_job.write_tree(path, self.data(step, rank))

    def write(self, step, ranks=None):
        for rank in ranks if ranks is not None else self.clients:
            self.clients[rank].write_save(step, self.writer(step, rank))

    def committed(self, step, times=1):
        self.cluster.wait_for(
            lambda: all(n.committed_steps().count(step) >= times for n in self.ranks.values()),
            SECONDS, f"step {step} to be replicated globally")
        self.saved = step

    def save(self, step):
        self.write(step)
        self.committed(step)

    def errors(self):
        """All that replicator.errors said on any node so far."""
        for client in self.clients.values():
            client.check_errors()
        return "".join(text for client in self.clients.values() for text in client.errors)

    def check_no_errors(self):
        for client in self.clients.values():
            client.check_errors()
            assert client.errors == [], f"rank {client.rank}"


def without_notes(files):
    return {name: data for name, data in files.items() if name != "_BACKUP_REQUESTED"}


@pytest.fixture(params=clients.DIRECTORY_CLIENTS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


@pytest.fixture
def make_scenario(binary, request, tmp_path):
    """A function that starts `count` agents and some spare ones, gone after the test."""
    seed = int(os.environ.get("TIERKEEP_TEST_SEED") or
               zlib.crc32(request.node.nodeid.encode()) % 1_000_000)
    print("seed", seed)
    with contextlib.ExitStack() as stack:
        def make(kind, count=2, spare=0):
            cluster = stack.enter_context(
                cluster_lib.Cluster(count + spare, binary, ram_mib=128))
            cluster.keep_logs_in = str(tmp_path / "agents")
            return Scenario(cluster.start(), kind, seed, count)

        yield make


# ---- every client

def test_cold_start_save_and_restart(make_scenario, kind):
    job = make_scenario(kind, count=4)
    assert job.start() is None
    job.save(kind.first_step)
    job.save(10)
    job.check_no_errors()
    job.restart()
    job.save(20)
    job.restart()
    job.check_no_errors()


def test_the_first_step_is_restored(make_scenario, kind):
    job = make_scenario(kind)
    assert job.start() is None
    job.save(kind.first_step)
    job.restart()


def test_ranks_are_reshuffled(make_scenario, kind):
    job = make_scenario(kind, count=4)
    job.start()
    job.save(7)
    order = list(range(4))
    while order == list(range(4)):
        job.draw.shuffle(order)
    print("ranks", order)
    job.ranks = {rank: job.cluster.nodes[order[rank]] for rank in range(4)}
    job.restart()
    job.save(8)
    job.restart()


def test_a_rank_is_replaced(make_scenario, kind):
    """A machine is lost for good; a new one gets its rank, and its data from the others."""
    job = make_scenario(kind, count=2, spare=1)
    job.start()
    job.save(7)
    job.replace_a_rank(job.cluster.nodes[2])
    job.restart()
    job.save(8)
    job.restart()


def test_a_node_is_late(make_scenario, kind):
    job = make_scenario(kind, count=2)
    assert job.start(late=job.draw.randrange(2)) is None
    job.save(3)
    job.restart(late=job.draw.randrange(2))
    job.check_no_errors()


def test_the_same_step_is_saved_twice(make_scenario, kind):
    job = make_scenario(kind)
    job.start()
    job.save(7)
    job.version = 1  # other bytes
    job.write(7)
    job.committed(7, times=2)
    job.restart()
    job.save(8)
    job.check_no_errors()


def test_a_node_skips_saves(make_scenario, kind):
    """What some node skipped is given up by all, and costs nothing."""
    job = make_scenario(kind)
    job.start()
    job.save(5)
    skips = job.draw.randrange(2)
    for step in (10, 15):
        job.write(step, ranks=[1 - skips])
    job.save(20)
    node = job.ranks[1 - skips]
    job.cluster.wait_for(
        lambda: {s["step"] for s in node.status()["store"]["shards"]} == {20}, SECONDS,
        "the skipped steps to be given up")
    assert [s for s in node.committed_steps() if s in (10, 15)] == []
    job.restart()


def test_a_save_is_finished_in_the_instant_of_the_link(make_scenario, kind):
    """Before the client has even looked at its link, a save is moved into place."""
    job = make_scenario(kind)
    for step in (11, 12):
        job.clients = {}
        job.make_clients()

        for client in job.clients.values():
            client.on_marker = lambda c, step=step: c.prepare_save(
                step, job.writer(step, c.rank))()
        assert job.start() == job.saved
        job.committed(step)
    job.restart()


def test_saves_faster_than_they_are_protected(make_scenario, kind):
    job = make_scenario(kind)
    job.start()
    for step in range(1, 9):
        job.write(step)
    job.committed(8)
    for node in job.ranks.values():
        steps = node.committed_steps()
        assert steps == sorted(set(steps))
    job.restart()
    job.check_no_errors()


def test_a_bad_yaml_is_said_when_the_client_looks(make_scenario, kind):
    """`replicator.failed` stands before the yaml goes: the client ends at once, not at a limit."""
    job = make_scenario(kind)
    job.make_clients()
    for client in job.clients.values():
        client.job = "not/a/name"
    job.write_jax_init_info()
    with pytest.raises(volume_lib.ReplicatorFailed) as failed:
        job.start()
    assert "job-name 'not/a/name'" in str(failed.value)
    job.restart()
    job.save(1)


def test_all_agents_die_between_save_and_commit(make_scenario, kind):
    """What was whole in the volume or staged is restored, though nobody committed it."""
    job = make_scenario(kind)
    job.start()
    job.save(5)
    for node in job.ranks.values():
        node.kill()
    job.write(6)
    job.cluster.start()
    job.saved = 6
    job.restart()
    job.save(7)


def test_agents_start_while_a_save_is_being_written(make_scenario, kind):
    """Its last act comes after the start, its first ones nobody saw: it is taken all the same."""
    job = make_scenario(kind)
    job.start()
    job.save(5)
    for node in job.ranks.values():
        node.kill()
    last_acts = [client.prepare_save(6, job.writer(6, rank))
                 for rank, client in job.clients.items()]
    job.cluster.start()
    job.cluster.wait_for(
        lambda: all(n.status()["phase"] == "running" for n in job.ranks.values()),
        SECONDS, "the run to go on")
    for last_act in last_acts:
        last_act()
    job.committed(6)
    job.restart()


# ---- a client that starts anew while the job gathers

@pytest.mark.parametrize("kind", [clients.Orbax, clients.MaxText, clients.Pathways],
                         ids=lambda kind: kind.__name__)
def test_a_client_starts_anew_while_the_job_gathers(make_scenario, kind):
    """Its own yaml of the start before still stands. Pathways removes it; for the others the
    platform's new jax-init-info.txt tells the agent, which does."""
    job = make_scenario(kind)
    job.make_clients()
    first = job.clients[job.draw.randrange(2)]
    job.write_jax_init_info()
    first.write_yaml()
    job.cluster.wait_for(lambda: first.node.status()["phase"] == "joining" or
                         first.node.status()["phase"] == "locating", SECONDS, "the first start")
    assert os.path.exists(first.at("replicator.yaml"))
    assert job.start() is None
    job.save(1)
    job.restart()
    job.check_no_errors()
