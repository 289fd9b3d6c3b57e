#!/bin/bash
# scripts/venv.sh NAME: prints the folder of a Python environment with exactly the packages of
# python/requirements-NAME.txt, creating it at the first call. Environments live in
# ${TIERKEEP_CACHE:-~/.cache/tierkeep}/venvs and are keyed by the list and the interpreter, so a
# changed list never meets an old environment. Any number may call at the same time.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=${1:?usage: scripts/venv.sh NAME}
list=$root/python/requirements-$name.txt
if [[ ! -f $list ]]; then
  echo "venv: there is no $list" >&2
  exit 2
fi
python=${PYTHON:-python3}
version=$("$python" -c 'import sys; print(sys.implementation.cache_tag, sys.prefix)')
key=$({ cat "$list"; echo "$version"; } | sha256sum | cut -c1-12)
folder=${TIERKEEP_CACHE:-$HOME/.cache/tierkeep}/venvs
venv=$folder/$name-$key
mkdir -p "$folder"

# The mark is written last: a folder without it is what an interrupted run left behind.
exec 9>"$folder/.lock-$name"
flock 9
if [[ ! -f $venv/.complete ]]; then
  echo "venv: installing $list into $venv" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  # The lists name their whole closure with exact versions; nothing else may slip in.
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps -r "$list" >&2
  touch "$venv/.complete"
fi
echo "$venv"
