"""What clients do with replicator.yaml, against real agents: slowly, twice, with every key."""

import contextlib
import os

import pytest

from scripted_job import Job
from tierkeep_demo import volume as volume_lib

pytestmark = pytest.mark.timeout(240)

ONE_NODE = {"job-name": "yaml", "framework": "pytorch.distributed", "node-rank": 0, "nodes": 1,
            "peers-per-node": 1, "backup-interval-minutes": 30}


def text_of(changes=()):
    """ONE_NODE with other values; None takes a key away."""
    keys = {**ONE_NODE, **dict(changes)}
    return "".join(f"{key}: {value}\n" for key, value in keys.items() if value is not None)


class Writer:
    """The job's side of one node, which writes what it is told."""

    def __init__(self, cluster, node):
        self.cluster, self.node = cluster, node
        self.path = os.path.join(node.volume, "replicator.yaml")
        self.volume = volume_lib.TorchVolume(node.volume, poll=0.01, limit=60)

    def write(self, text, name="replicator.yaml"):
        with open(os.path.join(self.node.volume, name), "w", encoding="utf-8") as f:
            f.write(text)

    def started(self):
        self.volume.wait_released()
        return self.volume.wait_restored()

    def job(self):
        return self.node.status()["job"]


@pytest.mark.parametrize("finished", [0, 20, -3, -1])
def test_a_slow_writer_is_waited_for(make_cluster, finished):
    """The agent starts while the file is half-written; without its end it would be a whole one."""
    cluster = make_cluster(1, start=False)
    node = cluster.nodes[0]
    client = Writer(cluster, node)
    text = text_of({"job-name": "slow", "backup-interval-minutes": 450})
    with open(client.path, "w", encoding="utf-8") as f:
        f.write(text[:finished])
        f.flush()
        node.start()
        node.wait_ready()
        for _ in range(50):  # answers in order: the agent has looked at the file by then
            assert node.status()["phase"] == "idle"
        assert os.path.exists(client.path)
        f.write(text[finished:])
    assert client.started() is None
    assert client.job()["name"] == "slow"
    assert client.volume.errors == []
    assert "advised" not in node.log(), "the interval was cut short"


def test_a_writer_that_replaces_the_file_at_once(make_cluster):
    """Two files in a row: the second one counts, and no error is said of the first."""
    cluster = make_cluster(1)
    client = Writer(cluster, cluster.nodes[0])
    client.write(text_of({"nodes": 2, "job-name": "second"}))
    client.write(text_of({"job-name": "second"}), "replicator.yaml.tmp")
    os.replace(client.path + ".tmp", client.path)
    assert client.started() is None
    assert client.job()["name"] == "second"


