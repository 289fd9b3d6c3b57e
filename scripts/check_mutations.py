#!/usr/bin/env python3
"""check_mutations.py PRODUCT MUTABLE: the product's binary has none of the simulator's marks.

Neither the name of a mutation or probe nor a symbol of src/base/mutation.h may be in PRODUCT. That
they are in MUTABLE (tierkeep-sim-mutable) shows that this looks for the right thing.
"""

import pathlib
import subprocess
import sys

SYMBOLS = (b"selected_mutation", b"probe_hits")


def names(mutable, flag):
    out = subprocess.run([mutable, flag], check=True, capture_output=True).stdout
    return [line for line in out.split(b"\n") if line]


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    product, mutable = (pathlib.Path(p).read_bytes() for p in sys.argv[1:])
    marks = names(sys.argv[2], "--list") + names(sys.argv[2], "--probes") + list(SYMBOLS)
    problems = [f"{mark.decode()} is in {sys.argv[1]}" for mark in marks if mark in product]
    problems += [f"{mark.decode()} is not in {sys.argv[2]}" for mark in marks if mark not in mutable]
    for problem in problems:
        print(f"mutations: {problem}", file=sys.stderr)
    if not problems:
        print(f"mutations: the product has none of {len(marks)} marks")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
