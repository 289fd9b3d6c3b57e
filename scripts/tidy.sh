#!/bin/bash
# clang-tidy with .clang-tidy's checks, on:
#   --sample N   N files, others every day (what `make check` does)
#   --changed    files that differ from the last commit, or from TIDY_BASE
#   --all        every file
#   FILE...      these
# Needs a configured build/release. The commands are the build's own without GCC-only flags and
# without the precompiled header, so a file that forgot an include fails here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ -f build/release/compile_commands.json ]] || cmake --preset release >/dev/null
mkdir -p build/tidy
python3 - <<'PY'
import json, re
commands = json.load(open("build/release/compile_commands.json"))
gcc_only = r" -(fpch-preprocess|Winvalid-pch|W[a-z-]+|include \S+cmake_pch\.hxx)(?=\s)"
for c in commands:
    c["command"] = re.sub(gcc_only, "", c["command"])
json.dump(commands, open("build/tidy/compile_commands.json", "w"), indent=1)
PY

# The product's files: tests cost twice as much, for GoogleTest's headers, and find less.
all_files() { git ls-files 'src/*.cc' 'bench/*.cc' | grep -v -E '_(test|testutil)\.cc$'; }
case ${1:-} in
  --sample)
    mapfile -t all < <(all_files)
    n=${2:?--sample needs a number}
    day=$((10#$(date -u +%s) / 86400))
    files=()
    for ((i = 0; i < n && i < ${#all[@]}; i++)); do
      files+=("${all[((day * n + i)) % ${#all[@]}]}")
    done
    ;;
  --changed)
    mapfile -t files < <(git diff --name-only --diff-filter=d "${TIDY_BASE:-HEAD}" -- '*.cc')
    ;;
  --all) mapfile -t files < <(all_files) ;;
  "")
    sed -n '2,8s/^# \?//p' "$0"
    exit 2
    ;;
  *) files=("$@") ;;
esac
((${#files[@]})) || exit 0
# Generated headers must exist before anything that includes them can be read.
cmake --build build/release --target tk_proto >/dev/null
if ! printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-16 -p build/tidy --quiet 2>build/tidy/stderr; then
  grep -E 'error:' build/tidy/stderr >&2 || true
  echo "tidy: see it again with: scripts/tidy.sh ${files[*]}" >&2
  exit 1
fi
echo "tidy: ${#files[@]} files, nothing to say"
