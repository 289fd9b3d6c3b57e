"""`--rendezvous static:HOST:PORT`: the agent at the fixed address coordinates, whatever its rank."""

import pytest

from scripted_job import Job
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("at", [0, 1])
def test_the_agent_at_the_fixed_address_coordinates(make_cluster, seed, at):
    cluster = make_cluster(2, start=False)
    port = cluster_lib.free_port()
    for node in cluster.nodes:
        node.settings["rendezvous"] = f"static:127.0.0.1:{port}"
    cluster.nodes[at].settings["control-port"] = str(port)
    cluster.start()
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    assert [n.status()["coordinator"] for n in cluster.nodes] == [at == 0, at == 1]
    lost = cluster.nodes[1 - at]
    lost.kill()
    lost.wipe_ram()
    lost.start()
    lost.wait_ready()
    job.restart()
    job.save(2)
    job.restart()
