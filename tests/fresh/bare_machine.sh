#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first commands of a newcomer on a bare Debian: see `--help`.
set -euo pipefail

usage() {
  cat <<'END'
usage: tests/fresh/bare_machine.sh [bookworm | trixie] [FLAGS] [--tests | --all-tests | COMMAND...]

Makes a Debian 12 (bookworm, the default) or 13 (trixie) with apt, git, python3 and ca-certificates
alone, clones the last commit into it, and runs there, each with its time:

  ./run                    without a command
  ./run, ./test --quick    --tests
  ./run, ./test            --all-tests
  COMMAND...               each argument is one command line, run in the clone

FLAGS make another machine:

  --user          commands run as a user without sudo; root types what the first one prints
  --sudo          commands run as a user with sudo
  --folder NAME   of the clone, such as 'a b'
  --terminal      commands write to a terminal, 80 columns wide
  --ccache        compilers share this machine's ccache, for a build that was made here with the
                  same compiler and flags
  --memory N      GiB, of which /tmp may take half
  --tmp N         GiB of /tmp, in memory

Needs root, mmdebstrap (installed if missing), 16 GB in TMPDIR (default /var/tmp), and a network; --memory also
control groups. Everything is in a mount and process namespace of its own; nothing but mmdebstrap is left behind. A step
that fails ends the script with its exit code.
END
}

say() { printf 'bare machine: %s\n' "$*"; }

die() {
  say "$*" >&2
  exit 1
}

suite=bookworm user=root name=ladder terminal='' memory='' tmp='' ccache='' commands=() more=()
while (($#)); do
  case $1 in
    bookworm | trixie) suite=$1 ;;
    --user) user=guest ;;
    --sudo)
      user=guest
      more=(--include=sudo)
      ;;
    --terminal) terminal=1 ;;
    --ccache) ccache=$(ccache --get-config cache_dir) ;;
    --folder | --memory | --tmp)
      [[ ${2-} ]] || {
        usage >&2
        exit 2
      }
      case $1 in
        --folder) name=$2 ;;
        --memory) memory=$2 ;;
        --tmp) tmp=$2 ;;
      esac
      shift
      ;;
    --tests) commands=(./run './test --quick') ;;
    --all-tests) commands=(./run ./test) ;;
    -h | --help)
      usage
      exit
      ;;
    -*)
      usage >&2
      exit 2
      ;;
    *)
      commands=("$@")
      break
      ;;
  esac
  shift
