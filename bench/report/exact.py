# SPDX-License-Identifier: Apache-2.0
"""Exact sums: their price, their accuracy, and a picture of how a batch is divided."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from intervals import mean_of, ratio_of
from results import Results, Row, Setup
from tables import Table, cells
from words import INK, MUTED, NOT_RUN, RUNG_COLOURS, Colour, percent

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
    rows = [results.row("sums", one) for one in (setup, replace(setup, micro_batch=0))]
    times = [[one.seconds for one in row.good] if row else [] for row in rows]
    ratio = ratio_of(*times)
    return NOT_RUN if ratio is None else ratio.text(lambda value: f"{value:.2f}")


def price_table(results: Results) -> Table:
    rows = []
    for row in sorted(results.of_kind("sums"), key=lambda row: row.key.setup.order()):
        setup = row.key.setup
        rows.append([f"{setup.world} x {setup.threads}", sums_text(setup.micro_batch),
                     *cells(row, [step_text, lambda row: price_text(results, row.key.setup)])])
    notes = ["Stage 2, BasicNet, fp32. Ranks x threads; milliseconds per step over 200 steps; all "
             "rows in one run, in random order."]
    return Table("The price of exact sums", ("ranks", "sums", "ms per step [95 %]",
                                             "time / fast [95 %]"), rows, notes, [], 2)


def by_seed(results: Results) -> dict[int, dict[int, float]]:
    """Accuracies in percent of the seeds with both sums: seed -> micro-batch -> accuracy."""
    found: dict[int, dict[int, float]] = {}
    for row in results.of_kind("seeds"):
        for seed, accuracy in row.accuracies().items():
            found.setdefault(seed, {})[row.key.setup.micro_batch] = accuracy
    return {seed: found[seed] for seed in sorted(found) if len(found[seed]) == 2}


def seeds_table(results: Results) -> Table:
    """Without rows if no seed has both."""
    found = by_seed(results)
    sizes = sorted({size for accuracies in found.values() for size in accuracies})
    rows = [[str(seed), *(percent(accuracies[size]) for size in sizes),
             f"{accuracies[sizes[1]] - accuracies[sizes[0]]:+.2f}"]
            for seed, accuracies in found.items()]
    if rows:
        columns = [[accuracies[size] for accuracies in found.values()] for size in sizes]
        apart = mean_of([exact - fast for fast, exact in zip(*columns)])
        rows.append(["mean", *(percent(mean_of(column).value) for column in columns),
                     apart.text(lambda value: f"{value:+.2f}")])
    setups = {row.key.setup for row in results.of_kind("seeds")}
    notes = [f"Stage 2, {setup.recipe}, {setup.precision}, one epoch, {setup.world} x "
             f"{setup.threads}: accuracy in percent. The interval is that of the mean difference "
             "over the seeds, Student's t." for setup in sorted(setups, key=Setup.order)[:1]]
    header = ("seed", *(sums_text(size) for size in sizes), "difference, points")
    return Table("Accuracy of exact sums", header, rows, notes, [], 1)


# --- the picture ------------------------------------------------------------------------

WIDTH, LEFT, BOX, ROW = 760.0, 150.0, 92.0, 34.0
SUM_AT = LEFT + 4 * BOX + 66
PARTS = {"A": RUNG_COLOURS[2], "B": RUNG_COLOURS[1], "C": RUNG_COLOURS[3], "D": RUNG_COLOURS[6]}
RANGES = {"A": "A: 0 to 15", "B": "B: 16 to 31", "C": "C: 32 to 47", "D": "D: 48 to 63"}
WORLDS = (("ABCD",), ("AB", "CD"), ("AB", "C", "D"))
TITLE = "A batch of 64 in micro-batches of 16, on one, two and three ranks"
ABOUT = ("One rank computes the micro-batches A, B, C and D. Of two ranks, the first computes A "
         "and B, the second C and D. Of three, the first computes A and B, the others C and D. "
         "Each gives integers, and their sum A + B + C + D is the same for any number of ranks.")


def text(x: float, y: float, words: str, colour: Colour = INK, anchor: str = "start",
         size: float = 12) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="var(--{colour.name})">{escape(words)}</text>')


def box(x: float, y: float, part: str, words: str) -> str:
    colour = f"var(--{PARTS[part].name})"
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX - 6:.1f}" height="{ROW - 8:.1f}" rx="3" '
            f'fill="none" stroke="{colour}" stroke-width="2"/>'
            + text(x + (BOX - 6) / 2, y + 17.5, words, INK, "middle"))


def world(ranks: tuple[str, ...], top: float) -> list[str]:
    """One row per rank, with its micro-batches one after the other, and the sum."""
    bottom = top + len(ranks) * ROW - 8
    middle_at = (top + bottom) / 2
    parts = [text(8, middle_at + 4, f"{len(ranks)} rank{'s' * (len(ranks) > 1)}", INK, size=13)]
    for place, own in enumerate(ranks):
        y = top + place * ROW
        parts.append(text(LEFT - 12, y + 17.5, f"rank {place}", MUTED, "end"))
        parts += [box(LEFT + number * BOX, y, part, part) for number, part in enumerate(own)]
        parts.append(f'<path d="M{LEFT + len(own) * BOX:.1f} {y + 13:.1f}H{SUM_AT - 16:.1f}" '
                     f'fill="none" stroke="var(--{MUTED.name})" stroke-dasharray="3 4"/>')
    parts.append(f'<path d="M{SUM_AT - 16:.1f} {top:.1f}h8V{bottom:.1f}h-8" fill="none" '
                 f'stroke="var(--{INK.name})" stroke-width="1.4"/>')
    parts.append(text(SUM_AT, middle_at + 4, "A + B + C + D", INK, size=13))
    return parts


def picture() -> str:
    parts = [text(8, 27.5, "images of a batch", INK, size=13)]
    parts += [box(LEFT + number * BOX, 10, part, RANGES[part])
              for number, part in enumerate(PARTS)]
    parts.append(text(SUM_AT, 20, "sum of integers,", MUTED))
    parts.append(text(SUM_AT, 36, "multiples of 2⁻⁴⁴", MUTED))
    top = 10 + ROW + 22
    for ranks in WORLDS:
        parts += world(ranks, top)
        top += len(ranks) * ROW + 20
    parts.append(text(8, top + 2, "Time runs from left to right. A box is always 16 images on one "
                      "thread; its integers are the same on any rank.", MUTED))
    return (f'<svg viewBox="0 0 {WIDTH:.0f} {top + 14:.0f}" role="img" font-family="sans-serif" '
            f'aria-labelledby="micro-title micro-desc"><title id="micro-title">{TITLE}</title>'
            f'<desc id="micro-desc">{ABOUT}</desc>' + "".join(parts) + "</svg>")
