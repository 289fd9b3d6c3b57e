"""Who takes part in a job: ranks claimed twice, strangers, leftovers, machines that change."""

import os
import signal
import subprocess

import pytest

import scripted_job
from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(240)


def client(node, limit=60):
    return volume_lib.TorchVolume(node.volume, poll=0.01, limit=limit)


def refusal(volume):
    """Waits for replicator.failed and returns what it says."""
    with pytest.raises(volume_lib.ReplicatorFailed) as failed:
        volume.wait_released()
        volume.wait_restored()
    return str(failed.value)


def wait_phase(cluster, node, *phases):
    cluster.wait_for(lambda: node.status()["phase"] in phases, 20, f"{node.name} to be {phases}")


def joined(node):
    """Whether the coordinator has the node among those it waits with."""
    return node.status()["phase"] in ("joining", "restoring", "prepared", "running")


# ---- one rank, two machines


def test_rank_claimed_by_two_agents(make_cluster, seed):
    """The newer attempt takes part; the other is told by name of both hosts, and stays out until
    its yaml changes."""
    cluster = make_cluster(4)
    zero, old, new, two = cluster.nodes
    first = client(zero)
    first.configure("e2e", 0, 3)
    loser = client(old)
    loser.configure("e2e", 1, 3)
    cluster.wait_for(lambda: joined(old), 20, "the first claim")
    winner = client(new)
    winner.configure("e2e", 1, 3)
    text = refusal(loser)
    assert "rank 1" in text and old.name in text and new.name in text, text
    wait_phase(cluster, old, "failed", "holder", "idle")
    # Neither by waiting nor by a restart of its agent does it get in again.
    old.kill()
    old.start()
    assert old.wait_ready()["job"] is None
    last = client(two)
    last.configure("e2e", 2, 3)
    assert [v.wait_restored() for v in (first, winner, last)] == [None] * 3
    names = {m["node"] for m in zero.status()["members"] if m["rank"] is not None}
    assert names == {zero.name, new.name, two.name}
    assert not any(n.endswith(".restore") for n in os.listdir(old.volume))


def test_loser_of_a_rank_comes_back_with_a_new_yaml(make_cluster, seed):
    cluster = make_cluster(4)
    zero, old, new, two = cluster.nodes
    first, loser, winner = client(zero), client(old), client(new)
    first.configure("e2e", 0, 3)
    loser.configure("e2e", 1, 3)
    cluster.wait_for(lambda: joined(old), 20, "the first claim")
    winner.configure("e2e", 1, 3)
    refusal(loser)
    # Now it is the younger one.
    loser.configure("e2e", 1, 3)
    text = refusal(winner)
    assert old.name in text and new.name in text, text
    last = client(two)
    last.configure("e2e", 2, 3)
    assert [v.wait_restored() for v in (first, loser, last)] == [None] * 3
    names = {m["node"] for m in zero.status()["members"] if m["rank"] is not None}
    assert names == {zero.name, old.name, two.name}


def test_stray_pod_with_the_job_name(make_cluster, seed):
    """A pod of an earlier try wants a rank of the running job: the run goes on and says so; a
    restart of the job has nothing to do with it."""
    cluster = make_cluster(3)
    stray = cluster.nodes[2]
    job = Job(cluster, seed, nodes=cluster.nodes[:2])
    assert job.start() is None
    job.save(1)
    run = cluster.nodes[0].status()["run"]
    pod = client(stray)
    pod.configure(job.name, 1, 2)
    cluster.wait_for(
        lambda: any(stray.name in p and "rank 1" in p for p in cluster.nodes[0].status()["problems"]),
        20, "the stranger to be reported")
    job.save(2)
    assert cluster.nodes[0].status()["run"] == run
    assert not any(n.endswith(".restore") for n in os.listdir(stray.volume))
    job.restart()
    text = refusal(pod)
    assert stray.name in text and cluster.nodes[1].name in text, text
    job.save(3)
    job.restart()


# ---- attempts


