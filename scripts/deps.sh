#!/bin/bash
# Makes sure that the Debian 12 packages are there. Installs what is missing when it may (root and
# apt-get); otherwise prints the one line to run and exits 1. Does nothing, quickly, when all are
# present.
set -euo pipefail

packages=(
  # Building
  g++ cmake ninja-build ccache mold pkg-config git
  # Checking
  clang-format clang-tidy-16 clang-16 libclang-rt-16-dev
  # Tests, demo and benchmarks
  python3 python3-venv iperf3 util-linux iproute2 openssl e2fsprogs
  # Libraries
  libssl-dev protobuf-compiler libprotobuf-dev libcpp-httplib-dev libyaml-cpp-dev
  nlohmann-json3-dev libcli11-dev libfmt-dev libexpected-dev libxxhash-dev
  libisal-dev llvm-16-dev libzstd-dev prometheus-cpp-dev libmimalloc-dev
  libgtest-dev libgmock-dev librapidcheck-dev
)

if ! command -v dpkg-query >/dev/null; then
  echo "deps: this isn't Debian; the packages of scripts/deps.sh must come from elsewhere" >&2
  exit 0
fi
present=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
  sed -n 's/^installed //p' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$present" || missing+=("$package")
done
((${#missing[@]})) || exit 0

line="apt-get install -y --no-install-recommends ${missing[*]}"
if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
  echo "deps: packages are missing; run:" >&2
  echo "  sudo $line" >&2
  exit 1
fi
echo "deps: $line"
export DEBIAN_FRONTEND=noninteractive
# The lists may be absent or old: refresh them only when the first attempt needs it.
$line >/dev/null 2>&1 || { apt-get update -q && $line; }
