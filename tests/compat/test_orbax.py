"""Orbax's unmodified multi-tier client against real agents: one job, and what happens to it.

The tests of a class share a cluster and run in order: each goes on where the one before ended, as
a real job does, since a JAX start takes seconds.
"""

import datetime
import os
import re
import signal
import time

import pytest

from tierkeep_demo import job as job_lib
from tierkeep_demo import status as status_lib

WORKER = os.path.join(os.path.dirname(__file__), "orbax_worker.py")
LIMIT_SECONDS = 120

pytestmark = [pytest.mark.timeout(280), pytest.mark.journey]


class Journey:
    """A job over its restarts, and the step that it must come back to."""

    def __init__(self, cluster, logs, name, *options, devices=2):
        self.cluster, self.logs, self.name = cluster, logs, name
        self.options, self.devices = list(options), devices
        self.starts = 0
        self.expected = None  # the step that the next start must restore

    def start(self, *options, ranks=None):
        self.starts += 1
        arguments = [WORKER, "--job", self.name, *self.options, *options]
        return job_lib.Job(
            self.cluster, f"{self.name}-{self.starts}", str(self.logs), "jax",
            lambda node, rank: [*arguments, "--volume", node.volume], ranks, devices=self.devices)

    def finish(self, job, **options):
        """Waits for the job's end, checks what it restored and that its last save commits."""
        job.wait(LIMIT_SECONDS, **options)
        restored = job.events("restored")
        assert [e["latest_step"] for e in restored] == [self.expected] * len(job.workers)
        assert [e["wrong"] for e in restored] == [[]] * len(job.workers)
        saves = [e["step"] for e in job.events("saved") + job.events("preempted")]
        assert all(e["saved"] for e in job.events("saved"))
        self.expected = max(saves)
        self.cluster.wait_committed(self.expected)
        return job

    def run(self, *options, ranks=None):
        return self.finish(self.start(*options, ranks=ranks))


@pytest.fixture(scope="class")
def journey(request, make_cluster, tmp_path_factory):
    options = request.cls.OPTIONS
    return Journey(make_cluster(2), tmp_path_factory.mktemp("workers"), request.cls.JOB, *options)


def committed_at(node):
    """{step: when this node's log called it replicated globally, in seconds of the wall clock}"""
    when = re.compile(r"^(\S+ \S+) .*All files were replicated globally for step (\d+)", re.M)
    return {int(step): datetime.datetime.fromisoformat(time + "+00:00").timestamp()
            for time, step in when.findall(node.log())}


def pulled(node):
    return status_lib.bytes_pulled(node.status())


class TestTwoSlices:
    """Two data-parallel slices of one process each: every node's state has an equal twin."""

    JOB = "two-slices"
    OPTIONS = ["--slices", "2"]

    def test_cold_start_finds_nothing_and_commits(self, journey):
        journey.run()
        assert journey.expected == 10
        for node in journey.cluster.nodes:
            assert node.committed_steps()[-1] == 10

    def test_restart_restores_own_copies(self, journey):
        before = [pulled(n) for n in journey.cluster.nodes]
        journey.run()
        assert journey.expected == 20
        assert [pulled(n) for n in journey.cluster.nodes] == before, "nothing was lost or unequal"

    @pytest.mark.parametrize("lost", [1, 0])
    def test_lost_volume_comes_back_from_the_twin(self, journey, lost):
        node = journey.cluster.nodes[lost]
        node.lose_and_return()
        journey.run()
        assert pulled(node) > 0

    def test_swapped_ranks(self, journey):
        journey.run(ranks=[1, 0])

    def test_sigterm_to_one_process_commits_one_agreed_step(self, journey):
        job = journey.start("--until-preempted", ranks=[1, 0])
        end = time.monotonic() + LIMIT_SECONDS
        while len(job.events("training")) < 2:
            job.poll()
            assert time.monotonic() < end, "training never began"
            time.sleep(0.02)
        job.workers[1].process.send_signal(signal.SIGTERM)
        journey.finish(job)
        assert len({e["step"] for e in job.events("preempted")}) == 1
        assert len(job.events("preempted")) == 2

    def test_restart_after_preemption(self, journey):
        journey.run("--saves", "1")


class TestOneSlice:
    """One slice: no two nodes' states are alike, and Orbax names no peers."""

    JOB = "one-slice"
    OPTIONS = ["--slices", "1", "--saves", "1"]

    def test_cold_start(self, journey):
        journey.run()

    def test_lost_volume_comes_back_from_a_peers_copy(self, journey):
        node = journey.cluster.nodes[1]
        node.lose_and_return()
        journey.run()
        assert pulled(node) > 0


class TestLargeState:
    """The next save begins while the one before is still being replicated."""

    JOB = "large"
    OPTIONS = ["--slices", "2", "--state-mib", "128"]

    def test_save_while_replicating(self, journey):
        job = journey.start("--saves", "4")
        journey.finish(job)
        commits = [committed_at(n) for n in journey.cluster.nodes]
        early = [event["step"] for event in job.events("save_begun") if event["step"] > 5
                 and any(event["t"] < times[event["step"] - 5] for times in commits)]
        assert early, "no save began before the one before it was committed: nothing was tested"
        for node in journey.cluster.nodes:
            steps = node.committed_steps()
            assert steps == sorted(set(steps)), "a step was committed twice or out of order"
            assert steps[-1] == 20

    def test_restart_restores_the_newest(self, journey):
        journey.run("--saves", "1")
