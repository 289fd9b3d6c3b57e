"""The volume protocol's client side for framework `pytorch.distributed`, in plain Python.

NeMo's checkpoint code plays this part in production and can't be installed here, so this is the
project's own. It does what those clients do, in their order: `replicator.yaml` written in place,
waited for until it is gone; then the error files, `replicator.prerestore`, a `*.restore` link that
is renamed to `step=S`; saves written to `step=N` beside a marker `step=N-unfinished`, finished by
one rename to the plain number.
"""

import contextlib
import os
import re
import time

POLL_SECONDS = 1.0  # as the real clients do
_MARKER = re.compile(r".+-s(\d+)-n(\d+)-w(\d+)\.restore")


class ReplicatorFailed(RuntimeError):
    """`replicator.failed` was there: the job must not start."""


class TorchVolume:
    """One node's volume. `poll` is the pause between two looks, `limit` bounds each wait."""

    def __init__(self, path, poll=POLL_SECONDS, limit=300.0):
        self.path, self.poll, self.limit = path, poll, limit
        self.errors = []  # what replicator.errors said, oldest first

    def _at(self, *names):
        return os.path.join(self.path, *names)

    def _wait(self, condition, what):
        end = time.monotonic() + self.limit
        while True:
            if (value := condition()) is not None:
                return value
            if time.monotonic() > end:
                raise TimeoutError(f"waited {self.limit:.0f} s for {what} in {self.path}")
            time.sleep(self.poll)

    def _yaml_gone(self):
        return None if os.path.exists(self._at("replicator.yaml")) else True

    def _take(self, name):
        """Reads and deletes a file; None if there is none."""
        try:
            with open(self._at(name), encoding="utf-8") as f:
                text = f.read()
            os.unlink(self._at(name))
            return text
        except FileNotFoundError:
            return None

    # ---- start of a job

    def configure(self, job, rank, nodes, peer_ranks=None, peers_per_node=1, minutes=30):
        """Writes `replicator.yaml`, in place and not atomically, as NeMo's client does."""
        self._wait(self._yaml_gone, "an old replicator.yaml to vanish")
        lines = [f"job-name: {job}", "framework: pytorch.distributed", f"node-rank: {rank}",
                 f"nodes: {nodes}"]
        if peers_per_node is not None:
            lines.append(f"peers-per-node: {peers_per_node}")
        lines.append(f"backup-interval-minutes: {minutes}")
        if peer_ranks is not None:
            lines += ["peer-ranks:"] + [f"- {r}" for r in peer_ranks]
        with open(self._at("replicator.yaml"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")

    def check_errors(self):
        """Keeps what `replicator.errors` says; raises on `replicator.failed`."""
        if text := self._take("replicator.errors"):
            self.errors.append(text)
        if text := self._take("replicator.failed"):
            raise ReplicatorFailed(text)

    def wait_released(self):
        """Returns once the replicator has taken the configuration."""
        self._wait(self._yaml_gone, "replicator.yaml to vanish")
        self.check_errors()

    def wait_restored(self):
        """Returns the step to go on from, or None; its data is then in `restored_path(step)`."""
        def prerestore():
            self.check_errors()
            return True if os.path.exists(self._at("replicator.prerestore")) else None

        self._wait(prerestore, "replicator.prerestore")
        with open(self._at("replicator.prerestore"), encoding="utf-8") as f:
            announced = re.search(r"restore-step:\s*(\d+)", f.read())

        def marker():
            self.check_errors()
            return next((n for n in os.listdir(self.path) if n.endswith(".restore")), None)

        name = self._wait(marker, "a .restore marker")
        parsed = _MARKER.fullmatch(name)
        if parsed is None:
            raise RuntimeError(f"unexpected marker {name!r}")
        step = int(parsed[1])
        if step != (int(announced[1]) if announced else 0):
            raise RuntimeError(f"replicator.prerestore and the marker {name} do not agree")
        if step == 0:
            return None  # this client leaves the empty marker where it is
        os.rename(self._at(name), self.restored_path(step))
        return step

    def restored_path(self, step):
        return self._at(f"step={step}")

    # ---- saving

    @contextlib.contextmanager
    def save(self, step):
        """Yields the directory to write; on leaving, one rename makes it a finished save."""
        unfinished = self._at(f"step={step}-unfinished")
        with open(unfinished, "w", encoding="utf-8"):
            pass
        path = self._at(f"step={step}")
        if os.path.islink(path):
            os.unlink(path)  # the link of a restore from this very step
        os.mkdir(path)
        yield path
        os.unlink(unfinished)
        os.rename(path, self._at(str(step)))
