#!/usr/bin/env python3
"""check_mutations.py PRODUCT [MUTABLE]: the product's binary has none of the simulator's marks.

Neither the name of a mutation or probe of src/base/mutation.h nor a symbol of that file may be in
PRODUCT. That they are in MUTABLE (tierkeep-sim-mutable), where it is given, shows that this looks
for the right thing.
"""

import pathlib
import re
import sys

SYMBOLS = ["selected_mutation", "probe_hits"]
HEADER = pathlib.Path(__file__).parent.parent / "src/base/mutation.h"
MARKS_MIN = 50  # fewer: the header has another form now


def marks():
    found = re.findall(r'X\(k\w+,\s*"([^"]+)"\)', HEADER.read_text())
    if len(found) < MARKS_MIN:
        sys.exit(f"mutations: only {len(found)} marks in {HEADER}: does this script still read it?")
    return [mark.encode() for mark in found + SYMBOLS]


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    binaries = [pathlib.Path(p).read_bytes() for p in sys.argv[1:]]
    wanted = marks()
    problems = [f"{mark.decode()} is in {sys.argv[1]}" for mark in wanted if mark in binaries[0]]
    if len(binaries) > 1:
        problems += [
            f"{mark.decode()} is not in {sys.argv[2]}" for mark in wanted if mark not in binaries[1]
        ]
    for problem in problems:
        print(f"mutations: {problem}", file=sys.stderr)
    if not problems:
        print(f"mutations: the product has none of {len(wanted)} marks")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
