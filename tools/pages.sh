#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes what the pages take from the sources: the diffs of the stages, and the output of the cog
# blocks, which call tools/page_blocks.py. Then read `git diff`.
#
#   tools/pages.sh            writes
#   tools/pages.sh --check    writes nothing; shows what differs, and fails if something does
#
# Help texts come from build/bin: build the stages first.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1-} in
  '') ladder=(--update) cog=(-r) ;;
  --check) ladder=() cog=(--check --diff --check-fail-msg='run tools/pages.sh') ;;
  *)
    printf 'usage: tools/pages.sh [--check]\n' >&2
    exit 2
    ;;
esac
mapfile -t pages < <(grep -lF '[[[cog' ./*.md docs/*.md docs/*/*.md examples/*.md exercises/*.md)
status=0
.venv/bin/python tools/ladder.py "${ladder[@]}" || status=1
.venv/bin/cog "${cog[@]}" -P --verbosity=1 -I tools \
  -p 'from page_blocks import *; from ladder import *' "${pages[@]}" || status=1
exit "$status"
