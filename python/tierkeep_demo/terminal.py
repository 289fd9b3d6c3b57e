"""Output for people: coloured and live on a terminal, plain lines anywhere else."""

import os
import shutil
import sys
import time


class Terminal:
    """Prints event lines with the time since `start()`; on a terminal also one live line."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stdout
        self.live = self.stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.colour = self.live and "NO_COLOR" not in os.environ
        encoding = (self.stream.encoding or "ascii").lower()
        self.unicode = "utf" in encoding
        self._started = time.time()
        self._live_text = ""

    def start(self):
        """Event times count from here."""
        self._started = time.time()

    # ---- words

    def style(self, text, code):
        return f"\033[{code}m{text}\033[0m" if self.colour else text

    def bold(self, text):
        return self.style(text, "1")

    def dim(self, text):
        return self.style(text, "2")

    def good(self, text):
        return self.style(text, "1;32")

    def bad(self, text):
        return self.style(text, "1;31")

    def mark(self, ok):
        if self.unicode:
            return self.good("✔") if ok else self.bad("✘")
        return "ok  " if ok else "FAIL"

    # ---- lines

    def _write(self, text):
        if not self.unicode:
            text = text.translate({0x2192: "->", 0x00d7: "x", 0x00b7: "-", 0x2026: "..."})
        self.stream.write(text)
        self.stream.flush()

    def _clear(self):
        if self._live_text:
            self._write("\r\033[K")
            self._live_text = ""

    def line(self, text=""):
        self._clear()
        self._write(text + "\n")

    def heading(self, text):
        self.line()
        self.line(self.bold(text))

    def event(self, text, at=None, kind=""):
        """One event; `at` is the wall clock of the event, now if not given."""
        seconds = max(0.0, (at or time.time()) - self._started)
        stamp = f"{int(seconds // 60):2d}:{seconds % 60:06.3f}"
        text = {"good": self.good, "bad": self.bad, "bold": self.bold}.get(kind, str)(text)
        self.line(f"  {self.dim(stamp)}  {text}")

    def progress(self, done, total, text):
        """The live line; nothing where output is not a terminal."""
        if not self.live:
            return
        width = 24
        full = round(width * done / total)
        bar = ("█" * full + "░" * (width - full)) if self.unicode else (
            "#" * full + "." * (width - full))
        line = f"  {bar} {text}"[:shutil.get_terminal_size().columns - 1]
        if line != self._live_text:
            self._write("\r\033[K" + line)
            self._live_text = line

    def clear(self):
        self._clear()

    # ---- tables

    def table(self, rows):
        """Two columns; a row of None is a rule."""
        h, v = ("─", "│") if self.unicode else ("-", "|")
        corners = "┌┬┐├┼┤└┴┘" if self.unicode else "+" * 9
        left = max(len(r[0]) for r in rows if r)
        right = max(len(r[1]) for r in rows if r)

        def rule(a, b, c):
            self.line(f"  {a}{h * (left + 2)}{b}{h * (right + 2)}{c}")

        rule(*corners[0:3])
        for row in rows:
            if row is None:
                rule(*corners[3:6])
            else:
                self.line(f"  {v} {row[0]:{left}} {v} {row[1]:{right}} {v}")
        rule(*corners[6:9])


def megabytes(count):
    """Bytes as people read them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


def seconds(value):
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
