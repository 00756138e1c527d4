#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first commands of a newcomer on a bare Debian: see `--help`.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/fresh/bare_machine.sh [bookworm | trixie] [--tests | --all-tests | COMMAND...]

Makes a Debian 12 (bookworm, the default) or 13 (trixie) with apt, git, python3 and ca-certificates
alone, clones the last commit into it, and runs there, each with its time:

  ./run                    without a flag
  ./run, ./test --quick    --tests
  ./run, ./test            --all-tests
  COMMAND...               each argument is one command line, run in the clone

Needs root, mmdebstrap (installed if missing), 16 GB in TMPDIR (default /var/tmp), and a network.
Everything is in a mount and process namespace of its own; nothing but mmdebstrap is left behind. A step that fails
ends the script with its exit code.
END
}

say() { printf 'bare machine: %s\n' "$*"; }

die() {
  say "$*" >&2
  exit 1
}

suite=bookworm
case ${1-} in
  bookworm | trixie)
    suite=$1
    shift
    ;;
  -h | --help)
    usage
    exit
    ;;
esac
case ${1-} in
  '') commands=(./run) ;;
  --tests) commands=(./run './test --quick') ;;
  --all-tests) commands=(./run ./test) ;;
  -*)
    usage >&2
    exit 2
    ;;
  *) commands=("$@") ;;
esac

((EUID == 0)) || die "expected root, which makes a root folder and its mounts; hint: sudo $0"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! command -v mmdebstrap >/dev/null; then
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null ||
    die "mmdebstrap cannot be installed; hint: apt-get install mmdebstrap"
fi

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/bare_machine.XXXXXX")
child=
# The end of unshare ends all that runs in the root.
trap '[[ -z $child ]] || { kill -KILL "$child"; wait "$child"; } 2>/dev/null || true
  rm -rf --one-file-system "$folder"' EXIT
trap 'exit 130' INT TERM HUP
unshare --mount --pid --uts --ipc --fork true ||
  die "this machine does not allow namespaces of mounts and processes; hint: a container needs CAP_SYS_ADMIN"
start=$SECONDS
mmdebstrap --quiet --variant=minbase --include=git,python3,ca-certificates "$suite" "$folder/root" ||
  die "mmdebstrap cannot make $suite; hint: are the Debian mirrors reachable, and this file system without nodev?"
# As an installer or a container leaves them; the certificates of this machine's network as well.
printf '127.0.0.1 localhost\n127.0.1.1 bare\n' >"$folder/root/etc/hosts"
cp /etc/resolv.conf "$folder/root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$folder/root/etc/ssl/certs/ca-certificates.crt"
[[ -z $(git status --porcelain) ]] || say "changes that are not committed are not tested"
git clone --quiet --no-hardlinks . "$folder/root/root/ladder"
say "$suite made in $((SECONDS - start)) s: $(sed -n "s/^PRETTY_NAME=//p" "$folder/root/etc/os-release")"

# Of this machine's environment only what describes its network.
variables=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_CERT; do
  [[ -z ${!name-} ]] || variables+=("$name=${!name}")
done

inside() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --pid --uts --ipc --fork --kill-child -- bash -c '
    set -e
    hostname bare
    mount -t proc proc "$1/proc"
    mount --rbind --make-rslave /dev "$1/dev"
    mount -t tmpfs tmpfs "$1/dev/shm"
    exec chroot "$1" env -i "${@:3}" bash -c "cd ~/ladder && $2"' - "$folder/root" "$1" "${variables[@]}" </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
}

times=()
status=0
for command in "${commands[@]}"; do
  say "\$ $command"
  start=$SECONDS
  inside "$command"
  times+=("$command: $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s, exit code $status")
  ((!status)) || break
done
for line in "${times[@]}"; do
  say "$suite: $line"
done
exit "$status"
