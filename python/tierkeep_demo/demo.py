"""A real training run loses a machine and goes on, bit for bit.

Runs the same training twice on a few nodes of this machine: once undisturbed, and once with a
node lost in the middle: its training process and its agent killed, its RAM wiped. The job starts
again, gets its newest checkpoint back and runs to the end. Then the two final states are compared
byte by byte, and everything that the result rests on is checked.

Exit code: 0 identical, 1 not identical, 3 the run could not prove anything, 2 bad usage,
130 interrupted.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time

from tierkeep_demo import cluster as cluster_lib
from tierkeep_demo import job as job_lib
from tierkeep_demo import proof
from tierkeep_demo import scenario as scenario_lib
from tierkeep_demo import status as status_lib
from tierkeep_demo import terminal as terminal_lib
from tierkeep_demo import volume_watch
from tierkeep_demo.terminal import megabytes
from tierkeep_demo.terminal import seconds

IDENTICAL, DIFFERENT, UNPROVEN, INTERRUPTED = 0, 1, 3, 130
RUN_LIMIT_SECONDS = 240
JOB = "demo"


def parse(argv):
    p = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    p.add_argument("--torch", action="store_true", help="the PyTorch run instead of the JAX run")
    p.add_argument("--negative", action="store_true",
                   help="flip one bit of the restored state: the comparison must then say no")
    p.add_argument("--seed", type=int, default=7, help="chooses the node, the step and the bit")
    p.add_argument("--quick", action="store_true", help="a shorter run")
    p.add_argument("--keep", action="store_true", help="keep logs and final states")
    p.add_argument("--binary", default=os.environ.get("TIERKEEP_BIN", os.path.join(
        os.path.dirname(job_lib.PYTHON_ROOT), "build/release/src/tierkeep")))
    return p.parse_args(argv)


class Follower:
    """Shows a job's events as they come, one line for what all ranks do together."""

    def __init__(self, screen, scenario, cluster, job):
        self.screen, self.scenario, self.cluster, self.job = screen, scenario, cluster, job
        self.step = 0
        self.saved = {}  # save name -> time of the last rank's save
        self.committed = set()
        self._counts = {}

    def __call__(self, events):
        for worker, event in events:
            self._event(worker, event)
        if not self.step:
            self.screen.progress(0, self.scenario.steps, "importing, joining, compiling")
        self._commits()

    def _everyone(self, key):
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] == len(self.job.workers)

    def _event(self, worker, event):
        kind, screen = event["event"], self.screen
        if kind == "initialized" and self._everyone(kind):
            screen.event(f"the job's {event['processes']} processes are up", event["t"])
        elif kind == "restored" and self._everyone(kind):
            if event["latest_step"] is None:
                screen.event("no checkpoint: training starts from step 0", event["t"])
            else:
                screen.event(f"all ranks restored checkpoint {event['latest_step']}; training "
                             f"goes on after step {event['step']}", event["t"], "good")
        elif kind == "flipped" and self._everyone_once(kind):
            screen.event(f"negative control: flipped bit {event['bit']} of element "
                         f"{event['element']} of {event['leaf']}", event["t"], "bad")
        elif kind == "step":
            if event["step"] > self.step:
                self.step = event["step"]
                self._progress(event["loss"])
        elif kind == "save":
            self.saved.setdefault(event["step"], 0)
            self.saved[event["step"]] = max(self.saved[event["step"]], event["t"])
        elif kind == "finished" and self._everyone(kind):
            screen.event(f"training finished at step {event['step']}", event["t"])

    def _progress(self, loss):
        newest = max(self.committed, default="none")
        self.screen.progress(
            self.step, self.scenario.steps,
            f"step {self.step}/{self.scenario.steps}  loss {loss:.3f}  committed {newest}")

    def _everyone_once(self, key):
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key] == 1

    def _commits(self):
        logged = [set(n.committed_steps()) for n in self.cluster.nodes]
        for step in sorted(set.intersection(*logged) - self.committed):
            self.committed.add(step)
            if step in self.saved:
                self.screen.event(f"checkpoint {step} replicated globally, says every "
                                  "node")

    def newest_save_committed(self):
        return bool(self.saved) and max(self.saved) in self.committed


