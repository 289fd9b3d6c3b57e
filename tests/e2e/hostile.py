"""What every test of a hostile workload has in common: two nodes, a running job, a file that must
never be read, one that must never be written, and what has to hold whatever the job did.
"""

import contextlib
import os
import re
import secrets
import stat
import subprocess
import threading

import scripted_job

LOG_LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} p[0-9a-f]+ t[0-9a-f]+ "
    r"(job=\S+ (node=\d+/\d+|coord) )?(DBG|INF|WRN|ERR|CRT) \w+\.[^ ]+\(\d+\): .")
FORGED_STEP = 77_777
FORGED_LINE = (f"2026-11-29 17:56:30.123 p1 t1 job=e2e coord INF agent.Run(1): "
               f"All files were replicated globally for step {FORGED_STEP}")
# A name that would write that line, had a log or an error file printed it as it is.
FORGED_NAME = "x\n" + FORGED_LINE + "\n\x1b[2J\x1b[31mred\r\u202eabc"


def regular_files(root):
    """Every regular file below `root`, however deep, without following a link."""
    todo = [os.fsencode(root)]
    while todo:
        where = todo.pop()
        with contextlib.suppress(FileNotFoundError), os.scandir(where) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry.path


def contains(path, token):
    """Whether a short text stands in a file; holes are no text, and not read."""
    with open(path, "rb") as f:
        if os.fstat(f.fileno()).st_blocks * 512 > 1 << 30:
            raise AssertionError(f"{path!r} is larger than anything a test writes")
        at = 0
        while True:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # only a hole is left
                return False
            end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            f.seek(at)
            if token in f.read(end - at):
                return True
            at = end


def shape(root):
    """{path below root: what stands there}: enough to say that two trees are the same."""
    root = os.fsencode(root)
    out, todo = {}, [b""]
    while todo:
        path = todo.pop()
        full = os.path.join(root, path) if path else root
        what = os.lstat(full)
        if stat.S_ISLNK(what.st_mode):
            out[path] = ("link", os.readlink(full))
        elif stat.S_ISDIR(what.st_mode):
            out[path] = ("directory", what.st_mode & 0o7777)
            todo += [os.path.join(path, name) for name in os.listdir(full)]
        elif stat.S_ISREG(what.st_mode):
            with open(full, "rb") as f:
                out[path] = ("file", what.st_mode & 0o7777, f.read())
        else:
            out[path] = ("other", what.st_mode)
    return out


