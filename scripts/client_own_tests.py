#!/usr/bin/env python3
"""Runs the published clients' own code and tests, from source folders that you have.

  git clone --depth 1 https://github.com/google/orbax
  git clone --depth 1 https://github.com/AI-Hypercomputer/resiliency
  scripts/client_own_tests.py --orbax orbax --resiliency resiliency

Not part of `make test`: other people's code at other people's versions.

--orbax FOLDER runs, with the package of that folder in place of PyPI's: Orbax's own unit tests of
its multi-tier checkpointing, its multi-process tests (four processes, gloo), and this project's
tests/compat/test_orbax.py, in which that Orbax works with real agents. --resiliency FOLDER lets the
open PyTorch client's protocol file start a job on real agents, save, and restore.

Environments come from scripts/venv.sh. Exit status: 0 all passed, 1 something failed, 2 bad usage.
"""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EMERGENCY = "orbax/checkpoint/experimental/emergency"
MTC = EMERGENCY + "/multi_tier_checkpointing"
PROCESSES, DEVICES = 4, 2  # what the multi-process tests ask for
# Saves with one mesh and restores with another, which CPU devices don't allow; the rank that fails
# leaves the others in a barrier.
NOT_ON_CPU = "not single_slice"
RANK = "TIERKEEP_OWN_TESTS_RANK"


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--orbax", type=pathlib.Path, metavar="FOLDER", help="a clone of google/orbax")
    p.add_argument("--resiliency", type=pathlib.Path, metavar="FOLDER",
                   help="a clone of AI-Hypercomputer/resiliency")
    p.add_argument("--limit", type=float, default=600, metavar="SECONDS",
                   help="for each group of tests (default: 600)")
    a = p.parse_args()
    if not (a.orbax or a.resiliency):
        p.error("give --orbax, --resiliency or both")
    return a


def bad_usage(text):
    print("client_own_tests: " + text, file=sys.stderr)
    sys.exit(2)


def check_folder(folder, names, url):
    """The folder as an absolute path; ends the program when it isn't a source folder of that
    project, or one without these files."""
    if not folder.is_dir():
        bad_usage(f"{folder} is no folder; get one with: git clone --depth 1 {url}")
    missing = [n for n in names if not (folder / n).is_file()]
    if missing:
        bad_usage(f"{folder} is no source folder of {url}: {missing[0]} is not there (PyPI's "
                  "packages have no tests)")
    return folder.resolve()


def environment(list_name):
    """The interpreter of one of the project's Python environments."""
    done = subprocess.run([ROOT / "scripts/venv.sh", list_name], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        bad_usage(f"the Python environment '{list_name}' can't be made; see above")
    return done.stdout.strip() + "/bin/python"


class Report:
    """What passed; `run` prints a line for each group of tests."""

    def __init__(self, limit):
        self.limit, self.failed = limit, []

    def run(self, name, argv, cwd=ROOT, **env):
        print(f"==> {name}", flush=True)
        start = time.monotonic()
        try:
            status = subprocess.run([str(x) for x in argv], cwd=cwd, timeout=self.limit,
                                    env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **env)).returncode
        except subprocess.TimeoutExpired:
            status = f"more than {self.limit:.0f} s"
        self.note(name, status, start)

    def note(self, name, status, start):
        good = status == 0
        print(f"==> {'passed' if good else f'FAILED ({status})'}: {name}, "
              f"{time.monotonic() - start:.0f} s", flush=True)
        if not good:
            self.failed.append(name)


# ---- Orbax

def orbax_tests(folder, report):
    tests = sorted(str(p.relative_to(folder)) for p in (folder / MTC).glob("*_test.py"))
    several = [t for t in tests if is_multi_process(folder / t)]
    python = environment("orbax_tests")
    pytest = ["-m", "pytest", "-q", "--import-mode=importlib", "-p", "no:cacheprovider"]
    for test in tests:
        if test not in several:
            report.run(test, [python, *pytest, test], cwd=folder, JAX_PLATFORMS="cpu",
                       PYTHONPATH=str(folder))
    for test in several:
        run_ranks(test, python, pytest[2:], folder, report)
    report.run("tests/compat/test_orbax.py with this Orbax",
               [ROOT / "scripts/pytest.sh", ROOT / "tests/compat/test_orbax.py"],
               PYTHONPATH=str(folder))


