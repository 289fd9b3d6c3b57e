"""Real agents for the tests of real training clients.

TIERKEEP_BIN names the program (default: build/release/src/tierkeep). A missing program fails the
tests: it never skips them.
"""

import os
import pathlib
import sys

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


@pytest.fixture(scope="module")
def make_cluster(binary, tmp_path_factory):
    """A function that starts a cluster of so many nodes; all are gone after the module. Their
    logs stay in pytest's temporary directory."""
    made = []

    def make(count, **options):
        cluster = cluster_lib.Cluster(count, binary, **options)
        cluster.keep_logs_in = str(tmp_path_factory.mktemp("agents"))
        made.append(cluster)
        return cluster.start()

    yield make
    for cluster in made:
        cluster.close()


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "journey: the tests of this class go on where the one before ended")


def pytest_runtest_makereport(item, call):
    if call.excinfo is not None and item.get_closest_marker("journey"):
        item.parent.broken_by = getattr(item.parent, "broken_by", None) or item.name


def pytest_runtest_setup(item):
    broken_by = getattr(item.parent, "broken_by", None)
    if broken_by:
        pytest.fail(f"not run: the journey ended when {broken_by} failed", pytrace=False)