done
((${#commands[@]})) || commands=(./run)
[[ ! $memory || $tmp ]] || tmp=$(((memory + 1) / 2))

((EUID == 0)) || die "expected root, which makes a root folder and its mounts; hint: sudo $0"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if ! command -v mmdebstrap >/dev/null; then
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null ||
    die "mmdebstrap cannot be installed; hint: apt-get install mmdebstrap"
fi

folder=$(mktemp -d "${TMPDIR:-/var/tmp}/bare_machine.XXXXXX")
child=
group=/sys/fs/cgroup/memory/bare_machine.$$ limit=memory.limit_in_bytes
[[ -d ${group%/*} ]] || group=/sys/fs/cgroup/bare_machine.$$ limit=memory.max
# The end of unshare ends all that runs in the root.
trap '[[ -z $child ]] || { kill -KILL "$child"; wait "$child"; } 2>/dev/null || true
  [[ ! -d $group ]] || rmdir "$group" || true
  rm -rf --one-file-system "$folder"' EXIT
trap 'exit 130' INT TERM HUP
unshare --mount --pid --uts --ipc --fork true ||
  die "this machine does not allow namespaces of mounts and processes; hint: a container needs CAP_SYS_ADMIN"
start=$SECONDS
mmdebstrap --quiet --variant=minbase --include=git,python3,ca-certificates "${more[@]}" "$suite" "$folder/root" ||
  die "mmdebstrap cannot make $suite; hint: are the Debian mirrors reachable, and this file system without nodev?"
# As an installer or a container leaves them; the certificates of this machine's network as well.
printf '127.0.0.1 localhost\n127.0.1.1 bare\n' >"$folder/root/etc/hosts"
cp /etc/resolv.conf "$folder/root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$folder/root/etc/ssl/certs/ca-certificates.crt"
[[ -z $(git status --porcelain) ]] || say "changes that are not committed are not tested"
home=/root
if [[ $user != root ]]; then
  home=/home/$user
  chroot "$folder/root" useradd --create-home --uid 1000 "$user"
  [[ ! ${more[*]} ]] || echo "$user ALL=(ALL) NOPASSWD: ALL" >"$folder/root/etc/sudoers.d/$user"
fi
clone=$home/$name
git clone --quiet --no-hardlinks . "$folder/root$clone"
[[ $user == root ]] || chown -R 1000:1000 "$folder/root$clone"
say "$suite made in $((SECONDS - start)) s: $(sed -n "s/^PRETTY_NAME=//p" "$folder/root/etc/os-release")"

# Of this machine's environment only what describes its network.
variables=("HOME=$home" LANG=C.UTF-8 TERM=dumb)
[[ ! $terminal ]] || variables+=(TERM=xterm COLUMNS=80)
[[ ! $ccache ]] || variables+=(CCACHE_DIR=/mnt)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL PIP_CERT; do
  [[ -z ${!name-} ]] || variables+=("$name=${!name}")
done

# inside USER COMMAND
inside() {
  local command=$2 paths=/usr/local/bin:/usr/bin:/bin ids=1000
  [[ $1 != root ]] || paths=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ids=0
  if [[ $terminal ]]; then
    command="exec python3 -c 'import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn([\"bash\", \"-c\", \"stty cols 80; \" + sys.argv[1]])))' $(printf '%q' "$command")"
  fi
  # shellcheck disable=SC2016 # expanded by the inner shell
  (
    if [[ $memory ]]; then
      mkdir -p "$group"
      echo $((memory << 30)) >"$group/$limit"
      echo "$BASHPID" >"$group/cgroup.procs"
    fi
    exec unshare --mount --pid --uts --ipc --fork --kill-child -- bash -c '
      set -e
      hostname bare
      mount -t proc proc "$1/proc"
      mount --rbind --make-rslave /dev "$1/dev"
      mount -t tmpfs tmpfs "$1/dev/shm"
      [[ ! $2 ]] || mount -t tmpfs -o "size=$2G" tmpfs "$1/tmp"
      [[ ! $7 ]] || mount --bind "$7" "$1/mnt"
      if [[ $3 ]]; then
        sed -E "s/^(MemTotal|MemFree|MemAvailable):.*/\1: $(($3 << 20)) kB/" /proc/meminfo >"$1/run/meminfo"
        mount --bind "$1/run/meminfo" "$1/proc/meminfo"
      fi
      # Not exec: a change of user would end what kills the first process of the namespace.
      chroot --userspec="$4:$4" "$1" env -i "${@:8}" bash -c "cd \"\$1\" && $6" - "$5"
    ' - "$folder/root" "$tmp" "$memory" "$ids" "$clone" "$command" "$ccache" "PATH=$paths" "${variables[@]}"
  ) </dev/null &
  child=$!
  wait "$child" || status=$?
  child=
}

times=()
status=0
if [[ $user != root && ! ${more[*]} ]]; then
  inside "$user" "${commands[0]}" &>"$folder/printed"
  line=$(sed -n 's/^setup: *\(su - -c .*\)/\1/p' "$folder/printed" | tr -d '\r')
  [[ $line ]] || die "without root, ${commands[0]} printed no line to type: $(<"$folder/printed")"
  say "root types: $line"
  status=0
  inside root "$line" &>"$folder/printed"
  ((!status)) || die "exit code $status: $(<"$folder/printed")"
fi
for command in "${commands[@]}"; do
  say "\$ $command"
  start=$SECONDS
  inside "$user" "$command"
  times+=("$command: $(((SECONDS - start) / 60)) min $(((SECONDS - start) % 60)) s, exit code $status")
  ((!status)) || break
done
for line in "${times[@]}"; do
  say "$suite: $line"
done
exit "$status"
