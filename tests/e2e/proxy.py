"""Stands between two agents on the wire: passes bytes on, and can hold them, keep them, flip one
bit, cut a connection or let it stall. The agent listens on 127.0.0.1 and is told to others as FRONT, where the proxy listens on
the same ports.
"""

import socket
import threading

FRONT = "127.0.0.2"
BACK = "127.0.0.1"


class Stalled(Exception):
    """Nothing more passes here."""


class Proxy:
    """One port of an agent. Counts and touches only what the agent sends, over all connections."""

    def __init__(self, port, keep=False):
        self.port, self.keep = port, keep
        self.sent = 0
        self.kept = bytearray()
        self.flip_at = None
        self.flip_bit = 0
        self._once = None
        self.flipped = threading.Event()
        self.hide_ends = False  # whoever connected may vanish: the agent isn't told
        self.cut_after = None
        self.cuts = 0
        self.stall_after = None
        self.stalls = 0
        self.hold_after = None
        self.holding = threading.Event()
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._lock = threading.Lock()
        self._sockets = set()
        self._closed = False
        self._listener = socket.create_server((FRONT, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, after):
        """From `after` more bytes on, nothing passes."""
        with self._lock:
            self.holding.clear()
            self._may_pass.clear()
            self.hold_after = self.sent + after

    def release(self):
        with self._lock:
            self.hold_after = None
            self._may_pass.set()

    def cut(self, after):
        """The connection on which the byte after `after` more bytes comes ends before it."""
        with self._lock:
            self.cut_after = self.sent + after

    def stall(self, after):
        """The connection on which the byte after `after` more bytes comes carries nothing more from
        the agent, without a word to either end; others, and the ones after it, are as before."""
        with self._lock:
            self.stall_after = self.sent + after

    def flip(self, after, bit, once=None):
        """One bit of the byte that comes after `after` more bytes is flipped, once; proxies that
        share `once`, a semaphore, flip one bit in all."""
        with self._lock:
            self.flipped.clear()
            self.flip_at, self.flip_bit = self.sent + after, bit
            self._once = once or threading.Semaphore()

    def close(self):
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
        self.release()
        for s in [self._listener, *sockets]:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((BACK, self.port), 5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                if self._closed:
                    client.close()
                    server.close()
                    return
                self._sockets |= {client, server}
            for source, target, touch in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(source, target, touch),
                                 daemon=True).start()

    def _pass(self, source, target, touch):
        try:
            while data := source.recv(1 << 16):
                target.sendall(self._touch(data) if touch else data)
        except Stalled:
            return  # until one of the ends has had enough, which the other direction sees
        except OSError:
            pass
        if self.hide_ends and not touch:
            return
        for s in (source, target):  # both ways end together, as a broken connection does
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _touch(self, data):
        while True:
            with self._lock:
                if self.hold_after is None or self.sent + len(data) <= self.hold_after:
                    break
                self.holding.set()
            self._may_pass.wait()
        with self._lock:
            start = self.sent
            if self.cut_after is not None and start + len(data) > self.cut_after:
                self.cut_after = None
                self.cuts += 1
                raise OSError("cut")
            if self.stall_after is not None and start + len(data) > self.stall_after:
                self.stall_after = None
                self.stalls += 1
                raise Stalled
            self.sent += len(data)
            if self.flip_at is not None and start <= self.flip_at < self.sent:
                if self._once.acquire(blocking=False):
                    changed = bytearray(data)
                    changed[self.flip_at - start] ^= 1 << self.flip_bit
                    data = bytes(changed)
                    self.flipped.set()
                self.flip_at = None
            if self.keep:
                self.kept += data
            return data


class Proxies:
    """Both ports of a running agent that was put behind them; a context manager."""

    def __init__(self, node, keep=False):
        ports = node.status()["network"]
        self.control = Proxy(ports["control_port"], keep)
        self.data = Proxy(ports["data_port"], keep)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.control.close()
        self.data.close()


def put_behind_proxy(node):
    """For the node's next start."""
    node.settings.update({"advertise": FRONT, "listen": BACK})


def put_before_proxy(node):
    node.settings.update({"advertise": BACK, "listen": BACK})
