"""Nodes in network namespaces of their own, each behind a port of one bridge, so that a test can drop,
slow or unplug a node's link as a switch would. Nothing of the machine's own network is touched, and all
of it is gone after close().
"""

import os
import secrets
import shutil
import subprocess


def run(*argv):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def why_not():
    """None where namespaces can be made; else the reason, in one line."""
    for tool in ("ip", "bridge", "tc", "nsenter"):
        if shutil.which(tool) is None:
            return f"network namespaces need the program {tool} (packages iproute2, util-linux)"
    try:
        Net(1).close()
    except OSError as error:
        return f"network namespaces aren't permitted here: {error}"
    return None


class Net:
    """`count` namespaces, 10.77.0.1 and so on, and one more that is the switch."""

    def __init__(self, count):
        tag = f"tk{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{tag}-sw"
        self._names = [f"{tag}-n{i}" for i in range(count)]
        self._made = []
        try:
            for name in (self._switch, *self._names):
                run("ip", "netns", "add", name)
                self._made.append(name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self._switch, "link", "set", "br0", "up")
            for i, name in enumerate(self._names):
                run("ip", "-n", self._switch, "link", "add", f"p{i}", "type", "veth",
                    "peer", "name", "eth0", "netns", name)
                run("ip", "-n", self._switch, "link", "set", f"p{i}", "master", "br0", "up")
                run("ip", "-n", name, "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                run("ip", "-n", name, "link", "set", "eth0", "up")
        except BaseException:
            self.close()
            raise

    def address(self, i):
        return f"10.77.0.{i + 1}"

    def put(self, node):
        """For the node's next start: its agent lives in the namespace of its index."""
        node.launcher = ["nsenter", f"--net=/run/netns/{self._names[node.index]}", "--"]
        node.settings["advertise"] = self.address(node.index)

    def drop(self, i, on):
        """Every packet of node i is lost on the way, silently."""
        run("bridge", "-n", self._switch, "link", "set", "dev", f"p{i}",
            "state", "0" if on else "3")

    def unplug(self, i, on):
        """As if somebody pulled the cable: the node sees its link go."""
        run("ip", "-n", self._switch, "link", "set", f"p{i}", "down" if on else "up")

    def slow(self, i, mbit):
        """What node i sends goes out at so many Mbit/s; None: at full speed again."""
        if mbit is None:
            run("tc", "-n", self._names[i], "qdisc", "del", "dev", "eth0", "root")
        else:
            run("tc", "-n", self._names[i], "qdisc", "replace", "dev", "eth0", "root", "tbf",
                "rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms")

    def close(self):
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        self._made = []
