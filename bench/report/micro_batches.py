# SPDX-License-Identifier: Apache-2.0
"""A picture of exact sums: how a batch is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from drawing import Picture, canvas_of
from words import INK, MUTED, RUNG_COLOURS

WIDTH, LEFT, BOX, ROW = 760.0, 150.0, 92.0, 34.0  # points
SUM_AT = LEFT + 4 * BOX + 66
PARTS = {"A": RUNG_COLOURS[2], "B": RUNG_COLOURS[1], "C": RUNG_COLOURS[3], "D": RUNG_COLOURS[6]}
RANGES = {"A": "A: 0 to 15", "B": "B: 16 to 31", "C": "C: 32 to 47", "D": "D: 48 to 63"}
WORLDS = (("ABCD",), ("AB", "CD"), ("AB", "C", "D"))
HEIGHT = 322.0
SMALL = {"va": "center", "fontsize": 11, "color": MUTED.light}
TITLE = "A batch of 64 in micro-batches of 16, on one, two and three ranks"
ABOUT = ("One rank computes the micro-batches A, B, C and D. Of two ranks, the first computes A "
         "and B, the second C and D. Of three, the first computes A and B, the others C and D. "
         "Each gives integers, and their sum A + B + C + D is the same for any number of ranks.")


def draw_parts(axes: Axes, y: float, words: Mapping[str, str]) -> None:
    """A row of boxes, one per micro-batch."""
    for place, (part, text) in enumerate(words.items()):
        x = LEFT + place * BOX
        axes.add_patch(FancyBboxPatch((x + 3, y - 10), BOX - 12, 20, "round,pad=3", linewidth=2,
                                      facecolor="none", edgecolor=PARTS[part].light))
        axes.text(x + BOX / 2 - 3, y, text, ha="center", va="center", fontsize=11)


def draw_world(axes: Axes, ranks: Sequence[str], top: float) -> None:
    """One row per rank, with its micro-batches one after the other, and the sum."""
    rows = [top + ROW * place for place in range(len(ranks))]
    middle = (rows[0] + rows[-1]) / 2
    axes.text(8, middle, f"{len(ranks)} rank{'s' * (len(ranks) > 1)}", va="center", fontsize=12)
    for place, (y, own) in enumerate(zip(rows, ranks)):
        axes.text(LEFT - 12, y, f"rank {place}", ha="right", **SMALL)
        draw_parts(axes, y, {part: part for part in own})
        axes.plot([LEFT + len(own) * BOX, SUM_AT - 16], [y, y], ":", color=MUTED.light)
    ends = (rows[0] - 13, rows[-1] + 13)
    axes.plot([SUM_AT - x for x in (16, 8, 8, 16)], [ends[0], *ends, ends[1]], color=INK.light,
              linewidth=1.4)
    axes.text(SUM_AT, middle, "A + B + C + D", va="center", fontsize=12)


def draw() -> Figure:
    figure, axes = canvas_of(HEIGHT, WIDTH, xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.text(8, 23, "images of a batch", va="center", fontsize=12)
    draw_parts(axes, 23, RANGES)
    axes.text(SUM_AT, 23, "sum of integers,\nmultiples of 2⁻⁴⁴", **SMALL)
    top = 79.0
    for ranks in WORLDS:
        draw_world(axes, ranks, top)
        top += len(ranks) * ROW + 20 - 6 * (len(ranks) < 3)
    axes.text(8, HEIGHT - 12, "Time runs from left to right. A box is always 16 images on one "
              "thread; its integers are the same on any rank.", **SMALL)
    return figure


def picture() -> Picture:
    return Picture("micro-batches", TITLE, ABOUT, draw)
