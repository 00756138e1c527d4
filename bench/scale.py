# SPDX-License-Identifier: Apache-2.0
"""What training costs on 1 to 1,024 ranks, from what was measured on two.

    .venv/bin/python bench/scale.py runs/links.json

Takes computing times by images per rank, α and β of each link, and the spread of step times from a
record of bench/links/links.py. Prints steps per second and cost per epoch by ranks and link, and
from how many ranks on compression, accumulation and larger batches pay. pages.py puts the same into
docs/cluster.md. Exit code: 0, or 2 if the record cannot be read.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent / "report"))
import packages  # noqa: E402, F401  first: checks the packages and sets the path
from link_model import ACCUMULATION, Link, cables, compute_times  # noqa: E402
from link_tables import BATCHES, GRADIENTS, machine_text  # noqa: E402
from record import run_program  # noqa: E402
from results import ResultsError  # noqa: E402
from table import terminal_table  # noqa: E402
from tables import Table  # noqa: E402
from words import significant  # noqa: E402

TRAINING_IMAGES = 60_000
BATCH = BATCHES["basicnet"]
GRADIENT = GRADIENTS["basicnet"]
MOST = 1024
RANKS = tuple(2 ** power for power in range(11))
GAIN = 0.1  # a measure pays if it makes an epoch shorter by this share
DRAWS = 4000  # of sums of several steps
SEED = 20_260
ASSUMPTIONS = (
    "Assumptions: basicnet; a rank is one core of the machine of the record, and has the link for "
    "itself. The link is the same between all ranks, and all-reduces follow Gloo's ring. Computing "
    "and all-reduce follow each other without overlap. Each step takes as long as that of the "
    "slowest rank: the expected maximum of one draw per rank from the measured step times, whose "
    "relative spread is the same for every batch. More ranks than draws add nothing to it. Loading "
    "data, tests, failures and the CPU time of the network cost nothing; the table of measured "
    "steps shows how far a model of this kind misses with two ranks.")


class Way(NamedTuple):
    """How to train with many ranks."""

    words: str
    divided: bool = False  # a batch of 64 in all; else 64 images per rank and backward
    share: float = 1.0  # of the gradients' bytes
    backwards: int = 1  # per all-reduce


DIVIDED = Way("64 images divided", divided=True)
PLAIN = Way("64 images per rank")
COMPRESSED = Way("bf16 compression", share=0.5)
ACCUMULATED = Way(f"accumulation {ACCUMULATION}", backwards=ACCUMULATION)
# Each measure with the way that it improves.
MEASURES = ((COMPRESSED, PLAIN), (ACCUMULATED, PLAIN), (PLAIN, DIVIDED))


def expected_maximum(ordered: Sequence[float], draws: int) -> float:
    """Of `draws` values that are drawn, with replacement, from values in increasing order."""
    count = len(ordered)
    shares = [(place / count) ** draws for place in range(count + 1)]
    return sum(value * (upper - lower)
               for value, lower, upper in zip(ordered, shares, shares[1:]))


def interpolated(times: Mapping[int, float], images: float) -> float:
    """Between the measured sizes on a straight line."""
    sizes = sorted(times)
    if not sizes[0] <= images <= sizes[-1]:
        raise ResultsError(f"computing times: expected {images:g} between {sizes[0]} and "
                           f"{sizes[-1]} images")
    upper = next(size for size in sizes if size >= images)
    lower = max((size for size in sizes if size <= images))
    part = 0.0 if upper == lower else (images - lower) / (upper - lower)
    return times[lower] + part * (times[upper] - times[lower])


class Costs:
    """The costs of ranks, from a record."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.links = cables(record)
        self._times = compute_times(record, "basicnet")
        hooks = {name: median(seconds) for name, seconds in record["hooks"].items()}
        self._hook = max(0.0, hooks["bf16"] - hooks["plain"])
        seconds = record["samples"]["seconds"]
        relative = [value / mean(seconds) for value in seconds]
        draw = random.Random(SEED).choices
        self._spread = {1: sorted(relative),
                        ACCUMULATION: sorted(mean(draw(relative, k=ACCUMULATION))
                                             for _ in range(DRAWS))}
        self.slowest: Callable[[int, int], float] = functools.cache(
            lambda ranks, backwards: expected_maximum(self._spread[backwards], ranks))

    def step(self, way: Way, link: Link, ranks: int) -> float | None:
        """Seconds; None if there are more ranks than images."""
        images = -(-BATCH // ranks) if way.divided else BATCH
        if way.divided and ranks > BATCH:
            return None
        compute = way.backwards * interpolated(self._times, images)
        compute *= self.slowest(ranks, way.backwards)
        if ranks == 1:
            return compute
        hook = self._hook if way.share < 1 else 0.0
        return compute + hook + link.all_reduce(ranks, way.share * GRADIENT)

    def epoch(self, way: Way, link: Link, ranks: int) -> float | None:
        """Seconds per 60,000 images."""
        step = self.step(way, link, ranks)
        per_step = BATCH if way.divided else BATCH * ranks * way.backwards
        return None if step is None else step * TRAINING_IMAGES / per_step

    def pays(self, better: Way, plain: Way, link: Link, ranks: int) -> bool:
        with_it, without = (self.epoch(way, link, ranks) for way in (better, plain))
        if without is None:
            return True  # no other way has so many ranks
        return with_it is not None and with_it <= (1 - GAIN) * without


def pays_text(costs: Costs, better: Way, plain: Way, link: Link) -> str:
    """For which numbers of ranks a measure pays."""
    good = [ranks for ranks in range(2, MOST + 1) if costs.pays(better, plain, link, ranks)]
    if not good:
        return "never"
    if good[-1] == MOST:
        return f"from {good[0]} ranks"
    return f"{good[0]} to {good[-1]} ranks" if good[0] < good[-1] else f"{good[0]} ranks"


def fastest_divided(costs: Costs, link: Link) -> str:
    epochs = {ranks: costs.epoch(DIVIDED, link, ranks) for ranks in range(1, BATCH + 1)}
    return str(min(epochs, key=lambda ranks: epochs[ranks]))


def scale_table(costs: Costs) -> Table:
    """64 images per rank."""
    rows = []
    for ranks in RANKS:
        steps = [costs.step(PLAIN, link, ranks) for link in costs.links.values()]
        epochs = [costs.epoch(PLAIN, link, ranks) for link in costs.links.values()]
        rows.append([f"{ranks:,}", f"{costs.slowest(ranks, 1):.2f}",
                     *(significant(1 / step) for step in steps),
                     *(significant(ranks * epoch) for epoch in epochs)])
    header = ("ranks", "slowest / mean", *(f"steps/s, {words}" for words in costs.links),
              *(f"rank-s, {words}" for words in costs.links))
    notes = ["rank-s: seconds per epoch x ranks. slowest / mean: the step of the slowest rank over "
             "the mean step.", ASSUMPTIONS]
    return Table("Cost at scale, 64 images per rank", header, rows, notes)


def crossover_table(costs: Costs) -> Table:
    rows = [[words, *(pays_text(costs, better, plain, link) for better, plain in MEASURES),
             fastest_divided(costs, link)] for words, link in costs.links.items()]
    notes = [f"A measure pays where it makes an epoch at least {100 * GAIN:.0f} % shorter, among 2 "
             f"to {MOST:,} ranks. Compression and accumulation are compared with 64 images per "
             "rank and step; 64 images per rank with a batch of 64 that the ranks divide, which "
             f"has no use for more than {BATCH} ranks. Accumulation and 64 images per rank also "
             "make fewer updates per epoch, which can cost accuracy. The last column: how many ranks are the "
             "fastest at dividing it."]
    header = ("link", *(better.words for better, _ in MEASURES), "ranks, 64 images divided")
    return Table("What pays from how many ranks", header, rows, notes, [], 4)


def scale_tables(record: Mapping[str, Any]) -> list[Table]:
    """Both; none without a measured link."""
    costs = Costs(record)
    return [scale_table(costs), crossover_table(costs)] if costs.links else []


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="What training costs on 1 to 1,024 ranks.")
    parser.add_argument("record", type=Path, help="a record of bench/links/links.py")
    path = parser.parse_args(arguments).record
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        tables = scale_tables(record)
    except (OSError, ValueError, LookupError, ArithmeticError, TypeError, ResultsError) as error:
        print(f"scale: {path}: expected a record of bench/links/links.py, got {error!r}; hint: "
              "./run links writes runs/links.json", file=sys.stderr)
        return 2
    print(machine_text(record))
    for table in tables:
        print(f"\n{table.title}:\n{terminal_table(table)}")
    if not tables:
        print("No link was measured.")
    return 0


if __name__ == "__main__":
    run_program(main)
