# SPDX-License-Identifier: Apache-2.0
"""Speed against Python, targets for two cores (docs/performance.md), claims of the tutorials."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pandas import Series

from equality import is_wrong
from intervals import Estimate, inverse, median_of
from results import Results, Row, Setup
from tables import (
    ALL_EQUAL, Cells, Table, accuracy_text, cells, counter, summary, table_of, usual_rows,
)
from words import (
    DDP_PRACTICE, HF_DEFAULTS, NOT_MEASURED, NOT_RUN, STAGES, TUNED, TWINS, count, number, twin_of,
)

TO_TUNED = "against the fastest tuned Python"
TWO_TO_ONE = "two ranks × 1 thread against one × 1 thread"


class Target(NamedTuple):
    """A number that is to be at least ("≥") or at most ("≤") the limit; None if not measured."""

    what: str
    sign: str
    limit: float
    here: Estimate | None
    unit: str = " ×"

    def cells(self) -> Cells:
        here = self.here.value
        reached = here >= self.limit if self.sign == "≥" else here <= self.limit
        return {"target": self.what, "value": f"{self.sign} {self.limit}{self.unit}",
                "here [95 %]": self.here.text(lambda value: f"{value:.2f}"),
                "reached?": "yes" if reached else "no"}


def all_cpus(results: Results, recipe: str, program: str, precision: str = "fp32",
             width: float = 1) -> Setup | None:
    """The set-up of a program, alone, with the most threads."""
    wanted = Setup(recipe, program, precision=precision, width=width)
    found = [setup for setup in results.setups(recipe, ["slice"])
             if replace(setup, threads=1) == wanted]
    return max(found, key=lambda setup: setup.threads, default=None)


def over_floor(results: Results, setup: Setup | None) -> Estimate | None:
    """Time over that of the arithmetic alone."""
    row = results.row("slice", setup) if setup else None
    percents = [one.counters.get("percent_of_floor") for one in row.good] if row else []
    return median_of([100 / percent for percent in percents if percent])


def whole_run(results: Results, stage: Setup | None) -> Estimate | None:
    """How many times faster stage 0 trains and tests to its end than its twin."""
    twin = stage and all_cpus(results, stage.recipe, TWINS[0])
    return inverse(results.ratio(stage, twin, kind="full"))


def slowest_start(results: Results) -> Estimate | None:
    """Of the stages that start by themselves, the longest median: seconds."""
    starts = [median_of([run.counters["startup_seconds"] for run in row.good])
              for row in results.of_kind("full") if row.good
              and row.setup.program.startswith("stage") and "torchrun" not in row.setup.program]
    return max(filter(None, starts), default=None, key=lambda start: start.value)


def fastest_tuned(results: Results, ours: Setup | None) -> Setup | None:
    """Of the tuned Python programs with the threads and precision of `ours`, the fastest."""
    rows = [results.row("slice", replace(ours, program=name)) for name in TUNED] if ours else []
    return min((row.setup for row in rows if row and row.good),
               key=lambda setup: results.row("slice", setup).seconds().value, default=None)


def against_tuned(results: Results, ours: Setup | None) -> Estimate | None:
    return inverse(results.ratio(ours, fastest_tuned(results, ours)))


def ranks(world: int, recipe: str = "basicnet", program: str = STAGES[2], **more: Any) -> Setup:
    """So many, each with one thread."""
    return Setup(recipe, program, world, threads=1, **more)


def second_rank(results: Results, kind: str = "slice", **setup: Any) -> Estimate | None:
    """How many times faster two ranks are than one."""
    return inverse(results.ratio(ranks(2, **setup), ranks(1, **setup), kind=kind))


def over_threads(results: Results, setup: Setup) -> Estimate | None:
    """Its time over that of stage 0 with two threads."""
    return results.ratio(setup, Setup(setup.recipe, STAGES[0], threads=2))


def targets(results: Results) -> list[Target]:
    """The targets, and behind them what else was reached once and has to stay so."""
    stage0, twin, stage5, stage6 = (all_cpus(results, "basicnet", program) for program in (
        STAGES[0], TWINS[0], STAGES[5], STAGES[6]))
    convnet = all_cpus(results, "convnet", STAGES[0])
    stage4 = all_cpus(results, "basicnet", STAGES[4], precision="bf16")
    stage2 = stage0 and replace(stage0, program=STAGES[2])
    return [
        Target(f"BasicNet, fp32: stage 0 {TO_TUNED}", "≥", 3.5, against_tuned(results, stage0)),
        Target(f"BasicNet, bf16: stage 4, one rank, {TO_TUNED}", "≥", 2.8,
               against_tuned(results, stage4)),
        Target(f"ConvNet, fp32: stage 0 {TO_TUNED}", "≥", 2.0, against_tuned(results, convnet)),
        Target(f"BasicNet, exact sums: {TWO_TO_ONE}", "≥", 1.55,
               second_rank(results, "sums", micro_batch=16)),
        Target("BasicNet: two ranks × 1 thread, time over stage 0 × 2 threads", "≤", 1.2,
               over_threads(results, ranks(2))),
        Target("BasicNet, zero redundancy: two ranks × 1 thread, the same", "≤", 1.12,
               over_threads(results, ranks(2, program="zero_redundancy"))),
        Target("ConvNet: two ranks × 1 thread, time over stage 0 × 2 threads", "≤", 1.12,
               over_threads(results, ranks(2, "convnet"))),
        Target("BasicNet: stage 2 with one rank over stage 0", "≤", 1.02,
               results.ratio(stage2, stage0)),
        Target("BasicNet, fp32: stage 0, time over the floor of arithmetic", "≤", 1.25,
               over_floor(results, stage0)),
        Target("BasicNet, fp32: stage 0 against its Python twin, 200 steps", "≥", 2.0,
               inverse(results.ratio(stage0, twin))),
        Target("BasicNet, fp32: stage 0 against its Python twin, whole run", "≥", 2.0,
               whole_run(results, stage0)),
        Target("ConvNet, fp32: stage 0 against its Python twin, whole run", "≥", 1.9,
               whole_run(results, convnet)),
        Target("BasicNet: stage 5 over stage 0", "≤", 1.02, results.ratio(stage5, stage0)),
        Target("BasicNet: stage 6 over stage 0", "≤", 1.02, results.ratio(stage6, stage0)),
        Target("Start of a program to its first step, slowest stage without torchrun", "≤", 1.0,
               slowest_start(results), " s"),
    ]


def targets_table(results: Results) -> Table:
    """Those that were measured."""
    return table_of("Targets", [one.cells() for one in targets(results) if one.here], [])


def speed_claim(results: Results) -> str:
    """Stage 0 against the fastest tuned Python of the record, else its twin; "" without either."""
    stage0, twin = (all_cpus(results, "basicnet", program) for program in (STAGES[0], TWINS[0]))
    tuned = fastest_tuned(results, stage0)
    faster = inverse(results.ratio(stage0, tuned or twin))
    if faster is None:
        return ""
    name = f"the fastest tuned Python program ({tuned.program})" if tuned else "its Python twin"
    return (f"BasicNet, fp32, {stage0.threads} threads: stage 0 trains "
            f"{faster.text(lambda value: f'{value:.2f}')} times as fast as {name}.")


def over_twin(results: Results, row: Row) -> Estimate | None:
    """How many times as fast as its twin a stage takes a step; None of one with other weights."""
    if is_wrong(results, row.setup):
        return None
    if row.key.kind == "slice":
        return inverse(results.ratio_to_twin(row.setup))
    return results.step_ratio(row.setup, twin_of(row.setup.program) or "")


STARTED_ALIKE = " with the same number of processes, threads and bits"


def twins_claim(results: Results) -> str:
    """The range of all stages against their own twins, by recipe; "" without any. Of the short runs
    where none was repeated."""
    setups = [setup for setup in results.beside_twins() if setup.program in STAGES]
    rows = [results.row("slice", setup) for setup in setups] or usual_rows(results)
    found = Series({row.setup: faster.value for row in rows
                    if (faster := over_twin(results, row))})
    ranges = [f"{values.min():.1f} to {values.max():.1f} times ({recipe})"
              for recipe, values in found.groupby(lambda setup: setup.recipe)]
    return (f"Each stage trains {' and '.join(ranges)} as fast as its Python twin"
            f"{STARTED_ALIKE}.") if ranges else ""


def headline(results: Results) -> str:
    """The answer in one sentence; "" where nothing compares."""
    twins, [equality] = twins_claim(results), summary(results)[:1] or [""]
    if twins and equality.startswith(ALL_EQUAL):
        return f"{ALL_EQUAL}, and {twins[0].lower()}{twins[1:].replace(STARTED_ALIKE, '')}"
    return equality or twins


class Claim(NamedTuple):
    what: str
    value: str
    setup: Setup  # of our program; the number of threads is not part of the claim
    write: Callable[[Row], str]


def seconds(row: Row) -> str:
    """What the program itself prints at its end, as the tutorials do."""
    elapsed = row.counter("total_seconds")
    return NOT_MEASURED if elapsed is None else f"{elapsed:.2f} s"


loss = partial(number, digits=4)
SINGLE = Setup("convnet", STAGES[0])
DDP_AMP = Setup(DDP_PRACTICE, STAGES[4], world=2, precision="bf16")
TRAINER = Setup(HF_DEFAULTS, STAGES[6])
CLAIMS = (
    Claim("ConvNet, 3 epochs with tests, 1 GPU: accuracy", "91.55 %", SINGLE, accuracy_text),
    Claim("ConvNet, 3 epochs with tests, 1 GPU: time", "22.72 s", SINGLE, seconds),
    Claim("ConvNet, 3 epochs with tests, 2 GPUs, DDP, 16 bits: accuracy", "89.21 %", DDP_AMP,
          accuracy_text),
    Claim("ConvNet, 3 epochs with tests, 2 GPUs, DDP, 16 bits: time", "30.82 s", DDP_AMP, seconds),
    Claim("BasicNet, Trainer: steps", "938", TRAINER, counter("steps", count)),
    Claim("Trainer: training loss, steps 1 to 500", "0.8757", TRAINER,
          counter("logged_loss", loss)),
    Claim("BasicNet, Trainer: validation loss", "0.2826", TRAINER, counter("eval_loss", loss)),
)


def whole_row(results: Results, wanted: Setup) -> Row | None:
    """The whole run with this set-up and the most threads."""
    rows = [row for row in results.of_kind("full") if replace(row.setup, threads=1) == wanted]
    return max(rows, key=lambda row: (not row.error, row.setup.threads), default=None)


def claim_cells(results: Results, claim: Claim) -> Cells:
    found = {"claim": claim.what, "tutorial": claim.value}
    ours = claim.setup.program
    for column, program in (("C++ here", ours), ("Python here", twin_of(ours))):
        row = whole_row(results, replace(claim.setup, program=program))
        [text] = cells(row, {column: claim.write}).values()
        found[column] = text if text == NOT_RUN else f"{text} ({program})"
    return found


def claims_table(results: Results) -> Table:
    """Without rows if none of the claims' rows was run."""
    rows = [claim_cells(results, claim) for claim in CLAIMS]
    rows = rows if any(row[where] != NOT_RUN for row in rows for where in list(row)[2:]) else []
    notes = ["The tutorials ran on GPUs, ours on the machine below. Time is what the program "
             "prints at its end. With two ranks each takes a batch of its own, as there: the "
             "updates are half as many; docs/reference/4-ddp-amp.md shows the cost, and the "
             "accuracy as a mean of three seeds. The Trainer has the defaults of transformers "
             "(--profile hf-defaults). Seeds and order of the images are not the tutorials'. An "
             "accuracy is the mean over the seeds, or of one run.",
             "The tutorial's run had SyncBatchNorm and 16 bits on two GPUs; here 16 bits are "
             "bfloat16, and PyTorch has no SyncBatchNorm on a CPU, so the twin goes without."]
    return table_of("Claims of the source tutorials", rows, notes)
