"""What a training process reports to the program that started it: lines `@event {...}` in its
own log, between whatever the libraries print there."""

import json
import sys
import time

MARK = "@event "


def tell(kind, **facts):
    """Writes one event; `t` is the wall clock in seconds."""
    sys.stdout.write(MARK + json.dumps({"event": kind, "t": round(time.time(), 4), **facts}) + "\n")
    sys.stdout.flush()


class EventLog:
    """Reads the events of a log file that is still growing."""

    def __init__(self, path):
        self.path = path
        self._at = 0
        self.events = []

    def read(self):
        """Returns the events that came since the last call, and keeps all in `events`."""
        try:
            with open(self.path, "rb") as f:
                f.seek(self._at)
                data = f.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._at += whole
        new = []
        for line in data[:whole].decode("utf-8", "replace").splitlines():
            if line.startswith(MARK):
                new.append(json.loads(line[len(MARK):]))
        self.events += new
        return new

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as f:
            return f.read()
