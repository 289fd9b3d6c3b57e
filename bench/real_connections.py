#!/usr/bin/env python3
"""real_connections.py [--nodes N] [--tls]: a coordinating agent with N members on real connections.

The agent is the product's, its members are one process (tests/load/job_members) on the same machine.
Prints one JSON line for each command given to all members: seconds until the last one had each event,
messages, bytes, and what the agent used of processor and memory.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/e2e")]

import hostile  # noqa: E402
import large_job  # noqa: E402
from tierkeep_demo import cluster as cluster_lib  # noqa: E402


def processor_seconds(pid):
    """User and system time of all threads, exact to the clock's tick."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--tls", action="store_true", help="mutual TLS on every connection")
    parser.add_argument("--binary", default=str(ROOT / "build/release/src/tierkeep"))
    options = parser.parse_args()
    if reason := large_job.why_not(options.nodes):
        sys.exit(reason)
    cluster_lib.exit_on_signals()
    with tempfile.TemporaryDirectory() as folder, \
         cluster_lib.Cluster(1, options.binary, ram_mib=256) as cluster:
        node = cluster.nodes[0]
        if options.tls:
            subprocess.run([ROOT / "scripts/make-test-certs.sh", folder, "node0"], check=True,
                           stdout=subprocess.DEVNULL)
            del node.settings["insecure"]
            node.settings["tls-dir"] = os.path.join(folder, "node0")
        cluster.start()
        data = lambda step: {"weights": bytes([step]) * (1 << 20)}
        with large_job.LargeJob(cluster, options.nodes, data, limit=600) as job:
            for name, act in (("join", lambda: job.start()[1]), ("save", lambda: job.save(1)),
                              ("next save", lambda: job.save(2)),
                              ("restart", lambda: job.start()[1])):
                before = processor_seconds(node.agent.pid)
                report = act()
                print(json.dumps({
                    "nodes": options.nodes, "tls": options.tls, **report, "command": name,
                    "agent_cpu_seconds": round(processor_seconds(node.agent.pid) - before, 2),
                    "agent_memory_mib": hostile.resident(node.agent.pid) >> 20}), flush=True)


if __name__ == "__main__":
    main()