def test_a_second_file_in_mid_run_begins_anew(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    job.start()
    job.save(5)
    # One node's process starts again, and the other's once the first has been seen.
    job.configure(1)
    cluster.wait_for(lambda: cluster.nodes[1].status()["phase"] in ("locating", "joining"), 20,
                     "the second attempt")
    job.configure(0)
    for volume in job.volumes.values():
        volume.wait_released()
        assert volume.wait_restored() == 5
    job.check_restored(5)
    job.save(6)
    job.check_no_errors()


@pytest.mark.parametrize("empty", ["", "\n", "# only a comment\n"], ids=repr)
def test_files_without_a_key(make_cluster, empty):
    """Nothing at all resets the agent; a file without keys is an error."""
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    client = Writer(cluster, node)
    client.write(empty)
    cluster.wait_for(lambda: not os.path.exists(client.path), 20, "the file to go")
    failed = os.path.exists(os.path.join(node.volume, "replicator.failed"))
    assert failed == bool(empty)
    client.write(text_of())
    assert client.started() is None


GOOD = {
    "environment": ({"job-name": "${JOBSET_NAME}.x", "nodes": "$NNODES"}, {"name": "set-7.x"}),
    "digits": ({"job-name": "0123"}, {"name": "0123"}),
    "a word of YAML": ({"job-name": "no"}, {"name": "no"}),
    "both peer keys": ({"peer-ranks": "[]"}, {"nodes": 1}),
    "steps": ({"backup-interval-minutes": None, "backup-interval-steps": 50}, {"nodes": 1}),
    "master": ({"master": "tcp://host-0.x:4242", "master-port": 4243}, {"nodes": 1}),
    "unknown keys": ({"some-new-key": "{a: [1, 2]}"}, {"nodes": 1}),
    "workers": ({"framework": "pytorch", "workers-per-node": 3}, {"workers_per_node": 3}),
    "data parallelism": ({"framework": "orbax", "assume-data-parallelism": 1,
                          "peers-per-node": None, "peer-ranks": "[]"}, {"framework": "orbax"}),
}


@pytest.mark.parametrize("case", sorted(GOOD))
def test_accepted(make_cluster, monkeypatch, case):
    monkeypatch.setenv("JOBSET_NAME", "set-7")
    monkeypatch.setenv("NNODES", "1")
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    client = Writer(cluster, node)
    changes, expected = GOOD[case]
    client.write(text_of(changes))
    client.volume.wait_released()
    cluster.wait_for(lambda: node.status()["phase"] == "running", 20, "the run")
    job = client.job()
    assert {key: job[key] for key in expected} == expected
    markers = [n for n in os.listdir(node.volume) if n.endswith(".restore")]
    assert len(markers) == job["workers_per_node"]
    assert all(os.path.getsize(os.path.join(node.volume, n)) == 0 for n in markers)


def test_a_short_interval_is_warned_of(make_cluster):
    cluster = make_cluster(1)
    client = Writer(cluster, cluster.nodes[0])
    client.write(text_of({"backup-interval-minutes": 5}))
    assert client.started() is None
    cluster.wait_for_log(cluster.nodes, "WRN", "at least 30 are advised")
    assert client.volume.errors == []


BAD = {
    "no interval": ({"backup-interval-minutes": None}, "backup-interval-minutes or"),
    "both intervals": ({"backup-interval-steps": 9}, "backup-interval-steps '9'"),
    "partitions": ({"assume-data-parallelism": 3}, "assume-data-parallelism '3': it must divide"),
    "peer out of range": ({"peer-ranks": "[1]"}, "peer-ranks '1': it must be below nodes"),
    "its own peer": ({"nodes": 2, "peer-ranks": "[0]"}, "peer-ranks '0': it must not be"),
    "not on the list": ({"job-name": "x-$HOME"}, "job-name 'x-$HOME'"),
    "workers": ({"workers-per-node": 2}, "workers-per-node '2'"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_refused_before_the_file_goes(make_cluster, case):
    cluster = make_cluster(1)
    client = Writer(cluster, cluster.nodes[0])
    changes, expected = BAD[case]
    client.write(text_of(changes))
    with pytest.raises(volume_lib.ReplicatorFailed) as failed:
        client.started()
    assert "replicator.yaml: " + expected in str(failed.value)
    assert expected in "".join(client.volume.errors)
    client.write(text_of())
    assert client.started() is None


def test_what_goes_wrong_later_is_never_failed(make_cluster, seed):
    """After the release only replicator.errors is written, whatever a save is like."""
    cluster = make_cluster(1)
    node = cluster.nodes[0]
    client = Writer(cluster, node)
    client.write(text_of())
    client.started()
    with client.volume.save(3) as path:
        os.mkfifo(os.path.join(path, "pipe"))
    with contextlib.suppress(FileNotFoundError):
        cluster.wait_for(lambda: client.volume.check_errors() or client.volume.errors, 20,
                         "replicator.errors")
    assert "step 3" in client.volume.errors[0]
    assert not os.path.exists(os.path.join(node.volume, "replicator.failed"))
    assert node.status()["phase"] == "running"
