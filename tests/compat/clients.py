"""The published clients of the volume protocol, scripted: what each does on its node's volume, in
its order and with its limits (docs/protocol.md, "Waits"). The limits are counted in polls, which
the originals make once a second; here they come faster. No client gives up within a minute, so that a
slow machine never fails a test.

All work on one object a node: `start()` is the job's process, `save()` a checkpoint of it.
"""

import itertools
import os
import re
import time

from tierkeep_demo import volume as volume_lib

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 60
_MARKER = re.compile(r"(?P<job>.+)-s(?P<step>\d+)-n(?P<rank>\d+)-w(?P<worker>\d+)\.restore")


class GaveUp(RuntimeError):
    """A client's limit was over."""


class Polling:
    """Waits in polls. `on_marker`, if set, is called in the instant that a marker is there, before
    the client does anything with it; `on_poll` is a number of polls and what to call then."""

    on_marker = None
    on_poll = None

    def begin_polling(self):
        self.polls = 0

    def poll_for(self, condition, limit, what):
        begun = time.monotonic()
        for poll in itertools.count():
            if (value := condition()) is not None:
                return value
            if poll >= limit and time.monotonic() > begun + PATIENCE_SECONDS:
                break
            self.polls += 1
            if self.on_poll and self.polls == self.on_poll[0]:
                self.on_poll[1]()
            time.sleep(POLL_SECONDS)
        raise GaveUp(f"{self.path}: {limit} polls for {what}")

    def markers(self):
        found = [n for n in os.listdir(self.path) if n.endswith(".restore")]
        if found and self.on_marker:
            action, self.on_marker = self.on_marker, None
            action(self)
        return found


class Torch(Polling, volume_lib.TorchVolume):
    """The open PyTorch client: the project's own script of it, with its limits in polls."""

    framework = "pytorch.distributed"
    replicas = 1
    first_step = 1  # it takes 0 for none
    yaml_extra = {}

    def __init__(self, node, rank, nodes, job):
        super().__init__(node.volume)
        self.node, self.rank, self.nodes, self.job = node, rank, nodes, job
        self.begin_polling()

    def _wait(self, condition, what):
        if what.startswith("a .restore"):
            return self.poll_for(lambda: condition() if self.markers() else None, 300, what)
        return self.poll_for(condition, 300, what)

    def start(self):
        self.configure(self.job, self.rank, self.nodes, **self.yaml_extra)
        self.wait_released()
        return self.wait_restored()

    def write_save(self, step, write):
        """Everything but the last act, which the result carries out."""
        with self.save(step) as path:
            write(path)

    def prepare_save(self, step, write):
        saving = self.save(step)
        write(saving.__enter__())
        return lambda: saving.__exit__(None, None, None)


class WorkerFiles(Torch):
    """Framework `pytorch`: a file for each worker of a node, moved into place by a rename."""

    framework = "pytorch"
    workers = 2
    in_place = False  # written at its final name; the close finishes it

    def configure(self, job, rank, nodes, **keys):
        self.poll_for(self._yaml_gone, 300, "an old replicator.yaml to vanish")
        keys = {"workers-per-node": self.workers, "peers-per-node": 1,
                "backup-interval-minutes": 30, **keys}
        lines = [f"job-name: {job}", "framework: pytorch", f"node-rank: {rank}", f"nodes: {nodes}"]
        with open(self._at("replicator.yaml"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines + [f"{k}: {v}" for k, v in keys.items()]) + "\n")

    def wait_restored(self):
        """The step; the data of each worker is then at `restored_path(step, worker)`."""
        def all_markers():
            self.check_errors()
            found = self.markers()
            return found if len(found) == self.workers else None

        names = sorted(self.poll_for(all_markers, 300, "a .restore marker for each worker"))
        parsed = [_MARKER.fullmatch(n) for n in names]
        assert [(m["job"], int(m["rank"]), int(m["worker"])) for m in parsed] == [
            (self.job, self.rank, w) for w in range(self.workers)], names
        (step,) = {int(m["step"]) for m in parsed}
        if step == 0:
            assert all(os.path.getsize(self._at(n)) == 0 for n in names)
            return None
        for m in parsed:
            os.rename(self._at(m[0]), self.restored_path(step, m["worker"]))
        return step

    def restored_path(self, step, worker=0):
        return self._at(f"step={step}-w{worker}")

    def save_worker(self, step, worker, data):
        name = self._at(f"{self.job}-s{step}-n{self.rank}-w{worker}.save")
        temporary = name if self.in_place else name + ".tmp"
        with open(temporary, "wb") as f:
            f.write(data)
        if not self.in_place:
            os.rename(temporary, name)


