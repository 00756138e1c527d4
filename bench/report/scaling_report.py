# SPDX-License-Identifier: Apache-2.0
"""Table and picture of a record of bench/measure/scaling.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any

from drawing import Line, Picture, draw_lines
from intervals import Estimate, median_of
from words import STAGE_COLOURS, number

COLOURS = {"basicnet": STAGE_COLOURS[2], "convnet": STAGE_COLOURS[4]}


def rows_of(record: Mapping[str, Any], recipe: str) -> dict[int, Mapping[str, Any]]:
    return {int(name.split("/")[1]): row for name, row in record["rows"].items()
            if name.startswith(f"{recipe}/")}


def without_exchange(row: Mapping[str, Any], ranks: int, cores: int) -> float:
    """Milliseconds of a step of ranks that share the cores and exchange nothing."""
    return median(row["alone_ms"]) * max(1.0, ranks / cores)


def efficiency(record: Mapping[str, Any], recipe: str, ranks: int) -> float:
    """The speed-up over one process, as a share of the cores that the ranks use."""
    rows = rows_of(record, recipe)
    return (median(rows[1]["ms"]) / median(rows[ranks]["ms"])) / min(ranks, record["cores"])


def table(record: Mapping[str, Any]) -> str:
    lines = ["| network, global batch | processes | step, ms | without exchange, ms | efficiency "
             "| sent per rank, MB |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for recipe, batch in record["batch"].items():
        for ranks, row in rows_of(record, recipe).items():
            cells = (f"{recipe}, {batch}", str(ranks), number(median(row["ms"])),
                     number(without_exchange(row, ranks, record["cores"])),
                     f"{100 * efficiency(record, recipe, ranks):.0f} %",
                     f"{row['sent_bytes_per_rank'] / 1e6:.2f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\nThe machine has {record['cores']} cores.\n"


def picture(record: Mapping[str, Any]) -> Picture:
    lines, words = [], []
    for recipe in record["batch"]:
        rows = rows_of(record, recipe)
        measured = [(float(ranks), median_of(row["ms"])) for ranks, row in rows.items()]
        model = [(float(ranks), Estimate(without_exchange(row, ranks, record["cores"]), None))
                 for ranks, row in rows.items()]
        lines += [Line(recipe, COLOURS[recipe], 0, False, measured),
                  Line(f"{recipe}, without exchange", COLOURS[recipe], 1, True, model)]
        words += [f"{recipe}, {ranks:.0f} processes: {time.value:.1f}, without exchange "
                  f"{alone.value:.1f}" for (ranks, time), (_, alone) in zip(measured, model)]
    return Picture("scaling", "Time of a step over the number of processes",
                   "Milliseconds. " + "; ".join(words) + ".",
                   partial(draw_lines, ("processes", "ms per step"), lines))
