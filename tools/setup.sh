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
#   tools/setup.sh bridge    build, and Python's headers: pip install ./bridges/torch_distributed
#   tools/setup.sh slurm     test, and SLURM: the test stages.slurm
#   tools/setup.sh full      slurm, bench, bridge, and a browser that opens the report: ./test --full
#
# With --missing after the level it prints what it would install, and installs nothing.
# With LADDER_TORCH_DIR or Torch_DIR set, the build level leaves .venv alone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/.ladder-stamp

build_packages=(g++ cmake ninja-build libssl-dev zlib1g-dev libcli11-dev libfmt-dev
  nlohmann-json3-dev libyaml-cpp-dev libgtest-dev libgmock-dev libbenchmark-dev ccache python3-venv)
test_packages=(openmpi-bin iproute2 relacy-dev shellcheck valgrind clang-format-19 clang-tidy-19)
slurm_packages=(slurmctld slurmd slurm-client munge)
full_packages=(chromium)
links_packages=(iproute2)
bridge_packages=(python3-dev)

uv=0.13.9 # installs the Python packages
room=6000 # megabytes of .venv and build/

erase=
[[ ! -t 1 ]] || erase=$'\e[K' # a line of progress is overwritten by the next line

say() { printf '%ssetup: %s\n' "$erase" "$*"; }

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

# progress DONE WHOLE UNIT TEXT: on a terminal one line that is overwritten, elsewhere a line for each tenth.
tenths=-1
progress() {
  if [[ -t 1 ]]; then
    printf 'setup: %s, %s of %s %s\e[K\r' "$4" "$1" "$2" "$3"
  elif (($1 * 10 / $2 > tenths)); then
    tenths=$(($1 * 10 / $2))
    say "$4, $1 of $2 $3"
  fi
}

# Reads what apt writes to APT::Status-Fd: dlstatus:NUMBER:PERCENT:TEXT, pmstatus:PACKAGE:PERCENT:TEXT.
apt_progress() {
  local kind percent
  while IFS=: read -r kind _ percent _; do
    percent=${percent%%[.,]*}
    case $kind in
      dlstatus) progress $((percent / 2)) 100 % "Debian packages" ;;
      pmstatus) progress $((50 + percent / 2)) 100 % "Debian packages" ;;
    esac
  done
}

