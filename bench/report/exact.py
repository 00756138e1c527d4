# SPDX-License-Identifier: Apache-2.0
"""Tables of exact sums: their price and their accuracy."""

from __future__ import annotations

from pandas import DataFrame

from intervals import mean_of
from results import Results, Setup
from tables import Cells, Table, cells, over_base, plain_table, points
from words import NOT_RUN, percent

STEPS = 200  # of a timed row


def sums_text(micro_batch: int) -> str:
    return f"exact, micro-batch {micro_batch}" if micro_batch else "fast"


def price_table(results: Results) -> Table:
    writers = {
        "ms per step [95 %]": lambda row: row.seconds().text(
            lambda value: f"{1000 * value / STEPS:.1f}"),
        "time / fast [95 %]": lambda row: over_base(results, row, NOT_RUN, 2, micro_batch=0)}
    rows = [{"ranks": f"{row.key.setup.world} x {row.key.setup.threads}",
             "sums": sums_text(row.key.setup.micro_batch), **cells(row, writers)}
            for row in sorted(results.of_kind("sums"), key=lambda row: row.key.setup.order())]
    notes = ["Stage 2, BasicNet, fp32. Ranks x threads; milliseconds per step over 200 steps; all "
             "rows in one run, in random order."]
    return plain_table("The price of exact sums", rows, notes, 2)


def seeds_table(results: Results) -> Table:
    """Of the seeds with both sums; without rows if no seed has both."""
    found = DataFrame({row.key.setup.micro_batch: row.accuracies() for row in results.of_kind(
        "seeds")}).sort_index(axis=1).dropna().sort_index()
    rows: list[Cells] = []
    if len(found) and len(found.columns) == 2:
        apart = list(found.iloc[:, 1] - found.iloc[:, 0])
        differences = [*(f"{one:+.2f}" for one in apart), points(mean_of(apart))]
        found.loc["mean"] = found.mean()
        rows = [{"seed": str(seed), **{sums_text(size): percent(shares[size]) for size in found},
                 "difference, points": difference}
                for (seed, shares), difference in zip(found.iterrows(), differences)]
    setups = {row.key.setup for row in results.of_kind("seeds")}
    notes = [f"Stage 2, {setup.recipe}, {setup.precision}, one epoch, {setup.world} x "
             f"{setup.threads}: accuracy in percent. The interval is that of the mean difference "
             "over the seeds, Student's t." for setup in sorted(setups, key=Setup.order)[:1]]
    return plain_table("Accuracy of exact sums", rows, notes)
