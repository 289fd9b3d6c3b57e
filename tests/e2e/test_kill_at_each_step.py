"""kill -9 before every step that an agent takes: nothing is lost, and the job gets what it must get.

The steps are the actions of the core's machines, as the agent itself lists them: a new one is tried
without anybody remembering. For each, both nodes' agents are ended before one drawn occurrence of it
(TIERKEEP_EVERY_STEP=1: before each occurrence), in a story in which it occurs; the agent is started
again, and the story must go on to its end.
"""

import collections
import contextlib
import os
import random
import re
import signal
import subprocess

import pytest

import conftest
import proxy
import scripted_job
from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(600 if os.environ.get("TIERKEEP_EVERY_STEP") else 400)

STEP = re.compile(r" p([0-9a-f]+) .*step ((?:node|coordinator)\.\w+)")


def list_steps():
    path = os.environ.get("TIERKEEP_BIN") or str(conftest.ROOT / "build/release/src/tierkeep")
    try:
        return subprocess.run([path, "agent", "--list-steps"], capture_output=True, text=True,
                              check=True).stdout.split()
    except OSError as error:
        return [f"none: {error}"]  # the fixture says what is missing


class Story:
    """A job on two nodes. The agent of `victim` is to end before the step `point`; whatever ends
    so is started again at once."""

    def __init__(self, cluster, seed, victim=None, point=None):
        self.cluster, self.victim = cluster, victim
        self.ended = False
        cluster.on_death = self._died
        if victim is not None:
            victim.settings["crash-before"] = point
        self.job = Job(cluster, seed, megabytes=0.5)

    def _died(self, node, code):
        if node is not self.victim or self.ended or code != -signal.SIGKILL:
            return False
        self.ended = True
        del node.settings["crash-before"]
        if node.settings["advertise"] == proxy.FRONT:
            proxy.put_before_proxy(node)
        node.start()
        return True

    def wait(self, condition, what):
        self.cluster.wait_for_agents(condition, 60, what)

    def start(self, *nodes):
        for node in nodes or self.cluster.nodes:
            node.start()
        self.wait(lambda: all(n.status() for n in nodes or self.cluster.nodes), "agents to be up")

    def start_job(self, expected, check=True, **options):
        finish = self.job.begin(**options)
        self.wait(lambda: all(run.done() for run in finish.runs), "the job to start")
        assert finish() == expected
        if expected is not None and check:
            self.job.check_restored(expected)

    def save(self, step):
        self.job.write(step)
        self.committed(step)

    def committed(self, step):
        # The log's line may be what the kill came before: the status tells too.
        self.wait(lambda: all((n.status()["tiers"]["committed"] or 0) >= step
                               for n in self.cluster.nodes), f"step {step} to be committed")

    def end(self, node):
        """Ends the agent, if it hasn't just ended by itself."""
        if node.agent.poll() is not None and not self._died(node, node.agent.returncode):
            raise cluster_lib.ClusterError(f"{node.name} ended\n{node.tail()}")
        node.kill()

    def stop_all(self):
        for node in self.cluster.nodes:
            code = node.terminate()
            if code == -signal.SIGKILL and node is self.victim and not self.ended:
                self.ended = True
                del node.settings["crash-before"]
            else:
                assert code == 0

    def check_end(self, step):
        self.wait(lambda: sum(len(scripted_job.shards(n, step)) for n in self.cluster.nodes) == 4,
                   "all copies to be there")
        scripted_job.check_copies(self.job, step, nodes_each=2)
        for node in self.cluster.nodes:
            done = subprocess.run([self.cluster.binary, "verify", "--admin", node.admin],
                                  capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout


# ---- stories: between them every step occurs


def life(story):
    """Saves, a power cut, restarts of the job, a stop of all agents."""
    story.start()
    story.start_job(None)
    story.save(1)
    story.save(2)
    lost = story.cluster.nodes[1]
    story.end(lost)
    lost.wipe_ram()
    story.start(lost)
    story.start_job(2)
    story.save(3)
    story.stop_all()
    story.start()
    story.start_job(3)
    story.check_end(3)


def other_ranks(story):
    """The job comes back with its ranks swapped, so that another agent coordinates it."""
    story.start()
    story.start_job(None)
    story.save(1)
    story.start_job(1, ranks=[1, 0])
    story.save(2)
    story.check_end(2)
    story.wait(lambda: not story.cluster.nodes[0].status()["coordinator"],
               "the first coordinator to see that it isn't one any more")


def refused(story):
    """The nodes' files don't agree: all are told, also by an agent that ended before it could tell,
    and the next start is a good one."""
    story.start()
    story.start_job(None)
    story.save(1)
    story.job.kinds = {1: scripted_job.OrbaxVolume}
    finish = story.job.begin()
    story.job.kinds = {}
    story.wait(lambda: all(run.done() for run in finish.runs), "all to be told")
    for run in finish.runs:
        assert isinstance(run.exception(), volume_lib.ReplicatorFailed), run.exception()
    story.start_job(1)
    story.save(2)
    story.check_end(2)


def empty_file(story):
    """A client that resets its agent with an empty file."""
    story.start()
    for node in story.cluster.nodes:
        open(os.path.join(node.volume, "replicator.yaml"), "wb").close()
    story.wait(lambda: not any(os.path.exists(os.path.join(n.volume, "replicator.yaml"))
                                for n in story.cluster.nodes), "the empty files to go")
    story.start_job(None)
    story.save(1)
    story.check_end(1)


def vanished(story):
    """A member comes back while its coordinator still believes in its old connection."""
    first, second = story.cluster.nodes
    proxy.put_behind_proxy(first)
    story.start(first)
    if first.settings["advertise"] != proxy.FRONT:  # it ended so early that nothing is behind one
        story.start(second)
        story.start_job(None)
        return
    with proxy.Proxies(first) as between:
        between.control.hide_ends = True
        story.start(second)
        story.start_job(None)
        story.save(1)
        story.end(second)
        story.start(second)
        story.save(2)
        story.start_job(2)
        story.check_end(2)


def divergent(story):
    """Replicas that ought to be equal and aren't: they are compared, and copied instead."""
    story.job = Job(story.cluster, story.job.seed, framework="orbax", data_parallelism=2, peers=None,
                    peer_ranks=[[1], [0]], megabytes=0.5)
    story.start()
    story.start_job(None)
    story.save(1)
    story.check_end(1)
    story.start_job(1, check=False)  # one replica's bytes for all


def useless_save(story):
    """Step 0 means "no checkpoint" to these clients: a save of it is removed."""
    story.start()
    story.start_job(None)
    story.job.write(0)
    story.wait(lambda: not any(os.path.exists(os.path.join(n.volume, "0"))
                               for n in story.cluster.nodes), "step 0 to be removed")
    story.save(1)
    story.start_job(1)
    story.check_end(1)


def held_save(story):
    """A save that one node can't take yet, since somebody still writes it, goes with the next one."""
    story.start()
    story.start_job(None)
    story.save(1)
    with contextlib.ExitStack() as writers:
        for rank, volume in story.job.volumes.items():
            with volume.save(2) as path:
                files = story.job.data(2, rank)
                scripted_job.write_tree(path, files)
                if rank == 1:
                    writers.enter_context(open(os.path.join(path, min(files)), "ab"))
        story.save(3)
    story.start_job(3)
    story.check_end(3)


TRIES = 5
STORIES = [life, other_ranks, refused, empty_file, vanished, divergent, useless_save, held_save]


@pytest.fixture(scope="module")
def occurrences(binary):
    """{(step, index of the node): [(story, how often it comes in one life of the agent)]}"""
    out = collections.defaultdict(list)
    for story in STORIES:
        with cluster_lib.Cluster(2, binary, ram_mib=256) as cluster:
            for node in cluster.nodes:
                node.settings["log-level"] = "debug"
            story(Story(cluster, 1))
            for node in cluster.nodes:
                lives = collections.Counter(STEP.findall(node.log()))
                counts = collections.Counter()
                for (_, step), count in lives.items():
                    counts[step] = max(counts[step], count)
                for step, count in counts.items():
                    out[step, node.index].append((story, count))
    return out


@pytest.mark.parametrize("step", list_steps())
def test_killed_before(make_cluster, seed, occurrences, step):
    draw = random.Random(seed)
    places = [(index, *occurrences[step, index][0]) for index in (0, 1) if occurrences[step, index]]
    assert places, f"no story takes the step {step}: add one to STORIES"
    every = os.environ.get("TIERKEEP_EVERY_STEP")
    for index, story, count in places:
        ended = 0
        for number in range(1, count + 1) if every else [draw.randint(1, count)]:
            cluster = make_cluster(2, start=False, ram_mib=256)
            print(f"{story.__name__}: {cluster.nodes[index].name} ends before {step}:{number}")
            told = Story(cluster, seed, cluster.nodes[index], f"{step}:{number}")
            story(told)
            ended += told.ended
            cluster.close()
        # How often a timer is set differs from run to run; the first time comes. Whether a task is
        # still there to be cancelled when it has become needless does, too: then it is tried again.
        for story, _ in [] if ended else TRIES * occurrences[step, index]:
            cluster = make_cluster(2, start=False, ram_mib=256)
            print(f"{story.__name__}: {cluster.nodes[index].name} ends before {step}")
            told = Story(cluster, seed, cluster.nodes[index], step)
            story(told)
            ended += told.ended
            cluster.close()
            if ended:
                break
        assert ended, f"{step} didn't come"
