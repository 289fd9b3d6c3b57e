"""What the benchmarks need from the machine: warm memory, exact clocks, limits.

Nothing here knows about checkpoints. Times are seconds of the monotonic clock, sizes bytes.
Not thread-safe, except that a `VolumeSampler` has a thread of its own.
"""

import ctypes
import json
import os
import platform
import select
import struct
import subprocess
import threading
import time

MIB = 1 << 20
GIB = 1 << 30

_libc = ctypes.CDLL(None, use_errno=True)


def process_cpu(pid):
    """CPU seconds that a process has used so far, its ended threads included."""
    # CPUCLOCK_SCHED of another process; see clock_getcpuclockid(3). Exact to the nanosecond,
    # where /proc/PID/stat counts in ticks of 10 ms.
    return time.clock_gettime((~pid << 3) | 2)


def process_rss(pid):
    """(anonymous + file, shared memory) resident bytes of a process."""
    own = shared = 0
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith(("RssAnon:", "RssFile:")):
                own += int(line.split()[1]) * 1024
            elif line.startswith("RssShmem:"):
                shared += int(line.split()[1]) * 1024
    return own, shared


def machine_ticks():
    """(busy, stolen) CPU seconds of all cores so far; stolen is what the host did not give."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


def memory_available():
    with open("/proc/meminfo", encoding="ascii") as f:
        for line in f:
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable in /proc/meminfo")


def describe():
    """The machine, for the head of a result file."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {"processor": model, "cores": os.cpu_count(), "kernel": platform.release(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
            "python": platform.python_version()}


class Ballast:
    """Keeps free memory warm.

    On a virtual machine whose balloon reports free pages, memory that was free for about two
    seconds goes back to the host, and touching it again is up to 20 times slower than using it.
    So what timed work will need is held in files, given up just before, and taken again after.
    """

    CHUNK = 64 * MIB

    def __init__(self, path, size, reserve):
        self._path, self._size, self._reserve = path, size, reserve
        self._names, self._next = [], 0
        os.makedirs(path)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=95%,huge=always", "ballast", path],
                       check=True)

    def fill(self, extra=0):
        """Takes memory until the planned size plus `extra` is held or too little is free."""
        zero = bytes(8 * MIB)
        while (len(self._names) * self.CHUNK < self._size + extra
               and memory_available() > self._reserve + self.CHUNK):
            name = os.path.join(self._path, str(self._next))
            self._next += 1
            with open(name, "wb", buffering=0) as f:
                for _ in range(self.CHUNK // len(zero)):
                    f.write(zero)
            self._names.append(name)

    def release(self, amount):
        while amount > 0 and self._names:
            os.unlink(self._names.pop())
            amount -= self.CHUNK

    def close(self):
        self.release(1 << 62)
        subprocess.run(["umount", self._path], check=False)
        os.rmdir(self._path)


class CpuPriority:
    """Lets this program and all that it starts go before others, in a control group of its own
    with the largest share of the processor. Does nothing where that isn't possible; `got` tells.
    Caches and memory are shared all the same."""

    def __init__(self):
        self.got = False
        for base, name, share in (("/sys/fs/cgroup/cpu", "cpu.shares", 262144),
                                  ("/sys/fs/cgroup", "cpu.weight", 10000)):
            self._base, self._group = base, os.path.join(base, f"tierkeep-bench-{os.getpid()}")
            try:
                os.mkdir(self._group)
                self._write(os.path.join(self._group, name), share)
                self._write(os.path.join(self._group, "cgroup.procs"), os.getpid())
                self.got = True
                return
            except OSError:
                self.close()

    @staticmethod
    def _write(path, value):
        # Never creates the file: with version 1 the base of version 2 is an ordinary tmpfs.
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def close(self):
        """All that was started must have ended."""
        try:
            if self.got:
                self._write(os.path.join(self._base, "cgroup.procs"), os.getpid())
            os.rmdir(self._group)
        except OSError:
            pass  # an empty group is harmless


class Watch:
    """inotify on files and directories: tells at once that one changed, without polling."""

    MODIFY, MOVED_TO, CREATE = 0x2, 0x80, 0x100

    def __init__(self):
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._keys = {}

    def add(self, path, mask, key):
        descriptor = _libc.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), f"inotify_add_watch {path}")
        self._keys[descriptor] = key

    def wait(self, seconds):
        """Returns [(key, name)] of what changed, empty after `seconds` without a change."""
        if not self._poll.poll(seconds * 1000):
            return []
        data, out, at = os.read(self._fd, 65536), [], 0
        while at < len(data):
            descriptor, _, _, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16:at + 16 + length].rstrip(b"\0").decode()
            out.append((self._keys[descriptor], name))
            at += 16 + length
        return out

    def close(self):
        os.close(self._fd)


class VolumeSampler:
    """Peak use of each mount, looked at every 20 ms while the `with` block runs."""

    def __init__(self, mounts, every=0.02):
        self._mounts, self._every, self._stop = mounts, every, threading.Event()
        self.peak = [0] * len(mounts)
        self.samples = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.wait(self._every):
            self.peak = [max(p, used(m)) for p, m in zip(self.peak, self._mounts, strict=True)]
            self.samples += 1

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def used(mount):
    """Bytes that a mount's files occupy, as the kernel counts them."""
    s = os.statvfs(mount)
    return (s.f_blocks - s.f_bfree) * s.f_bsize


def hash_pass(program, directories):
    """Seconds of one XXH3-128 pass over all files below the directories, on all cores."""
    done = subprocess.run([program, *directories], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"]


def iperf(port, seconds=1, streams=4):
    """Bytes a second of `iperf3 -P 4` over loopback as (one way, both ways at once added up).

    iperf3 sends the same data again and again and checks nothing, so it is what this machine's
    TCP can do for a program that does no work of its own.
    """
    rates = []
    for more in ([], ["--bidir"]):
        server = subprocess.Popen(
            ["iperf3", "-s", "-1", "--forceflush", "-B", "127.0.0.1", "-p", str(port)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            if not any("listening" in line.lower() for line in server.stdout):
                raise RuntimeError("iperf3 -s ended")
            done = subprocess.run(
                ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-P", str(streams), "-t",
                 str(seconds), "-J", *more], check=True, capture_output=True, text=True,
                timeout=seconds + 30)
        finally:
            server.kill()
            server.communicate()
        end = json.loads(done.stdout)["end"]
        rates.append(sum(end[k]["bits_per_second"] / 8
                         for k in ("sum_received", "sum_received_bidir_reverse") if k in end))
    return tuple(rates)