def test_repeated_attempts_while_gathering(make_cluster, seed):
    """One node's process starts again and again before the last node is there: one run, of the
    newest attempts."""
    cluster = make_cluster(3)
    job = Job(cluster, seed)
    early = client(cluster.nodes[0])
    early.configure(job.name, 0, 3)
    again = client(cluster.nodes[1])
    for _ in range(3):
        yaml = os.path.join(again.path, "replicator.yaml")
        if os.path.exists(yaml):
            os.unlink(yaml)  # as the next process does
        again.configure(job.name, 1, 3)
        cluster.wait_for(lambda: joined(cluster.nodes[1]), 20, "the attempt to be taken")
    last = client(cluster.nodes[2])
    last.configure(job.name, 2, 3)
    assert [v.wait_restored() for v in (early, again, last)] == [None] * 3
    assert len({n.status()["run"] for n in cluster.nodes}) == 1
    job.ranked = dict(enumerate(cluster.nodes))
    job.volumes = dict(enumerate((early, again, last)))
    job.save(1)
    job.restart()


def test_delayed_attempt_of_a_killed_agent(make_cluster, seed):
    """An agent is stopped in the middle of joining, its job starts again meanwhile, and it wakes
    up with what it had to say before."""
    cluster = make_cluster(3)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    asleep = cluster.nodes[2]
    asleep.agent.send_signal(signal.SIGSTOP)
    try:
        restored = job.begin()
        cluster.wait_for(lambda: joined(cluster.nodes[1]), 20, "the others to wait")
    finally:
        asleep.agent.send_signal(signal.SIGCONT)
    assert restored() == 1
    job.check_restored(1)
    assert len({n.status()["run"] for n in cluster.nodes}) == 1
    job.save(2)
    job.restart()


# ---- machines that change


def test_old_host_that_joins_late_as_a_holder(make_cluster, seed):
    """The job has moved and waits; the only copies are on hosts whose agents come up after it."""
    cluster = make_cluster(4)
    old, new = cluster.nodes[:2], cluster.nodes[2:]
    job = Job(cluster, seed, nodes=old)
    assert job.start() is None
    job.save(1)
    scripted_job.wait_marked(job, old[1])
    for node in old:
        node.kill()
    moved = Job(cluster, seed, nodes=new)
    restored = moved.begin()
    cluster.wait_for(lambda: any("waiting up to" in p for p in new[0].status()["problems"]), 20,
                     "the decision to wait")
    old[1].start()
    old[1].wait_ready()
    assert restored() == 1
    moved.check_restored(1)
    moved.save(2)
    moved.restart()


def test_rank_0_moves_while_its_old_agent_lives(make_cluster, seed):
    cluster = make_cluster(3)
    first, kept, fresh = cluster.nodes
    job = Job(cluster, seed, nodes=[first, kept])
    assert job.start() is None
    job.save(1)
    moved = Job(cluster, seed, nodes=[fresh, kept])
    assert moved.start() == 1
    moved.check_restored(1)
    moved.save(2)
    # The old one finds out when it reads the rendezvous again.
    cluster.wait_for(lambda: [n.status()["coordinator"] for n in (first, kept, fresh)] ==
                     [False, False, True], 30, "the new host alone to coordinate")
    back = Job(cluster, seed, nodes=[first, kept])
    assert back.start() == 2
    back.check_restored(2)
    back.save(3)


def test_old_coordinator_that_still_answers(make_cluster, seed):
    """Rank 0's agent hangs, the job goes on elsewhere, and the old coordinator wakes up: it doesn't
    disturb the new run, and gives up its own."""
    cluster = make_cluster(3)
    old, kept, fresh = cluster.nodes
    job = Job(cluster, seed, nodes=[old, kept])
    assert job.start() is None
    job.save(1)
    old.agent.send_signal(signal.SIGSTOP)
    moved = Job(cluster, seed, nodes=[fresh, kept])
    try:
        assert moved.start() == 1
        moved.save(2)
        run = kept.status()["run"]
    finally:
        old.agent.send_signal(signal.SIGCONT)
    cluster.wait_for(lambda: not old.status()["coordinator"], 40, "the old one to stand down")
    moved.save(3)
    assert kept.status()["run"] == fresh.status()["run"] == run
    cluster.wait_for(lambda: old.status()["phase"] != "running", 20, "the old one to leave its run")
    moved.restart()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_one_agent_rejoins_alone(make_cluster, seed, victim):
    cluster = make_cluster(3)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    node = cluster.nodes[victim]
    run = node.status()["run"]
    node.kill()
    job.write(2)
    node.start()
    node.wait_ready()
    job.committed(2)
    assert {n.status()["run"] for n in cluster.nodes} == {run}
    job.save(3)
    job.check_no_errors()
    job.restart()


