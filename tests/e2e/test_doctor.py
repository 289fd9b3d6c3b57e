"""`tierkeep doctor` on good and on bad machines: it finds the fault, says what to do, changes nothing."""

import http.server
import json
import os
import pathlib
import re
import resource
import shutil
import socket
import socketserver
import subprocess
import threading

import pytest

from scripted_job import Job, wait_marked
from tierkeep_demo import cluster as cluster_lib

pytestmark = pytest.mark.timeout(240)


def doctor(node, *flags, settings=None, **options):
    """Runs the doctor with the node's own settings; returns exit status and what it found."""
    own = dict(node.settings)
    node.settings.update(settings or {})
    command = node.command()
    node.settings = own
    command[1] = "doctor"
    done = subprocess.run([*command, "--json", *flags], capture_output=True, text=True, timeout=60,
                          **options)
    print(done.stderr, done.stdout)
    return done.returncode, json.loads(done.stdout) if done.returncode != 2 else done.stderr


def found(report, check, verdict):
    return [f for f in report["findings"] if f["check"] == check and f["verdict"] == verdict]


def only_problem(result, check, part):
    """The one problem that the report has is of `check`, and says `part`."""
    status, report = result
    problems = [f for f in report["findings"] if f["verdict"] == "problem"]
    assert [p["check"] for p in problems] == [check], problems
    assert part in problems[0]["text"] + problems[0]["remedy"], problems[0]
    assert problems[0]["remedy"]
    assert status == 1 and report["ok"] is False and report["problems"] == 1


def tree(*roots):
    """Everything below the roots, with sizes and the times of changes of files."""
    out = {}
    for root in roots:
        for where, folders, names in os.walk(root):
            for name in folders + names:
                path = os.path.join(where, name)
                if name.startswith(".new-"):  # a rendezvous record being written
                    continue
                st = os.lstat(path)
                out[path] = (st.st_mode, None if os.path.isdir(path) else
                             (st.st_size, st.st_mtime_ns, st.st_ino))
    return out


@pytest.fixture
def idle(make_cluster):
    """A node whose agent isn't running."""
    cluster = make_cluster(1, start=False)
    cluster.nodes[0].settings["control-port"] = cluster_lib.free_port()
    cluster.nodes[0].settings["data-port"] = cluster_lib.free_port()
    return cluster.nodes[0]


def test_a_good_machine_without_an_agent(idle):
    before = tree(idle.mount, idle.state_dir, idle.cluster.rendezvous)
    status, report = doctor(idle)
    assert (status, report["problems"], report["ok"]) == (0, 0, True)
    assert report["version"] == 1
    assert "not running" in found(report, "agent", "ok")[0]["text"]
    assert len(found(report, "ports", "ok")) == 3
    assert "not configured" in found(report, "bucket", "ok")[0]["text"]
    for check in ("mount", "memory", "huge-pages", "open-files", "inotify", "state-dir", "tls",
                  "rendezvous", "clock"):
        assert any(f["check"] == check for f in report["findings"]), check
    for finding in report["findings"]:
        assert (finding["remedy"] == "") == (finding["verdict"] == "ok"), finding
    assert tree(idle.mount, idle.state_dir, idle.cluster.rendezvous) == before


def test_a_good_machine_with_a_job(make_cluster, make_certificates, seed):
    certificates = make_certificates("authority", "node0", "node1")
    cluster = make_cluster(2, start=False)
    for node in cluster.nodes:
        node.settings["tls-dir"] = certificates / node.name
    cluster.start()
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    node = cluster.nodes[1]
    # A moment after the commit the rendezvous record names the new generation and its nodes.
    wait_marked(job, node)
    cluster.wait_for(lambda: all(abs(skew) < 0.5 for skew in
                                 node.status()["clock_skew_seconds"].values()), 60,
                     "a message that wasn't long on its way")
    before = tree(node.mount, cluster.rendezvous)
    status, report = doctor(node)
    assert (status, report["problems"]) == (0, 0)
    assert "job e2e" in found(report, "agent", "ok")[0]["text"]
    assert "node node0" in found(report, "peers", "ok")[0]["text"]
    record = [f["text"] for f in found(report, "rendezvous", "ok") if "job e2e" in f["text"]]
    assert len(record) == 1 and "node node0 at 127.0.0.1:" in record[0] and "ago" in record[0]
    assert found(report, "clock", "ok"), "the clocks of one machine are one"
    assert "2 others" in found(report, "clock", "ok")[0]["text"]
    assert tree(node.mount, cluster.rendezvous) == before
    # The job never noticed.
    job.save(2)
    job.check_no_errors()
    job.restart()


