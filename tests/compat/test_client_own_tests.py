"""scripts/client_own_tests.py says what is wrong with its folders; what it runs isn't ours."""

import os
import subprocess

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")

WRONG = {
    "nothing": ([], "give --orbax, --resiliency or both"),
    "no folder": (["--orbax", "{tmp}/none"], "is no folder; get one with: git clone"),
    "another project": (["--orbax", "{tmp}"], "is no source folder of https://github.com/google"),
    "no tests": (["--orbax", "{tmp}/wheel"], "initialization_test.py is not there"),
    "the other client": (["--resiliency", "{tmp}/wheel"], "high_scale_ckpt_utils.py is not there"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong_folders(tmp_path, case):
    arguments, expected = WRONG[case]
    package = tmp_path / "wheel/orbax/checkpoint"
    tests = package / "experimental/emergency/multi_tier_checkpointing"
    tests.mkdir(parents=True)
    for file in (package / "__init__.py", tests / "initialization.py"):
        file.touch()
    done = subprocess.run(
        [os.path.join(ROOT, "scripts/client_own_tests.py"),
         *[a.replace("{tmp}", str(tmp_path)) for a in arguments]],
        capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stdout == ""
