"""Real agents on loopback, driven by scripted jobs: no training framework is needed.

TIERKEEP_BIN names the program (default: build/release/src/tierkeep). A missing program fails the
tests. TIERKEEP_TEST_SEED replaces every test's seed; each test prints the one it uses.
"""

import os
import pathlib
import subprocess
import sys
import zlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from tierkeep_demo import cluster as cluster_lib  # noqa: E402


@pytest.fixture(scope="session")
def binary():
    path = os.environ.get("TIERKEEP_BIN") or str(ROOT / "build/release/src/tierkeep")
    if not os.access(path, os.X_OK):
        pytest.fail(f"no program at {path}: run `make build`, or set TIERKEEP_BIN")
    return path


def seed_of(nodeid):
    """A test's own seed, the same in every run."""
    return int(os.environ.get("TIERKEEP_TEST_SEED") or zlib.crc32(nodeid.encode()) % 1_000_000)


@pytest.fixture
def seed(request):
    value = seed_of(request.node.nodeid)
    print("seed", value)
    return value


@pytest.fixture
def make_cluster(binary, tmp_path):
    """A function that starts a cluster of so many nodes, which is gone after the test. `settings`
    are flags for all agents; with start=False the test starts them. Logs stay in tmp_path."""
    made = []

    def make(count, settings=None, start=True, **options):
        cluster = cluster_lib.Cluster(count, binary, **{"ram_mib": 512, **options})
        cluster.keep_logs_in = str(tmp_path / f"agents{len(made)}")
        made.append(cluster)
        for node in cluster.nodes:
            node.settings.update(settings or {})
        return cluster.start() if start else cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def make_certificates(tmp_path):
    """A function that makes an authority and a TLS directory for each name."""

    def make(authority, *names):
        folder = tmp_path / authority
        subprocess.run([ROOT / "scripts/make-test-certs.sh", folder, *names], check=True)
        return folder

    return make


@pytest.fixture
def make_world(make_cluster, seed, tmp_path):
    """A function that makes a hostile.World: a job that may do to its volume what it likes."""
    assert os.geteuid() == 0, "hostile jobs are root's: run these tests as root"
    from hostile import World

    def make(**options):
        return World(make_cluster, seed, tmp_path, **options)

    return make


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections.append((
            "how to see it again",
            f"TIERKEEP_TEST_SEED={seed_of(item.nodeid)} scripts/pytest.sh '{item.nodeid}'\n"
            f"the agents' logs: {item.funcargs.get('tmp_path', 'none')}"))
    return report
