#!/usr/bin/env python3
"""Measures agents doing their job on two nodes of this machine, against limits of the same run.

Every line of the table that it prints has a value, the limit it is held against (found in the
same run wherever the limit is the machine's), and whether it passes. README.md says what each
line means. Start it with scripts/bench.sh; it needs root, for tmpfs mounts.
"""

import argparse
import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import bench_client as client
import bench_machine as machine
import bench_report as report
from tierkeep_demo import cluster as cluster_lib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
MIB, GIB = machine.MIB, machine.GIB
NODES = 2
FILES = 8
LINES = ("plain", "restore", "restore-lost", "idle", "encrypted", "orbax-32", "orbax-4")


class Bench:
    """One run of the program: its options, warm memory and result rows."""

    def __init__(self, options):
        self.o = options
        self.size = options.size_mib * MIB
        self.rows, self.out = [], None
        self.ballast = None

    # ---- results

    def emit(self, line, run, **values):
        row = {"line": line, "run": run, "warmup": run == 0, **values}
        self.rows.append(row)
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()
        shown = ", ".join(f"{k} {v:.4g}" for k, v in values.items() if isinstance(v, float))
        print(f"  {line} {'warm-up' if run == 0 else run}: {shown}", file=sys.stderr, flush=True)

    # ---- clusters

    def cluster(self, name, encrypted=False):
        made = cluster_lib.Cluster(NODES, self.o.binary, ram_mib=6 * self.o.size_mib + 256)
        made.keep_logs_in = os.path.join(self.o.logs, name) if self.o.logs else None
        if not made.mounted:
            made.close()
            raise cluster_lib.ClusterError("this needs tmpfs mounts: run it as root")
        if encrypted:
            certificates = os.path.join(made.work, "tls")
            subprocess.run([os.path.join(ROOT, "scripts", "make-test-certs.sh"), certificates,
                            *(n.name for n in made.nodes)], check=True)
            for node in made.nodes:
                del node.settings["insecure"]
                node.settings["tls-dir"] = os.path.join(certificates, node.name)
        return made

    def cpu(self, cluster):
        return sum(machine.process_cpu(n.agent.pid) for n in cluster.nodes)

    def hash_pass(self, directories):
        return machine.hash_pass(self.o.hash_pass, directories)

    # ---- one save

    def save(self, job, line, run, step, writer, copies):
        """Times one save; `copies` is how many sizes a node holds once it is committed."""
        cluster = job.cluster
        mounts = [n.mount for n in cluster.nodes]
        crosses = copies > 1
        values = {}
        if line == "plain":
            one_way, both_ways = machine.iperf(cluster_lib.free_port(), self.o.iperf_seconds)
            values |= {"iperf_gb_s": one_way / 1e9, "iperf_bidir_gb_s": both_ways / 1e9}
        room = int(NODES * self.size * 1.06)
        self.ballast.release(room)
        paths = job.write(step, writer)
        written = client.tree_bytes(paths[0])
        values["hash_pass_s"] = self.hash_pass(paths)
        if crosses:
            self.ballast.release(room)
        cpu, (busy, stolen) = self.cpu(cluster), machine.machine_ticks()
        begin = time.monotonic()
        with machine.VolumeSampler(mounts) as sampler:
            seconds = job.finish(step, paths)
            settled = job.wait_held(written, (copies - 1) * written)
        wall = time.monotonic() - begin
        time.sleep(0.3)
        busy_after, stolen_after = machine.machine_ticks()
        agents = self.cpu(cluster) - cpu
        self.ballast.fill()
        gib = NODES * written / GIB
        self.emit(line, run, seconds=seconds, gb_s=NODES * written / 1e9 / seconds, bytes=written,
                  **values, agents_cpu_s=agents, cpu_s_per_gib=agents / gib,
                  collected_after_s=settled, others_cores=(busy_after - busy - agents) /
                  (wall + 0.3), stolen_s=stolen_after - stolen,
                  peak_copies=max(sampler.peak) / written,
                  resting_copies=max(machine.used(m) for m in mounts) / written,
                  samples=sampler.samples)

    def saves(self, job, line, writer, copies, first=1):
        """Warm-up and timed saves; returns the last step."""
        for run in range(self.o.runs + 1):
            self.save(job, line, run, first + run, writer, copies)
        return first + self.o.runs

    # ---- restores

    def restore(self, job, run, step, lost):
        line = "restore" if lost is None else "restore-lost"
        cluster = job.cluster
        if lost is not None:
            node = cluster.nodes[lost]
            node.kill()
            node.wipe_ram()
            self.ballast.fill(extra=2 * self.size)
            node.start()
            node.wait_ready()
            self.ballast.release(int(2.1 * self.size))
        cpu, (busy, stolen) = self.cpu(cluster), machine.machine_ticks()
        begin = time.monotonic()
        seconds = job.begin(step)
        agents = self.cpu(cluster) - cpu
        wall = time.monotonic() - begin
        busy_after, stolen_after = machine.machine_ticks()
        links = [os.path.join(n.volume, str(step)) for n in cluster.nodes]
        written = client.tree_bytes(os.path.realpath(links[0]))
        values = {}
        rebuilt = job.wait_held(written, written)
        if lost is not None:
            values["redundancy_rebuilt_after_s"] = rebuilt
        values["hash_pass_s"] = self.hash_pass(links)
        for node in cluster.nodes:
            phases = node.status()["restore"]
            values[f"{node.name}_s"] = [round(phases[f"seconds_to_{p}"], 4)
                                        for p in ("decision", "prepared", "release")]
        self.emit(line, run, seconds=seconds, bytes=written, lost=lost, **values,
                  agents_cpu_s=agents, others_cores=(busy_after - busy - agents) / wall,
                  stolen_s=stolen_after - stolen)
        time.sleep(0.5)
        self.ballast.fill()

    # ---- idle

    def idle(self, cluster):
        """One minute in windows: processor time, and resident memory at the end of each."""
        time.sleep(3)
        windows = max(self.o.runs, 1)
        each = self.o.idle_seconds / windows
        pids = [n.agent.pid for n in cluster.nodes]
        for run in range(windows):
            before, begin = [machine.process_cpu(p) for p in pids], time.monotonic()
            time.sleep(each)
            wall = time.monotonic() - begin
            percent = [100 * (machine.process_cpu(p) - b) / wall
                       for p, b in zip(pids, before, strict=True)]
            memory = [machine.process_rss(p) for p in pids]
            self.emit("idle", run + 1, window_s=wall, cpu_percent=max(percent),
                      cpu_percent_nodes=percent, rss_mib=max(m[0] for m in memory) / MIB,
                      rss_shmem_mib=max(m[1] for m in memory) / MIB)

    # ---- the lines

    def crossing(self, name, encrypted, lines):
        def writer(path, rank):
            client.write_plain_files(path, self.size, FILES, f"{path} {rank}")

        with self.cluster(name, encrypted) as cluster:
            job = client.Job(cluster.start())
            job.begin(None)
            step = self.saves(job, name, writer, 2)
            if "restore" in lines:
                for run in range(self.o.runs + 1):
                    self.restore(job, run, step, None)
            if "restore-lost" in lines:
                for run in range(self.o.runs + 1):
                    self.restore(job, run, step, (run + 1) % NODES)
            if "idle" in lines:
                self.idle(cluster)

    def orbax(self, value_mib):
        name = f"orbax-{value_mib}"
        with self.cluster(name) as cluster:
            store = os.path.join(cluster.work, "templates")
            os.makedirs(store)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "huge=within_size", "tierkeep", store],
                           check=True)
            self.ballast.release(int(2.1 * self.size))  # the templates take its place
            saved = client.orbax_templates(cluster, store, self.o.size_mib, value_mib,
                                           self.o.python)
            job = client.Job(cluster.start(), data_parallelism=NODES)
            job.begin(None)
            self.ballast.fill()
            self.saves(job, name, lambda path, rank: client.copy_tree(saved[rank], path), 1)

    def run(self, out):
        self.out = out
        chosen = self.o.lines
        # Named and marked as a cluster's work directory is, so that the next cluster removes what
        # a SIGKILL leaves behind.
        work = tempfile.mkdtemp(prefix=cluster_lib.PREFIX)
        with open(os.path.join(work, "owner"), "w", encoding="ascii") as f:
            f.write(str(os.getpid()))
        self.ballast = machine.Ballast(os.path.join(work, "ballast"),
                                       int(4.4 * self.size) + 256 * MIB, self.o.reserve_mib * MIB)
        try:
            self.ballast.fill()
            if {"plain", "restore", "restore-lost", "idle"} & set(chosen):
                self.crossing("plain", False, chosen)
            if "encrypted" in chosen:
                self.crossing("encrypted", True, ())
            for value_mib in (32, 4):
                if f"orbax-{value_mib}" in chosen:
                    self.orbax(value_mib)
        finally:
            self.ballast.close()
            shutil.rmtree(work)
        return self.rows