class Demo:
    """One run of the program; `home` has the logs and final states of both trainings."""

    def __init__(self, options, home):
        self.options, self.home = options, home
        self.screen = terminal_lib.Terminal()
        self.scenario = scenario_lib.choose("torch" if options.torch else "jax", options.quick)
        self.misfortune = scenario_lib.draw_misfortune(self.scenario, options.seed)
        self.stubs = None

    def cluster(self, name):
        cluster = cluster_lib.Cluster(self.scenario.nodes, self.options.binary)
        cluster.keep_logs_in = os.path.join(self.home, name, "agents")
        return cluster

    def start_agents(self, cluster):
        cluster.start()
        kind = "tmpfs" if cluster.mounted else "a directory in /dev/shm"
        self.screen.event(f"{len(cluster.nodes)} agents are ready, each with a RAM volume ({kind})")

    def start_job(self, cluster, name, flip_seed=None):
        run = name.split("-")[0]
        job = job_lib.Job(
            cluster, name, os.path.join(self.home, run), self.scenario.framework,
            self.scenario.arguments(JOB, 1, os.path.join(self.home, run, "final"), flip_seed),
            stubs=self.stubs)
        return job, Follower(self.screen, self.scenario, cluster, job)

    # ---- the two trainings

    def undisturbed(self):
        self.screen.heading("1  The undisturbed run")
        self.screen.start()
        with self.cluster("undisturbed") as cluster:
            self.start_agents(cluster)
            job, follower = self.start_job(cluster, "undisturbed")
            job.wait(RUN_LIMIT_SECONDS, on_events=follower)
        return job

    def disturbed(self):
        self.screen.heading("2  The same run, and a node is lost")
        self.screen.start()
        facts = {}
        with self.cluster("disturbed") as cluster:
            self.start_agents(cluster)
            job, follower = self.start_job(cluster, "disturbed-first")
            self._train_until_lost(job, follower)
            self._lose_node(cluster, job, facts)
            again = self._restart(cluster, facts)
            facts["pulled_in_all"] = facts["pulled_before"] + sum(
                status_lib.bytes_pulled(n.status()) for n in cluster.nodes)
        return again, facts

    def _train_until_lost(self, job, follower):
        """Until the chosen step is done and the newest save is committed on all nodes."""
        end = time.monotonic() + RUN_LIMIT_SECONDS
        while follower.step < self.misfortune.step or not follower.newest_save_committed():
            follower(job.poll())
            if not job.running() or time.monotonic() > end:
                raise job_lib.JobError(
                    "the run ended before a node could be lost with its newest save committed")
            time.sleep(0.005)

    def _lose_node(self, cluster, job, facts):
        node = cluster.nodes[self.misfortune.node]
        before = [status_lib.bytes_pulled(n.status()) for n in cluster.nodes]
        job.kill([node])
        node.kill()
        lost_bytes = node.ram_used()
        node.wipe_ram()
        killed_at = time.time()
        for worker in job.workers:
            worker.log.read()
        facts |= {
            "node": node, "leftover": node.ram_used(), "lost_bytes": lost_bytes,
            "step": max(e["step"] for e in job.events("step")),
            "committed": max(s for n in cluster.nodes for s in n.committed_steps()),
            "pulled_before": before[self.misfortune.node], "killed_at": killed_at}
        self.screen.event(
            f"{node.name} is lost: training process and agent killed, {megabytes(lost_bytes)} of "
            f"RAM gone, after step {facts['step']}", killed_at, "bad")
        job.kill()
        self.screen.event("the job's other processes are ended, as a scheduler does")

    def _restart(self, cluster, facts):
        node = facts["node"]
        node.start()
        node.wait_ready()
        self.screen.event(f"{node.name} is back with an empty RAM; its agent is ready")
        # The lost node's agent may fetch copies before the job is back: all that it pulls counts.
        before = {n: 0 if n is node else status_lib.bytes_pulled(n.status())
                  for n in cluster.nodes}
        watches = {n: volume_watch.VolumeWatch(n.volume) for n in cluster.nodes}
        try:
            job, follower = self.start_job(
                cluster, "disturbed-second",
                self.options.seed if self.options.negative else None)
            self.screen.event("the job starts again")
            facts["job_started"] = job.started

            def on_events(events):
                follower(events)
                if "restored_size" not in facts and len(job.events("restored")) == len(
                        job.workers):
                    facts["pulled"] = {n: status_lib.bytes_pulled(n.status()) - before[n]
                                       for n in cluster.nodes}
                    facts["restored_size"] = _restored_size(node)
                    status = node.status()
                    facts["pulled_to_restore"] = status_lib.bytes_pulled_to_restore(status)
                    facts["agent_seconds"] = status_lib.restore_seconds(status)

            job.wait(RUN_LIMIT_SECONDS, on_events=on_events)
        finally:
            for watch in watches.values():
                watch.close()
        facts["phases"] = _phases(job, list(watches.values()))
        return job

    # ---- the verdict

    def judge(self, again, facts):
        """Prints the table and returns the exit code."""
        scenario = self.scenario
        resumed, first = proof.check_resume(scenario, again, facts["committed"])
        checks = [first]
        if resumed is not None:
            checks.append(proof.check_steps(scenario, again, resumed))
        checks += [proof.check_wiped(facts["leftover"], facts["restored_size"]),
                   proof.check_pulled(facts["pulled"][facts["node"]], facts["restored_size"])]
        if self.options.negative:
            checks.append(proof.check_flipped(again))
        same = proof.compare_runs(*(os.path.join(self.home, x, "final")
                                    for x in ("undisturbed", "disturbed")), scenario.nodes)
        self.screen.heading("3  The result")
        self.screen.table(self._rows(resumed, facts, same))
        self.screen.line(self.screen.dim("  * the client looks once a second; reading is its own "
                                         "work"))
        for check in checks:
            self.screen.line(f"  {self.screen.mark(check.holds)} {check.claim} "
                             + self.screen.dim(f"({check.detail})"))
        if not all(c.holds for c in checks):
            self.screen.line(self.screen.bad("  nothing is proven: a claim above does not hold"))
            return UNPROVEN
        self._verdict(same)
        return IDENTICAL if same.identical else DIFFERENT

    def _rows(self, resumed, facts, same):
        scenario, node = self.scenario, facts["node"]
        redone = facts["step"] - scenario.steps_done(resumed) if resumed is not None else "?"
        rows = [("node lost", f"{node.name}, after step {facts['step']} of {scenario.steps} "
                              f"(seed {self.options.seed})"),
                ("last committed checkpoint", str(facts["committed"])),
                ("resumed from checkpoint", str(resumed)),
                ("steps lost and run again", str(redone)), None]
        rows += [(name, seconds(value)) for name, value in facts["phases"]]
        rows += [("lost node: decided, had it, linked it", " / ".join(
            "?" if x is None else seconds(x) for x in facts["agent_seconds"]))]
        rows += [None, ("moved to the lost node once it was back", megabytes(facts["pulled"][node])),
                 ("of that, while the job waited", megabytes(facts["pulled_to_restore"])),
                 ("moved to all others meanwhile",
                  megabytes(sum(v for n, v in facts["pulled"].items() if n is not node))),
                 ("moved between nodes in the whole run", megabytes(facts["pulled_in_all"])),
                 None,
                 ("weights and optimizer state", f"{megabytes(same.bytes_compared)}: "
                  f"{same.leaves} arrays on {scenario.nodes} ranks, byte by byte")]
        return rows

    def _verdict(self, same):
        screen = self.screen
        screen.line()
        answer = screen.good("yes") if same.identical else screen.bad("no")
        screen.line("  " + screen.bold("final weights identical to the undisturbed run: ") + answer)
        if not same.identical:
            shown = ", ".join(same.different[:3])
            more = len(same.different) - 3
            screen.line(f"  {len(same.different)} of {same.leaves} arrays differ: {shown}"
                        + (f" and {more} more" if more > 0 else ""))

    def run(self):
        screen = self.screen
        screen.line(screen.bold("Tierkeep: a training run loses a machine and goes on"))
        screen.line("  " + self.scenario.title)
        screen.line("  " + self.scenario.note)
        if self.options.torch:
            from tierkeep_demo import cuda_stubs
            self.stubs = cuda_stubs.ensure()
        self.undisturbed()
        again, facts = self.disturbed()
        return self.judge(again, facts)


