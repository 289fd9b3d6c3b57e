#!/bin/bash
# scripts/bench.sh [options of bench/agent_bench.py]: measures the speed aims with real agents.
# Needs root for its mounts, about 14 GiB of free memory, and a machine that does nothing else.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if ((EUID != 0)); then
  echo "bench: needs root, for tmpfs mounts with huge pages" >&2
  exit 2
fi
export PYTHONPATH=$root/python:$root/bench PYTHONDONTWRITEBYTECODE=1
export TIERKEEP_BENCH_COMMAND="scripts/bench.sh${*:+ $*}"
venv=$("$root/scripts/venv.sh" jax)
exec python3 "$root/bench/agent_bench.py" --python "$venv/bin/python" "$@"