def parse(argv):
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--binary", default=os.path.join(ROOT, "build/release/src/tierkeep"))
    p.add_argument("--hash-pass", default=os.path.join(ROOT, "build/release/bench/hash_pass"))
    p.add_argument("--python", help="interpreter with Orbax, for the orbax lines")
    p.add_argument("--lines", default=",".join(LINES), help="which, of " + ",".join(LINES))
    p.add_argument("--runs", type=int, default=10, help="timed runs a line, after one warm-up")
    p.add_argument("--size-mib", type=int, default=1024, help="local checkpoint of each node")
    p.add_argument("--iperf-seconds", type=int, default=1)
    p.add_argument("--idle-seconds", type=float, default=60)
    p.add_argument("--reserve-mib", type=int, default=1500, help="memory left free and cold")
    p.add_argument("--logs", help="copy the agents' logs into this directory")
    p.add_argument("--out", help="raw results (default: bench/results/DATE.jsonl)")
    p.add_argument("--report", help="only print the table of this result file")
    o = p.parse_args(argv)
    o.lines = o.lines.split(",")
    if unknown := set(o.lines) - set(LINES):
        p.error(f"unknown lines: {', '.join(sorted(unknown))}")
    if not o.python and any(x.startswith("orbax") for x in o.lines) and not o.report:
        p.error("the orbax lines need --python")
    return o


def head(o):
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                          capture_output=True, text=True)
    return {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": os.environ.get("TIERKEEP_BENCH_COMMAND", shlex.join(sys.argv)),
            "commit": done.stdout.strip() or "unknown", "machine": machine.describe(),
            "nodes": NODES, "size_mib": o.size_mib, "runs": o.runs, "huge": "within_size",
            "iperf3": "-P 4, one way and --bidir"}


def main(argv):
    o = parse(argv)
    if o.report:
        with open(o.report, encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        return report.show(rows[0]["head"], rows[1:])
    cluster_lib.exit_on_signals()
    if shutil.which("iperf3") is None:
        sys.exit("bench: iperf3 is not installed: scripts/deps.sh")
    priority = machine.CpuPriority()
    facts = head(o) | {"cpu_priority": priority.got}
    out = o.out or os.path.join(HERE, "results", facts["date"][:16].replace(":", "") + ".jsonl")
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    try:
        with open(out, "w", encoding="utf-8") as f:
            f.write(json.dumps({"head": facts}) + "\n")
            rows = Bench(o).run(f)
    finally:
        priority.close()
    status = report.show(facts, rows)
    print(f"raw results: {os.path.relpath(out)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
