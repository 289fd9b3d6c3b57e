"""When what happened in a volume: the phases of a restore, seen from outside with inotify."""

import ctypes
import os
import select
import struct
import threading
import time

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_libc = ctypes.CDLL(None, use_errno=True)


class VolumeWatch:
    """Notes the moment (wall clock) of each phase on one volume until `close()`.

    yaml_written, yaml_gone, link (the first `.restore` link or marker). A thread of its own
    reads the events; the times are safe to read after `close()`, or for display at any time.
    """

    def __init__(self, path):
        self.times = {}
        self._descriptor = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        mask = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
        if self._descriptor < 0 or _libc.inotify_add_watch(
                self._descriptor, os.fsencode(path), mask) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while not self._closing.is_set():
            if poll.poll(100):
                self._read(time.time())

    def _read(self, now):
        data, at = os.read(self._descriptor, 65536), 0
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            name = data[at + 16:at + 16 + length].rstrip(b"\0").decode()
            at += 16 + length
            if name == "replicator.yaml":
                if mask & (_CLOSE_WRITE | _MOVED_TO):
                    self.times.setdefault("yaml_written", now)
                elif mask & (_DELETE | _MOVED_FROM):
                    self.times.setdefault("yaml_gone", now)
            elif name.endswith(".restore") and mask & (_CREATE | _MOVED_TO):
                self.times.setdefault("link", now)

    def close(self):
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()
            os.close(self._descriptor)
