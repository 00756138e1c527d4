#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Configures one preset: tools/configure.sh release
#
# CMake refuses a build folder that was made elsewhere. After a move or a copy of the checkout this
# starts it afresh; the programs in it are then built again.
set -euo pipefail

if (($# != 1)); then
  printf 'usage: tools/configure.sh PRESET\n' >&2
  exit 2
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cd "$(pwd -P)"
preset=$1
folder=build-$preset
[[ $preset == release ]] && folder=build

cache=$folder/CMakeCache.txt
fresh=()
if [[ -f $cache && ! $(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache") -ef $PWD ]]; then
  printf 'configure: %s was made in another folder; starting it afresh\n' "$folder"
  rm -rf "$folder"/_deps/*-subbuild # each has a cache of its own, which --fresh leaves
  fresh=(--fresh)
fi

# A compiler takes up to 1.6 GB: as many at a time as the memory holds beside 1 GB for all else.
memory=$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)
limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true) # of a container
[[ ! $limit =~ ^[0-9]+$ ]] || ((limit / 1048576 > memory)) || memory=$((limit / 1048576))
compilers=$(((memory - 1000) / 1600))
((compilers >= 1)) || compilers=1
((compilers <= $(nproc) + 2)) || compilers=$(($(nproc) + 2))
cmake "${fresh[@]}" --preset "$preset" -DCMAKE_JOB_POOLS="compile=$compilers" -DCMAKE_JOB_POOL_COMPILE=compile >/dev/null
