#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains on two machines under torchrun. Type the same line on both; HOST is one of the two, and
# the first torchrun there opens the rendezvous.
#
#   scripts/torchrun_two_nodes.sh HOST [FLAGS OF THE PROGRAM]
#   scripts/torchrun_two_nodes.sh --local [FLAGS]   a trial: both "machines" are this one
#
# To change: NPROC_PER_NODE (ranks per machine, 2), PROGRAM, TORCHRUN, and RDZV_PORT if 29400 is
# taken. Both machines need the checkout in the same state, and a network they trust.
set -euo pipefail

if (($# == 0)); then
  echo "torchrun_two_nodes: expected HOST or --local; hint: scripts/torchrun_two_nodes.sh --local" >&2
  exit 2
fi
if [[ ! ${NPROC_PER_NODE-2} =~ ^[1-9][0-9]{0,3}$ ]]; then
  printf "torchrun_two_nodes: NPROC_PER_NODE: expected a number from 1 to 9999, got '%s'; hint: unset NPROC_PER_NODE\n" \
    "$NPROC_PER_NODE" >&2
  exit 2
fi
host=$1
shift

if [[ $host == --local ]]; then
  # When one fails or this script is stopped, the other stops its ranks.
  trap 'kill $(jobs -pr) 2>/dev/null || true; wait' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  "$0" 127.0.0.1 "$@" &
  first=$!
  "$0" 127.0.0.1 "$@" &
  second=$!
  wait -n || exit # a second one may miss a process that ended at the same moment
  wait "$first" && wait "$second"
  exit
fi

# A machine that cannot resolve its own name still has the loopback address.
local_addr=()
[[ $host != 127.* ]] || local_addr=(--local-addr "$host")
exec "${TORCHRUN:-.venv/bin/torchrun}" --nnodes 2 --nproc-per-node "${NPROC_PER_NODE:-2}" \
  --rdzv-backend c10d --rdzv-id two_nodes --rdzv-endpoint "$host:${RDZV_PORT:-29400}" \
  "${local_addr[@]}" --no-python "${PROGRAM:-build/bin/stage3_ddp_torchrun}" "$@"
