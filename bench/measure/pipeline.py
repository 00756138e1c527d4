# SPDX-License-Identifier: Apache-2.0
"""Measures the schedules of beyond/pipeline: when each rank computes, and when it waits.

    python3 bench/measure/pipeline.py bench/results/NAME.pipeline.json

Runs two ranks of one thread under LibTorch's profiler, both schedules with 1 to 8 micro-batches in
turns: stages of the recipe stack, which are nearly equal, and with 4 micro-batches those of
BasicNet. A rank computes within a box pipeline.forward or pipeline.backward, but not while it
receives at its beginning. The box of c10d::recv_ is the request alone, so a rank waits until the
first operation behind the last request. A step lasts from the first forward of a batch on any rank
to the end of the last backward. Takes a minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench" / "records"))
from record import new_record, run_program, write_record  # noqa: E402
from rows import described  # noqa: E402

RECIPES = ("stack", "basicnet")
SCHEDULES = ("1f1b", "gpipe")
MICRO_BATCHES = (1, 2, 4, 8)
SHOWN = 4  # of the picture, and of the recipe whose stages are unequal
RANKS = 2
RUNS = 3  # of each, in turns
BOXES = {"pipeline.forward": "F", "pipeline.backward": "B"}
RECEIVE = "c10d::recv_"


@dataclass
class Box:
    """A forward or backward; times in milliseconds."""

    letter: str
    begin: float
    end: float
    waited: float  # of it, at its beginning: for the tensor of another rank


def boxes_of(trace: dict[str, Any]) -> list[Box]:
    """Of a rank, in their order, in the time of all ranks of a machine."""
    start = trace.get("baseTimeNanoseconds", 0) / 1e6
    events = sorted((event["ts"] / 1e3 + start, event["dur"] / 1e3, event["name"])
                    for event in trace["traceEvents"] if event.get("ph") == "X")
    found = []
    for place, (begin, length, name) in enumerate(events):
        if name in BOXES:
            inside = list(takewhile(lambda one: one[0] < begin + length, events[place + 1:]))
            found.append(Box(BOXES[name], begin, begin + length, waited_in(inside, begin)))
    return found


def waited_in(inside: Sequence[tuple[float, float, str]], begin: float) -> float:
    """Until the first operation behind the receives, which come first in a box."""
    requests = [place for place, (*_, name) in enumerate(inside) if name == RECEIVE]
    return inside[requests[-1] + 1][0] - begin if requests else 0.0


def steps_of(ranks: Sequence[Sequence[Box]], parts: int) -> list[list[list[Box]]]:
    """The boxes of each step, by rank: two per micro-batch. Times since the step began."""
    count = min(len(boxes) for boxes in ranks) // (2 * parts)
    found = []
    for step in range(count):
        own = [boxes[2 * parts * step:2 * parts * (step + 1)] for boxes in ranks]
        begin = min(boxes[0].begin for boxes in own)
        found.append([[Box(box.letter, box.begin - begin, box.end - begin, box.waited)
                       for box in boxes] for boxes in own])
    return found


def length_of(step: Sequence[Sequence[Box]]) -> float:
    return max(boxes[-1].end for boxes in step)


def computed(boxes: Sequence[Box]) -> float:
    return sum(box.end - box.begin - box.waited for box in boxes)


def share_if_equal(stages: int, parts: int) -> float:
    """The idle share of stages of equal time."""
    return (stages - 1) / (parts + stages - 1)


def least_share(times: Sequence[float]) -> float:
    """That of stages that take so long per step: the step is at least as long as the slowest one."""
    return 1 - sum(times) / (len(times) * max(times))


def row_of(steps: Sequence[Sequence[Sequence[Box]]]) -> dict[str, Any]:
    """Of the step of median length."""
    typical = sorted(steps, key=length_of)[len(steps) // 2]
    length = length_of(typical)
    times = [computed(boxes) for boxes in typical]
    idle = [1 - time / length for time in times]
    return {"steps": len(steps), "ms": round(length, 3),
            "computed_ms": [round(time, 3) for time in times],
            "idle": [round(share, 4) for share in idle],
            "boxes": [[rank, box.letter, round(box.begin, 3), round(box.end, 3),
                       round(box.waited, 3)]
                      for rank, boxes in enumerate(typical) for box in boxes]}


def trained(recipe: str, schedule: str, parts: int, folder: Path) -> list[list[list[Box]]]:
    trace = folder / "trace.json"
    command = [ROOT / "build/bin/pipeline", "--nprocs", RANKS, "--threads", 1, "--device", "cpu",
               "--recipe", recipe, "--schedule", schedule, "--micro-batches", parts,
               "--limit-train", 64 * 10,
               "--limit-test", 64, "--trace", trace, "--quiet"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, timeout=300)
    traces = [trace, *(folder / f"trace.rank{rank}.json" for rank in range(1, RANKS))]
    return steps_of([boxes_of(json.loads(path.read_text())) for path in traces], parts)


def measured() -> dict[str, Any]:
    machine = described()  # with the load before
    equal, unequal = RECIPES
    rows = [*product([equal], SCHEDULES, MICRO_BATCHES), *product([unequal], SCHEDULES, [SHOWN])]
    steps: dict[tuple[str, str, int], list[Any]] = {row: [] for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(RUNS):
            for row in rows:
                steps[row] += trained(*row, Path(folder))
    return machine | {"ranks": RANKS, "threads": 1, "rows": {
        "/".join(map(str, row)): row_of(found) for row, found in steps.items()}}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measures the schedules of a pipeline.")
    parser.add_argument("record", type=new_record, metavar="NAME.pipeline.json")
    options = parser.parse_args(arguments)
    write_record(options.record, measured())
    return 0


if __name__ == "__main__":
    run_program(main)