def _restored_size(node):
    """Bytes of file data behind the restored link in a node's volume."""
    total = 0
    for entry in os.scandir(node.volume):
        if entry.is_symlink():
            for where, _, names in os.walk(os.path.realpath(entry.path)):
                total += sum(os.path.getsize(os.path.join(where, n)) for n in names)
    return total


def _phases(job, watches):
    """[(phase, seconds)]: each ends when the last node has got so far."""
    def last(key):
        return max((w.times[key] for w in watches if key in w.times), default=float("nan"))

    written, gone, link = last("yaml_written"), last("yaml_gone"), last("link")
    restored = max(e["t"] for e in job.events("restored"))
    return [("job start to the last replicator.yaml", written - job.started),
            ("restore: to the last yaml's removal", gone - written),
            ("restore: to the links on all nodes", link - gone),
            ("restore: to the state in the client*", restored - link)]


def main(argv=None):
    options = parse(argv)
    cluster_lib.exit_on_signals()
    home = tempfile.mkdtemp(prefix="tierkeep-demo-logs-")
    code, demo = UNPROVEN, Demo(options, home)
    try:
        code = demo.run()
    except (KeyboardInterrupt, SystemExit):  # SystemExit: another signal (exit_on_signals)
        demo.screen.line("interrupted")
        code = INTERRUPTED
    except (cluster_lib.ClusterError, job_lib.JobError, OSError) as error:
        demo.screen.line(demo.screen.bad(str(error)))
    finally:
        demo.screen.clear()
        if options.keep or code == UNPROVEN:
            demo.screen.line(f"  logs and states: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
