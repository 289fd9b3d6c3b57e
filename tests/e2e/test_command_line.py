"""What people and scripts see: status, verify, metrics, settings, exit codes."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request

import pytest

import scripted_job
from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def run(binary):
    """A function that runs the program to its end."""

    def call(*arguments, **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TIERKEEP_")}
        return subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True,
                              timeout=60, env={**clean, **environment})

    return call


@pytest.fixture
def job(make_cluster, seed):
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        node.settings["metrics"] = f"127.0.0.1:{cluster_lib.free_port()}"
    job = Job(cluster.start(), seed)
    assert job.start() is None
    job.save(11)
    return job


def test_status(run, job):
    # What the coordinator says of the job comes to the others a moment later.
    job.cluster.wait_for(
        lambda: all(s["restorable"]["step"] == 11 and not s["missing_ranks"] and not s["problems"]
                    for s in (n.status() for n in job.nodes)), 20, "all to know of the commit")
    for rank, node in enumerate(job.nodes):
        shown = run("status", "--admin", node.admin, "--json")
        assert shown.returncode == 0
        status = json.loads(shown.stdout)
        assert status["version"] == 1
        assert (status["node"], status["phase"]) == (node.name, "running")
        assert status["job"] == {"name": job.name, "framework": "pytorch.distributed",
                                 "rank": rank, "nodes": 2, "workers_per_node": 1,
                                 "data_parallelism": 0}
        assert status["tiers"] == {"staged": 11, "committed": 11}
        assert status["restorable"]["step"] == 11 and status["restorable"]["why"]
        assert {(m["node"], m["rank"]) for m in status["members"]} == {("node0", 0), ("node1", 1)}
        assert status["store"]["own_bytes"] == sum(len(x) for x in job.data(11, rank).values())
        assert status["missing_ranks"] == [] and status["problems"] == []

        table = run("status", "--admin", node.admin)
        assert table.returncode == 0
        for text in (node.name, job.name, f"rank {rank} of 2", "step 11", "node0", "node1"):
            assert text in table.stdout, f"{text!r} is not in\n{table.stdout}"
    assert sum(n.status()["coordinator"] for n in job.nodes) == 1


def test_status_of_a_lost_member(job):
    job.nodes[1].kill()
    job.cluster.wait_for(lambda: job.nodes[0].status()["missing_ranks"] == [1], 20,
                         "the loss to be seen")
    assert job.nodes[0].status()["restorable"]["step"] == 11
    job.nodes[1].start()
    job.nodes[1].wait_ready()
    job.cluster.wait_for(lambda: job.nodes[0].status()["missing_ranks"] == [], 20,
                         "the member to be back")


def test_verify(run, job):
    shown = run("verify", "--admin", job.nodes[0].admin)
    assert shown.returncode == 0
    assert len([line for line in shown.stdout.splitlines() if line.startswith("ok ")]) == 2
    answer = json.loads(run("verify", "--admin", job.nodes[0].admin, "--json").stdout)
    assert answer["ok"] and {s["rank"] for s in answer["shards"]} == {0, 1}
    size = sum(len(x) for rank in (0, 1) for x in job.data(11, rank).values())
    assert sum(s["bytes"] for s in answer["shards"]) == size


def test_metrics(job):
    """The names of the protocol document, on a port that only reads."""
    url = "http://" + job.nodes[1].settings["metrics"]
    sizes = [sum(len(x) for x in job.data(11, rank).values()) for rank in (0, 1)]
    # The server's thread counts what it has sent when it has sent it.
    job.cluster.wait_for(lambda: job.nodes[1].status()["network"]["bytes_served"] >= sizes[1], 20,
                         "what was served to be counted")
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            samples[name] = float(value)
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert types["node_operations_seconds"] == "histogram"
    assert types["duration_hashing_dir"] == types["duration_hashing_tensorstore"] == "histogram"
    for method in ("CheckpointReplicationTotal", "CheckpointReplication", "CheckpointRestore"):
        counts = [v for k, v in samples.items() if k.startswith("node_operations_seconds_count{")
                  and f'method_name="{method}"' in k and 'grpc_status_code="OK"' in k
                  and 'framework="pytorch.distributed"' in k]
        assert counts == [1], (method, text)
    for boundary in ("1", "5", "1500", "+Inf"):
        assert f'le="{boundary}"' in text
    assert samples["duration_hashing_dir_count"] == 1
    assert samples["tierkeep_last_committed_step"] == 11
    assert 0 <= samples["tierkeep_last_commit_age_seconds"] <= job.nodes[1].status()["uptime_seconds"]
    assert samples['tierkeep_store_bytes{kind="own"}'] == sizes[1]
    assert samples['tierkeep_store_bytes{kind="peer"}'] == sizes[0]
    assert samples["tierkeep_peers_lost"] == 0
    assert samples["tierkeep_pulled_bytes_total"] >= sizes[0]
    assert samples["tierkeep_served_bytes_total"] >= sizes[1]
    assert samples["tierkeep_commits_total"] == 1

    with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
        assert json.load(answer)["node"] == "node1"
    request = urllib.request.Request(url + "/v1/verify", data=b"", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 405


def test_log_lines_have_the_protocols_form(job):
    lines = job.nodes[0].log().splitlines()
    form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} p[0-9a-f]+ t[0-9a-f]+ "
                      r"(job=\S+ (node=\d+/\d+|coord) )?(DBG|INF|WRN|ERR|CRT) \w+\.[^ ]+\(\d+\): .")
    assert [line for line in lines if not form.match(line)] == []
    (committed,) = [x for x in lines if "All files were replicated globally for step 11" in x]
    assert f" job={job.name} node=0/2 INF " in committed
    (none,) = [x for x in lines if "No valid checkpoints found anywhere" in x]
    assert f" job={job.name} coord" in none
    job.restart()
    job.cluster.wait_for_log(job.nodes[:1], "We will restore in-cluster checkpoint: 11")


def test_no_agent(run, tmp_path):
    for command in ("status", "verify"):
        asked = run(command, "--admin", tmp_path / "none.sock")
        assert (asked.returncode, asked.stdout) == (1, "")
        assert "none.sock" in asked.stderr


@pytest.mark.parametrize("arguments", [
    [], ["agnet"], ["agent", "--no-such-flag"], ["status", "--admin"], ["status", "surplus"],
    ["agent"], ["agent", "--mount", "/m", "--rendezvous", "etcd:x"],
    ["agent", "--mount", "/m", "--rendezvous", "file:/r", "--data-port", "70000"],
    ["agent", "--mount", "/m", "--rendezvous", "file:/r", "--log-level", "loud"],
    ["agent", "--config", "/does/not/exist"],
], ids=" ".join)
def test_bad_usage(run, arguments):
    done = run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.strip(), "it doesn't say why"


@pytest.mark.parametrize("arguments", [["--help"], ["agent", "--help"], ["status", "--help"],
                                       ["verify", "--help"], ["--version"]], ids=" ".join)
def test_help(run, arguments):
    done = run(*arguments)
    assert done.returncode == 0 and done.stdout.strip()


def test_print_config(run, tmp_path):
    """Flag over environment over file over default; what is printed can be read again."""
    config = tmp_path / "agent.yaml"
    config.write_text("mount: /from/file\nrendezvous: file:/r\ndata-port: 1\ncontrol-port: 2\n"
                      "data-encryption: off\n")
    shown = run("agent", "--config", config, "--print-config", "--data-port", "9",
                TIERKEEP_DATA_PORT="8", TIERKEEP_CONTROL_PORT="7")
    assert shown.returncode == 0, shown.stderr
    for line in ('mount: "/from/file"  # file', 'data-port: "9"  # flag',
                 'control-port: "7"  # environment', 'data-encryption: "off"  # file',
                 'pull-streams: "4"  # default'):
        assert line in shown.stdout.splitlines(), shown.stdout
    again = tmp_path / "again.yaml"
    again.write_text(shown.stdout)
    values = re.compile(r"  # .*")
    second = run("agent", "--config", again, "--print-config")
    assert values.sub("", second.stdout) == values.sub("", shown.stdout)


def test_no_files_are_left_in_the_volume_or_store(job):
    """After a few saves there is what the protocol names, and nothing else."""
    for step in (12, 13):
        job.save(step)
    for node in job.nodes:
        job.cluster.wait_for(lambda: sorted(scripted_job.shards(node)) ==
                             sorted(scripted_job.shards(node, 13)), 20, "older saves to go")
        held = sorted(scripted_job.shards(node))
        job.cluster.wait_for(
            lambda: sorted(os.listdir(os.path.join(node.store, "shards"))) == held, 20,
            "their directories to go")
        for name in ("staged", "incoming", "trash"):
            path = os.path.join(node.store, name)
            job.cluster.wait_for(lambda: not os.path.exists(path) or os.listdir(path) == [], 20,
                                 f"{name} to be empty")
        metas = {f"{job.name}-s13-n{rank}-w0.meta" for rank in (0, 1)}
        rest = metas | {"replicator.prerestore"}
        job.cluster.wait_for(
            lambda: {n for n in os.listdir(node.volume) if not n.endswith(".restore")} == rest, 20,
            f"nothing to be left in the volume but {rest}")