def test_for_people(idle):
    command = idle.command()
    command[1] = "doctor"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ looked at, \d+ warnings, 0 problems", lines[-1])
    assert all(re.match(r"(ok|warning) +[a-z-]+ +\S|  +-> ", line) for line in lines[:-1])


def test_bad_usage(idle):
    for flags, settings, part in (((), {"data-port": "99999"}, "--data-port"),
                                  (("--peer", "nowhere"), {}, "HOST:PORT"),
                                  (("--frobnicate",), {}, "frobnicate")):
        status, said = doctor(idle, *flags, settings=settings)
        assert status == 2 and part in said


def test_two_mounts(idle):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "other", idle.volume], check=True)
    try:
        only_problem(doctor(idle), "mount", "one mount")
    finally:
        subprocess.run(["umount", idle.volume], check=True)


def test_no_mount(idle):
    result = doctor(idle, settings={"mount": os.path.join(idle.home, "absent")})
    only_problem(result, "mount", "mount -t tmpfs")


def test_expired_certificate(idle, make_certificates, tmp_path):
    authority = make_certificates("authority", "node0")
    expired = tmp_path / "expired"
    shutil.copytree(authority / "node0", expired)
    # Only the dates differ: the same key, signed again for yesterday.
    subprocess.run(
        ["openssl", "req", "-new", "-key", expired / "tls.key", "-subj", "/CN=node0", "-out",
         tmp_path / "csr"], check=True)
    subprocess.run(["openssl", "x509", "-req", "-in", tmp_path / "csr", "-CA", authority / "ca.crt",
                    "-CAkey", authority / "ca.key", "-CAcreateserial", "-days", "-1", "-out",
                    expired / "tls.crt"], check=True, capture_output=True)
    only_problem(doctor(idle, settings={"tls-dir": expired}), "tls", "tls.crt expired on")


def test_wrong_key(idle, make_certificates):
    authority = make_certificates("authority", "node0", "node1")
    shutil.copy(authority / "node1" / "tls.key", authority / "node0" / "tls.key")
    only_problem(doctor(idle, settings={"tls-dir": authority / "node0"}), "tls", "isn't the key of")


def test_another_authority(idle, make_certificates):
    ours, theirs = make_certificates("ours", "node0"), make_certificates("theirs", "node0")
    shutil.copy(theirs / "ca.crt", ours / "node0" / "ca.crt")
    only_problem(doctor(idle, settings={"tls-dir": ours / "node0"}), "tls", "isn't vouched for")


def test_missing_tls_files(idle, tmp_path):
    status, report = doctor(idle, settings={"tls-dir": tmp_path})
    assert status == 1 and len(found(report, "tls", "problem")) == 3


def test_few_open_files(idle):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    only_problem(doctor(idle, preexec_fn=limit), "open-files", "200 files")


def test_few_open_files_of_the_running_agent(idle):
    idle.start()
    idle.wait_ready()
    resource.prlimit(idle.agent.pid, resource.RLIMIT_NOFILE, (300, 300))
    only_problem(doctor(idle), "open-files", "the agent may open 300 files")


def test_ports_of_others_and_ours(idle):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", idle.settings["data-port"]))
        taken.listen()
        only_problem(doctor(idle), "ports", "is taken by another process")
    idle.start()
    idle.wait_ready()
    status, report = doctor(idle)
    assert status == 0
    ours = [f["text"] for f in found(report, "ports", "ok") if "running agent's" in f["text"]]
    assert len(ours) == 2


def test_peers(idle):
    idle.start()
    port = idle.wait_ready()["network"]["control_port"]
    status, report = doctor(idle, "--peer", f"127.0.0.1:{port}")
    assert status == 0 and "answers" in found(report, "peers", "ok")[0]["text"]
    idle.terminate()
    only_problem(doctor(idle, "--peer", f"127.0.0.1:{port}"), "peers", "can't be reached")


