#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starts the ranks of one machine by hand: what a launcher does, in a loop of four lines.
# Waits for all; when one fails, ends the others and exits with its status.
#
#   scripts/by_hand.sh [FLAGS OF THE PROGRAM]                 two ranks on this machine
#   NPROC_PER_NODE=4 scripts/by_hand.sh --epochs 2            four
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=HOST scripts/by_hand.sh  on HOST, the first of two machines
#   NNODES=2 NODE_RANK=1 MASTER_ADDR=HOST scripts/by_hand.sh  on the second
#
# To change: PROGRAM, MASTER_PORT if 29500 is taken, and GRACE_SECONDS (10) between SIGTERM and
# SIGKILL of a rank.
set -euo pipefail

program=${PROGRAM:-build/bin/stage3_ddp_torchrun}
nproc_per_node=${NPROC_PER_NODE:-2}
node_rank=${NODE_RANK:-0}
for number in "NPROC_PER_NODE=$nproc_per_node" "NNODES=${NNODES:-1}" "NODE_RANK=$node_rank" \
  "GRACE_SECONDS=${GRACE_SECONDS:-10}"; do
  [[ $number =~ ^[A-Z_]+=[1-9][0-9]{0,3}$ || $number =~ ^(NODE_RANK=0|GRACE_SECONDS=[0-9.]+)$ ]] || {
    name=${number%%=*}
    printf "by_hand.sh: %s: expected a whole number, %s, got '%s'; hint: unset %s\n" "$name" \
      "$([[ $name == NODE_RANK ]] && echo 'from 0' || echo 'from 1 to 9999')" "${number#*=}" "$name" >&2
    exit 2
  }
done
if ! command -v "$program" >/dev/null; then
  printf 'by_hand.sh: no program %s; run it from the project root, or set PROGRAM\n' "$program" >&2
  exit 2
fi

# Remaining ranks get SIGTERM, and later SIGKILL.
end_ranks() {
  local left pid
  mapfile -t left <<<"$(jobs -pr)"
  [[ ${left[0]} ]] || return 0
  kill "${left[@]}" 2>/dev/null || true
  for pid in "${left[@]}"; do
    timeout "${GRACE_SECONDS:-10}" tail -s 0.1 -f /dev/null --pid="$pid" || kill -KILL "$pid" 2>/dev/null || true
  done
  wait "${left[@]}" 2>/dev/null || true
}
trap end_ranks EXIT
trap 'exit 130' INT # a script's background processes ignore Ctrl-C
trap 'exit 143' TERM

# They end with this script, also if it is killed.
start=(setpriv --pdeathsig TERM)
"${start[@]}" true 2>/dev/null || start=(env)

export MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
export WORLD_SIZE=$((${NNODES:-1} * nproc_per_node)) LOCAL_WORLD_SIZE=$nproc_per_node
for ((local_rank = 0; local_rank < nproc_per_node; ++local_rank)); do
  rank=$((node_rank * nproc_per_node + local_rank))
  RANK=$rank LOCAL_RANK=$local_rank "${start[@]}" "$program" "$@" &
  ranks+=($!)
done
# The first failure ends the script. Of two processes that end at once, `wait -n` may report only
# one (bash 5.2), and then returns 127, as a program that is missing; `wait` by number knows each.
for _ in "${ranks[@]}"; do
  wait -n || { status=$? && ((status == 127)) || exit "$status"; }
done
for pid in "${ranks[@]}"; do
  wait "$pid" || exit
done
