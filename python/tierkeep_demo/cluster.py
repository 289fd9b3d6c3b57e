"""A few Tierkeep agents on one machine, each with a RAM volume of its own.

A `Cluster` owns everything it makes: work directory, tmpfs mounts, processes. All of it is gone
after `close()`, which also runs when the interpreter exits or a signal ends the program; what a
SIGKILL left behind is removed by the next cluster that starts.

Not thread-safe, and processes must be started from the main thread: they are tied to its life.
"""

import atexit
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PREFIX = "tierkeep-"
# How many times slower than idle the machine may be: deadlines only end what hangs.
SLOWEST = 3
COMMITTED = re.compile(r"All files were replicated globally for step (\d+)")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent():
    """For `preexec_fn`: the child gets SIGKILL when the thread that started it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_on_signals():
    """Turns SIGTERM and SIGHUP into an ordinary exit, so that everything is cleaned up."""

    def leave(number, _frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def free_port():
    """A TCP port of the loopback interface that nobody listened on a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ClusterError(RuntimeError):
    """An agent did not do what it promised; the text says which, with the end of its log."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Node:
    """One machine of the cluster: a RAM volume and the agent that looks after it."""

    def __init__(self, cluster, index):
        self.cluster = cluster
        self.index = index
        self.name = f"node{index}"
        self.home = os.path.join(cluster.work, f"n{index}")
        os.makedirs(self.home)
        self.mount = os.path.join(self.home, "ram")
        self.state_dir = os.path.join(self.home, "state")
        self.admin = os.path.join(self.home, "admin.sock")
        self.log_path = os.path.join(self.home, "agent.log")
        self.output_path = os.path.join(self.home, "agent.out")
        self.agent = None
        self.ram_mib = cluster.ram_mib  # holds from the next wipe on
        self.launcher = []  # a command that becomes the agent: into a network namespace, say
        # Flags of the agent, for its next start; None for a switch.
        self.settings = {
            "mount": None, "state-dir": self.state_dir, "node-name": self.name,
            "rendezvous": f"file:{cluster.rendezvous}", "advertise": "127.0.0.1",
            "control-port": "0", "data-port": "0", "admin": self.admin,
            "metrics": "127.0.0.1:0", "log-file": self.log_path, "insecure": None
        }
        os.makedirs(self.state_dir)
        self._make_ram()

    @property
    def volume(self):
        """The directory that the training job sees."""
        return os.path.join(self.mount, "client")

    @property
    def store(self):
        """The agent's own directory on the same mount."""
        return os.path.join(self.mount, "store")

    # ---- RAM

    def _make_ram(self):
        if self.cluster.mounted is not False:
            os.makedirs(self.mount, exist_ok=True)
            size = f"size={self.ram_mib}m,mode=0755"
            for options in (size + ",huge=within_size", size):
                done = subprocess.run(
                    ["mount", "-t", "tmpfs", "-o", options, "tierkeep", self.mount],
                    capture_output=True)
                if done.returncode == 0:
                    self.cluster.mounted = True
                    break
            else:
                if self.cluster.mounted:
                    raise ClusterError("mount: " + done.stderr.decode().strip())
                self.cluster.mounted = False
                os.rmdir(self.mount)
        if not self.cluster.mounted:
            self.mount = os.path.join("/dev/shm", os.path.basename(self.cluster.work), self.name)
        self.settings["mount"] = self.mount
        os.makedirs(self.volume)
        os.makedirs(self.store)

    def _drop_ram(self):
        if self.cluster.mounted:
            _unmount(self.mount)
        else:
            remove_tree(self.mount)

    def wipe_ram(self):
        """What a power cut does: everything in the node's RAM is gone. The agent must be dead."""
        assert self.agent is None, "wiping the RAM under a running agent"
        self._drop_ram()
        self._make_ram()

    def lose_and_return(self):
        """The agent is killed, the RAM is gone, and an agent starts there again."""
        self.kill()
        self.wipe_ram()
        self.start()
        self.wait_ready()

    def ram_used(self):
        """Bytes of file data on the mount now."""
        used = 0
        for where, _, names in os.walk(self.mount):
            for name in names:
                try:
                    used += os.lstat(os.path.join(where, name)).st_size
                except FileNotFoundError:
                    pass
        return used

    # ---- agent

    def command(self):
        flags = []
        for name, value in self.settings.items():
            flags += [f"--{name}"] if value is None else [f"--{name}", str(value)]
        return [*self.launcher, self.cluster.binary, "agent", *flags, *self.cluster.agent_options]

    def start(self):
        """Starts the agent and does not wait for it."""
        assert self.agent is None
        if os.path.exists(self.admin):
            os.unlink(self.admin)  # left by a killed agent; would look like a live one
        with open(self.output_path, "ab") as out:
            self.agent = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=die_with_parent)

    def wait_ready(self, seconds=30.0):
        """Returns once the admin socket answers."""
        end = time.monotonic() + seconds * SLOWEST
        while True:
            try:
                return self.status()
            except (OSError, http.client.HTTPException, ValueError) as error:
                last = error
            if self.agent is None or self.agent.poll() is not None:
                code = None if self.agent is None else self.agent.returncode
                raise ClusterError(f"{self.name}: the agent ended with {code}\n{self.tail()}")
            if time.monotonic() > end:
                raise ClusterError(
                    f"{self.name}: no answer on {self.admin} within {seconds * SLOWEST:.0f} s "
                    f"({last})\n"
                    f"{self.tail()}")
            time.sleep(0.02)

    def kill(self):
        """SIGKILL, and gone when this returns."""
        if self.agent is not None:
            _kill_group(self.agent)
            self.agent = None

    def terminate(self, seconds=20.0):
        """SIGTERM; returns the exit code, or None when it had to be killed."""
        if self.agent is None:
            return None
        self.agent.send_signal(signal.SIGTERM)
        try:
            code = self.agent.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        return code

    def status(self, timeout=30.0):
        """The agent's own account of itself: `GET /v1/status`."""
        return json.loads(self._get("/v1/status", timeout))

    def metric(self, name, timeout=30.0):
        """The value of a metric without labels."""
        text = self._get("/metrics", timeout).decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    def _get(self, path, timeout):
        connection = _UnixConnection(self.admin, timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise ClusterError(f"{self.name}: {path}: {answer.status}: {body[:300]!r}")
            return body
        finally:
            connection.close()

    # ---- log

    def log(self):
        """The agent's whole log so far, over all its lives."""
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def tail(self, lines=25):
        text = self.log()
        if not text:
            with open(self.output_path, encoding="utf-8", errors="replace") as f:
                text = f.read()
        return "\n".join(f"  {self.name}| {x}" for x in text.splitlines()[-lines:])

    def committed_steps(self):
        """Steps that this node's log calls replicated globally, in the order it said so."""
        return [int(x) for x in COMMITTED.findall(self.log())]


class Cluster:
    """N nodes; use as a context manager."""

    def __init__(self, count, binary, ram_mib=2048, agent_options=(), allow_mount=True):
        if not os.access(binary, os.X_OK):
            raise ClusterError(f"no program at {binary}: run `make build` first")
        remove_leftovers()
        self.binary = os.path.abspath(binary)
        self.ram_mib = ram_mib
        self.agent_options = list(agent_options)
        self.mounted = None if allow_mount else False
        self.work = tempfile.mkdtemp(prefix=PREFIX)  # short: a socket's path has 107 bytes at most
        with open(os.path.join(self.work, "owner"), "w", encoding="utf-8") as f:
            f.write(str(os.getpid()))
        self.rendezvous = os.path.join(self.work, "rendezvous")
        self.keep_logs_in = None
        # Called with a node whose agent has ended while wait_for() waits, and its exit code; true
        # when that is taken care of. Otherwise it is an error.
        self.on_death = lambda node, code: False
        self.processes = []
        self.nodes = []
        self._open = True
        atexit.register(self.close)
        try:
            os.makedirs(self.rendezvous)
            for index in range(count):
                self.nodes.append(Node(self, index))
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start(self, seconds=30.0):
        """Starts all agents; returns when all are ready."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_ready(seconds)
        return self

    def spawn(self, argv, log_path, env):
        """Starts a process that dies with this program and is killed by `close()`."""
        with open(log_path, "ab") as out:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                start_new_session=True, preexec_fn=die_with_parent)
        self.processes.append(process)
        return process

    def kill_process(self, process):
        _kill_group(process)
        if process in self.processes:
            self.processes.remove(process)

    def wait_committed(self, step, seconds=60.0, nodes=None):
        """Returns once every node has logged that `step` is replicated globally."""
        self.wait_for(
            lambda: all(step in n.committed_steps() for n in nodes or self.nodes), seconds,
            f"step {step} to be replicated globally")

    def wait_for(self, condition, seconds, what):
        """Polls `condition` until it holds; a dead agent is an error, and so is a condition that
        doesn't hold after `seconds` of a machine that has nothing else to do."""
        end = time.monotonic() + seconds * SLOWEST
        while not condition():
            for node in self.nodes:
                if node.agent is not None and node.agent.poll() is not None:
                    code, node.agent = node.agent.returncode, None
                    if self.on_death(node, code):
                        continue
                    raise ClusterError(f"{node.name}: the agent ended with {code} while waiting "
                                       f"for {what}\n{node.tail()}")
            if time.monotonic() > end:
                raise ClusterError(f"waited {seconds * SLOWEST:.0f} s for {what}\n" +
                                   "\n".join(n.tail() for n in self.nodes))
            time.sleep(0.02)

    def wait_for_log(self, nodes, *texts, seconds=20):
        """Until one line of each of `nodes` holds all `texts`. What a status says may come before
        the line: lines are written in order with the agent's files, on another thread."""
        for node in nodes:
            self.wait_for(lambda node=node: any(all(t in line for t in texts)
                                                for line in node.log().splitlines()),
                          seconds, f"{node.name}'s log to say " + ", ".join(map(repr, texts)))

    def wait_for_agents(self, condition, seconds, what):
        """As wait_for, where `condition` asks agents of which some may be down or starting."""
        def quietly():
            try:
                return condition()
            except (OSError, ValueError, http.client.HTTPException):
                return False

        self.wait_for(quietly, seconds, what)

    def collect_logs(self, target):
        """Copies every text file of the nodes' homes (not their RAM) into `target`."""
        os.makedirs(target, exist_ok=True)
        for node in self.nodes:
            for name in os.listdir(node.home):
                source = os.path.join(node.home, name)
                if os.path.isfile(source) and not os.path.islink(source):
                    shutil.copy(source, os.path.join(target, f"{node.name}-{name}"))

    def close(self):
        """Ends all processes and removes all files. Safe to call more than once."""
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        for process in list(self.processes):
            self.kill_process(process)
        for node in self.nodes:
            node.kill()
        if self.keep_logs_in:
            self.collect_logs(self.keep_logs_in)
        _remove_work(self.work)


def _kill_group(process):
    if process.poll() is None:  # else the number may belong to somebody else by now
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unmount(path):
    # A process killed a moment ago may still hold the mount; a lazy unmount is the fallback.
    for _ in range(50):
        if subprocess.run(["umount", path], capture_output=True).returncode == 0:
            return
        time.sleep(0.02)
    subprocess.run(["umount", "-l", path], capture_output=True)


def remove_tree(path):
    """Removes a tree in which files may be immutable, as restored data is."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path):
        subprocess.run(["chattr", "-R", "-i", path], capture_output=True)
        shutil.rmtree(path, ignore_errors=True)


def _mounts_below(path):
    with open("/proc/self/mounts", encoding="utf-8") as f:
        points = [line.split()[1].encode().decode("unicode_escape") for line in f]
    return [p for p in points if p.startswith(path + "/")]


def _remove_work(work):
    for point in reversed(_mounts_below(work)):
        _unmount(point)
    if _mounts_below(work):
        return  # never walk into somebody's mount
    shm = os.path.join("/dev/shm", os.path.basename(work))
    if os.path.isdir(shm):
        remove_tree(shm)
    remove_tree(work)


def remove_leftovers():
    """Removes what clusters left whose program was killed before it could clean up."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        work = os.path.join(base, name)
        try:
            with open(os.path.join(work, "owner"), encoding="utf-8") as f:
                owner = int(f.read())
        except (OSError, ValueError):
            continue
        if name.startswith(PREFIX) and not os.path.exists(f"/proc/{owner}"):
            _remove_work(work)