# ---- several jobs


def test_two_jobs_on_a_node(make_cluster, seed):
    """Two agents a machine, two volumes, one rendezvous: each job has its own checkpoints."""
    cluster = make_cluster(4, start=False)
    for i, node in enumerate(cluster.nodes):
        node.settings["node-name"] = f"machine{i % 2}"
    cluster.start()
    one = Job(cluster, seed, name="one", nodes=cluster.nodes[:2])
    two = Job(cluster, seed, name="two", nodes=cluster.nodes[2:])
    waits = [one.begin(), two.begin()]
    assert [wait() for wait in waits] == [None, None]
    one.save(1)
    two.save(7)
    for wait, step in ((one.begin(), 1), (two.begin(), 7)):
        assert wait() == step
    one.check_restored(1)
    two.check_restored(7)
    for job, nodes in ((one, cluster.nodes[:2]), (two, cluster.nodes[2:])):
        for node in nodes:
            assert {s["job"] for s in node.status()["store"]["shards"]} == {job.name}


def test_two_jobs_on_one_volume(make_cluster, seed):
    """The second one's yaml comes while the first one still waits to start: both are told."""
    cluster = make_cluster(2)
    node = cluster.nodes[0]
    first = client(node)
    first.configure("one", 0, 2)
    cluster.wait_for(lambda: joined(node), 20, "the first job")
    write_yaml(node, yaml(0, "two"))
    text = refusal(first)
    assert "one" in text and "two" in text and "volume of its own" in text, text
    # One of them alone is fine.
    job = Job(cluster, seed, name="two")
    assert job.start() is None
    job.save(1)


