"""A process of its own that opens connections to one port: flood.py PORT COUNT KIND

As many as its limit of files allows, at most COUNT at a time. KIND says what each sends: nothing
("idle"), a byte now and then ("trickle"), or noise, after which it opens another ("noise"). Prints
the number that it holds once it has that many, and then "again" for each further thousand; ends
when its standard input does.
"""

import os
import random
import resource
import select
import socket
import sys
import time


def main():
    port, count, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(count, hard - 50)
    draw = random.Random(int(sys.argv[4]))
    # Many addresses: one has no more than some ten thousand ports towards another.
    held, opened, told = [], 0, 0
    next_byte = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        if len(held) < count:
            s = socket.socket()
            s.setblocking(False)
            s.bind((f"127.1.{draw.randrange(256)}.{draw.randrange(1, 255)}", 0))
            s.connect_ex(("127.0.0.1", port))
            held.append(s)
            opened += 1
            if kind == "noise":
                try:
                    select.select([], [s], [], 0.05)
                    s.send(draw.randbytes(draw.randrange(1, 200)))
                except OSError:
                    pass
                if len(held) >= min(count, 200):
                    held.pop(0).close()
        elif kind == "idle":
            time.sleep(0.02)
        if kind == "trickle" and time.monotonic() >= next_byte:
            next_byte = time.monotonic() + 1
            for i, s in enumerate(held):
                try:
                    s.send(b"\0")
                except BlockingIOError:
                    pass
                except OSError:  # it was closed on us: come again
                    s.close()
                    held[i] = None
            held = [s for s in held if s is not None]
        if (opened >= count and told == 0) or opened >= told + 1000 and told > 0:
            told = opened
            print(len(held) if told == count else "again", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)
