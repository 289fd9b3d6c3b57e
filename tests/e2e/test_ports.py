"""What strangers can do to an agent's ports: they are dropped, counted, held to bounded memory, and
the job goes on meanwhile."""

import contextlib
import json
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import hostile
import proxy
import scripted_job
import tls_client
from hostile import LOG_LINE
from scripted_job import Job

pytestmark = pytest.mark.timeout(240)

HERE = "127.0.0.1"
# What an agent may grow by under thousands of connections: a few KiB for each.
GROWTH_MAX = 96 << 20


def start_job(cluster, seed, **options):
    job = Job(cluster, seed, megabytes=1, **options)
    assert job.start() is None
    job.save(1)
    return job


def counts(node):
    network = node.status()["network"]
    return {k: network[k] for k in ("rejected_frames", "rejected_data_requests",
                                    "dropped_messages")}


def ports(node):
    network = node.status()["network"]
    return {"control": network["control_port"], "data": network["data_port"]}


def frame(body):
    return struct.pack(">I", len(body)) + body


def wait_closed(connection, seconds=20):
    connection.settimeout(seconds)
    with contextlib.suppress(OSError):
        while connection.recv(4096):
            pass
        return
    assert not isinstance(sys.exc_info()[1], TimeoutError)


def check_logs(cluster):
    for node in cluster.nodes:
        lines = node.log().split("\n")[:-1]
        assert [line for line in lines if not LOG_LINE.match(line)] == []
        assert len(lines) < 2000, "strangers fill the log"


# ---- bad frames

def bad_control(seed):
    """Kinds of bytes that no agent sends."""
    draw = random.Random(seed)
    join = b"\x0a\x03e2e\x12\x05node1"
    return {
        "no frame": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "too long": b"\xff\xff\xff\xff" + bytes(100),
        "just too long": struct.pack(">I", (64 << 20) + 1),
        "empty": frame(b""),
        "noise": frame(draw.randbytes(3000)),
        "half a frame": struct.pack(">I", 1000) + draw.randbytes(500),
        "deep": frame(b"\x0a\x03e2e" + b"\x52\x7f" * 60),
        "no kind": frame(join),
        "an unknown kind": frame(join + b"\xfa\x7f\x02hi"),
        "no name": frame(b"\x0a\x04e2e\n\x12\x05node1"),
        "many in one": b"".join(frame(draw.randbytes(20)) for _ in range(500)),
        "a long text": frame(b"\x0a\x80\x80\x40" + b"x" * (1 << 20)),
    }


def bad_data(seed):
    draw = random.Random(seed)
    return {
        "no preamble": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(200),
        "wrong token": b"TKD1" + draw.randbytes(32) + b"\x01" + bytes(55),
        "noise": draw.randbytes(5000),
        "half a preamble": b"TKD1" + bytes(10),
    }


def test_b2_bad_frames_are_dropped_and_counted(make_cluster, seed):
    cluster = make_cluster(2)
    job = start_job(cluster, seed)
    run = cluster.nodes[0].status()["run"]
    for node in cluster.nodes:
        where, before = ports(node), counts(node)
        sent = {"control": bad_control(seed), "data": bad_data(seed)}
        for port, kinds in sent.items():
            for kind, data in sorted(kinds.items()):
                print(node.name, port, kind)
                with socket.create_connection((HERE, where[port]), 10) as c:
                    with contextlib.suppress(OSError):
                        c.sendall(data)
                        c.shutdown(socket.SHUT_WR)
                    wait_closed(c)
        cluster.wait_for(
            lambda: counts(node)["rejected_frames"] >= before["rejected_frames"] + 11 and
            counts(node)["rejected_data_requests"] >= before["rejected_data_requests"] + 4, 20,
            f"all to be counted; now {counts(node)}")
    job.save(2)
    job.check_no_errors()
    assert {n.status()["run"] for n in cluster.nodes} == {run}
    check_logs(cluster)