class World:
    """Two nodes and a job with one committed save; `rank 0` is the hostile one's node."""

    def __init__(self, make_cluster, seed, tmp_path, settings=None, ram_mib=512, **options):
        self.cluster = make_cluster(2, settings, ram_mib=ram_mib)
        self.seed = seed
        self.node, self.other = self.cluster.nodes
        self.token = secrets.token_hex(16).encode()
        self.secret = str(tmp_path / "secret")
        self.victim = str(tmp_path / "victim")
        self.folder = str(tmp_path / "folder")
        for path in (self.secret, self.victim):
            with open(path, "wb") as f:
                f.write(b"for no job's eyes: " + self.token + b"\n")
        os.mkdir(self.folder)
        with open(os.path.join(self.folder, "inner"), "wb") as f:
            f.write(b"neither this: " + self.token + b"\n")
        self._untouched = self._outside()
        self.job = scripted_job.Job(self.cluster, seed, megabytes=1, **options)
        assert self.job.start() is None
        self.job.save(1)
        self.allowed_steps = {1}
        self._agents = [n.agent.pid for n in self.cluster.nodes]

    @property
    def volume(self):
        return self.node.volume

    def at(self, *names):
        return os.path.join(self.volume, *names)

    def _outside(self):
        out = {}
        for path in (self.secret, self.victim, self.folder, os.path.join(self.folder, "inner")):
            what = os.lstat(path)
            out[path] = (what.st_mode, what.st_size, what.st_mtime_ns, what.st_ino)
        out["names"] = sorted(os.listdir(self.folder))
        return out

    # ---- saves

    def hostile_save(self, step, build):
        """Rank 1 saves as always, rank 0 what `build(path)` makes of its save."""
        for rank, volume in self.job.volumes.items():
            with volume.save(step) as path:
                scripted_job.write_tree(path, self.job.data(step, rank))
                if rank == 0:
                    build(path)

    def errors(self):
        """All that replicator.errors said on any node so far. Read with care, since anything may be
        planted there."""
        for volume in self.job.volumes.values():
            path = os.path.join(volume.path, "replicator.errors")
            # Gone, or still what was planted (an immutable file can't be unlinked): looked at again.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                what = os.lstat(path)
                if stat.S_ISREG(what.st_mode) and what.st_nlink == 1 and what.st_size < 1 << 20:
                    with open(path, encoding="utf-8", errors="replace") as f:
                        text = f.read()
                    os.unlink(path)
                    volume.errors.append(text)
        return "\n".join(text for v in self.job.volumes.values() for text in v.errors)

    def outcome(self, step, seconds=60, also=None):
        """Waits for what became of a save of rank 0: "committed", or what replicator.errors says
        about it, or `also`, once the log says that."""
        said = []

        def done():
            said[:] = [line for line in self.errors().split("\n")
                       if re.search(rf"\bstep {step}\b", line)]
            if also and also in self.node.log():
                said.append(also)
            return said or all(step in n.committed_steps() for n in self.cluster.nodes)

        self.cluster.wait_for(done, seconds, f"an end of step {step}")
        return "\n".join(said) or "committed"

    def good_save(self, step):
        self.allowed_steps.add(step)
        self.job.save(step)

    # ---- what must hold

    def check(self, step, restart_agent=True):
        """The service is alive, nothing outside was read or written, no line of a log is forged,
        and the job goes on: it saves `step`, and gets it back after agent and job have restarted."""
        self.check_alive()
        self.good_save(step)
        scripted_job.check_copies(self.job, step, nodes_each=2)
        if restart_agent:
            self.node.kill()
            self.node.start()
            self.node.wait_ready()
            self.was_restarted()
        self.job.restart()
        self.check_logs()
        self.check_outside()
        self.check_alive()

    def was_restarted(self):
        """The test itself has started rank 0's agent anew."""
        self._agents[0] = self.node.agent.pid

    def check_alive(self):
        assert [n.agent and n.agent.poll() for n in self.cluster.nodes] == [None, None]
        assert [n.agent.pid for n in self.cluster.nodes] == self._agents, "an agent was restarted"

    def check_outside(self):
        """What lies outside is as it was, and its bytes are in no store, volume, log or answer."""
        assert self._outside() == self._untouched
        for node in self.cluster.nodes:
            for path in regular_files(node.mount):
                assert not contains(path, self.token), f"the secret is in {path!r}"
            assert self.token.decode() not in node.log()
            assert self.token.decode() not in str(node.status())

    def check_logs(self):
        for node in self.cluster.nodes:
            with open(node.log_path, "rb") as f:
                text = f.read().decode()  # strictly: a log is UTF-8
            lines = text.split("\n")[:-1]
            assert [line for line in lines if not LOG_LINE.match(line)] == [], node.name
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
            assert set(node.committed_steps()) <= self.allowed_steps, node.name

    def memory(self, node=None):
        return resident((node or self.node).agent.pid)


def resident(pid):
    """A process's VmRSS without the files that it maps, in bytes: pages of the volume count as
    mapped while they are sent."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"RssAnon:\s+(\d+) kB", f.read())[1]) << 10


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


@contextlib.contextmanager
def repeating(action):
    """Runs `action(i)` over and over in a thread; its errors of the file system don't count."""
    end = threading.Event()
    failed = []

    def run():
        i = 0
        while not end.is_set():
            try:
                action(i)
            except OSError:
                pass
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)
                return
            i += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
    if failed:
        raise failed[0]


def make_deep(path, levels):
    """Nested directories, deeper than any path that the kernel takes."""
    at = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(levels):
            os.mkdir("d", dir_fd=at)
            below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)


def chattr(flags, *paths):
    return subprocess.run(["chattr", flags, *paths], capture_output=True).returncode == 0
