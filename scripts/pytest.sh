#!/bin/bash
# scripts/pytest.sh [pytest's arguments]: the Python tests against build/release, all of tests/e2e
# and tests/compat unless told otherwise. The real training clients' environment is used as soon as
# there are tests/compat to run; it has pytest too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
list=test
folders=()
has_tests() { [[ -n $(find "$1" -name 'test_*.py' -print -quit 2>/dev/null) ]]; }
if has_tests tests/e2e; then folders+=(tests/e2e); fi
if has_tests tests/compat; then folders+=(tests/compat) list=jax; fi
for argument in "$@"; do
  if [[ $argument != -* ]]; then folders=(); fi
done
venv=$(scripts/venv.sh "$list")
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export TIERKEEP_BIN=${TIERKEEP_BIN:-$PWD/build/release/src/tierkeep}
mkdir -p build/reports
status=0
"$venv/bin/python" -m pytest -ra --junitxml build/reports/pytest.xml \
  -o cache_dir=build/pytest_cache "${folders[@]}" "$@" || status=$?
if ((status)); then exit "$status"; fi
exec scripts/check_skips.py build/reports/pytest.xml