class Orbax(Polling):
    """Orbax, multi-controller: one process a node, whose id is its rank."""

    framework = "orbax"
    replicas = 2  # slices
    first_step = 1
    interval = "backup-interval-minutes: 30"

    def __init__(self, node, rank, nodes, job):
        self.node, self.path, self.rank = node, node.volume, rank
        self.nodes, self.job = nodes, job
        self.errors = []
        self.begin_polling()

    def at(self, *names):
        return os.path.join(self.path, *names)

    def take(self, name):
        try:
            with open(self.at(name), encoding="utf-8") as f:
                text = f.read()
            os.unlink(self.at(name))
            return text
        except FileNotFoundError:
            return None

    def check_errors(self):
        if text := self.take("replicator.errors"):
            self.errors.append(text)
        if text := self.take("replicator.failed"):
            raise volume_lib.ReplicatorFailed(text)

    def jax_init_info(self):
        def read():
            try:
                with open(self.at("jax-init-info.txt"), encoding="utf-8") as f:
                    lines = f.read().splitlines()
            except FileNotFoundError:
                return None
            return lines if len(lines) == 2 and all(lines) else None

        process, _ = self.poll_for(read, 900, "jax-init-info.txt")
        assert int(process) == self.rank

    def yaml_gone(self):
        return None if os.path.exists(self.at("replicator.yaml")) else True

    def yaml_text(self):
        width = self.nodes // self.replicas
        peers = [r for r in range(self.rank % width, self.nodes, width) if r != self.rank]
        return "\n".join([f"job-name: {self.job}", "framework: orbax",
                          f"assume-data-parallelism: {self.replicas}", f"node-rank: {self.rank}",
                          f"nodes: {self.nodes}", f"peer-ranks: {peers}", self.interval])

    def write_yaml(self):
        with open(self.at("replicator.yaml.tmp"), "w", encoding="utf-8") as f:
            f.write(self.yaml_text())
        os.replace(self.at("replicator.yaml.tmp"), self.at("replicator.yaml"))

    def start(self):
        self.jax_init_info()
        self.poll_for(self.yaml_gone, 900, "an old replicator.yaml to vanish")
        self.write_yaml()
        self.poll_for(self.yaml_gone, 900, "replicator.yaml to vanish")
        self.check_errors()
        return self.wait_restored(300)

    def wait_restored(self, limit):
        def any_marker():
            self.check_errors()
            return self.markers() or None

        names = self.poll_for(any_marker, limit, "a .restore marker")
        best = None
        for name in names:
            parsed = _MARKER.fullmatch(name)
            if parsed is None:
                raise RuntimeError(f"unexpected marker {name!r}")
            none = not os.path.islink(self.at(name)) and int(parsed["step"]) == 0
            if not none and (best is None or int(parsed["step"]) > best[0]):
                best = int(parsed["step"]), name
        if best is not None:
            os.rename(self.at(best[1]), self.restored_path(best[0]))
        for name in names:
            if best is None or name != best[1]:
                os.unlink(self.at(name))
        return None if best is None else best[0]

    def restored_path(self, step):
        return self.at(str(step))

    def prepare_save(self, step, write):
        """Everything but the last act, which the result carries out."""
        temporary = self.at(f"{step}.orbax-checkpoint-tmp")
        os.mkdir(temporary)
        write(temporary)
        self.finish_directory(temporary, step)
        return lambda: os.rename(temporary, self.at(str(step)))

    def finish_directory(self, temporary, step):
        with open(os.path.join(temporary, "commit_success.txt"), "w", encoding="utf-8") as f:
            f.write(f"Checkpoint commit was successful to {self.at(str(step))}")

    def write_save(self, step, write):
        self.prepare_save(step, write)()


class MaxText(Orbax):
    """MaxText on one slice: as Orbax, and it looks for errors before every save."""

    replicas = 1
    interval = "backup-interval-steps: 50"

    def write_save(self, step, write):
        self.check_errors()
        if step == 0:
            return
        super().write_save(step, write)


class Pathways(Orbax):
    """Orbax on Pathways: one process a worker host, no jax-init-info.txt, one deadline for all; a
    stale replicator.yaml is removed, not waited for. It has the step of all workers."""

    DEADLINE, YAML_LIMIT = 900, 600

    def start(self):
        try:
            os.unlink(self.at("replicator.yaml"))
        except FileNotFoundError:
            pass
        self.write_yaml()
        self.poll_for(self.yaml_gone, self.YAML_LIMIT, "replicator.yaml to vanish")
        self.check_errors()
        return self.wait_restored(self.DEADLINE - self.polls)


class Orbax01210(Orbax):
    """Orbax from 0.12.10 on: step 0 is a step, and a save may ask for its backup by an empty file
    in it, here each second one."""

    first_step = 0

    def finish_directory(self, temporary, step):
        if step % 2 == 0:
            with open(os.path.join(temporary, "_BACKUP_REQUESTED"), "w", encoding="utf-8"):
                pass
        super().finish_directory(temporary, step)


class OrbaxInPlace(Orbax):
    """Orbax where a directory rename isn't atomic: the step directory is made at its final name and
    counts with commit_success.txt, which is written last."""

    def prepare_save(self, step, write):
        path = self.at(str(step))
        os.mkdir(path)
        write(path)
        return lambda: self.finish_directory(path, step)


DIRECTORY_CLIENTS = [Orbax, Orbax01210, OrbaxInPlace, MaxText, Pathways, Torch]
