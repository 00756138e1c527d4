# SPDX-License-Identifier: Apache-2.0
"""Exact sums: their price, their accuracy, and a picture of how a batch is divided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from pandas import DataFrame

from drawing import Picture, figure_of
from intervals import mean_of
from results import Results, Row, Setup
from tables import Cells, Table, cells, plain_table, points
from words import INK, MUTED, NOT_RUN, RUNG_COLOURS, percent

STEPS = 200  # of a timed row


# --- tables -----------------------------------------------------------------------------


def sums_text(micro_batch: int) -> str:
    return f"exact, micro-batch {micro_batch}" if micro_batch else "fast"


def step_text(row: Row) -> str:
    return row.seconds().text(lambda value: f"{1000 * value / STEPS:.1f}")


def price_text(results: Results, setup: Setup) -> str:
    """Time over that of the sums in float."""
    if setup.micro_batch == 0:
        return "1"
    ratio = results.ratio(setup, replace(setup, micro_batch=0), kind="sums")
    return NOT_RUN if ratio is None else ratio.text(lambda value: f"{value:.2f}")


def price_table(results: Results) -> Table:
    writers = {"ms per step [95 %]": step_text,
               "time / fast [95 %]": lambda row: price_text(results, row.key.setup)}
    rows = [{"ranks": f"{row.key.setup.world} x {row.key.setup.threads}",
             "sums": sums_text(row.key.setup.micro_batch), **cells(row, writers)}
            for row in sorted(results.of_kind("sums"), key=lambda row: row.key.setup.order())]
    notes = ["Stage 2, BasicNet, fp32. Ranks x threads; milliseconds per step over 200 steps; all "
             "rows in one run, in random order."]
    return plain_table("The price of exact sums", rows, notes, 2)


def by_seed(results: Results) -> DataFrame:
    """Accuracies in percent of the seeds with both sums: a row per seed, a column per sums."""
    return DataFrame({row.key.setup.micro_batch: row.accuracies()
                      for row in results.of_kind("seeds")}).sort_index(axis=1).dropna().sort_index()


def seeds_table(results: Results) -> Table:
    """Without rows if no seed has both."""
    found = by_seed(results)
    rows: list[Cells] = []
    if len(found.columns) == 2:
        apart = found.iloc[:, 1] - found.iloc[:, 0]
        rows = [{"seed": str(seed), **{sums_text(size): percent(found.at[seed, size])
                                       for size in found},
                 "difference, points": f"{apart[seed]:+.2f}"} for seed in found.index]
    if rows:
        rows.append({"seed": "mean", **{sums_text(size): percent(found[size].mean())
                                        for size in found},
                     "difference, points": points(mean_of(list(apart)))})
    setups = {row.key.setup for row in results.of_kind("seeds")}
    notes = [f"Stage 2, {setup.recipe}, {setup.precision}, one epoch, {setup.world} x "
             f"{setup.threads}: accuracy in percent. The interval is that of the mean difference "
             "over the seeds, Student's t." for setup in sorted(setups, key=Setup.order)[:1]]
    return plain_table("Accuracy of exact sums", rows, notes)


# --- the picture ------------------------------------------------------------------------

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
    figure = figure_of(HEIGHT, WIDTH)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
    axes.set_axis_off()
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