def test_b2_random_damage_to_real_messages(make_cluster, seed):
    """What an agent really said, with bytes changed, cut and repeated."""
    cluster = make_cluster(2, start=False)
    coordinator = cluster.nodes[0]
    proxy.put_behind_proxy(coordinator)
    cluster.start()
    draw = random.Random(seed)
    with Recorded(coordinator) as recorded:
        job = start_job(cluster, seed)
        said = recorded.frames()
        assert len(said) >= 3, said
        port = ports(coordinator)["control"]
        before = counts(coordinator)
        for _ in range(150):
            body = bytearray(draw.choice(said))
            for _ in range(draw.randrange(1, 6)):
                at = draw.randrange(len(body))
                what = draw.randrange(3)
                if what == 0:
                    body[at] ^= 1 << draw.randrange(8)
                elif what == 1:
                    del body[at:at + draw.randrange(1, 9)]
                else:
                    body[at:at] = draw.randbytes(draw.randrange(1, 9))
                if not body:
                    body = bytearray(b"\0")
            with socket.create_connection((HERE, port), 10) as c:
                with contextlib.suppress(OSError):
                    c.sendall(frame(bytes(body)))
        # The agent comes to the last of them when it comes to it.
        cluster.wait_for(lambda: sum(counts(coordinator).values()) > sum(before.values()) + 50, 30,
                         f"the damage to be counted; {before}")
        job.write(2)

        def over():
            return any("is over: " in n.log() for n in cluster.nodes)

        cluster.wait_for(lambda: over() or all(2 in n.committed_steps() for n in cluster.nodes), 60,
                         "step 2 to be replicated globally, or the run to end")
        step = 2
        if over():  # some of it still was a message, such as that a member begins anew
            assert job.start() in (1, 2)
            step = 3
            job.write(step)
        job.committed(step)
        scripted_job.check_copies(job, step, nodes_each=2)
    check_logs(cluster)


# ---- replays