def is_multi_process(path):
    return re.search(r"^class \w+\(.*multiprocess_test\.MultiProcessTest|"
                     r"multiprocess_test\.main\(", path.read_text(encoding="utf-8"), re.M)


def run_ranks(test, python, pytest, folder, report):
    """One file in PROCESSES processes that see each other, as `multiprocess_test` wants it."""
    name = f"{test} in {PROCESSES} processes"
    print(f"==> {name}", flush=True)
    start = time.monotonic()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as work:
        ranks = []
        for rank in range(PROCESSES):
            env = dict(
                os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=str(folder), TEST_TMPDIR=work,
                PYTHONDONTWRITEBYTECODE="1",
                XLA_FLAGS=f"--xla_force_host_platform_device_count={DEVICES}",
                **{RANK: f"{rank} 127.0.0.1:{port}"})
            log = open(os.path.join(work, f"rank{rank}.log"), "w+", encoding="utf-8")
            ranks.append((subprocess.Popen([python, __file__, *pytest[1:], "-k", NOT_ON_CPU, test],
                                           cwd=folder, env=env, stdout=log, stderr=log), log))
        status = 0
        for rank, (process, log) in enumerate(ranks):
            try:
                code = process.wait(max(1, report.limit - (time.monotonic() - start)))
            except subprocess.TimeoutExpired:
                code = f"more than {report.limit:.0f} s"
                process.kill()
                process.wait()
            log.seek(0)
            lines = log.read().splitlines()
            log.close()
            print(f"rank {rank}: " + "\n".join(lines[-1:] if code == 0 else lines[-40:]))
            status = status or code
    report.note(name, status, start)


def be_a_rank():
    """Runs pytest as one of the processes of run_ranks."""
    rank, address = os.environ[RANK].split()
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    from absl import flags
    from orbax.checkpoint._src.testing.oss import multiprocess_test  # noqa: F401, defines flags
    flags.FLAGS([sys.argv[0]])
    jax.distributed.initialize(address, PROCESSES, int(rank))
    jax.devices()
    import pytest
    return pytest.main(sys.argv[1:])


# ---- the open PyTorch client

def torch_client(folder, report):
    python = environment("torch")
    stubs = subprocess.run([python, "-m", "tierkeep_demo.cuda_stubs"], stdout=subprocess.PIPE,
                           text=True, cwd=ROOT / "python")
    if stubs.returncode:
        bad_usage("torch can't be made to run without a GPU; see above")
    libraries = os.pathsep.join(filter(None, [stubs.stdout.strip(),
                                              os.environ.get("LD_LIBRARY_PATH")]))
    report.run("the open PyTorch client's protocol file on real agents",
               [python, ROOT / "scripts/client_own_torch.py", folder],
               PYTHONPATH=os.pathsep.join([str(ROOT / "python"), str(folder)]),
               LD_LIBRARY_PATH=libraries)


def main():
    a = parse()
    if a.orbax:
        inner = a.orbax / "checkpoint"
        a.orbax = check_folder(inner if inner.is_dir() else a.orbax,
                               ["orbax/checkpoint/__init__.py", MTC + "/initialization.py",
                                MTC + "/initialization_test.py"],
                               "https://github.com/google/orbax")
    if a.resiliency:
        a.resiliency = check_folder(a.resiliency, ["resiliency/high_scale_ckpt_utils.py"],
                                    "https://github.com/AI-Hypercomputer/resiliency")
    binary = os.environ.get("TIERKEEP_BIN") or str(ROOT / "build/release/src/tierkeep")
    if not os.access(binary, os.X_OK):
        bad_usage(f"no program at {binary}: run `make build`, or set TIERKEEP_BIN")
    report = Report(a.limit)
    if a.orbax:
        orbax_tests(a.orbax, report)
    if a.resiliency:
        torch_client(a.resiliency, report)
    for name in report.failed:
        print("failed: " + name, file=sys.stderr)
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(be_a_rank() if RANK in os.environ else main())
