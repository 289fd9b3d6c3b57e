"""Two nodes over TCP with mutual TLS: the bytes on both sides, and who is kept out."""

import os
import random
import socket
import ssl

import pytest

import proxy
import scripted_job
from scripted_job import Job

pytestmark = pytest.mark.timeout(60)

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

def ended_within(connection, seconds):
    """Whether the other side ends the connection; what it sends before doesn't matter."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:  # a reset, or an alert
        pass
    return True


def connect_plain(port):
    connection = socket.create_connection((proxy.BACK, port), 10)
    connection.sendall(b"\0\0\0\x05hello" + bytes(200))
    return connection


def connect_tls(port, directory=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if directory is not None:
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    plain = socket.create_connection((proxy.BACK, port), 10)
    return context.wrap_socket(plain)


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
                with connect_plain(port) as c:
                    assert ended_within(c, 15), f"{where} talks to a plain client"
                with connect_tls(port) as c:
                    assert ended_within(c, 15), f"{where} talks to a client without certificate"
                with connect_tls(port, strangers / "outsider") as c:
                    assert ended_within(c, 15), f"{where} talks to a stranger"
                # What was refused above was refused for its certificate alone.
                with connect_tls(port, make_tls_cluster.certificates / "outsider") as c:
                    assert not ended_within(c, 0.5), f"{where} refuses everybody"
            if encryption == "off":
                check_token_is_asked_for(network["data_port"])
        job.save(2)
        scripted_job.check_copies(job, 2, nodes_each=2)
        job.check_no_errors()
        assert [n.status()["run"] for n in cluster.nodes] == [run, run]


def check_token_is_asked_for(port):
    with socket.create_connection((proxy.BACK, port), 10) as c:
        c.sendall(b"TKD1" + bytes(32) + b"\x01" + bytes(55))
        c.settimeout(15)
        answer = b""
        while part := c.recv(4096):
            answer += part
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
