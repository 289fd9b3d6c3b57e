#!/bin/bash
# scripts/fuzz.sh [TARGET...]: runs the fuzz targets of tests/fuzz, all or these, one after the
# other, and stops at the first input that breaks something.
#
#   SECONDS_ALL=N   the time for all of them together (default: 120); MINUTES=N is the same
#   TURN=k/n        only the k-th n-th of the targets, k from 0 (CI takes another one each day)
#
# What one run has found out is where the next one goes on: build/fuzz/corpus/TARGET. An input that
# breaks something is kept as build/fuzz/findings/TARGET-*: once fixed it goes to
# tests/fuzz/corpus/TARGET, where every test run tries it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${SECONDS_ALL:-120}
if [[ -n ${MINUTES:-} ]]; then seconds=$((MINUTES * 60)); fi

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz -j "${JOBS:-$(nproc)}"
targets=("$@")
if ((${#targets[@]} == 0)); then
  for program in build/fuzz/tests/fuzz/fuzz_*; do
    if [[ -x $program && -f $program ]]; then targets+=("${program##*/fuzz_}"); fi
  done
  if [[ -n ${TURN:-} ]]; then
    chosen=()
    for ((i = ${TURN%/*}; i < ${#targets[@]}; i += ${TURN#*/})); do chosen+=("${targets[i]}"); done
    targets=("${chosen[@]}")
  fi
fi

mkdir -p build/fuzz/findings
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
each=$((seconds / ${#targets[@]}))
if ((each == 0)); then each=1; fi
for target in "${targets[@]}"; do
  program=build/fuzz/tests/fuzz/fuzz_$target
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  "$program" "--write-seeds=$corpus"
  folders=("$corpus")
  if [[ -d tests/fuzz/corpus/$target ]]; then folders+=("tests/fuzz/corpus/$target"); fi
  log=build/fuzz/$target.log
  # No single allocation needs more than 256 MiB and no input more than a few seconds.
  if ! "$program" "-max_total_time=$each" -max_len=65536 -timeout=20 -rss_limit_mb=2048 \
    -malloc_limit_mb=256 "-artifact_prefix=build/fuzz/findings/$target-" -print_final_stats=1 \
    "${folders[@]}" >"$log" 2>&1; then
    tail -n 60 "$log"
    finding=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "fuzz: $target is broken by an input. To see it again:" >&2
    echo "  $program ${finding:-(no input was kept; see $log)}" >&2
    exit 1
  fi
  awk -v target="$target" -v seconds="$each" '
    / cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") cov = $(i + 1); if ($i == "corp:") corp = $(i + 1) } }
    /stat::number_of_executed_units/ { runs = $2 }
    /stat::peak_rss_mb/ { rss = $2 }
    END { printf "fuzz: %-18s %4d s, %9d inputs, %6d edges, corpus %s, %d MiB\n", target, seconds, runs, cov, corp, rss }' "$log"
done
