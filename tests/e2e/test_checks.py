"""The checks that guard the tests themselves."""

import os
import subprocess
import sys

import conftest
import pytest

SCRIPTS = conftest.ROOT / "scripts"


def check_skips(report, ci):
    env = {k: v for k, v in os.environ.items() if k != "CI"} | ({"CI": "true"} if ci else {})
    return subprocess.run([sys.executable, SCRIPTS / "check_skips.py", report], env=env, text=True,
                          capture_output=True, timeout=60)


@pytest.mark.parametrize("how", ["@pytest.mark.skip(reason='no such machine')",
                                 "@pytest.mark.xfail(reason='no such machine', run=False)"])
def test_a_skipped_test_fails_a_run_of_the_ci(tmp_path, how):
    (tmp_path / "test_it.py").write_text(
        f"import pytest\n\n{how}\ndef test_skipped():\n    pass\n\ndef test_run():\n    pass\n")
    report = tmp_path / "report.xml"
    subprocess.run([sys.executable, "-m", "pytest", "-q", "--junitxml", report, "-p",
                    "no:cacheprovider", "--rootdir", tmp_path, tmp_path], check=True, timeout=60,
                   cwd=tmp_path, capture_output=True)
    strict = check_skips(report, ci=True)
    assert strict.returncode == 1
    assert "test_skipped" in strict.stderr and "no such machine" in strict.stderr
    assert "test_run" not in strict.stderr
    lenient = check_skips(report, ci=False)
    assert lenient.returncode == 0 and "test_skipped" in lenient.stderr


def test_a_disabled_unit_test_fails_a_run_of_the_ci(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuite><testcase name="core.A.B" classname="core.A.B" status="run"/>'
                      '<testcase name="core.C.D" classname="core.C.D" status="disabled"/>'
                      '</testsuite>')
    strict = check_skips(report, ci=True)
    assert strict.returncode == 1 and "core.C.D" in strict.stderr and "A.B" not in strict.stderr


def test_a_row_without_its_test_is_found(tmp_path):
    """check_weaknesses.py notices a test that is gone, and one that lost its number."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import check_weaknesses
    finally:
        sys.path.remove(str(SCRIPTS))
    text = check_weaknesses.PAGE.read_text(encoding="utf-8")
    known = check_weaknesses.tests_in_tree()
    assert list(check_weaknesses.problems_of(text, known)) == []
    gone = known - {"Crash.B1_OfTheCoordinatorAtAnyPoint"}
    (problem,) = check_weaknesses.problems_of(text, gone)
    assert "B1" in problem
    other = text.replace("`Crash.B1_OfTheCoordinatorAtAnyPoint`",
                         "`ReplicatorConfig.B15JobNamesStayText`")
    (problem,) = check_weaknesses.problems_of(other, known)
    assert "isn't part of the name" in problem
    missing = "\n".join(line for line in text.split("\n") if not line.startswith("| F7 |"))
    assert list(check_weaknesses.problems_of(missing, known)) == ["F7 is missing"]