install_packages() {
  local start=$SECONDS sudo=() install="apt-get install -y --no-install-recommends" line
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  if ((EUID)) && ! sudo -n true 2>/dev/null; then
    line="apt-get update && $install ${missing[*]}"
    if command -v sudo >/dev/null; then line="sudo sh -c '$line'"; else line="su - -c '$line'"; fi
    die "these packages need root. Type this line, then repeat your command:" "  $line"
  elif ((EUID)); then
    sudo=(sudo)
  fi
  say "installing Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq || say "apt-get update failed; trying with the present lists"
  "${sudo[@]}" sh -c "DEBIAN_FRONTEND=noninteractive exec $install -qq -o APT::Status-Fd=3 ${missing[*]} \
    3>&1 >/dev/null </dev/null" | apt_progress
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

# The scripts in .venv name its folder; after a move or a copy of the checkout they get the new name.
# The first line of a script has room for 127 bytes without a space.
adopt_venv() {
  made_as=$(grep -om1 "/[^\"'=]*/\.venv" "$venv/bin/activate" 2>/dev/null) || return 0
  [[ $made_as != "$venv" && ! -L $venv && $made_as$venv =~ ^[[:alnum:]/._+-]*$ ]] && ((${#venv} < 110)) || return 0
  say ".venv was made as $made_as; its scripts get the new name"
  grep -rlIFZ "$made_as" "$venv/bin" | xargs -0r sed -i "s|$made_as|$venv|g"
}

# A usable .venv has a Python of the version that made it, with its pip, and was made for this folder.
venv_works() {
  "$venv/bin/python" -c 'import pip' 2>/dev/null &&
    grep -qF -e "=$venv" -e "=\"$venv" -e "='$venv" "$venv/bin/activate" 2>/dev/null
}

make_venv() {
  command -v python3 >/dev/null || die "python3 is missing: install Python 3.10 to 3.13"
  python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    die "$(python3 --version) is not supported: put a python3 of 3.10 to 3.13 first on the PATH"
  # --clear would empty the folder behind a link, which may be another checkout's.
  [[ ! -L $venv ]] || die ".venv is a link to $(readlink "$venv"), made for another folder: rm .venv"
  [[ ! -d $venv ]] || say "making .venv anew: it was made as ${made_as:-part of an interrupted set-up}," \
    "and its Python or its scripts do not work here"
  say "making .venv with $(python3 --version)"
  python3 -m venv --clear "$venv"
}

# What decides whether the packages are installed, a line each: Python, what is left out, the lists.
wanted() {
  "$venv/bin/python" --version | cut -d. -f1,2
  printf 'without %s\n' "${excluded[@]}"
  (cd "$root" && sha256sum "${requirements[@]}")
}

# Shows how .venv grows while this script lives.
watch_venv() {
  local size
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    # A file may be gone again, or get its second link and count twice.
    size=$( (du -sm "$venv" 2>/dev/null || true) | cut -f1)
    progress $((size < whole ? size : whole)) "$whole" MB "Python packages"
  done
}

# uv unpacks while it downloads, into a cache in .venv whose files become the packages as hard links. So
# no temporary folder is needed, and after a failure the next try has what is there. Its server and
# certificates are those of pip's settings.
uv_install() {
  local status=0 watcher index=${PIP_INDEX_URL:-}
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-cache-dir --quiet "uv==$uv" </dev/null
  index=${index:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
  [[ ! $index ]] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  [[ ! ${PIP_CERT:-} ]] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}
  export UV_CACHE_DIR=$venv/.uv UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-120}
  watch_venv &
  watcher=$!
  (cd "$root" && "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" \
    --excludes <(printf '%s\n' "${excluded[@]}") "${requirements[@]/#/-r}") </dev/null || status=$?
  kill "$watcher" 2>/dev/null || true
  wait "$watcher" 2>/dev/null || true # its end is not reported
  printf '%s' "$erase"
  ((!status)) || exit "$status"
  rm -rf "$UV_CACHE_DIR"
}

are_python_packages_installed() {
  # shellcheck disable=SC2143 # with -q, wanted would end by SIGPIPE
  venv_works && [[ -f $stamp && ! $(wanted | grep -vxFf "$stamp") ]]
}

python_packages() {
  local start=$SECONDS old='' free
  adopt_venv
  ! are_python_packages_installed || return 0
  free=$(($(df -Pm "$root" | awk 'NR == 2 {print $4}') + $( (du -sm "$venv" 2>/dev/null || echo 0) | cut -f1)))
  [[ $free -ge $room ]] || compgen -G "$venv/lib/python3*/site-packages/torch" >/dev/null ||
    die "$((room / 1000)) GB of disk are needed in $root, $free MB are free; hint: make room, or move the checkout"
  venv_works || make_venv
  say "installing Python packages into .venv; the first time, LibTorch is 2.5 GB to download"
  [[ ! -f $stamp ]] || old=$(<"$stamp")
  rm -f "$stamp"
  uv_install
  # The lists of other levels stay installed.
  { wanted; (cd "$root" && sha256sum requirements*.txt | grep -xF "$old"); } | sort -u >"$stamp" || true
  say "Python packages installed in $((SECONDS - start)) s"
}

level=${1-build}
[[ "$level ${*:2}" =~ ^(build|test|twins|bench|links|bridge|slurm|full)\ (--missing)?$ ]] || {
  printf 'usage: tools/setup.sh [build|test|twins|bench|links|bridge|slurm|full] [--missing]\n' >&2
  exit 2
}
packages=("${build_packages[@]}")
requirements=(requirements.txt)
whole=4400 # megabytes of .venv
[[ $level =~ ^(build|bridge)$ ]] || requirements+=(requirements-twins.txt)
if [[ $level =~ ^(bench|full)$ ]]; then
  requirements+=(requirements-bench.txt)
  whole=$((whole + 700))
fi
if [[ $level =~ ^(test|slurm|full)$ ]]; then
  packages+=("${test_packages[@]}")
  requirements+=(requirements-test.txt)
  whole=$((whole + 300))
fi
[[ ! $level =~ ^(slurm|full)$ ]] || packages+=("${slurm_packages[@]}")
[[ $level != full ]] || packages+=("${full_packages[@]}")
[[ ! $level =~ ^(bridge|full)$ ]] || packages+=("${bridge_packages[@]}")
[[ $level != links ]] || packages+=("${links_packages[@]}")
excluded=(triton) # compiles for GPUs; 640 MB
if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  excluded=()
  whole=$((whole + 640))
fi

if [[ ${2-} ]]; then
  missing_packages "${packages[@]}"
  are_python_packages_installed || printf 'Python packages of .venv\n'
  exit
fi
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
