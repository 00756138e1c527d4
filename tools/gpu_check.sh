#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks for a GPU, builds, and runs the checks that need a GPU: the pytest files of tests/gpu/, which
# print their results. Usage: `tools/gpu_check.sh --help`; page: bench/gpu.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
skip_code=77 # what automake and CTest's SKIP_RETURN_CODE take for skipped
device=auto
bin=
flags=(--out "$root/runs/gpu")
command="tools/gpu_check.sh${*:+ $*}"

usage() {
  cat <<END
usage: tools/gpu_check.sh [FLAGS]

  --bin FOLDER       built programs, such as build/bin; without it they are built, tests included
  --out FOLDER       for records, logs and report.md, to attach to a report             [runs/gpu]
  --device DEVICE    auto; cuda: without looking for a GPU first; cpu: tries these checks without
                     one, by short runs on the CPU, with Gloo for NCCL                      [auto]
  --limit-train N    train on the first N images; 0 = all                            [0; cpu: 640]
  --limit-test N     test on the first N images; 0 = all                             [0; cpu: 500]
  --deadline N       seconds for each program but the bench, which has 1800                  [300]
  --only NAMES       checks whose names contain one of these: 'stage0 or exact'              [all]

exit code: 0 nothing failed, 1 a check failed, 2 wrong usage, $skip_code skipped: there is no GPU
END
}

wrong_usage() {
  printf 'gpu_check: %s; hint: tools/gpu_check.sh --help\n' "$1" >&2
  exit 2
}

# Device files, as the library counts them, less those that CUDA_VISIBLE_DEVICES leaves out.
gpu_count() {
  local count listed=()
  count=$(find /dev -maxdepth 1 \( -name 'nvidia[0-9]*' -o -name dxg \) | wc -l)
  IFS=, read -ra listed <<<"${CUDA_VISIBLE_DEVICES-}"
  if [[ ! ${CUDA_VISIBLE_DEVICES-0} =~ ^(GPU|MIG|[0-9]) ]]; then
    count=0
  elif ((${#listed[@]} > 0 && ${#listed[@]} < count)); then
    count=${#listed[@]}
  fi
  printf '%s' "$count"
}

no_gpu() {
  printf 'gpu_check: skipped: no GPU: looked for /dev/nvidia0 and up and /dev/dxg%s; %s\n' \
    "${CUDA_VISIBLE_DEVICES+, less what CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES@Q} leaves out}" \
    'hint: tools/gpu_check.sh --device cpu tries the checks without one'
  exit "$skip_code"
}

build() {
  "$root/tools/setup.sh" build
  cd "$root"
  if [[ -x .venv/bin/python ]]; then # pytest alone of what ./test needs
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
      "$(grep '^pytest==' requirements-test.txt)"
  fi
  tools/configure.sh release
  cmake --build --preset release --target gpu_checks
}

while (($#)); do
  case $1 in
    -h | --help)
      usage
      exit
      ;;
    --bin | --out | --device | --limit-train | --limit-test | --deadline | --only)
      (($# > 1)) || wrong_usage "$1: expected a value"
      ;;&
    --bin) bin=$2 ;;
    --device) device=$2 ;;
    --out) flags+=("$1" "$2") ;;
    --only) flags+=(-k "$2") ;;
    --limit-train | --limit-test | --deadline)
      [[ $2 =~ ^[0-9]+$ && "$1 $2" != '--deadline 0' ]] || wrong_usage "$1: expected a number, got '$2'"
      flags+=("$1" "$2")
      ;;
    *) wrong_usage "there is no flag '$1'" ;;
  esac
  shift 2
done
[[ $device =~ ^(auto|cuda|cpu)$ ]] || wrong_usage "--device: expected auto, cuda or cpu, got '$device'"

gpus=$(gpu_count)
if [[ $device == auto ]]; then
  ((gpus > 0)) || no_gpu
  device=cuda
fi
if [[ ! $bin ]]; then
  (build) # a subshell: your working folder stays, and so do relative paths in your flags
  bin=$root/build/bin
fi
[[ -x $bin/stage0_single_gpu ]] || wrong_usage "--bin: there is no stage0_single_gpu in '$bin'"
python=$root/.venv/bin/python
[[ -x $python ]] || python=python3
"$python" -c 'import pytest' 2>/dev/null || {
  printf 'gpu_check: %s has no pytest; hint: %s -m pip install pytest\n' "$python" "$python" >&2
  exit 2
}
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 # of other packages
exec "$python" -m pytest -p no:terminal -p no:cacheprovider -s "$root/tests/gpu/gpu_checks_test.py" \
  --command "$command" --bin "$bin" --device "$device" --gpus "$gpus" "${flags[@]}"
