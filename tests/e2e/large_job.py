"""A job of many nodes on one machine: a real agent coordinates it as rank 0, and one process
(tests/load) plays all the other members, each on a TCP connection of its own.
"""

import json
import os
import pathlib
import resource
import subprocess

from tierkeep_demo import volume as volume_lib

JOB = "large"
SPARE_FILES = 300  # beyond the connections


def why_not(nodes):
    """None where so many connections can be had; else the reason, in one line."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < nodes + SPARE_FILES:
        return f"{nodes} connections need {nodes + SPARE_FILES} open files a process; {hard} are allowed"
    return None


class LargeJob:
    """On the first node of a cluster; a context manager."""

    def __init__(self, cluster, nodes, data, limit=120):
        self.cluster, self.nodes, self.data, self.limit = cluster, nodes, data, limit
        self.node = cluster.nodes[0]
        self.volume = None
        program = pathlib.Path(cluster.binary).parents[1] / "tests/load/job_members"
        assert os.access(program, os.X_OK), f"no program at {program}: run `make build`"
        command = [program, "--job", JOB, "--nodes", nodes, "--limit-seconds", limit,
                   "--port", self.node.status()["network"]["control_port"]]
        if "tls-dir" in self.node.settings:
            command += ["--tls-dir", self.node.settings["tls-dir"]]
        self.members = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.members.stdin.close()
        self.members.kill()
        self.members.wait()
        self.members.stdout.close()

    def _all(self, command):
        """All members do it; returns their report."""
        self.members.stdin.write(command + "\n")
        self.members.stdin.flush()
        line = self.members.stdout.readline()
        assert line, f"the members gave up: {command}\n{self.node.tail()}"
        return json.loads(line)

    def start(self):
        """Every process of the job starts; returns the restored step, and the members' report."""
        self.volume = volume_lib.TorchVolume(self.node.volume, poll=0.005, limit=self.limit)
        self.volume.configure(JOB, 0, self.nodes, peers_per_node=None, peer_ranks=[1])
        self.cluster.wait_for(
            lambda: self.node.status()["coordinator"] and self.node.status()["phase"] == "joining",
            30, "rank 0 to coordinate")
        report = self._all("join")
        self.volume.wait_released()
        return self.volume.wait_restored(), report

    def save(self, step):
        """All save; returns once rank 0's node, too, knows that it's committed."""
        with self.volume.save(step) as path:
            for name, data in self.data(step).items():
                with open(os.path.join(path, name), "wb") as f:
                    f.write(data)
        report = self._all(f"save {step}")
        self.cluster.wait_committed(step, self.limit)
        return report
