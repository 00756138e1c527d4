#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Dockerfile without Docker and without a registry: see `--help`.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/fresh/container.sh [COMMAND...]

Makes the base image debian:trixie-slim with mmdebstrap, builds the Dockerfile with buildah from the
last commit, and runs the image's command in a container, or COMMAND instead, each with its time.

Needs root, mmdebstrap and buildah (installed if missing), 30 GB in TMPDIR (default /var/tmp), and a
network. The image is removed at the end.
END
}

say() { printf 'container: %s\n' "$*"; }

if [[ ${1-} == -h || ${1-} == --help ]]; then
  usage
  exit
fi
if ((EUID != 0)); then
  say "expected root, which makes a root folder; hint: sudo $0" >&2
  exit 1
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! type mmdebstrap buildah &>/dev/null; then
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap buildah >/dev/null
fi

TMPDIR=$(mktemp -d "${TMPDIR:-/var/tmp}/container.XXXXXX")
export TMPDIR
store() { buildah --root "$TMPDIR/images" --runroot "$TMPDIR/state" "$@"; }
trap 'store rm --all >/dev/null 2>&1 || true; rm -rf --one-file-system "$TMPDIR"' EXIT
trap 'exit 130' INT TERM HUP

# The certificates of this machine's network as well.
certificates=/usr/local/share/ca-certificates
start=$SECONDS
mmdebstrap --quiet --variant=minbase --customize-hook="mkdir -p \"\$1$certificates\"" \
  --customize-hook="copy-in /etc/ssl/certs/ca-certificates.crt $certificates" trixie "$TMPDIR/base.tar"
base=$(store from scratch)
store add --quiet "$base" "$TMPDIR/base.tar" / >/dev/null
store commit --quiet "$base" docker.io/library/debian:trixie-slim >/dev/null
store rm "$base" >/dev/null
rm "$TMPDIR/base.tar"
say "base image made in $((SECONDS - start)) s"

start=$SECONDS
[[ -z $(git status --porcelain) ]] || say "changes that are not committed are not tested"
git clone --quiet --no-hardlinks . "$TMPDIR/ladder"
store bud --isolation chroot --pull-never --tag ladder "$TMPDIR/ladder"
say "image built in $((SECONDS - start)) s"

command=("$@")
if ((!$#)); then
  read -ra command <<<"$(store inspect --type image --format '{{range .OCIv1.Config.Cmd}}{{.}} {{end}}' ladder)"
fi
start=$SECONDS
container=$(store from --pull-never ladder)
status=0
# Docker lets a container resolve its own name, which torchrun needs; chroot does not.
store run --hostname localhost --isolation chroot "$container" -- "${command[@]}" || status=$?
say "${command[*]}: $((SECONDS - start)) s, exit code $status"
exit "$status"
