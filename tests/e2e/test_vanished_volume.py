"""A RAM volume that is unmounted lazily, or that another is mounted over, under a running agent: for
the agent, which has it open, everything goes on working."""

import os
import subprocess

import pytest

import scripted_job
from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)


def tmpfs_at(node):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0755", "other", node.mount],
                   check=True)
    # What an agent would sweep, take for its own, or remove.
    for name in ("store/incoming/1-x/data", "store/trash/y/z", "client/9/array"):
        os.makedirs(os.path.dirname(os.path.join(node.mount, name)))
        with open(os.path.join(node.mount, name), "wb") as f:
            f.write(b"somebody's")


def unmounted(node):
    subprocess.run(["umount", "-l", node.mount], check=True)
    return "another file system is at"


def exchanged(node):
    unmounted(node)
    tmpfs_at(node)
    return "another file system is at"


def mounted_over(node):
    tmpfs_at(node)
    return "another file system is at"


def unmounted_and_gone(node):
    unmounted(node)
    os.rmdir(node.mount)
    return "nothing is at"


def all_below(path):
    return sorted((where, sorted(folders), sorted(files)) for where, folders, files in os.walk(path))


@pytest.mark.parametrize("vanish", [unmounted, exchanged, mounted_over, unmounted_and_gone],
                         ids=lambda f: f.__name__)
def test_a14_the_agent_ends_and_comes_back_without_its_copies(make_cluster, seed, vanish):
    cluster = make_cluster(2)
    if not cluster.mounted:
        pytest.skip("needs the right to mount a tmpfs")
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(5)
    scripted_job.check_copies(job, 5, nodes_each=2)
    node = cluster.nodes[1]
    why = vanish(node)
    there = all_below(node.mount)
    assert node.agent.wait(30 * cluster_lib.SLOWEST) == 1, node.tail()
    node.agent = None
    assert all_below(node.mount) == there, "the agent touched what isn't its volume"
    (line,) = [x for x in node.log().splitlines() if "has vanished under its agent" in x]
    for part in ("ERR", node.name, f"{why} {node.mount}", "2 copies", "status 1", "from its peers"):
        assert part in line, line

    # Whoever looks after the machine mounts an empty one and starts the agent.
    node.wipe_ram()
    node.start()
    node.wait_ready()
    assert cluster.nodes[0].agent.poll() is None
    job.restart()
    cluster.wait_for(lambda: len(scripted_job.shards(node, 5)) == 2, 60,
                     "the lost copies to be made again")
    scripted_job.check_copies(job, 5, nodes_each=2)
    job.save(6)