def test_peer_of_another_authority(idle, make_certificates):
    ours, theirs = make_certificates("ours", "node0"), make_certificates("theirs", "node0")
    idle.settings["tls-dir"] = theirs / "node0"
    idle.start()
    port = idle.wait_ready()["network"]["control_port"]
    idle.settings["tls-dir"] = ours / "node0"
    only_problem(doctor(idle, "--peer", f"127.0.0.1:{port}"), "peers", "certificates")


def test_rendezvous_that_cannot_be_used(idle):
    home = pathlib.Path(idle.home)
    only_problem(doctor(idle, settings={"rendezvous": f"file:{home}/absent"}), "rendezvous",
                 "all nodes share")
    (home / "file").write_text("")
    only_problem(doctor(idle, settings={"rendezvous": f"file:{home}/file"}), "rendezvous",
                 "all nodes share")
    damaged = home / "damaged"
    (damaged / "train").mkdir(parents=True)
    (damaged / "train" / "00000000000000000001.record").write_text("no record")
    only_problem(doctor(idle, settings={"rendezvous": f"file:{damaged}"}), "rendezvous",
                 "the record of job train can't be read")
    port = cluster_lib.free_port()
    only_problem(doctor(idle, settings={"rendezvous": f"static:127.0.0.1:{port}"}), "rendezvous",
                 "can't be reached")


def test_rendezvous_on_a_read_only_file_system(idle):
    where = os.path.join(idle.home, "readonly")
    os.mkdir(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "shared", where], check=True)
    try:
        only_problem(doctor(idle, settings={"rendezvous": f"file:{where}"}), "rendezvous",
                     "Read-only")
    finally:
        subprocess.run(["umount", where], check=True)


SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec* ts) {
  int done = (int)syscall(SYS_clock_gettime, id, ts);
  if (done == 0 && id == CLOCK_REALTIME) ts->tv_sec += atoi(getenv("CLOCK_AHEAD"));
  return done;
}
"""


@pytest.mark.parametrize("ahead, verdict", [(30, "warning"), (-4000, "problem")])
def test_clock_skew_between_nodes(make_cluster, seed, tmp_path, monkeypatch, ahead, verdict):
    (tmp_path / "shifted.c").write_text(SHIFTED_CLOCK)
    library = tmp_path / "shifted.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "shifted.c"], check=True)
    cluster = make_cluster(2, start=False)
    cluster.nodes[0].start()
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("CLOCK_AHEAD", str(ahead))
        cluster.nodes[1].start()
    for node in cluster.nodes:
        node.wait_ready()
    job = Job(cluster, seed)
    assert job.start() is None
    job.save(1)
    skews = cluster.nodes[0].status()["clock_skew_seconds"]
    assert list(skews) == ["node1"]
    # What a message took on its way counts too.
    assert abs(skews["node1"] - ahead) < abs(ahead) / 2
    _, report = doctor(cluster.nodes[0])
    (finding,) = found(report, "clock", verdict)
    assert "node node1" in finding["text"]
    assert ("ahead" if ahead > 0 else "behind") in finding["text"]
    # The other way round it is the rest of the world that is off.
    other = cluster.nodes[1].status()["clock_skew_seconds"]
    assert abs(other["node0"] + ahead) < abs(ahead) / 2


def test_clock_of_the_rendezvous(idle, tmp_path, monkeypatch):
    (tmp_path / "shifted.c").write_text(SHIFTED_CLOCK)
    library = tmp_path / "shifted.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "shifted.c"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_AHEAD", "20")
    status, report = doctor(idle)
    (finding,) = found(report, "clock", "warning")
    assert "rendezvous" in finding["text"] and "behind" in finding["text"]
    assert status == 0


class _Admin(socketserver.UnixStreamServer):
    def get_request(self):
        request, _ = super().get_request()
        return request, ("local", 0)


def test_an_admin_socket_that_is_no_agents(idle):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"node": 7}')

        def log_message(self, *_):
            pass

    with _Admin(idle.admin, Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            only_problem(doctor(idle), "agent", "another form")
        finally:
            server.shutdown()
            thread.join()
