"""SIGTERM, and what an agent refuses to start on."""

import random
import subprocess

import pytest

import proxy
import scripted_job
from scripted_job import MIB, Job

pytestmark = pytest.mark.timeout(240)

BUDGET = 5


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", ["idle", "before a job"])
def test_b32_sigterm(make_cluster, seed, victim, moment):
    cluster = make_cluster(2, {"stop-budget": BUDGET})
    node = cluster.nodes[victim]
    job = Job(cluster, seed)
    if moment == "idle":
        assert job.start() is None
        job.save(1)
    assert node.terminate() == 0
    assert "exits" in node.tail(3) and "budget is over" not in node.log()
    node.start()
    node.wait_ready()
    if moment == "before a job":
        assert job.start() is None
    job.save(2)
    job.restart()


@pytest.mark.parametrize("victim", [0, 1])
def test_sigterm_while_a_save_is_replicated(make_cluster, seed, victim):
    with scripted_job.job_behind_proxy(make_cluster, seed, megabytes=16,
                                       settings={"stop-budget": BUDGET}) as (job, between):
        cluster = job.cluster
        owner, node = cluster.nodes[0], cluster.nodes[victim]
        between.data.hold(random.Random(seed).randrange(20_000, 15 * MIB))
        job.write(2)
        cluster.wait_for(between.data.holding.is_set, 20, "the replication to be in the middle")
        assert node.terminate() == 0  # though nothing moves on the wire
        between.data.release()
        proxy.put_before_proxy(owner)
        node.start()
        node.wait_ready()
        job.committed(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.save(3)
        job.restart()


def test_all_agents_are_stopped_and_come_back(make_cluster, seed):
    cluster = make_cluster(3)
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    for node in cluster.nodes:
        assert node.terminate() == 0
    cluster.start()
    job.save(2)
    job.restart()


def second_agent(node, **changes):
    """Runs one more agent with a node's settings, some of them changed, to its end."""
    flags = []
    for name, value in {**node.settings, **changes, "log-file": f"{node.home}/second.log",
                        "admin": f"{node.home}/second.sock"}.items():
        flags += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    return subprocess.run([node.cluster.binary, "agent", *flags], capture_output=True, text=True,
                          timeout=60)


def test_two_agents_on_one_state_directory(make_cluster, seed):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    refused = second_agent(cluster.nodes[0])
    assert refused.returncode == 1
    assert "state-dir" in refused.stderr and "its own" in refused.stderr, refused.stderr
    job.save(1)
    job.check_no_errors()


def test_two_agents_on_one_mount(make_cluster, seed, tmp_path):
    cluster = make_cluster(2)
    job = Job(cluster, seed)
    assert job.start() is None
    refused = second_agent(cluster.nodes[0], **{"state-dir": tmp_path / "other"})
    assert refused.returncode == 1
    assert "mount" in refused.stderr, refused.stderr
    job.save(1)
    job.check_no_errors()


def test_client_on_a_mount_of_its_own(make_cluster, tmp_path):
    """No rename leads from one mount to another, not even within one file system."""
    cluster = make_cluster(1, start=False)
    (node,) = cluster.nodes
    if subprocess.run(["mount", "--bind", node.volume, node.volume],
                      capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        node.start()
        assert node.agent.wait(60) == 1
        text = node.log()
        print(text)
        assert "same mount" in text or "one mount" in text, "the remedy is missing"
    finally:
        node.kill()
        subprocess.run(["umount", node.volume], check=True)
    node.start()
    node.wait_ready()


def test_plain_tcp_beyond_loopback(make_cluster):
    cluster = make_cluster(1, start=False)
    (node,) = cluster.nodes
    del node.settings["insecure"]
    refused = second_agent(node, advertise="192.0.2.1")
    assert refused.returncode == 2
    assert "tls-dir" in refused.stderr and "insecure" in refused.stderr
