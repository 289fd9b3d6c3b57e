#!/usr/bin/env python3
"""Checks docs/weaknesses.md against the tests in the tree.

Every number of the list stands in exactly one row. A row of "Guarded" names tests that exist and
have the number in their names: `Suite.B5_Name` for GoogleTest, `file.py::test_b5_name` for pytest.
A row of the other tables names no test and says why. Each edit of scripts/guard_list.py must apply.
"""

import pathlib
import re
import subprocess
import sys

import guard_list
import guards

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "weaknesses.md"
LIST = {"A": 24, "B": 32, "C": 15, "D": 21, "E": 13, "F": 7}
ROW = re.compile(r"^\| ([A-F]\d+) \|(.*)\|$")
CPP_TEST = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)")
PY_TEST = re.compile(r"^def (test_\w+)\(", re.M)


def tests_in_tree():
    """Names as the page writes them."""
    names = set()
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "src", "tests"], cwd=ROOT,
                         check=True, capture_output=True, text=True).stdout.split("\n")
    for path in out:
        if not (ROOT / path).is_file():
            continue
        if path.endswith((".cc", ".h")):
            text = (ROOT / path).read_text(encoding="utf-8")
            names |= {f"{suite}.{name}" for suite, name in CPP_TEST.findall(text)}
        elif re.search(r"(^|/)test_\w+\.py$", path):
            text = (ROOT / path).read_text(encoding="utf-8")
            names |= {f"{path.rsplit('/', 1)[-1]}::{name}" for name in PY_TEST.findall(text)}
    return names


def has_number(test, number):
    """B5_, or B5 before a capital, as a part of the test's own name."""
    name = re.split(r"\.(?=\w+$)|::", test)[-1]
    return bool(re.search(rf"(^|_){number}(?=_|[A-Z]|$)", name) or
                re.search(rf"_{number.lower()}(?=_|$)", name))


def rows(text):
    """Yields (section, number, the other cells)."""
    section = ""
    for line in text.split("\n"):
        if line.startswith("## "):
            section = line[3:]
        elif match := ROW.match(line):
            yield section, match[1], [cell.strip() for cell in match[2].split("|")]


def problems_of(text, known):
    wanted = [f"{part}{i}" for part, last in LIST.items() for i in range(1, last + 1)]
    seen = {}
    for section, number, cells in rows(text):
        if number in seen:
            yield f"{number} stands there twice, in \"{seen[number]}\" and \"{section}\""
        seen[number] = section
        if number not in wanted:
            yield f"{number} is no number of the list"
        if any(not cell for cell in cells):
            yield f"{number} has an empty cell"
        if section != "Guarded":
            continue
        tests = re.findall(r"`([^`]+)`", cells[-1])
        if not tests:
            yield f"{number} names no test"
        for test in tests:
            if test not in known:
                yield f"{number}: there is no test {test}"
            elif not has_number(test, number):
                yield f"{number}: its number isn't part of the name of {test}"
    yield from (f"{number} is missing" for number in wanted if number not in seen)


def main():
    text = PAGE.read_text(encoding="utf-8")
    known = tests_in_tree()
    problems = [f"docs/weaknesses.md: {p}" for p in problems_of(text, known)]
    problems += [f"scripts/guard_list.py: {p}" for p in guards.problems_of(guard_list.GUARDS)]
    problems += [f"scripts/guard_list.py: there is no test {g.test}" for g in guard_list.GUARDS
                 if not any(name.endswith(g.test) for name in known)]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"weaknesses: {len(problems)} problems; again with: scripts/check_weaknesses.py",
              file=sys.stderr)
        return 1
    guarded = sum(section == "Guarded" for section, _, _ in rows(text))
    print(f"weaknesses: {guarded} have tests, which all exist")
    return 0


if __name__ == "__main__":
    sys.exit(main())
