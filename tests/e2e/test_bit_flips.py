"""One flipped bit anywhere is found, another source is used, and nothing wrong is ever linked."""

import os
import random
import subprocess
import threading

import pytest

import proxy
import scripted_job
from scripted_job import MIB, Job
from tierkeep_demo import bitflip
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(240)


def files_of(node, kind):
    """The files of a store that hold data, manifests or generation records."""
    if kind == "generation":
        top = os.path.join(node.store, "generations")
        found = [os.path.join(where, n) for where, _, names in os.walk(top) for n in names]
    elif kind == "manifest":
        top = os.path.join(node.store, "shards")
        found = [os.path.join(top, digest, "manifest") for digest in os.listdir(top)]
    else:
        own = kind == "own data"
        found = [path for digest, shard in scripted_job.shards(node).items()
                 if shard["own"] == own for path in scripted_job.data_files(node, digest)]
    assert found, f"{node.name} has no {kind}"
    return sorted(found)


def flip_somewhere(paths, seed):
    """Flips one bit of one of the files: large ones are hit more often."""
    draw = random.Random(seed)
    path = draw.choices(paths, [os.path.getsize(p) for p in paths])[0]
    print("flipped", path, bitflip.flip_bit_in_file(path, seed))


def verify(node):
    return subprocess.run([node.cluster.binary, "verify", "--admin", node.admin],
                          capture_output=True, text=True, timeout=60)


def restart_agent(node):
    node.kill()
    node.start()
    node.wait_ready()


@pytest.mark.parametrize("agent", ["up", "down"])
@pytest.mark.parametrize("kind", ["own data", "peer's data", "manifest", "generation"])
@pytest.mark.parametrize("where", [0, 1])
def test_c2_at_rest(make_cluster, seed, kind, agent, where):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(3)
    job.save(4)
    node = cluster.nodes[where]
    paths = files_of(node, kind)
    if agent == "down":
        node.kill()
    flip_somewhere(paths, seed)
    if agent == "down":
        node.start()
        node.wait_ready()
    job.restart()
    job.save(5)
    scripted_job.check_copies(job, 5, nodes_each=2)
    # What was damaged is soon no longer anywhere.
    cluster.wait_for(lambda: verify(node).returncode == 0, 30, "the damaged copy to go")
    restart_agent(node)
    job.restart()
    assert verify(node).returncode == 0


@pytest.mark.parametrize("kind", ["own data", "peer's data"])
def test_verify_names_the_bad_copy(make_cluster, seed, kind):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(3)
    assert verify(cluster.nodes[0]).returncode == 0
    flip_somewhere(files_of(cluster.nodes[0], kind), seed)
    found = verify(cluster.nodes[0])
    print(found.stdout)
    assert found.returncode == 1
    (bad,) = [line for line in found.stdout.splitlines() if line.startswith("BAD")]
    assert f"job {job.name} step 3 rank {0 if kind == 'own data' else 1} " in bad
    assert verify(cluster.nodes[1]).returncode == 0
    job.restart()


@pytest.mark.parametrize("agent", ["up", "down"])
def test_every_copy_of_a_shard_is_bad(make_cluster, seed, agent):
    """Then there is nothing to restore: the job must not get wrong bytes, and is told."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(3)
    paths = {node.name: files_of(node, kind)
             for node, kind in zip(cluster.nodes, ["own data", "peer's data"])}
    for node in cluster.nodes:
        if agent == "down":
            node.kill()
        flip_somewhere(paths[node.name], seed)
        if agent == "down":
            node.start()
            node.wait_ready()
    finish = job.begin()
    try:
        assert finish() is None
    except volume_lib.ReplicatorFailed as failed:
        print("refused:", failed)
        return
    cluster.wait_for(lambda: any("bad" in n.log() for n in cluster.nodes), 20, "a log to say it")
    job.save(4)
    job.restart()


@pytest.mark.parametrize("what", ["manifest", "data"])
def test_in_flight_while_a_save_is_replicated(make_cluster, seed, what):
    with scripted_job.job_behind_proxy(make_cluster, seed, megabytes=8) as (job, between):
        draw = random.Random(seed)
        # A manifest comes first, behind a header of 16 bytes.
        after = draw.randrange(16, 300) if what == "manifest" else draw.randrange(MIB, 7 * MIB)
        between.data.flip(after, draw.randrange(8))
        print("flip after", after)
        job.write(2)
        job.committed(2)
        assert between.data.flipped.is_set(), "nothing was flipped: the test tests nothing"
        scripted_job.check_copies(job, 2, nodes_each=2)

        def told():
            said = job.errors() + job.cluster.nodes[1].log()
            return "node0" in said and "match" in said or "digest" in said

        job.cluster.wait_for(told, 20, "the flip to be reported")
        job.restart()


@pytest.mark.parametrize("what", ["manifest", "data"])
@pytest.mark.parametrize("sources", [1, 2])
def test_c2_in_flight_while_data_is_restored(make_cluster, seed, what, sources):
    """With a second source it takes over; with one alone, the restore is tried again or nothing is
    linked at all."""
    nodes = sources + 1
    cluster = make_cluster(nodes, start=False)
    for node in cluster.nodes[:-1]:
        proxy.put_behind_proxy(node)
    cluster.start()
    lost = cluster.nodes[-1]
    proxies = [proxy.Proxies(node) for node in cluster.nodes[:-1]]
    try:
        job = Job(cluster, seed, megabytes=8, peers=sources)
        assert job.start() is None
        job.save(1)
        lost.kill()
        lost.wipe_ram()
        draw = random.Random(seed)
        # One bit in all, of whichever source comes to it first: with two, one sends 4 MiB at least.
        after = draw.randrange(16, 300) if what == "manifest" else draw.randrange(MIB, 3 * MIB)
        bit, once = draw.randrange(8), threading.Semaphore()
        for between in proxies:
            between.data.flip(after, bit, once)
        print("flip after", after)
        # Armed before the agent is back: it fetches what the run has even before the job starts.
        lost.start()
        lost.wait_ready()
        step = job.start()
        assert sum(p.data.flipped.is_set() for p in proxies) == 1, "not one bit was flipped"
        if sources == 2:
            assert step == 1, "there was a good source"
        if step is not None:
            assert step == 1
            job.check_restored(1)
        job.save(2)
        job.restart()
    finally:
        for between in proxies:
            between.__exit__()


def test_state_of_the_agent(make_cluster, seed):
    """The agent's own memory is damaged: it says so and does not guess."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    node = cluster.nodes[1]
    node.kill()
    state = os.path.join(node.state_dir, "node.state")
    print("flipped", state, bitflip.flip_bit_in_file(state, seed))
    node.start()
    assert node.agent.wait(60) == 1
    node.kill()
    assert "state directory" in node.log()
    os.rename(state, state + ".bad")  # the remedy that it names
    node.start()
    node.wait_ready()
    job.restart()
    job.save(2)
