#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs only what is missing. Safe to repeat: a second call only checks.
#
#   tools/setup.sh [build]   compiler, libraries, LibTorch (the torch wheel, in .venv)
#   tools/setup.sh test      and what ./test needs
#   tools/setup.sh twins     build, and what the Python twins need, which ./run compares the stages with
#   tools/setup.sh bench     twins, and what the other opponents of ./run bench need
#   tools/setup.sh links     twins, and what ./run links needs for its cable
#   tools/setup.sh slurm     test, and SLURM: the test stages.slurm
#   tools/setup.sh full      slurm, bench, and a browser that opens the report: ./test --full
#
# With LADDER_TORCH_DIR or Torch_DIR set, the build level leaves .venv alone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv

build_packages=(g++ cmake ninja-build libssl-dev zlib1g-dev libcli11-dev libfmt-dev
  nlohmann-json3-dev libyaml-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev ccache python3-venv)
test_packages=(openmpi-bin iproute2 shellcheck valgrind clang-format-19 clang-tidy-19)
slurm_packages=(slurmctld slurmd slurm-client munge)
full_packages=(chromium)
links_packages=(iproute2)

say() { printf 'setup: %s\n' "$*"; }

die() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

# Prints the arguments that are not installed by dpkg.
# dpkg-query fails on an unknown name, and still prints the others.
missing_packages() {
  local package installed
  installed=" $({ dpkg-query -W -f='${binary:Package}=${db:Status-Status}\n' "$@" 2>/dev/null || true; } |
    sed -n 's/\(:[a-z0-9]*\)\{0,1\}=installed$//p' | tr '\n' ' ')"
  for package in "$@"; do
    [[ $installed == *" $package "* ]] || printf '%s\n' "$package"
  done
}

# Runs a command as root, or prints the line to type.
as_root() {
  if ((EUID == 0)); then
    DEBIAN_FRONTEND=noninteractive "$@"
  elif sudo -n true 2>/dev/null; then
    sudo DEBIAN_FRONTEND=noninteractive "$@"
  else
    die "these packages need root. Type this line, then repeat your command:" \
      "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
}

install_packages() {
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  say "installing Debian packages: ${missing[*]}"
  local start=$SECONDS
  as_root apt-get update -qq || say "apt-get update failed; trying with the present lists"
  as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
  say "Debian packages installed in $((SECONDS - start)) s"
}

# Without apt the tools must be there already.
require_tools() {
  local tool absent=()
  for tool in "${CXX:-g++}" cmake ninja git; do
    command -v "$tool" >/dev/null || absent+=("$tool")
  done
  ((${#absent[@]} == 0)) || die "this system has no apt-get; please install: ${absent[*]}"
  say "no apt-get here: CMake fetches the libraries that it does not find"
}

# A usable .venv has a Python that starts, and was made for this folder:
# its scripts name their Python by full path, so a moved one is of no use.
venv_works() {
  "$venv/bin/python" -c '' 2>/dev/null && grep -qF "$venv" "$venv/bin/activate" 2>/dev/null
}

make_venv() {
  command -v python3 >/dev/null || die "python3 is missing: install Python 3.10 to 3.13"
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    die "$(python3 --version) is not supported: put a python3 of 3.10 to 3.13 first on the PATH"
  # --clear would empty the folder behind a link, which may be another checkout's.
  [[ ! -L $venv ]] || die ".venv is a link to $(readlink "$venv"), made for another folder: rm .venv"
  say "making .venv with $(python3 --version)"
  python3 -m venv --clear "$venv"
}

# The stamp of installed packages.
wanted_stamp() {
  "$venv/bin/python" --version
  cat "${requirements[@]}" | sha256sum
}

python_packages() {
  local stamp=$venv/.ladder-$level start=$SECONDS quiet=(--quiet)
  if venv_works && [[ -f $stamp && $(<"$stamp") == "$(wanted_stamp)" ]]; then
    return
  fi
  if ! venv_works || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    make_venv
  fi
  say "installing Python packages into .venv (the first time some minutes: LibTorch is 2.5 GB)"
  rm -f "$stamp"
  [[ -t 1 ]] && quiet=()
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input "${quiet[@]}" \
    "${requirements[@]/#/-r}" </dev/null
  wanted_stamp >"$stamp"
  say "Python packages installed in $((SECONDS - start)) s"
}

level=${1:-build}
[[ $level =~ ^(build|test|twins|bench|links|slurm|full)$ ]] || {
  printf 'usage: tools/setup.sh [build|test|twins|bench|links|slurm|full]\n' >&2
  exit 2
}
packages=("${build_packages[@]}")
requirements=("$root/requirements.txt")
[[ $level == build ]] || requirements+=("$root/requirements-twins.txt")
[[ ! $level =~ ^(bench|full)$ ]] || requirements+=("$root/requirements-bench.txt")
if [[ $level =~ ^(test|slurm|full)$ ]]; then
  packages+=("${test_packages[@]}")
  requirements+=("$root/requirements-test.txt")
fi
[[ ! $level =~ ^(slurm|full)$ ]] || packages+=("${slurm_packages[@]}")
[[ $level != full ]] || packages+=("${full_packages[@]}")
[[ $level != links ]] || packages+=("${links_packages[@]}")

if command -v apt-get >/dev/null && command -v dpkg-query >/dev/null; then
  install_packages "${packages[@]}"
else
  require_tools
fi
torch_dir=${LADDER_TORCH_DIR:-${Torch_DIR:-}}
if [[ $level == build && -n $torch_dir ]]; then
  say "using LibTorch of $torch_dir; .venv is not touched"
else
  python_packages
fi
say "level '$level' is ready ($SECONDS s)"
