"""A replication that fails leaves the older generation on every node, and says so."""

import contextlib
import os
import subprocess

import pytest

import scripted_job
from scripted_job import Job

pytestmark = pytest.mark.timeout(240)


def needs_mounts(cluster):
    if not cluster.mounted:
        pytest.skip("needs a tmpfs of its own for each node, with a size")


def held_steps(node):
    """{step: (own copies, peers' copies)}"""
    out = {}
    for shard in scripted_job.shards(node).values():
        own, peer = out.get(shard["step"], (0, 0))
        out[shard["step"]] = (own + 1, peer) if shard["own"] else (own, peer + 1)
    return out


def problems(cluster):
    return "\n".join(p for n in cluster.nodes for p in n.status()["problems"])


def check_older_is_kept(job, older, failed):
    """`older` is on both nodes as committed, byte for byte, and would be found by verify too."""
    scripted_job.check_copies(job, older, nodes_each=2)
    for node in job.nodes:
        status = node.status()
        assert status["tiers"]["committed"] == older
        assert status["phase"] == "running"
        assert failed not in node.committed_steps()
        done = subprocess.run([node.cluster.binary, "verify", "--admin", node.admin],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


def test_a1_peer_is_full(make_cluster, seed):
    """Node 1 has room for its own saves, and not for a large one of node 0 beside the last."""
    cluster = make_cluster(2, ram_mib=512, start=False)
    needs_mounts(cluster)
    small = cluster.nodes[1]
    small.ram_mib = 96
    small.wipe_ram()
    cluster.start()
    sizes = {}
    job = Job(cluster, seed)
    plain = job.data

    def data(step, rank):
        job.megabytes = sizes.get((step, rank), 10)
        return plain(step, rank)

    job.data = data
    assert job.start() is None
    job.save(1)
    # 20 MiB are there, 10 more come from its own job: 70 don't fit, and 60 would.
    sizes[2, 0] = 70
    job.write(2)
    cluster.wait_for(lambda: "step 2" in problems(cluster), 60, "the failure to be reported")
    print(problems(cluster))
    check_older_is_kept(job, 1, failed=2)
    cluster.wait_for(lambda: "kept" in job.errors(), 10, "replicator.errors to tell the job")
    assert small.status()["last_error"]
    # The client trains on; a save that fits is protected again, and the failed one is given up.
    job.save(3)
    scripted_job.check_copies(job, 3, nodes_each=2)
    cluster.wait_for(lambda: [sorted(held_steps(n)) for n in cluster.nodes] == [[3], [3]], 20,
                     "older saves to be collected")
    cluster.wait_for(lambda: "step 2" not in problems(cluster), 20, "nobody to report it any more")
    job.restart()


def test_failed_save_is_restored_all_the_same(make_cluster, seed):
    """Unprotected isn't lost: every rank has its own copy, so a restart gets the newer save."""
    cluster = make_cluster(2, ram_mib=512, start=False)
    needs_mounts(cluster)
    small = cluster.nodes[1]
    small.ram_mib = 96
    small.wipe_ram()
    cluster.start()
    job = Job(cluster, seed, megabytes=30)
    assert job.start() is None
    plain = job.data

    def data(step, rank):
        job.megabytes = 70 if rank == 0 and step == 2 else 10
        return plain(step, rank)

    job.data = data
    job.save(1)
    job.write(2)
    cluster.wait_for(lambda: "step 2" in problems(cluster), 60, "the failure to be reported")
    check_older_is_kept(job, 1, failed=2)
    job.saved = 2
    job.restart()
    job.save(3)
    job.restart()


@contextlib.contextmanager
def nothing_can_be_received(node):
    """The kernel refuses to make anything in the node's incoming/, until this ends."""
    incoming = os.path.join(node.store, "incoming")
    if subprocess.run(["chattr", "+i", incoming], capture_output=True).returncode != 0:
        pytest.skip("needs a file system with the immutable flag, and the right to set it")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", incoming], check=True)


def test_peer_can_not_write(make_cluster, seed):
    """The kernel refuses to make anything in node 1's incoming/, until it is repaired."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    with nothing_can_be_received(cluster.nodes[1]):
        job.write(2)
        cluster.wait_for(lambda: "step 2" in problems(cluster), 60, "the failure to be reported")
        check_older_is_kept(job, 1, failed=2)
        # replicator.errors isn't made there, so the job is told all the same.
        assert "Operation not permitted" in cluster.nodes[1].status()["last_error"]
        cluster.wait_for(lambda: "a peer's copy can't be kept" in job.errors(), 10,
                         "replicator.errors to tell the job")
    job.save(3)
    scripted_job.check_copies(job, 3, nodes_each=2)
    job.restart()


def test_failure_that_passes_is_made_up_for(make_cluster, seed):
    """The same save commits once the peer can write again: nobody has to save once more."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    with nothing_can_be_received(cluster.nodes[1]):
        job.write(2)
        cluster.wait_for(lambda: "step 2" in problems(cluster), 60, "the failure to be reported")
    job.committed(2)
    scripted_job.check_copies(job, 2, nodes_each=2)
    cluster.wait_for(lambda: "step 2" not in problems(cluster), 20, "nobody to report it any more")


def test_save_that_is_refused(make_cluster, seed):
    """A save with a pipe in it can't be taken: it is reported and given up by all."""
    cluster = make_cluster(2)
    job = Job(cluster, seed, megabytes=1)
    assert job.start() is None
    job.save(1)
    for rank, volume in job.volumes.items():
        with volume.save(2) as path:
            scripted_job.write_tree(path, job.data(2, rank))
            if rank == 1:
                os.mkfifo(os.path.join(path, "pipe"))
    cluster.wait_for(lambda: "pipe" in job.errors(), 20, "the refusal to be reported")
    check_older_is_kept(job, 1, failed=2)
    job.save(3)
    job.restart()


def test_state_directory_can_not_be_written(make_cluster, seed):
    """In mid-run the agent's own memory can't be kept: the job trains on and is told, and
    neither saves nor a later restart suffer."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    node = cluster.nodes[1]
    if subprocess.run(["chattr", "+i", node.state_dir], capture_output=True).returncode != 0:
        pytest.skip("needs a file system with the immutable flag, and the right to set it")
    try:
        job.write(2)
        cluster.wait_for(lambda: "PersistState" in job.errors(), 20, "the failure to be reported")
        job.committed(2)  # what was saved lies in RAM, whose names say what it is
        scripted_job.check_copies(job, 2, nodes_each=2)
    finally:
        subprocess.run(["chattr", "-i", node.state_dir], check=True)
    job.save(3)
    scripted_job.check_copies(job, 3, nodes_each=2)
    node.kill()
    node.start()
    node.wait_ready()
    job.restart()
