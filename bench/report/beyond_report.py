# SPDX-License-Identifier: Apache-2.0
"""Tables and picture of the records of bench/measure/pipeline.py and bench/measure/divided.py."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from drawing import PAGE_WIDTH, Band, Box, Picture, draw_bands
from words import STAGE_COLOURS

sys.path.append(str(Path(__file__).resolve().parents[1] / "measure"))
from pipeline import MICRO_BATCHES, SCHEDULES, least_share, share_if_equal  # noqa: E402

SHOWN = 4  # micro-batches of the picture
BOXES = {"F": ("forward", STAGE_COLOURS[2]), "B": ("backward", STAGE_COLOURS[4])}
PROGRAMS = {"stage0_single_gpu": "nothing: one process", "stage2_ddp_spawn": "nothing",
            "zero_redundancy": "state of the optimizer", "pipeline": "layers"}


def percent_text(share: float) -> str:
    return f"{100 * share:.0f} %"


def idle_share(row: Mapping[str, Any]) -> float:
    """Of all ranks together."""
    return sum(row["idle"]) / len(row["idle"])


def pipeline_table(record: Mapping[str, Any]) -> str:
    """The idle share beside the formula for equal stages, and what unequal ones cost at least."""
    rows = record["rows"]
    lines = ["| micro-batches | step, ms (1f1b, gpipe) | 1f1b: ranks compute, ms "
             "| idle (1f1b, gpipe) | formula | unequal stages alone |", "| ---: | ---: | ---: | ---: | ---: | ---: |"]
    for parts in MICRO_BATCHES:
        both = [rows[f"{schedule}/{parts}"] for schedule in SCHEDULES]
        cells = (str(parts), ", ".join(f"{row['ms']:.1f}" for row in both),
                 ", ".join(f"{time:.1f}" for time in both[0]["computed_ms"]),
                 ", ".join(percent_text(idle_share(row)) for row in both),
                 percent_text(share_if_equal(record["ranks"], parts)),
                 percent_text(least_share(both[0]["computed_ms"])))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def divided_table(record: Mapping[str, Any]) -> str:
    lines = ["| program | ranks | divides | sent per step, mean of the ranks, MB | memory of each "
             "rank, four times as wide, MB |",
             "| --- | ---: | --- | ---: | ---: |"]
    for program, row in record["programs"].items():
        sent = row["sent_bytes_per_step"] / row["ranks"] / 1e6
        peaks = ", ".join(f"{peak / 1e6:.0f}" for peak in row["peak_bytes"])
        lines.append(f"| `{program}` | {row['ranks']} | {PROGRAMS[program]} | {sent:.1f} | "
                     f"{peaks} |")
    return "\n".join(lines) + "\n"


def band(record: Mapping[str, Any], schedule: str) -> Band:
    row = record["rows"][f"{schedule}/{SHOWN}"]
    counts: dict[tuple[int, str], int] = {}
    boxes = []
    for rank, letter, begin, end, waited in row["boxes"]:
        counts[rank, letter] = counts.get((rank, letter), 0) + 1
        boxes.append(Box(rank, begin + waited, end - begin - waited,
                         f"{letter}{counts[rank, letter]}", BOXES[letter][1]))
    title = (f"{schedule}: idle {percent_text(idle_share(row))}, with equal stages "
             f"{percent_text(share_if_equal(record['ranks'], SHOWN))}")
    return Band(title, [f"rank {rank}" for rank in range(record["ranks"])], boxes)


def pipeline_picture(record: Mapping[str, Any]) -> Picture:
    bands = [band(record, schedule) for schedule in SCHEDULES]
    return Picture("pipeline", f"One step of two stages with {SHOWN} micro-batches",
                   ". ".join(band.title for band in bands),
                   partial(draw_bands, PAGE_WIDTH, bands, list(BOXES.values())))
