# SPDX-License-Identifier: Apache-2.0
"""How near the programs are to the marks that were set for two CPU cores: docs/performance.md."""

from __future__ import annotations

from dataclasses import dataclass

from intervals import Estimate, median_of
from results import Results, Setup

HEADER = ("mark", "to reach", "here [95 %]", "reached?")
START_UP = 1.0  # seconds from the start of a program to the end of its first step


@dataclass(frozen=True)
class Mark:
    """One line: a factor that is to be at least, or a number that is to be at most, `wanted`."""

    what: str
    wanted: str
    here: Estimate | None
    reached: bool

    def cells(self) -> list[str]:
        here = "not run" if self.here is None else self.here.text(lambda value: f"{value:.2f}")
        return [self.what, self.wanted, here, "yes" if self.here and self.reached else "no"]


def inverse(estimate: Estimate | None) -> Estimate | None:
    """How many times faster, of a ratio of times."""
    if estimate is None:
        return None
    interval = estimate.interval and type(estimate.interval)(1 / estimate.interval.high,
                                                             1 / estimate.interval.low)
    return Estimate(1 / estimate.value, interval)


def at_least(what: str, factor: float, here: Estimate | None) -> Mark:
    return Mark(what, f"≥ {factor} ×", here, here is not None and here.value >= factor)


def at_most(what: str, limit: float, here: Estimate | None, unit: str = " ×") -> Mark:
    return Mark(what, f"≤ {limit}{unit}", here, here is not None and here.value <= limit)


def all_cpus(results: Results, recipe: str, program: str, world: int = 1,
             precision: str = "fp32") -> Setup | None:
    """The set-up of a program with the most threads."""
    found = [setup for setup in results.setups(recipe, ["slice"])
             if (setup.program, setup.world, setup.precision, setup.width) ==
             (program, world, precision, 1)]
    return max(found, key=lambda setup: setup.threads, default=None)


def ratio(results: Results, first: Setup | None, second: Setup | None) -> Estimate | None:
    return results.ratio(first, second) if first and second else None


def over_floor(results: Results, setup: Setup | None) -> Estimate | None:
    """Time over that of the arithmetic alone."""
    row = results.row("slice", setup) if setup else None
    percents = [one.counters.get("percent_of_floor") for one in row.good] if row else []
    return median_of([100 / percent for percent in percents if percent])


def whole_run(results: Results, recipe: str) -> Estimate | None:
    """How many times faster stage 0 trains and tests to its end than its twin: one run each."""
    runs = []
    for program in ("stage0_single_gpu", "python_single"):
        setup = all_cpus(results, recipe, program)
        row = results.row("full", setup) if setup else None
        if row is None or not row.good:
            return None
        runs.append(row.seconds().value)
    return Estimate(runs[1] / runs[0])


def slowest_start(results: Results) -> Estimate | None:
    """Of the stages that start by themselves, the longest: seconds."""
    starts = [row.counter("startup_seconds") for row in results.of_kind("full")
              if row.good and row.key.setup.program.startswith("stage")
              and "torchrun" not in row.key.setup.program]
    return Estimate(max(starts)) if starts else None


def marks(results: Results) -> list[Mark]:
    def setup(program: str, recipe: str = "basicnet", **how: object) -> Setup | None:
        return all_cpus(results, recipe, program, **how)

    stage0, python = setup("stage0_single_gpu"), setup("python_single")
    one_rank, two_ranks = (setup("stage2_ddp_spawn", world=world) for world in (1, 2))
    return [
        at_least("M1 BasicNet, fp32: stage 0 against its Python twin, 200 steps", 2.0,
                 inverse(ratio(results, stage0, python))),
        at_least("M1 … the whole epoch with its test", 2.0, whole_run(results, "basicnet")),
        at_most("M1 … time over the floor of arithmetic", 1.55, over_floor(results, stage0)),
        at_least("M2 BasicNet, bf16: stage 4, one rank, against the fp32 twin", 3.3,
                 inverse(ratio(results, setup("stage4_ddp_amp", precision="bf16"), python))),
        at_least("M2 … two ranks", 3.3, inverse(ratio(
            results, setup("stage4_ddp_amp", world=2, precision="bf16"), python))),
        at_least("M3 ConvNet, fp32: stage 0 against its twin, 200 steps", 1.9, inverse(ratio(
            results, setup("stage0_single_gpu", "convnet"), setup("python_single", "convnet")))),
        at_least("M3 … three epochs with tests", 1.9, whole_run(results, "convnet")),
        at_most("M5 stage 5 over stage 0, BasicNet", 1.02,
                ratio(results, setup("stage5_accelerator"), stage0)),
        at_most("M5 stage 6 over stage 0, BasicNet", 1.02,
                ratio(results, setup("stage6_trainer"), stage0)),
        at_least("M6 two ranks × 1 thread against one × 1 thread, BasicNet", 1.85,
                 inverse(ratio(results, two_ranks, one_rank))),
        at_most("M7 start of a program to its first step, slowest stage", START_UP,
                slowest_start(results), " s"),
    ]


def marks_text(results: Results) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "| --- | ---: | ---: | --- |"]
    lines += ["| " + " | ".join(mark.cells()) + " |" for mark in marks(results)]
    return "\n".join(lines) + "\n"
