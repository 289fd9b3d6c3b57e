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
demo=("$venv/bin/python" -m tierkeep_demo "$kind" "$@")
if [[ $kind != negative ]]; then exec "${demo[@]}"; fi
# The negative control does what is wanted only when it ends with 1, "not identical": it compared
# whole runs and saw the flipped bit. Anything else, success included, is a failure.
status=0
"${demo[@]}" || status=$?
if ((status == 1)); then
  echo "  as it must: one flipped bit was noticed"
  exit 0
fi
((status == 0)) && echo "demo: a flipped bit went unnoticed" >&2
exit $((status ? status : 1))
