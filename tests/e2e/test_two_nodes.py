"""Two nodes over TCP with mutual TLS: the bytes on both sides, and who is kept out."""

import contextlib
import os
import random
import socket

import pytest

import proxy
import scripted_job
import tls_client
from scripted_job import Job

pytestmark = pytest.mark.timeout(240)

MARKER = b"in the clear: tierkeep's marker "


@pytest.fixture
def make_tls_cluster(make_cluster, make_certificates):
    """Nodes with certificates of one authority, behind proxies' addresses."""
    certificates = make_certificates("authority", "node0", "node1", "outsider")

    def make(encryption):
        cluster = make_cluster(2, {"data-encryption": encryption}, start=False)
        for node in cluster.nodes:
            del node.settings["insecure"]
            node.settings["tls-dir"] = certificates / node.name
            proxy.put_behind_proxy(node)
        return cluster.start()

    make.certificates = certificates
    return make


def marked(seed):
    """Data in which the marker stands often enough to be in any part of what crosses."""

    def data(step, rank):
        draw = random.Random(f"{seed}/{step}/{rank}")
        return {"large": MARKER * 100_000 + draw.randbytes(1_000_000),
                "small": draw.randbytes(100), "empty": b"", "deep/er/file": MARKER * 10}

    return data


@pytest.mark.parametrize("encryption", ["on", "off"])
def test_copies_equal_what_was_saved_on_both_sides(make_tls_cluster, seed, encryption):
    cluster = make_tls_cluster(encryption)
    with proxy.Proxies(cluster.nodes[0], keep=True) as first, \
         proxy.Proxies(cluster.nodes[1], keep=True) as second:
        job = Job(cluster, seed, data=marked(seed))
        assert job.start() is None
        for step in (5, 10):
            job.save(step)
            scripted_job.check_copies(job, step, nodes_each=2)
        crossed = [bytes(p.data.kept) for p in (first, second)]
        control = [bytes(p.control.kept) for p in (first, second)]
        job.check_no_errors()

        cluster.nodes[1].kill()
        cluster.nodes[1].wipe_ram()
        proxy.put_before_proxy(cluster.nodes[1])
        cluster.nodes[1].start()
        cluster.nodes[1].wait_ready()
        job.restart()
    size = sum(len(x) for x in job.data(5, 0).values())
    assert all(len(c) >= 2 * size for c in crossed), "the data did not cross here"
    assert [MARKER in c for c in crossed] == [encryption == "off"] * 2
    # Control is encrypted either way: not even the job's name can be read.
    assert any(control) and not any(job.name.encode() in c for c in control)


# ---- who is kept out

def answer_to_plain(port):
    """What comes back for a data port's first words in the clear, until the end; a port that talks
    plain refuses their token with status 16."""
    with socket.create_connection((proxy.BACK, port), 10) as connection:
        connection.sendall(b"TKD1" + bytes(32) + b"\x01" + bytes(55))
        connection.settimeout(30)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
        return answer


@pytest.mark.parametrize("encryption", ["on", "off"])
def test_d1_d2_strangers_are_refused_and_the_job_goes_on(make_tls_cluster, make_certificates, seed,
                                                   encryption):
    cluster = make_tls_cluster(encryption)
    strangers = make_certificates("strangers", "outsider")
    with proxy.Proxies(cluster.nodes[0]), proxy.Proxies(cluster.nodes[1]):
        job = Job(cluster, seed)
        assert job.start() is None
        job.save(1)
        run = cluster.nodes[0].status()["run"]
        for node in cluster.nodes:
            network = node.status()["network"]
            ports = {"control": network["control_port"]}
            if encryption == "on":
                ports["data"] = network["data_port"]
            for name, port in ports.items():
                where = f"{node.name}'s {name} port"
                print(where)
                assert answer_to_plain(port)[:1] in (b"", b"\x15"), "no more than a TLS alert"
                tls_client.check_refused(port)
                tls_client.check_refused(port, strangers / "outsider")
                # What was refused above was refused for its certificate alone.
                tls_client.check_let_in(port, make_tls_cluster.certificates / "outsider")
            if encryption == "off":
                check_token_is_asked_for(network["data_port"])
        job.save(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.check_no_errors()
        assert [n.status()["run"] for n in cluster.nodes] == [run, run]


def check_token_is_asked_for(port):
    answer = answer_to_plain(port)
    assert answer[:1] == b"\x10", "not refused as unauthenticated"
    assert len(answer) == 16 + int.from_bytes(answer[4:8], "big"), "more than an error"


def test_agent_with_a_strange_certificate_can_not_join(make_cluster, make_certificates, seed):
    ours = make_certificates("authority", "node0", "node1")
    strange = make_certificates("strangers", "node2")
    cluster = make_cluster(3, start=False)
    for node in cluster.nodes:
        del node.settings["insecure"]
        node.settings["tls-dir"] = (strange if node.name == "node2" else ours) / node.name
    cluster.start()
    job = Job(cluster, seed, nodes=cluster.nodes[:2])
    assert job.start() is None
    job.save(1)
    members = cluster.nodes[0].status()["members"]

    intruder = cluster.nodes[2]
    with open(os.path.join(intruder.volume, "replicator.yaml"), "w", encoding="utf-8") as f:
        f.write(f"job-name: {job.name}\nframework: pytorch.distributed\nnode-rank: 1\nnodes: 2\n"
                "peers-per-node: 1\nbackup-interval-minutes: 30\n")
    cluster.wait_for(lambda: "certificate" in intruder.log() or "TLS" in intruder.log() or
                     intruder.status()["last_error"], 30, "the stranger to be told")
    job.save(2)
    assert cluster.nodes[0].status()["members"] == members
    assert intruder.status()["phase"] in ("locating", "joining")
    assert scripted_job.shards(intruder) == {}
    job.check_no_errors()


def test_data_survives_a_changed_certificate(make_cluster, make_certificates, seed):
    """Certificates are renewed in place while the agents run."""
    ours = make_certificates("authority", "node0", "node1")
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        del node.settings["insecure"]
        node.settings["tls-dir"] = ours / node.name
    cluster.start()
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    make_certificates("authority", "node0", "node1")
    job.save(2)
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    cluster.nodes[1].wait_ready()
    job.save(3)
    scripted_job.check_copies(job, 3, nodes_each=2)
