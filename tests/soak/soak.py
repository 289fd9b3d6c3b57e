#!/usr/bin/env python3
"""soak.py [--minutes N] [--seed N] [--nodes N]: a job that saves and restarts on real agents, with one
random fault after the other, for as long as is said.

What must hold, whatever happens: a save that was made while its nodes are there is committed in the
end; a restart gives every rank exactly the bytes of the newest committed save or of a newer one that is
whole; no agent ends by itself; the job is never told that it can't start. Ends at the first time that
doesn't hold, with exit status 1; the agents' logs are then in build/soak. The seed decides which fault
comes when; what the machine's timing makes of it differs from run to run.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/e2e")]

import netns  # noqa: E402
from scripted_job import MIB, Job, data_files, shards  # noqa: E402
from tierkeep_demo import bitflip  # noqa: E402
from tierkeep_demo import cluster as cluster_lib  # noqa: E402

LIMIT = 150  # seconds for anything to come right again
MEGABYTES = 2


class Violation(Exception):
    pass


class Soak:
    def __init__(self, cluster, net, seed):
        self.cluster, self.net = cluster, net
        self.draw = random.Random(seed)
        self.job = Job(cluster, seed, megabytes=MEGABYTES)
        self.step = 0
        self.counts = collections.Counter()
        self.faults = collections.Counter()
        self.recovery = collections.defaultdict(list)  # seconds, by fault
        self.steps = subprocess.run([cluster.binary, "agent", "--list-steps"], check=True,
                                    capture_output=True, text=True).stdout.split()
        self.may_crash = set()  # nodes whose agents were told to end at a step
        cluster.on_death = self._died
        self.kinds = ["none", "none", "kill", "kill at a step", "terminate", "freeze", "power cut",
                      "bit flip", "no space", "no rendezvous"]
        if net is not None:
            self.kinds += ["silent link", "unplugged", "slow link"]

    # ---- what the faults are made of

    def _died(self, node, code):
        if node not in self.may_crash or code != -signal.SIGKILL:
            return False
        self.may_crash.discard(node)
        node.settings.pop("crash-before", None)
        self.counts["agents ended at a step"] += 1
        node.start()
        return True

    def wait(self, condition, what):
        self.cluster.wait_for_agents(condition, LIMIT, what)

    def up(self, node):
        node.start()
        self.wait(node.status, f"{node.name} to be up")

    def pause(self, most=0.4):
        time.sleep(self.draw.uniform(0, most))

    def kill(self, node):
        if node.agent is not None and node.agent.poll() is not None:
            code, node.agent = node.agent.returncode, None
            if not self._died(node, code):
                raise Violation(f"{node.name}: the agent ended with {code}\n{node.tail()}")
        node.kill()

    # Each: breaks something, waits a moment, and makes it good again.

    def kill_(self, node):
        for other in self.draw.sample(self.cluster.nodes, self.draw.randint(0, 1)):
            if other is not node:
                self.kill(other)
                self.up(other)
        self.kill(node)
        self.pause()
        self.up(node)

    def kill_at_a_step(self, node):
        self.kill(node)
        self.may_crash.add(node)
        node.settings["crash-before"] = f"{self.draw.choice(self.steps)}:{self.draw.randint(1, 6)}"
        self.up(node)

    def terminate(self, node):
        code = node.terminate()
        if code != 0 and not (code == -signal.SIGKILL and node in self.may_crash):
            raise Violation(f"{node.name}: SIGTERM ended the agent with {code}\n{node.tail()}")
        self.pause()
        self.up(node)

    def freeze(self, node):
        node.agent.send_signal(signal.SIGSTOP)
        self.pause(3)
        node.agent.send_signal(signal.SIGCONT)

    def power_cut(self, node):
        self.kill(node)
        node.wipe_ram()
        self.up(node)

    def bit_flip(self, node):
        held = sorted(shards(node, self.job.saved))
        paths = [p for digest in held for p in data_files(node, digest)]
        if paths:
            bitflip.flip_bit_in_file(self.draw.choice(paths), self.draw.randrange(1 << 30))

    def no_space(self, node):
        space = os.statvfs(node.mount)
        ballast = os.path.join(node.mount, "ballast")
        free = space.f_bavail * space.f_frsize
        with open(ballast, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, max(1, free - int(1.3 * MEGABYTES * MIB)))
        try:
            self.pause(2)
        finally:
            os.unlink(ballast)

    def no_rendezvous(self, _):
        away = self.cluster.rendezvous + ".away"
        os.rename(self.cluster.rendezvous, away)
        self.pause(3)
        if os.path.isdir(self.cluster.rendezvous):
            shutil.rmtree(self.cluster.rendezvous)
        os.rename(away, self.cluster.rendezvous)

    def silent_link(self, node):
        self.net.drop(node.index, True)
        self.pause(5)
        self.net.drop(node.index, False)

    def unplugged(self, node):
        self.net.unplug(node.index, True)
        self.pause(5)
        self.net.unplug(node.index, False)

    def slow_link(self, node):
        self.net.slow(node.index, self.draw.choice([2, 10, 50]))
        self.pause(3)
        self.net.slow(node.index, None)

    def none(self, _):
        pass

    # ---- the job

    def write(self):
        self.step += 1
        self.job.write(self.step)
        self.counts["saves"] += 1

    def committed(self, node):
        return (node.status()["tiers"]["committed"] or 0) >= self.step

    def wait_committed(self):
        self.wait(lambda: all(self.committed(n) for n in self.cluster.nodes),
                  f"step {self.step} to be committed")
        self.job.saved = self.step
        self.counts["commits"] += 1

    def begin(self):
        ranks = list(range(len(self.cluster.nodes)))
        if self.draw.random() < 0.3:
            self.draw.shuffle(ranks)
        return self.job.begin(ranks=ranks, limit=LIMIT)

    def finish(self, started):
        self.wait(lambda: all(run.done() for run in started.runs), "the job to start")
        step = started()
        if step not in {self.job.saved, self.step or None}:
            raise Violation(f"restored step {step}, but step {self.job.saved} was committed")
        if step is not None:
            self.job.check_restored(step)
            self.counts["restores"] += 1
        self.job.saved, self.step = step, max(self.step, step or 0)

    def round(self):
        kind = self.draw.choice(self.kinds)
        node = self.draw.choice(self.cluster.nodes)
        fault = getattr(self, {"kill": "kill_"}.get(kind, kind.replace(" ", "_")))
        self.faults[kind] += 1
        moment = self.draw.choice(["saving", "restarting", "saving, then restarting"])
        self.counts["rounds"] += 1
        # Data may be lost or damaged only once the newest save has its copies.
        destroys = kind in ("power cut", "bit flip")
        if moment == "restarting":
            self.pause()
            started = None if destroys else self.begin()
            fault(node)
            begun = time.monotonic()
            self.finish(started or self.begin())
        else:
            self.write()
            if destroys:
                self.wait_committed()
            self.pause()
            fault(node)
            begun = time.monotonic()
            if moment == "saving":
                self.wait_committed()
            else:
                self.finish(self.begin())
        self.recovery[kind].append(time.monotonic() - begun)
        # From here on there are two good copies of everything again.
        if destroys and moment == "saving":
            self.finish(self.begin())
        self.write()
        self.wait_committed()

    def report(self, seed, seconds, violations):
        return {
            "seed": seed, "seconds": round(seconds), "nodes": len(self.cluster.nodes),
            **self.counts, "violations": violations, "faults": dict(sorted(self.faults.items())),
            "longest_recovery_seconds": {k: round(max(v), 1)
                                         for k, v in sorted(self.recovery.items())}}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--binary", default=str(ROOT / "build/release/src/tierkeep"))
    return parser.parse_args()


def main():
    options = parse()
    cluster_lib.exit_on_signals()
    print(f"soak: seed {options.seed}, {options.nodes} nodes, {options.minutes:g} minutes", flush=True)
    reason = netns.why_not()
    if reason:
        print(f"soak: without faults of links: {reason}", flush=True)
    net = None if reason else netns.Net(options.nodes)
    violations = 0
    begun = time.monotonic()
    try:
        with cluster_lib.Cluster(options.nodes, options.binary, ram_mib=64) as cluster:
            if net is not None:
                for node in cluster.nodes:
                    net.put(node)
            soak = Soak(cluster, net, options.seed)
            try:
                cluster.start()
                soak.finish(soak.begin())
                told = begun
                while time.monotonic() < begun + 60 * options.minutes:
                    soak.round()
                    if time.monotonic() > told + 30:
                        told = time.monotonic()
                        print(f"soak: {told - begun:.0f} s, {dict(soak.counts)}", flush=True)
            except Exception:  # whatever it is, it is what the soak is there to find
                violations = 1
                traceback.print_exc()
                logs = ROOT / "build/soak"
                cluster.collect_logs(str(logs))
                print(f"soak: the agents' logs are in {logs}; again: make soak SEED={options.seed}")
            print(json.dumps(soak.report(options.seed, time.monotonic() - begun, violations),
                             indent=2))
    finally:
        if net is not None:
            net.close()
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
