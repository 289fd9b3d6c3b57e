"""`tierkeep restore`: orders for the next decision, copies for people, and what is restored again and
again."""

import json
import os
import subprocess

import pytest

import scripted_job
from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def restore(binary):
    """A function that runs `tierkeep restore` on a node."""

    def call(node, *arguments, cwd=None):
        done = subprocess.run([binary, "restore", "--admin", node.admin, *map(str, arguments)],
                              capture_output=True, text=True, timeout=60, cwd=cwd)
        print(done.args, done.returncode, done.stdout, done.stderr)
        return done

    return call


def metric(node, name):
    connection = cluster_lib._UnixConnection(node.admin, 10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    (value,) = [line.split()[1] for line in text.splitlines() if line.startswith(name + " ")]
    return float(value)


# ---- a copy for a person


def test_copy_of_the_newest_checkpoint(make_cluster, seed, restore, tmp_path):
    cluster = make_cluster(3)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    job.save(2)
    done = restore(cluster.nodes[1], "--to", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["job"], answer["step"], answer["save"], answer["committed"]) == (
        "e2e", 2, 2, True)
    assert answer["run"] == cluster.nodes[0].status()["run"]
    (shard,) = answer["shards"]
    assert (shard["rank"], shard["worker"], shard["from"]) == (1, 0, "node1")
    assert shard["digest"] in scripted_job.shards(cluster.nodes[1], 2)
    scripted_job.check_files(scripted_job.read_tree(tmp_path / "out" / "rank1-worker0"),
                             job.data(2, 1), "the copy")
    with open(tmp_path / "out" / "tierkeep.json", encoding="utf-8") as f:
        said = json.load(f)
    assert said["shards"] == answer["shards"] and said["step"] == 2
    assert sorted(os.listdir(tmp_path / "out")) == ["rank1-worker0", "tierkeep.json"]
    # The store is as it was.
    job.restart()


def test_copy_of_every_rank_comes_from_peers(make_cluster, seed, restore, tmp_path):
    cluster = make_cluster(4)
    job = Job(cluster, seed, megabytes=1)
    assert job.start() is None
    job.save(1)
    (tmp_path / "empty").mkdir()
    done = restore(cluster.nodes[0], "--to", tmp_path / "empty", "--all", "--step", 1, "--job",
                   "e2e")
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        scripted_job.check_files(
            scripted_job.read_tree(tmp_path / "empty" / f"rank{rank}-worker0"), job.data(1, rank),
            f"rank {rank}")
        assert f"rank {rank} worker 0" in done.stdout
    assert "step 1" in done.stdout and "digest " in done.stdout
    held = {s["rank"] for s in scripted_job.shards(cluster.nodes[0], 1).values()}
    assert held == {0, 1}, "what was pulled for a person isn't kept"
    save = f"{cluster.nodes[0].status()['run']}/1"
    done = restore(cluster.nodes[0], "--to", tmp_path / "one", "--rank", 3, "--generation", save)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "one") and not (tmp_path / "one" / "rank0-worker0").exists()


def test_copy_that_is_refused_leaves_nothing(make_cluster, seed, restore, tmp_path):
    cluster = make_cluster(2)
    node = cluster.nodes[0]
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    cases = [(full, "isn't empty"), (tmp_path / "file", "is no directory"),
             (tmp_path / "none" / "deep", "none"), (node.volume + "/copy", "volume"),
             (node.store + "/copy", "volume")]
    for target, words in cases:
        done = restore(node, "--to", target)
        assert done.returncode == 1 and words in done.stderr, done.stderr
    for arguments, words in ((["--step", 7], "no such checkpoint"), (["--rank", 9], "rank 9"),
                             (["--generation", "17-0123abcd/1"], "no such checkpoint"),
                             (["--job", "other"], "no such checkpoint"),
                             (["--generation", "nonsense"], "RUN/SAVE")):
        done = restore(node, "--to", tmp_path / "out", *arguments)
        assert done.returncode == 1 and words in done.stderr, done.stderr
    for arguments in ([], ["--to", tmp_path / "out", "--skip", 1], ["--step", 1],
                      ["--to", tmp_path / "out", "--step", "x"], ["--no-such"]):
        assert restore(node, *arguments).returncode == 2
    assert sorted(os.listdir(tmp_path / "full")) == ["mine"]
    assert [n for n in os.listdir(tmp_path) if "out" in n or n.startswith(".tierkeep")] == []
    assert not os.path.exists(node.volume + "/copy")


