#!/bin/bash
# Everything that CI runs, in stages; the first that fails ends the run and says how to see it
# again. With CI=true a test that is skipped without being on tests/allowed_skips.txt fails too.
#
#   SANITIZER=asan|tsan|none   which sanitizer's turn it is (default: by the day of the year)
#   FUZZ_SECONDS=N             how long a third of the fuzz targets runs, another each day (default:
#                              120; 0: not at all, their seeds are run by the unit tests anyway)
#   SIM_RUNS=N                 schedules of the simulator on the release build (default: 20000), and
#   SIM_RUNS_SANITIZER=N       on the sanitizer's (default: 1000), both from SIM_SEED on (default: 1)
#   JOBS=N                     parallel compilations and tests (default: one a core)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=${JOBS:-$(nproc)}
turns=(asan tsan)
sanitizer=${SANITIZER:-${turns[10#$(date -u +%j) % 2]}}
fuzz_seconds=${FUZZ_SECONDS:-120}
sim_runs=${SIM_RUNS:-20000} sim_runs_sanitizer=${SIM_RUNS_SANITIZER:-1000} sim_seed=${SIM_SEED:-1}
case $sanitizer in asan | tsan | none) ;; *)
  echo "test: SANITIZER is asan, tsan or none, not '$sanitizer'" >&2
  exit 2
  ;;
esac
mkdir -p build/reports
rm -f build/reports/*.xml
durations=()

# stage NAME HOW COMMAND...: runs the command under a heading. If it fails the run ends, with the
# one line HOW that shows the failure again.
stage() {
  local name=$1 how=$2 start=$EPOCHREALTIME seconds status=0
  shift 2
  echo "==> $name"
  "$@" || status=$?
  seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
  if ((status)); then
    echo "==> FAILED: $name, after $seconds s. To see it again:  $how" >&2
    exit 1
  fi
  durations+=("$(printf '%8s s  %s' "$seconds" "$name")")
}

build() { # PRESET TARGET...
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null && cmake --build --preset "$preset" --target "$@" -j "$jobs"
}

# One line for each passed test is too much to read; whatever isn't passed stays, and the summary.
unit_tests() { # PRESET
  ctest --preset "$1" -L unit -j "$jobs" --no-tests=error \
    --output-junit "$PWD/build/reports/ctest-$1.xml" |
    grep -v -E '^( *[0-9]+/[0-9]+ Test .* Passed |    +Start +[0-9]+: |$)'
  local status=${PIPESTATUS[0]}
  if ((status)); then return "$status"; fi
  scripts/check_skips.py "build/reports/ctest-$1.xml"
}

# The report says what was simulated, and fails for too few faults or crashes. Three schedules that
# fail are enough to look at: each is printed with its last hundred events and its replay line.
simulate() { # PRESET RUNS
  "build/$1/src/tierkeep-sim" --jobs "$jobs" --scenario all &&
    "build/$1/src/tierkeep-sim" --jobs "$jobs" --seed "$sim_seed" --runs "$2" --failures 3
}

# Guards are taken away one at a time, and the simulator must notice each; the product has no mark of
# that in it.
mutations() {
  build release tierkeep-sim-mutable &&
    scripts/check_mutations.py build/release/src/tierkeep build/release/src/tierkeep-sim-mutable &&
    build/release/src/tierkeep-sim-mutable --jobs "$jobs"
}

stage deps "scripts/deps.sh" scripts/deps.sh
stage "build (release)" "make build" build release all
stage format "scripts/check_format.sh" scripts/check_format.sh
stage folders "scripts/check_folders.py" scripts/check_folders.py
stage weaknesses "scripts/check_weaknesses.py" scripts/check_weaknesses.py
stage "unit tests (release)" "ctest --preset release -L unit" unit_tests release
stage "simulator (release)" "make sim RUNS=$sim_runs SEED=$sim_seed" simulate release "$sim_runs"
stage "mutations" "make mutations" mutations
if [[ $sanitizer != none ]]; then
  export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=second_deadlock_stack=1
  stage "build ($sanitizer)" "cmake --preset $sanitizer && cmake --build --preset $sanitizer" \
    build "$sanitizer" unit_tests tierkeep-sim
  stage "unit tests ($sanitizer)" "ctest --preset $sanitizer -L unit" unit_tests "$sanitizer"
  stage "simulator ($sanitizer)" "make sim PRESET=$sanitizer RUNS=$sim_runs_sanitizer" \
    simulate "$sanitizer" "$sim_runs_sanitizer"
fi
if ((fuzz_seconds)); then
  export TURN=$((10#$(date -u +%j) % 3))/3 SECONDS_ALL=$fuzz_seconds
  stage "fuzz targets ($TURN)" "TURN=$TURN scripts/fuzz.sh" scripts/fuzz.sh
fi
printf '%s\n' "==> stages so far" "${durations[@]}"
# Last, so that the run ends with pytest's own summary.
stage "end-to-end tests" "scripts/pytest.sh" scripts/pytest.sh
