#!/usr/bin/env python3
"""check_skips.py JUNIT...: names the tests of these reports that were skipped or disabled.

With CI=true a skip that isn't listed in tests/allowed_skips.txt is an error; otherwise it is only
said. Says nothing when nothing was skipped.
"""

import os
import pathlib
import sys
import xml.etree.ElementTree as xml

ALLOWED = pathlib.Path(__file__).resolve().parent.parent / "tests" / "allowed_skips.txt"


def skipped(report):
    """Yields (name, reason). ctest tells by an attribute, pytest by an element."""
    for case in xml.parse(report).getroot().iter("testcase"):
        name = case.get("name")
        if case.get("classname") not in (None, "", name):
            name = f"{case.get('classname')}::{name}"
        element = case.find("skipped")
        if element is not None or case.get("status") in ("notrun", "disabled"):
            yield name, (element.get("message") if element is not None else None) or "not run"


def main():
    allowed = {line.split("\t")[0] for line in ALLOWED.read_text().splitlines()
               if line and not line.startswith("#")}
    strict = os.environ.get("CI") == "true"
    bad = 0
    for report in sys.argv[1:]:
        for name, reason in skipped(report):
            if name in allowed:
                continue
            bad += 1
            print(f"skipped: {name}: {reason}", file=sys.stderr)
    if bad and strict:
        print(f"skips: {bad} tests were skipped without being in tests/allowed_skips.txt",
              file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
