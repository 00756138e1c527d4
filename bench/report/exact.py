# SPDX-License-Identifier: Apache-2.0
"""Tables of exact sums: their price and their accuracy."""

from __future__ import annotations

from dataclasses import replace

from pandas import DataFrame

from intervals import mean_of
from results import Results, Row, Setup
from tables import Cells, Table, cells, plain_table, points
from words import NOT_RUN, percent

STEPS = 200  # of a timed row


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
