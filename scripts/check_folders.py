#!/usr/bin/env python3
"""Enforces the folder rules of docs/ARCHITECTURE.md and the size limits.

* Includes follow the arrows; `sim` stays out of the product.
* `core` reads no clock, touches no file, starts no thread, draws no random numbers; `format` does
  no I/O.
* A file has at most 600 lines, a function at most 70. What is longer must stand in
  scripts/size_ratchet.txt with its length, and may only shrink: `--update` lowers the list, it
  never raises or adds.
"""

import ast
import pathlib
import re
import subprocess
import sys

import cpp_functions

ROOT = pathlib.Path(__file__).resolve().parent.parent
RATCHET = ROOT / "scripts" / "size_ratchet.txt"
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

# folder -> folders that it may include besides itself
ARROWS = {
    "base": set(),
    "format": {"base"},
    "core": {"base", "format"},
    "io": {"base"},
    "tiers": {"base", "format", "core", "io"},
    "agent": {"base", "format", "core", "io", "tiers"},
    "platform": {"base", "format", "core", "io", "tiers", "agent"},
    "cli": {"base", "format", "core", "io", "tiers", "agent", "platform"},
    "sim": {"base", "format", "core", "io", "tiers", "agent"},
}
IO_HEADERS = r"sys/.*|unistd\.h|fcntl\.h|fstream|filesystem|cstdio|stdio\.h|netdb\.h|asio.*|poll\.h"
FORBIDDEN_INCLUDES = {
    "format": re.compile(IO_HEADERS),
    "core": re.compile(IO_HEADERS + r"|thread|mutex|shared_mutex|condition_variable|future|"
                       r"pthread\.h|random|ctime|time\.h"),
}
FORBIDDEN_WORDS = {
    "core": re.compile(r"_clock::now\b|\brandom_device\b|\bstd::rand\b|\bgetenv\b|\bsleep_for\b|"
                       r"\bstd::j?thread\b|\bunordered_(?:map|set)\b"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\n")
    return [p for p in out if p and (ROOT / p).is_file()]


def check_includes(path, text):
    folder = path.split("/")[1]
    if folder not in ARROWS:
        yield f"{path}: src/{folder} isn't a folder of the design"
        return
    is_test = re.search(r"_(test|testutil)\.(cc|h)$", path)
    for number, line in enumerate(text.split("\n"), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, name = match.groups()
        place = f"{path}:{number}"
        other = name.split("/")[0]
        if other in ARROWS and "/" in name:
            if other != folder and other not in ARROWS[folder]:
                yield f"{place}: {folder} may not include {other} ({name})"
        elif quote == '"' and not name.endswith(".pb.h"):
            yield f'{place}: "{name}" isn\'t a path from src/; use <> for other libraries'
        if quote == "<" and folder in FORBIDDEN_INCLUDES and not is_test:
            if FORBIDDEN_INCLUDES[folder].fullmatch(name):
                yield f"{place}: {folder} may not include <{name}>"


def check_words(path, text):
    folder = path.split("/")[1]
    if folder not in FORBIDDEN_WORDS or re.search(r"_(test|testutil)\.(cc|h)$", path):
        return
    for number, line in enumerate(cpp_functions.blank_out(text).split("\n"), 1):
        match = FORBIDDEN_WORDS[folder].search(line)
        if match:
            yield f"{path}:{number}: {folder} may not use {match.group()}"


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def sizes(path, text):
    """Yields (key, lines, limit, place) for the file and each function of it."""
    yield path, text.count("\n"), FILE_LINES_MAX, path
    if path.endswith(".py"):
        functions = python_functions(text)
    elif path.endswith((".cc", ".h")):
        functions = cpp_functions.functions(text)
    else:
        return
    for name, line, length in functions:
        yield f"{path}:{name}", length, FUNCTION_LINES_MAX, f"{path}:{line}"


def read_ratchet():
    listed = {}
    for line in RATCHET.read_text().split("\n"):
        if line and not line.startswith("#"):
            key, _, lines = line.rpartition(" ")
            listed[key] = int(lines)
    return listed


def check_sizes(texts, update):
    listed = read_ratchet()
    longest = {}  # overloads share a key: the longest counts
    for path, text in texts.items():
        for key, lines, limit, place in sizes(path, text):
            if lines > limit and lines > longest.get(key, (0,))[0]:
                longest[key] = (lines, limit, place)
    for key, (lines, limit, place) in sorted(longest.items()):
        if lines > listed.get(key, limit):
            allowed = listed.get(key, limit)
            yield f"{place}: {key.split(':')[-1]} has {lines} lines, at most {allowed} are allowed"
    lowered = {k: min(v, longest[k][0]) for k, v in listed.items() if k in longest}
    if lowered == listed:
        return
    if not update:
        yield "scripts/size_ratchet.txt lists more than is needed: scripts/check_folders.py --update"
        return
    head = [line for line in RATCHET.read_text().split("\n") if line.startswith("#")]
    RATCHET.write_text("\n".join(head + [f"{k} {v}" for k, v in sorted(lowered.items())]) + "\n")


def main():
    update = sys.argv[1:] == ["--update"]
    if sys.argv[1:] and not update:
        print(__doc__)
        return 2
    paths = tracked("*.cc", "*.h", "*.py", "*.sh")
    texts = {p: (ROOT / p).read_text(encoding="utf-8") for p in paths}
    problems = []
    for path, text in texts.items():
        if path.startswith("src/"):
            problems += check_includes(path, text)
            problems += check_words(path, text)
    problems += check_sizes(texts, update)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"folders: {len(problems)} problems; again with: scripts/check_folders.py",
              file=sys.stderr)
        return 1
    print(f"folders: {len(texts)} files keep the arrows and the size limits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