def test_bad_copy_is_never_given_out(make_cluster, seed, restore, tmp_path):
    """The node's own copy has a wrong byte: the peer's is taken; with both bad, nothing is."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    (digest,) = [d for d, s in scripted_job.shards(cluster.nodes[0], 1).items() if s["rank"] == 0]

    def spoil(node):
        path = scripted_job.data_files(node, digest, at_least=100_000)[0]
        with open(path, "r+b") as f:
            f.seek(70_000)
            byte = f.read(1)
            f.seek(70_000)
            f.write(bytes([byte[0] ^ 1]))

    spoil(cluster.nodes[0])
    done = restore(cluster.nodes[0], "--to", tmp_path / "good")
    assert done.returncode == 0 and "from node1" in done.stdout
    scripted_job.check_files(scripted_job.read_tree(tmp_path / "good" / "rank0-worker0"),
                             job.data(1, 0), "the copy")
    spoil(cluster.nodes[1])
    done = restore(cluster.nodes[0], "--to", tmp_path / "bad")
    assert done.returncode == 1
    assert "this node" in done.stderr and "node1" in done.stderr and "differ" in done.stderr
    assert sorted(os.listdir(tmp_path / "good"))[0] == "rank0-worker0"
    assert not (tmp_path / "bad").exists()
    assert [n for n in os.listdir(tmp_path) if n.startswith(".tierkeep")] == []


# ---- skip


def test_skipped_step_is_not_restored(make_cluster, seed, restore):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    job.save(2)
    done = restore(cluster.nodes[1], "--skip", 2)
    assert done.returncode == 0 and "skip step 2" in done.stdout and "skipped: step 2" in done.stdout
    cluster.wait_for(lambda: all(n.status()["restore_orders"] for n in cluster.nodes), 20,
                     "both nodes to know of it")
    shown = subprocess.run([cluster.binary, "status", "--admin", cluster.nodes[0].admin],
                           capture_output=True, text=True)
    assert "skip step 2" in shown.stdout
    # It outlives both agents, and rank 0's move.
    for node in cluster.nodes:
        node.kill()
    cluster.start()
    assert job.start(ranks=(1, 0)) is None
    cluster.wait_for_log(cluster.nodes[1:2], "step 2 (run", "is skipped, as asked")
    assert all(n.status()["restore_orders"] == [] for n in cluster.nodes)
    # Once: the next save of step 2 is restored like any other.
    job.save(2)
    job.restart()


def test_skipped_save_by_run_and_number(make_cluster, seed, restore):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    shown = cluster.nodes[0].status()["restorable"]
    done = restore(cluster.nodes[0], "--skip", f"{shown['run']}/{shown['save']}", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["job"] == "e2e" and answer["hits"] == [f"step 1 (run {shown['run']})"]
    assert job.start() is None
    done = restore(cluster.nodes[0], "--skip", 77)
    assert done.returncode == 0 and "no such checkpoint" in done.stdout
    for bad in ("x", "-1", "1/2", "17-0123abcd", "17-0123abcd/0"):
        assert restore(cluster.nodes[0], f"--skip={bad}").returncode == 1


# ---- without


def test_goes_on_without_what_a_node_cannot_read(make_cluster, seed, restore):
    """A generation record that doesn't decode may be the newest: the decision stops on all nodes,
    until somebody gives it up."""
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    broken = cluster.nodes[1]
    broken.kill()
    run = os.listdir(os.path.join(broken.store, "generations"))[0]
    later = str(int(run.split("-")[0]) + 1) + "-" + run.split("-")[1]
    os.mkdir(os.path.join(broken.store, "generations", later))
    with open(os.path.join(broken.store, "generations", later, "4"), "wb") as f:
        f.write(b"torn")
    done = restore(cluster.nodes[0], "--without", "node1")
    assert done.returncode == 1 and "nothing is given up beforehand" in done.stderr
    restored = job.begin()  # before the agent is back, which would else go on with its run
    cluster.wait_for(lambda: os.path.exists(os.path.join(broken.volume, "replicator.yaml")), 20,
                     "the new attempt's yaml")
    broken.start()
    with pytest.raises(volume_lib.ReplicatorFailed) as failed:
        restored()
    assert "node node1, RAM tier" in str(failed.value)
    assert "tierkeep restore --without node1" in str(failed.value)
    stop = cluster.nodes[0].status()["restore_stop"]
    assert stop["nodes"] == ["node1"] and "step 1" in stop["instead"]
    done = restore(cluster.nodes[0], "--without", "node0")
    assert done.returncode == 1 and "node1" in done.stderr
    done = restore(cluster.nodes[0], "--without", "node1")
    assert done.returncode == 0, done.stderr
    assert "given up: node node1, RAM tier" in done.stdout
    assert "goes on from step 1" in done.stdout
    job.restart()
    assert cluster.nodes[0].status()["restore_stop"] is None
    job.save(2)
    job.restart()


def test_generation_whose_holders_are_away(make_cluster, seed, restore):
    """All who hold the newest checkpoint are away: the decision stops and names them; given up, the
    job begins anew; the next start is not held up again."""
    cluster = make_cluster(4, {"absent-wait": 2})
    job = Job(cluster, seed, nodes=cluster.nodes[:2])
    assert job.start() is None
    job.save(1)
    scripted_job.wait_marked(job, cluster.nodes[1])
    for node in cluster.nodes[:2]:
        node.kill()
    moved = Job(cluster, seed, nodes=cluster.nodes[2:])
    with pytest.raises(volume_lib.ReplicatorFailed) as failed:
        moved.start()
    for text in ("step 1", "node0", "node1", "--without-absent"):
        assert text in str(failed.value)
    done = restore(cluster.nodes[3], "--without-absent")
    assert done.returncode == 0, done.stderr
    assert "given up: step 1" in done.stdout and "begin anew" in done.stdout
    assert moved.start() is None
    assert moved.start() is None
    moved.save(2)
    moved.restart()


def test_absent_holders_are_given_up_by_setting(make_cluster, seed):
    cluster = make_cluster(2, {"on-absent": "go-on"}, start=False)
    cluster.start()
    job = Job(cluster, seed, nodes=cluster.nodes[:1])
    assert job.start() is None
    job.save(1)
    scripted_job.wait_marked(job, cluster.nodes[0], times=2)
    cluster.nodes[0].kill()
    moved = Job(cluster, seed, nodes=cluster.nodes[1:])
    assert moved.start() is None  # after the grace for holders
    assert any("it is given up" in p for p in cluster.nodes[1].status()["problems"])


# ---- again and again


def test_checkpoint_that_is_restored_again_and_again(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for _ in range(2):
        job.restart()
    job.check_no_errors()
    # Neither agents nor coordinator need to live on.
    for node in cluster.nodes:
        node.kill()
    cluster.start()
    job.restart(ranks=(1, 0))
    cluster.wait_for(lambda: "is suspect" in job.errors(), 20, "replicator.errors")
    assert "restored 3 times without a later commit" in job.errors()
    coordinator = cluster.nodes[1]
    assert any("is suspect" in p for p in coordinator.status()["problems"])
    assert coordinator.status()["restore"]["suspect"]
    assert metric(coordinator, "tierkeep_restores_without_commit") == 3
    assert metric(coordinator, "tierkeep_restored_suspect") == 1
    job.save(2)
    assert coordinator.status()["problems"] == []
    assert metric(coordinator, "tierkeep_restored_suspect") == 0
    job.restart()


def test_settings_of_the_crash_loop_guard(make_cluster, seed):
    cluster = make_cluster(2, {"suspect-after": 1, "max-restores": 1})
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    job.restart()
    assert cluster.nodes[0].status()["restore"]["suspect"]
    job.restart()  # there is no other
    assert any("there is no other" in p for p in cluster.nodes[0].status()["problems"])
