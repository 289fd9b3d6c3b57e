#!/bin/bash
# Every tracked C++ file must be as clang-format (Debian 12: version 14) writes it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t files < <(git ls-files '*.cc' '*.h' | while read -r f; do
  if [[ -f $f ]]; then echo "$f"; fi
done)
if ((${#files[@]} == 0)); then exit 0; fi
mapfile -t bad < <(printf '%s\0' "${files[@]}" |
  xargs -0 -n 8 -P "$(nproc)" clang-format --dry-run 2>&1 |
  sed -n 's/^\([^ :]*\):[0-9]*:[0-9]*: warning: .*/\1/p' | sort -u)
if ((${#bad[@]})); then
  echo "format: not formatted; run:  clang-format -i ${bad[*]}" >&2
  exit 1
fi
echo "format: ${#files[@]} files, all formatted"