class Recording(proxy.Proxy):
    """Keeps what is sent *to* the agent, each connection for itself."""

    def __init__(self, port):
        self.heard = []
        super().__init__(port)

    def _pass(self, source, target, touch):
        if touch:
            super()._pass(source, target, touch)
            return
        kept = bytearray()
        self.heard.append(kept)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        for s in (source, target):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Recorded:
    """A coordinator behind a proxy that keeps what others tell it."""

    def __init__(self, node):
        where = ports(node)
        self.control = Recording(where["control"])
        self.data = proxy.Proxy(where["data"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.control.close()
        self.data.close()

    def frames(self):
        """All whole frames so far, in order."""
        out = []
        for kept in list(self.control.heard):
            data, at = bytes(kept), 0
            while at + 4 <= len(data):
                length = struct.unpack_from(">I", data, at)[0]
                if at + 4 + length > len(data):
                    break
                out.append(data[at + 4:at + 4 + length])
                at += 4 + length
        return out


@pytest.mark.parametrize("order", ["as they were", "reordered", "each alone"])
def test_c12_messages_of_an_older_epoch_are_replayed(make_cluster, seed, order):
    """All that one node ever told the coordinator in earlier runs, said again in a later one."""
    cluster = make_cluster(2, start=False)
    coordinator = cluster.nodes[0]
    proxy.put_behind_proxy(coordinator)
    cluster.start()
    with Recorded(coordinator) as recorded:
        job = start_job(cluster, seed)
        job.restart()
        job.save(2)
        old = recorded.frames()
        job.restart()
        job.save(3)
        run = coordinator.status()["run"]
        before = counts(coordinator)
        if order == "reordered":
            random.Random(seed).shuffle(old)
        said = [[b] for b in old] if order == "each alone" else [old]
        for messages in said:
            with socket.create_connection((HERE, ports(coordinator)["control"]), 10) as c:
                with contextlib.suppress(OSError):
                    c.sendall(b"".join(frame(m) for m in messages))
                    c.shutdown(socket.SHUT_WR)
                wait_closed(c)
        cluster.wait_for(lambda: sum(counts(coordinator).values()) > sum(before.values()), 20,
                         f"replays to be counted; {before}")
        job.write(4)
        job.committed(4)
        scripted_job.check_copies(job, 4, nodes_each=2)
        assert {n.status()["run"] for n in cluster.nodes} == {run}, "a replay ended the run"
        job.restart()
    check_logs(cluster)


# ---- certificates

def certificate(folder, *, days=30, authority=None, name="peer"):
    """A key and certificate; days < 0 makes one that is over."""
    os.makedirs(folder)
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
    key, request = f"{folder}/tls.key", f"{folder}/tls.csr"
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
            "-subj", f"/CN={name}", "-out", request)
    if authority is None:
        openssl("x509", "-req", "-in", request, "-signkey", key, "-days", str(days), "-out",
                f"{folder}/tls.crt")
    else:
        openssl("x509", "-req", "-in", request, "-CA", f"{authority}/ca.crt", "-CAkey",
                f"{authority}/ca.key", "-CAcreateserial", "-days", str(days), "-out",
                f"{folder}/tls.crt")
    return folder


def test_d2_wrong_and_expired_certificates(make_cluster, make_certificates, seed, tmp_path):
    ours = make_certificates("authority", "node0", "node1", "member")
    other = make_certificates("strangers", "peer")
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        del node.settings["insecure"]
        node.settings["tls-dir"] = ours / node.name
    cluster.start()
    job = start_job(cluster, seed)
    refused = {
        "none": None, "another authority's": other / "peer",
        "its own": certificate(str(tmp_path / "self")),
        "expired": certificate(str(tmp_path / "expired"), days=-1, authority=ours),
    }
    for node in cluster.nodes:
        for name, port in ports(node).items():
            before = counts(node)
            for kind, folder in refused.items():
                print(node.name, name, kind)
                tls_client.check_refused(port, folder)
            tls_client.check_refused(port, ours / "member", ssl.TLSVersion.TLSv1_2)
            key = "rejected_frames" if name == "control" else "rejected_data_requests"
            cluster.wait_for(lambda: counts(node)[key] >= before[key] + 5, 20,
                             f"the {name} port to count them")
            # Refused for their certificates alone.
            tls_client.check_let_in(port, ours / "member")
    job.save(2)
    job.check_no_errors()
    check_logs(cluster)


# ---- floods

@contextlib.contextmanager
def flood(port, count, kind, seed):
    """A process that holds so many connections; yields their number once they are there."""
    process = subprocess.Popen(
        [sys.executable, os.path.join(os.path.dirname(__file__), "flood.py"), str(port), str(count),
         kind, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line, "the flood ended"
        yield line.strip()
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("kind", ["idle", "trickle", "noise"])
@pytest.mark.parametrize("port", ["control", "data"])
def test_d2_thousands_of_connections(make_cluster, seed, port, kind):
    """From a process of its own, to the coordinator, who is rank 0's data server too."""
    cluster = make_cluster(2)
    job = start_job(cluster, seed)
    node = cluster.nodes[0]
    before = counts(node)
    at_rest = [hostile.resident(n.agent.pid) for n in cluster.nodes]
    most = 0
    with flood(ports(node)[port], 6000, kind, seed) as held:
        print("connections:", held)
        for step in (2, 3):
            job.write(step)

            def committed(step=step):
                nonlocal most
                most = max(most, hostile.resident(node.agent.pid) - at_rest[0])
                return all(step in n.committed_steps() for n in cluster.nodes)

            cluster.wait_for(committed, 60, f"step {step} to commit under the flood")
            job.saved = step
        scripted_job.check_copies(job, 3, nodes_each=2)
        print(f"memory grew by at most {most >> 20} MiB; counts {counts(node)}")
        assert most < GROWTH_MAX
        assert hostile.threads(node.agent.pid) < 200
    key = "rejected_frames" if port == "control" else "rejected_data_requests"
    cluster.wait_for(lambda: counts(node)[key] >= before[key] + 1000, 30,
                     "the connections to be counted")
    job.save(4)
    job.restart()
    job.check_no_errors()
    check_logs(cluster)


def test_d2_few_descriptors_are_enough(make_cluster, seed):
    """Where the system allows an agent few files, strangers leave it those that it needs."""
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        command = node.command
        node.command = lambda command=command: ["prlimit", "--nofile=400:400", *command()]
    cluster.start()
    job = start_job(cluster, seed)
    where = ports(cluster.nodes[0])
    with flood(where["control"], 2000, "idle", seed), flood(where["data"], 2000, "idle", seed):
        for step in (2, 3):
            job.save(step)
        scripted_job.check_copies(job, 3, nodes_each=2)
    job.save(4)
    job.restart()
    check_logs(cluster)


# ---- what the other ports give away

def test_d3_the_metrics_port_only_reads(make_cluster, seed):
    cluster = make_cluster(2, start=False)
    node = cluster.nodes[0]
    with socket.socket() as s:
        s.bind((HERE, 0))
        node.settings["metrics"] = "%s:%d" % s.getsockname()
    cluster.start()
    job = start_job(cluster, seed)
    url = "http://" + node.settings["metrics"]
    with urllib.request.urlopen(url + "/v1/status", timeout=10) as answer:
        text = answer.read().decode()
    assert json.loads(text)["node"] == "node0"
    for path in ("/v1/verify", "/v1/status", "/metrics"):
        request = urllib.request.Request(url + path, data=b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 405
    assert os.lstat(node.admin).st_mode & 0o077 == 0, "others may use the admin socket"
    host, port = node.settings["metrics"].split(":")
    for junk in (b"\0" * 100_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
                 b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, int(port)), 10) as c:
            with contextlib.suppress(OSError):
                c.sendall(junk)
                c.shutdown(socket.SHUT_WR)
                c.settimeout(20)
                assert b"root:" not in c.recv(4096)
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        assert answer.status == 200
    job.save(2)


def test_d20_store_and_state_are_the_agents_alone(make_cluster, seed):
    cluster = make_cluster(2)
    job = start_job(cluster, seed)
    job.restart()
    for node in cluster.nodes:
        assert os.lstat(node.store).st_mode & 0o077 == 0
        for where, _, names in os.walk(node.state_dir):
            for name in names:
                assert os.lstat(os.path.join(where, name)).st_mode & 0o077 == 0, name
        # What the job gets, it can read, whoever it is.
        for name in os.listdir(node.volume):
            path = os.path.join(node.volume, name)
            if os.path.isfile(path) and not os.path.islink(path):
                assert os.lstat(path).st_mode & 0o044 == 0o044, name
