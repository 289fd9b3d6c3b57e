#!/bin/bash
# scripts/demo.sh jax|torch|negative [options]: runs a demo in its own Python environment.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
kind=${1:?usage: scripts/demo.sh jax|torch|negative [options]}
shift
case $kind in
  jax | negative) list=jax ;;
  torch) list=torch ;;
  *)
    echo "demo: unknown kind '$kind'" >&2
    exit 2
    ;;
esac
venv=$("$root/scripts/venv.sh" "$list")
export PYTHONPATH=$root/python PYTHONDONTWRITEBYTECODE=1
export TIERKEEP_BIN=${TIERKEEP_BIN:-$root/build/release/src/tierkeep}
exec "$venv/bin/python" -m "tierkeep_demo" "$kind" "$@"
