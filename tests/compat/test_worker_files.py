"""Framework `pytorch`: several workers a node, each saving one file, against real agents."""

import os
import random

import pytest

import clients
import scripted_job
from test_conformance import Scenario, make_scenario  # noqa: F401

pytestmark = pytest.mark.timeout(240)


class InPlace(clients.WorkerFiles):
    in_place = True


class Files(Scenario):
    """The scenarios' job, with a file for each worker in a directory's place."""

    def file(self, step, rank, worker):
        draw = random.Random(f"{self.seed}/{self.version}/{step}/{rank}/{worker}")
        return draw.randbytes(0 if step == 1 and worker else 300_000 + draw.randrange(100_000))

    def write(self, step, ranks=None, skip=()):
        """Every worker at its own moment, in a drawn order; not those (rank, worker) in `skip`."""
        units = [(r, w) for r in (ranks if ranks is not None else self.clients)
                 for w in range(self.kind.workers) if (r, w) not in skip]
        self.draw.shuffle(units)
        for rank, worker in units:
            self.clients[rank].save_worker(step, worker, self.file(step, rank, worker))

    def check_restored(self, step):
        for rank, client in self.clients.items():
            for worker in range(self.kind.workers):
                with open(client.restored_path(step, worker), "rb") as f:
                    assert f.read() == self.file(step, rank, worker), f"rank {rank} worker {worker}"


@pytest.fixture(params=[clients.WorkerFiles, InPlace], ids=lambda kind: kind.__name__)
def job(request, make_scenario):  # noqa: F811
    made = make_scenario(request.param, count=3, spare=1)
    made.__class__ = Files
    return made


def test_commit_restart_reshuffle_and_loss_of_a_node(job):
    assert job.start() is None
    job.save(1)
    job.save(2)
    for node in job.ranks.values():
        # One name a worker, its own and its peer's; nothing of the job's is left.
        def tidy(node=node):
            names = os.listdir(node.volume)
            return len([n for n in names if n.endswith(".meta")]) == 4 and not [
                n for n in names if n.endswith((".save", ".tmp", ".data"))]

        job.cluster.wait_for(tidy, 20, f"{node.name}'s volume to hold four metas and no save")
    job.check_no_errors()
    job.restart()
    job.save(3)
    job.ranks = dict(zip(range(3), [job.ranks[2], job.ranks[0], job.ranks[1]]))
    job.restart()
    job.save(4)
    job.replace_a_rank(job.cluster.nodes[3])
    job.restart()
    job.check_no_errors()


def test_worker_saves_that_some_worker_skipped(job):
    """B8: the next whole save goes on; the skipped ones' files don't stay in memory."""
    job.start()
    job.save(5)
    job.write(10, skip={(0, 1), (2, 0)})
    job.write(15, skip={(1, 0)})
    job.save(20)
    job.cluster.wait_for(
        lambda: not [n for node in job.ranks.values() for n in os.listdir(node.volume)
                     if n.endswith(".save")], 20, "what some worker skipped to be removed")
    for words in ("-s10-n0-w0.save", "-s15-n1-w1.save", "some worker skipped"):
        job.cluster.wait_for(lambda: words in job.errors(), 20, f"replicator.errors: {words}")
    job.restart()


def test_a_worker_ahead_of_the_others(job):
    job.start()
    for rank, client in job.clients.items():
        for step in (5, 10):
            client.save_worker(step, 0, job.file(step, rank, 0))
    for rank, client in job.clients.items():
        client.save_worker(5, 1, job.file(5, rank, 1))
    job.committed(5)
    for rank, client in job.clients.items():
        client.save_worker(10, 1, job.file(10, rank, 1))
    job.committed(10)
    job.check_no_errors()
    job.restart()


def test_files_that_are_not_this_nodes(job):
    """Another rank's, a worker's that there isn't, another job's, step 0."""
    job.start()
    job.save(5)
    client = job.clients[1]
    useless = ["conformance-s9-n0-w0.save", "conformance-s9-n1-w2.save",
               "conformance-s0-n1-w0.save"]
    strange = ["other-s9-n1-w0.save", "conformance-s09-n1-w0.save", "conformance-s9-n1-w0.saved"]
    for name in useless + strange:
        with open(os.path.join(client.path, name), "wb") as f:
            f.write(b"useless")
    job.cluster.wait_for(lambda: not set(useless) & set(os.listdir(client.path)), 60,
                         "useless files to go")
    for name in useless:
        job.cluster.wait_for(lambda: f"the save {name} can't be used" in job.errors(), 20,
                             f"replicator.errors to name {name}")
    assert set(strange) <= set(os.listdir(client.path))
    job.save(10)
    job.restart()
    assert not set(strange) & set(os.listdir(client.path)), "the next start cleans"


def test_a_whole_save_that_no_agent_has_seen(job):
    """All agents are down when the workers finish: it is restored all the same; a file that the
    volume got from elsewhere isn't taken for this node's."""
    job.start()
    job.save(5)
    for node in job.ranks.values():
        node.kill()
    job.write(6)
    with open(os.path.join(job.clients[0].path, "conformance-s6-n1-w0.save"), "wb") as f:
        f.write(b"not rank 1's")
    for node in job.ranks.values():
        node.start()
    for node in job.ranks.values():
        node.wait_ready()
    job.saved = 6
    job.restart()


def test_workers_per_node_must_agree(job):
    job.make_clients()
    job.clients[1].yaml_extra = {"workers-per-node": 3}
    with pytest.raises(Exception) as failed:
        job.start()
    assert "workers-per-node" in str(failed.value)
    assert "node0" in str(failed.value) and "node1" in str(failed.value)


def test_shards_are_files(job):
    """A copy is one file, and tools see its name without the directory's prefix."""
    job.start()
    job.save(5)
    held = scripted_job.shards(job.ranks[0], 5)
    assert len(held) == 4
    for digest in held:
        assert os.path.isfile(scripted_job.shard_path(job.ranks[0], digest, "data"))
    metas = [n for n in os.listdir(job.ranks[0].volume) if n.endswith(".meta")]
    for name in metas:
        with open(os.path.join(job.ranks[0].volume, name), encoding="utf-8") as f:
            assert len(f.read()) == 64
