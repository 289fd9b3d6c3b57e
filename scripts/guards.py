#!/usr/bin/env python3
"""Takes guards out of the source and demands that a test notices.

    scripts/guards.py --seed N --count 10   ten of them, drawn by a seed; without one a fresh seed
    scripts/guards.py --only D9             those of one number of docs/weaknesses.md
    scripts/guards.py --check               only whether every edit still applies

Works in a copy of the tree, build/guards, which later runs use again. For each guard the test must
pass as the source is, and fail once the edit is applied. Prints the seed and one line a guard; ends
with 1 if a test did not fail, or did not pass.
"""

import argparse
import pathlib
import random
import subprocess
import sys
import time

import guard_list

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "guards"
TEST_SECONDS_MAX = 300


def problems_of(guards, root=ROOT):
    """Edits that don't apply exactly once."""
    for guard in guards:
        path = root / guard.path
        found = path.read_text(encoding="utf-8").count(guard.old) if path.is_file() else 0
        if found != 1:
            yield f"{guard.number}: its text stands {found} times in {guard.path}, not once"


def update_copy():
    """The working tree's files, of which only those that differ are written."""
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\n")
    wanted = {n for n in names if n and (ROOT / n).is_file()}
    for name in wanted:
        source, target = ROOT / name, COPY / name
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        target.chmod(source.stat().st_mode)
    for top in ("src", "tests", "scripts"):
        for path in (COPY / top).rglob("*"):
            if path.is_file() and str(path.relative_to(COPY)) not in wanted:
                path.unlink()
    if not (COPY / "build/release/build.ninja").is_file():
        run(["cmake", "--preset", "release"], 600)


def run(command, seconds):
    """(exit code or None for too long, its output)"""
    try:
        done = subprocess.run([str(c) for c in command], cwd=COPY, timeout=seconds, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    except subprocess.TimeoutExpired as late:
        return None, late.stdout.decode(errors="replace") if late.stdout else ""
    return done.returncode, done.stdout


def build(target, jobs):
    code, text = run(["cmake", "--build", "build/release", "--target", target, "-j", jobs], 7200)
    return code == 0, text


def test(guard):
    """Whether the guard's test passes; it must have been run."""
    if guard.target == "tierkeep":
        file, name = guard.test.split("::")
        code, text = run(["scripts/pytest.sh", "-q", f"tests/e2e/{file}", "-k", name],
                         TEST_SECONDS_MAX)
        ran = " passed" in text or " failed" in text
    else:
        code, text = run([f"build/release/src/{guard.target}", f"--gtest_filter=*{guard.test}*"],
                         TEST_SECONDS_MAX)
        ran = "[ RUN      ]" in text
    if not ran and code is not None:
        raise RuntimeError(f"{guard.test} wasn't run:\n{text[-2000:]}")
    return code == 0, text


def try_guard(guard, jobs):
    """None, or what is wrong."""
    built, text = build(guard.target, jobs)
    if not built:
        return f"the tree doesn't build:\n{text[-2000:]}"
    passed, text = test(guard)
    if not passed:
        return f"{guard.test} fails without the edit:\n{text[-2000:]}"
    path = COPY / guard.path
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(guard.old, guard.new), encoding="utf-8")
    try:
        built, text = build(guard.target, jobs)
        if not built:
            return f"the edit doesn't build:\n{text[-2000:]}"
        passed, text = test(guard)
    finally:
        path.write_text(before, encoding="utf-8")
    return f"{guard.test} passes without the guard" if passed else None


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--seed", type=int)
    options.add_argument("--count", type=int, default=10)
    options.add_argument("--only", help="a number of docs/weaknesses.md")
    options.add_argument("--check", action="store_true")
    options.add_argument("--jobs", type=int, default=2)
    asked = options.parse_args()
    guards = guard_list.GUARDS
    problems = list(problems_of(guards))
    for problem in problems:
        print(f"guards: {problem}", file=sys.stderr)
    if problems or asked.check:
        if not problems:
            print(f"guards: {len(guards)} edits, all apply")
        return 1 if problems else 0
    if asked.only:
        chosen = [g for g in guards if g.number == asked.only]
    else:
        seed = asked.seed if asked.seed is not None else random.SystemRandom().randrange(10**6)
        print("seed", seed, flush=True)
        chosen = random.Random(seed).sample(guards, min(asked.count, len(guards)))
    update_copy()
    bad = 0
    for guard in chosen:
        begun = time.monotonic()
        wrong = try_guard(guard, asked.jobs)
        bad += wrong is not None
        print(f"{guard.number:4} {guard.what}: {wrong or 'noticed by ' + guard.test} "
              f"({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"guards: {len(chosen) - bad} of {len(chosen)} were noticed")
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
