# SPDX-License-Identifier: Apache-2.0
"""Table and picture of a record of bench/measure/step.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from drawing import README_WIDTH, Band, Box, Picture, draw_bands
from words import MUTED, STAGE_COLOURS, Colour

sys.path.append(str(Path(__file__).resolve().parents[1] / "measure"))
from step import MATHS, REST  # noqa: E402

LEAST = 0.1  # milliseconds: what takes less in both is one row
FAMILIES: tuple[tuple[str, Colour, tuple[str, ...]], ...] = (
    ("convolution", STAGE_COLOURS[2], ("conv",)),
    ("matrix product", STAGE_COLOURS[3], ("mm", "addmm", "linear", "Addmm", "Linear backward")),
    ("of this library", STAGE_COLOURS[4], ("ladder::", "Pool backward", "Dropout")),
    ("optimizer", STAGE_COLOURS[5], ("_fused_",)),
    ("others", MUTED, ()),
)
ABOUT = ("Two rows of boxes on one scale of time: the step in reference math above, the shorter "
         "one in fast math below. The table on the page has the numbers.")


def cell(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else ""


def table(record: Mapping[str, Any]) -> str:
    """Operations by what they cost in reference math, then those that only fast math has."""
    before, after = (record["operations"][math] for math in MATHS)
    times = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}
    shown = {name: pair for name, pair in times.items() if max(pair) >= LEAST and name != REST}
    rows = [(f"`{name}`", *shown[name])
            for name in sorted(shown, key=lambda name: (-shown[name][0], -shown[name][1]))]
    rest = [sum(times[name][side] for name in times if name not in shown) for side in (0, 1)]
    rows += [(REST, *rest), ("**a step**", *(record["length"][math] for math in MATHS))]
    lines = ["| operation | reference, ms | fast, ms |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {cell(one)} | {cell(other)} |" for name, one, other in rows]
    return "\n".join(lines) + "\n"


def family(name: str) -> Colour:
    return next((colour for _, colour, parts in FAMILIES if any(part in name for part in parts)),
                MUTED)


def band(math: str, length: float, boxes: Sequence[Sequence[Any]]) -> Band:
    depth = 1 + max(box[0] for box in boxes)
    return Band(f"--math {math}: {length:.1f} ms", [""] * depth,
                [Box(row, begin, length, name, family(name)) for row, name, begin, length in boxes])


def picture(record: Mapping[str, Any]) -> Picture:
    bands = [band(math, record["length"][math], record["flame"][math]) for math in MATHS]
    families = [family[:2] for family in FAMILIES]
    return Picture("step", "One training step of BasicNet, operation by operation", ABOUT,
                   partial(draw_bands, README_WIDTH, bands, families, True))