def test_second_agent_on_a_bind_mount_of_the_volume(make_cluster, seed, tmp_path):
    """Another path to the same volume is the same volume."""
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    other = tmp_path / "other"
    other.mkdir()
    if subprocess.run(["mount", "--bind", node.mount, other], capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        flags = []
        for name, value in {**node.settings, "mount": other, "state-dir": tmp_path / "state",
                            "admin": f"{node.home}/second.sock"}.items():
            flags += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        done = subprocess.run([cluster.binary, "agent", *flags], capture_output=True, text=True,
                              timeout=60)
    finally:
        subprocess.run(["umount", other], check=True)
    assert done.returncode == 1
    assert "another agent uses mount" in done.stderr and "its own" in done.stderr, done.stderr


def test_another_world_size(make_cluster, seed):
    """A job of other shape doesn't get what the old one saved, and is told why."""
    cluster = make_cluster(4)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    small = Job(cluster, seed, nodes=cluster.nodes[:2])
    assert small.start() is None
    problems = "\n".join(cluster.nodes[0].status()["problems"])
    assert "step 1 " in problems and "4 nodes" in problems and "now" in problems, problems
    cluster.wait_for_log(cluster.nodes[:1], "another shape")
    small.save(2)
    assert cluster.nodes[0].status()["problems"] == []
    small.restart()


def test_leftovers_of_another_run_and_job(make_cluster, seed):
    """Files that earlier jobs and runs left in the volume and the store are neither restored nor
    taken for saves."""
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        for name in ("other-s9-n0-w0.save", "e2e-s9-n0-w0.restore", "replicator.prerestore",
                     "replicator.errors"):
            with open(os.path.join(node.volume, name), "wb") as f:
                f.write(b"old")
        scripted_job.write_tree(os.path.join(node.volume, "D" + "0" * 64 + ".data"), {"x": b"old"})
        scripted_job.write_tree(os.path.join(node.volume, "step=9"), {"x": b"old"})
        os.symlink("D" + "0" * 64 + ".data", os.path.join(node.volume, "9"))
    cluster.start()
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for node in cluster.nodes:
        assert not {"other-s9-n0-w0.save", "e2e-s9-n0-w0.restore", "9", "step=9"} & set(
            os.listdir(node.volume))
        assert {s["step"] for s in node.status()["store"]["shards"]} == {1}
    # What another job committed here stays its own.
    other = Job(cluster, seed, name="other")
    assert other.start() is None
    other.save(5)
    job = Job(cluster, seed)
    assert job.start() == 1
    job.check_restored(1)


# ---- yamls that differ

ESSENTIAL = {
    "framework": ("framework: pytorch.distributed", "framework: orbax", "framework"),
    "nodes": ("nodes: 2", "nodes: 3", "nodes"),
    "workers-per-node": ("framework: pytorch.distributed",
                         "framework: pytorch\nworkers-per-node: 2", None),
    "data parallelism": ("nodes: 2", "nodes: 2\nassume-data-parallelism: 2",
                         "assume-data-parallelism"),
}


def write_yaml(node, text):
    path = os.path.join(node.volume, "replicator.yaml")
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
    os.rename(path + ".tmp", path)


def yaml(rank, job="e2e"):
    return (f"job-name: {job}\nframework: pytorch.distributed\nnode-rank: {rank}\nnodes: 2\n"
            "peers-per-node: 1\nbackup-interval-minutes: 30\n")


@pytest.mark.parametrize("case", sorted(ESSENTIAL))
def test_yamls_that_must_agree(make_cluster, seed, case):
    """All are told, by the names of both nodes."""
    cluster = make_cluster(2)
    old, new, key = ESSENTIAL[case]
    volumes = [client(n) for n in cluster.nodes]
    write_yaml(cluster.nodes[0], yaml(0))
    cluster.wait_for(lambda: joined(cluster.nodes[0]), 20, "the first to join")
    write_yaml(cluster.nodes[1], yaml(1).replace(old, new))
    texts = [refusal(v) for v in volumes]
    for text in texts:
        assert "node0" in text and "node1" in text and (key or "disagree") in text, text
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)


def test_job_names_that_differ_at_a_fixed_address(make_cluster, seed):
    """There they meet; with a shared directory each would wait for its own job's ranks."""
    cluster = make_cluster(2, start=False)
    port = cluster_lib.free_port()
    for node in cluster.nodes:
        node.settings["rendezvous"] = f"static:127.0.0.1:{port}"
    cluster.nodes[0].settings["control-port"] = str(port)
    cluster.start()
    volumes = [client(n) for n in cluster.nodes]
    write_yaml(cluster.nodes[0], yaml(0, "one"))
    cluster.wait_for(lambda: joined(cluster.nodes[0]), 20, "the first to join")
    write_yaml(cluster.nodes[1], yaml(1, "two"))
    for volume in volumes:
        text = refusal(volume)
        for part in ("job-name", "node0", "node1", "one", "two"):
            assert part in text, text
    job = Job(cluster, seed, name="two")
    assert job.start() is None
    job.save(1)


def test_other_settings_are_rank_0s(make_cluster, seed):
    """peers-per-node and the intervals may differ: rank 0's hold, and a warning says so."""
    cluster = make_cluster(3)
    volumes = [client(n) for n in cluster.nodes]
    for rank, volume in enumerate(volumes):
        volume.configure("e2e", rank, 3, peers_per_node=2 if rank == 1 else 1,
                         minutes=30 + rank)
    assert [v.wait_restored() for v in volumes] == [None] * 3
    job = Job(cluster, seed)
    job.ranked, job.volumes = dict(enumerate(cluster.nodes)), dict(enumerate(volumes))
    job.save(1)
    scripted_job.check_copies(job, 1, nodes_each=2)
    for name in ("node1", "node2"):
        cluster.wait_for_log(cluster.nodes[:1], "WRN", name, "rank 0")
