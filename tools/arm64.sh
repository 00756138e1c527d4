#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what a cross-build for 64-bit Arm needs, in build-arm64/: Debian's libraries (sysroot) and
# LibTorch (wheels). Safe to repeat: a second call only checks. ./test --arm64 calls it.
#
# Needs Debian, as root, and .venv, whose versions of the wheels it takes.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=build-arm64
packages=(mmdebstrap g++-aarch64-linux-gnu qemu-user-static)
libraries=(libc6-dev libssl-dev zlib1g-dev libcli11-dev libfmt-dev nlohmann-json3-dev
  libyaml-cpp-dev libgtest-dev libgmock-dev)

say() { printf 'arm64: %s\n' "$*"; }

((EUID == 0)) || { say "expected root, which makes the sysroot; hint: sudo $0" >&2; exit 1; }
# shellcheck source=/dev/null
suite=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME-}")
if ! type mmdebstrap aarch64-linux-gnu-g++ qemu-aarch64-static &>/dev/null; then
  say "installing Debian packages: ${packages[*]}"
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

if [[ ! -d $folder/sysroot ]]; then
  say "downloading Debian's libraries"
  rm -rf "$folder/sysroot.new"
  mkdir -p "$folder"
  mmdebstrap --quiet --architectures=arm64 --variant=extract --include="$(IFS=, && echo "${libraries[*]}")" \
    "$suite" "$folder/sysroot.new"
  # Links such as libm.so begin with /: they would lead to this machine's libraries.
  find "$folder"/sysroot.new/{lib,usr} -type l -lname '/*' | while read -r link; do
    ln -srf "$folder/sysroot.new$(readlink "$link")" "$link"
  done
  mv "$folder/sysroot.new" "$folder/sysroot"
fi

mapfile -t wheels < <(.venv/bin/python -m pip freeze | grep -E '^(torch|nvidia-cuda-(runtime|cupti))==')
if [[ ! -f $folder/wheels/${wheels[*]} ]]; then
  say "downloading LibTorch"
  rm -rf "$folder/wheels"
  .venv/bin/python -m pip install --disable-pip-version-check --no-input --quiet --no-deps --only-binary :all: \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_25_aarch64 --platform manylinux2014_aarch64 \
    --target "$folder/wheels" "${wheels[@]}"
  touch "$folder/wheels/${wheels[*]}"
fi
