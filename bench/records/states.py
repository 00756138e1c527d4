# SPDX-License-Identifier: Apache-2.0
"""Reads and writes sources.json: the sources of the commits that records name.

Most sources are the same at several commits, so a commit is written as what differs from the most
similar one above it, which "based on" names; null is a source that it lacks. A new commit comes
last and leaves the lines above as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from record import write_record

BASE = "based on"  # no source has such a name

State = Mapping[str, str | None]  # hashes by source


def difference(state: State, base: State) -> dict[str, str | None]:
    return {name: state.get(name) for name in sorted({**base, **state})
            if state.get(name) != base.get(name)}


def read_states(path: Path) -> dict[str, dict[str, str]]:
    """By commit; empty without the file."""
    states: dict[str, dict[str, str]] = {}
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for commit, changes in written.items():
        base = changes.pop(BASE, None)
        if base and base not in states:
            raise ValueError(f"{path}: {commit} is based on {base}, which is not above it")
        state = {**states.get(base, {}), **changes}
        states[commit] = {name: value for name, value in state.items() if value is not None}
    return states


def write_states(path: Path, states: Mapping[str, State]) -> None:
    """In the order in which the commits came."""
    written: dict[str, State] = {}
    for commit, state in states.items():
        bases = {base: difference(state, states[base]) for base in written}
        nearest = min(bases, key=lambda base: len(bases[base]), default=None)
        written[commit] = ({BASE: nearest, **bases[nearest]} if nearest
                           else dict(sorted(state.items())))
    write_record(path, written)
